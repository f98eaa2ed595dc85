package ctl

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
)

// TestPlaceWaitsForKeys: a replica whose keys another container brings waits for all of them, and prints how long at
// most.
func TestPlaceWaitsForKeys(t *testing.T) {
	file := filepath.Join("..", "..", "deploy", "examples", "inventory.yaml")
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	dir, etc := t.TempDir(), filepath.Join(t.TempDir(), "etc")
	hall, keys := filepath.Join(dir, "hall"), filepath.Join(dir, "keys")
	if err := inventory.Open(hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	said, out := io.Pipe()
	defer func() { _ = said.Close() }()
	ended := make(chan int, 1)
	go func() {
		args := []string{"cluster", "place", file, "--supervisor", "0", "--keys", keys, "--etc", etc, "--wait", "1m"}
		ended <- Run(ctx, args, command.Env{Stdout: out, Stderr: out, Getenv: func(string) string { return "" }})
		_ = out.Close()
	}()
	lines := bufio.NewScanner(said)
	if !lines.Scan() || !strings.Contains(lines.Text(), "keys of s1: ") || !strings.HasSuffix(lines.Text(), "waiting for at most 1m") {
		t.Fatalf("printed %q: want the missing keys and the longest wait", lines.Text())
	}
	if err := os.CopyFS(keys+".new", os.DirFS(filepath.Join(hall, "supervisors", "s1"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(keys+".new", keys); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || !strings.HasSuffix(lines.Text(), "s1 is ready for lofamo-supervisor") {
		t.Errorf("it says %q: want that s1 is ready", lines.Text())
	}
	if code := <-ended; code != 0 {
		t.Errorf("it ends with %d", code)
	}
	for _, args := range [][]string{{"--wait", "500ms"}, {"--wait", "2h"}, {"--wait", "1m", "--follow", "1m"}} {
		got := run(t, nil, append([]string{"cluster", "place", file, "--supervisor", "0", "--keys", keys, "--etc", etc}, args...)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, "--wait: given ") {
			t.Errorf("%q: %+v: want a usage error", args, got)
		}
	}
}

// TestPlaceWaitsForSecondPair: with --second-pair, a replica waits for its second pair, but not for ever.
func TestPlaceWaitsForSecondPair(t *testing.T) {
	file := filepath.Join("..", "..", "deploy", "examples", "inventory.yaml")
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	hall, etc := filepath.Join(t.TempDir(), "hall"), filepath.Join(t.TempDir(), "etc")
	if err := inventory.Open(hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(hall, "supervisors", "s1")
	second := filepath.Join(keys, "pki", "supervisor-ecdsa.key")
	if err := os.Rename(second, second+".later"); err != nil {
		t.Fatal(err)
	}
	place := []string{"cluster", "place", file, "--supervisor", "0", "--keys", keys, "--etc", etc, "--second-pair"}
	if got := run(t, nil, place...); got.code != command.ExitUsage || !strings.Contains(got.stderr, "--second-pair: given without") {
		t.Errorf("without --wait: %+v: want a usage error", got)
	}
	got := run(t, nil, append(place, "--wait", "1s")...)
	if got.code != 0 || !strings.Contains(got.stdout, "supervisor-ecdsa.key: no such file") ||
		!strings.Contains(got.stdout, "waiting for at most 1s") ||
		!strings.Contains(got.stderr, "no second pair after 1s") || !strings.Contains(got.stdout, "s1 is ready") {
		t.Errorf("%+v: want a wait, a warning and a bundle without the pair", got)
	}
	if err := os.Rename(second+".later", second); err != nil {
		t.Fatal(err)
	}
	at := inventory.Placement{Keys: keys, Etc: etc}
	if _, err := inv.Renew(0, at); err == nil ||
		!strings.Contains(err.Error(), "has one, but the bundle in "+etc+" has none: place it again") {
		t.Errorf("a second pair that the bundle has not: %v", err)
	}
	if got := run(t, nil, append(place, "--wait", "1s")...); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v: want a bundle with the pair", got)
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	if _, err := inv.Renew(0, at); err == nil || !strings.Contains(err.Error(), keys+" has none: it is not renewed") {
		t.Errorf("a second pair without a source: %v", err)
	}
}
