package ctl

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

func bundlePiece(data string) *lofamov1.GetBundleResponse {
	return &lofamov1.GetBundleResponse{Data: []byte(data)}
}

func bundleProgress(received uint64, via string, complete bool) *lofamov1.GetBundleResponse {
	return &lofamov1.GetBundleResponse{Progress: &lofamov1.BundleProgress{
		Name: "n1-0-1-host-20240506T120000Z.tar.gz", Size: 8, Received: received, Via: via, Complete: complete, Repeated: received / 2,
	}}
}

// goodBundle changes its path and starts again before it is complete.
func goodBundle() *clienttest.Bundle {
	return &clienttest.Bundle{Responses: []*lofamov1.GetBundleResponse{
		bundleProgress(0, "direct", false), bundlePiece("void"), bundleProgress(4, "n0-0-1", false), bundleProgress(0, "n0-0-1", false),
		bundlePiece("abc"), bundlePiece("defgh"), bundleProgress(8, "n0-0-1", true),
	}}
}

// inDir runs a test in an empty directory, and returns a function that lists its files at the end.
func inDir(t *testing.T) func() string {
	t.Helper()
	t.Chdir(t.TempDir())
	return func() string {
		t.Helper()
		entries, err := os.ReadDir(".")
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			b, err := os.ReadFile(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Name()+"="+string(b))
		}
		return strings.Join(out, " ")
	}
}

func TestBundle(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	files := inDir(t)
	b := goodBundle()
	r.Server.ServeBundle(b)
	got := run(t, nil, r.Flags("bundle", "1,0,1")...)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
	}
	ctltest.Golden(t, "bundle.txt", got.stdout)
	if f := files(); f != "n1-0-1-host-20240506T120000Z.tar.gz=abcdefgh" {
		t.Error(f)
	}
	if b.Asked.GetNode() != "1,0,1" || b.Asked.GetHalf() != "host" || b.Asked.GetMaxBytes() != 64<<20 {
		t.Errorf("asked for %v", b.Asked)
	}
	// The file exists now.
	if got := run(t, nil, r.Flags("bundle", "1,0,1")...); got.code != command.ExitUsage ||
		!strings.Contains(got.stderr, "already exists: --force overwrites it") {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	if got := run(t, nil, r.Flags("bundle", "1,0,1", "--force", "--half", "dnp", "--max-bytes", "70000")...); got.code != 0 ||
		b.Asked.GetHalf() != "dnp" || b.Asked.GetMaxBytes() != 70000 {
		t.Errorf("exit code %d, stderr %q, asked for %v", got.code, got.stderr, b.Asked)
	}
	if f := files(); f != "n1-0-1-host-20240506T120000Z.tar.gz=abcdefgh" {
		t.Error(f)
	}
}

func TestBundleToStdout(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	files := inDir(t)
	b := goodBundle()
	b.Responses = b.Responses[3:]
	r.Server.ServeBundle(b)
	got := run(t, nil, r.Flags("bundle", "1,0,1", "-o", "-")...)
	if got.code != 0 || got.stdout != "abcdefgh" {
		t.Errorf("exit code %d, stdout %q", got.code, got.stdout)
	}
	ctltest.Golden(t, "bundle-stdout.txt", got.stderr)
	r.Server.ServeBundle(goodBundle())
	got = run(t, nil, r.Flags("bundle", "1,0,1", "-o", "-")...)
	if got.code != command.ExitFailure || !strings.Contains(got.stderr, "restarted after 4 bytes") {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
	if f := files(); f != "" {
		t.Error(f)
	}
}

// TestBundleFails: a failure leaves no new file, and keeps existing ones.
func TestBundleFails(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	files := inDir(t)
	if err := os.WriteFile("mine", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := goodBundle()
	outside.Responses[6].GetProgress().Name = ".."
	chosen := goodBundle()
	chosen.Responses[6].GetProgress().Name = "mine"
	hostile := goodBundle()
	hostile.Responses[6].GetProgress().Name = "a\x1b[2J.tar.gz"
	short := goodBundle()
	short.Responses = append(short.Responses[:5], bundleProgress(3, "direct", true))
	miscounted := goodBundle()
	miscounted.Responses = append(miscounted.Responses[:5], bundleProgress(7, "direct", false))
	for _, tc := range []struct {
		name   string
		args   []string
		bundle *clienttest.Bundle
		code   int
		want   string
	}{
		{"unreachable", []string{"1,0,1"}, &clienttest.Bundle{Responses: goodBundle().Responses[:2], Err: status.Error(codes.Unavailable,
			"nothing for 30s by any of 7 ways"), Failed: true}, command.ExitFailure, "bundle of node 1,0,1: nothing for 30s"},
		{"unknown", []string{"9,9,9"}, &clienttest.Bundle{Err: status.Error(codes.NotFound, "no such node")}, command.ExitUsage, "no such node"},
		{"not allowed", []string{"1,0,1"}, &clienttest.Bundle{Err: status.Error(codes.PermissionDenied, "role viewer may not call it")},
			command.ExitFailure, "may not call it"},
		{"lost", []string{"1,0,1", "--force", "-o", "mine"}, &clienttest.Bundle{Responses: goodBundle().Responses[:2],
			Err: status.Error(codes.DataLoss, "crc32c differs"), Failed: true}, command.ExitFailure, "crc32c differs"},
		{"a name that leads elsewhere", []string{"1,0,1"}, outside, command.ExitFailure, `calls the bundle "..": give a name by -o`},
		{"the name of another file", []string{"1,0,1", "--force"}, chosen, command.ExitFailure, `calls the bundle "mine": give a name by -o`},
		{"a name for the terminal", []string{"1,0,1"}, hostile, command.ExitFailure, `calls the bundle "a\x1b[2J.tar.gz": give a name by -o`},
		{"short", []string{"1,0,1"}, short, command.ExitFailure, "8 bytes were announced, 3 have arrived"},
		{"miscounted", []string{"1,0,1"}, miscounted, command.ExitFailure, "counts 7 bytes, 3 have arrived"},
		{"is there", []string{"1,0,1", "-o", "mine"}, goodBundle(), command.ExitUsage, "-o mine: already exists"},
		{"a directory", []string{"1,0,1", "--force", "-o", "."}, goodBundle(), command.ExitUsage, "exists, and is no regular file"},
		{"no such directory", []string{"1,0,1", "-o", "no/such"}, goodBundle(), command.ExitFailure, "no such file or directory"},
	} {
		r.Server.ServeBundle(tc.bundle)
		got := run(t, nil, r.Flags(append([]string{"bundle"}, tc.args...)...)...)
		if got.code != tc.code || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("%s: exit code %d, stderr %q, want %d and %q", tc.name, got.code, got.stderr, tc.code, tc.want)
		}
		if f := files(); f != "mine=old" {
			t.Errorf("%s: %s", tc.name, f)
		}
	}
}

// TestBundleProgress: on a terminal one line is rewritten and removed at the end.
func TestBundleProgress(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	inDir(t)
	r.Server.ServeBundle(goodBundle())
	at := ctltest.Now
	var out, errOut bytes.Buffer
	code := Run(context.Background(), r.Flags("bundle", "1,0,1"), command.Env{
		Stdout: &out, Stderr: &errOut, ErrTerminal: true, Getenv: func(string) string { return "" }, Location: time.UTC, TryTimeout: tryTimeout,
		Now: func() time.Time { at = at.Add(time.Second); return at },
	})
	if code != 0 {
		t.Fatalf("exit code %d, stderr %q", code, errOut.String())
	}
	ctltest.Golden(t, "bundle-progress.txt", strings.ReplaceAll(errOut.String(), "\r", "\\r\n")+"\n")
}
