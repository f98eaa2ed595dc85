package main

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/examples/remediator/receiver"
)

// post signs and posts a message, and returns the outcome of the reply.
func post(t *testing.T, url string, secret []byte, message string) string {
	t.Helper()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	h := hmac.New(sha256.New, secret)
	fmt.Fprintf(h, "id.%s.%s", now, message)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Webhook-Id", "id")
	req.Header.Set("Webhook-Timestamp", now)
	req.Header.Set("Webhook-Signature", "v1,AAAA v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r receiver.Reply
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return resp.Status
	}
	return r.Outcome
}

// TestProgramRunsOncePerAction checks that the program runs once for each requested action, and that its exit code is the outcome.
func TestProgramRunsOncePerAction(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return f
	}
	secret := []byte(strings.Repeat("geheim", 5))
	secretFile := write("secret", "whsec_"+base64.StdEncoding.EncodeToString(secret))
	ran := filepath.Join(dir, "ran")
	program := write("program", "#!/bin/sh\necho \"$@ $LOFAMO_STATE\" >> "+ran+"\ncase $2 in busy) exit 75;; half) exit 1;; esac\n")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(w, nil)))
	t.Cleanup(func() { slog.SetDefault(was) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, []string{"-listen", "127.0.0.1:0", "-secrets", secretFile, "-state", filepath.Join(dir, "state"), "-run", program})
	}()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatal("no word of where it listens")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	_, addr, _ := strings.Cut(lines.Text(), "address=")
	if _, _, err := net.SplitHostPort(addr); err != nil {
		t.Fatalf("%q: %v", lines.Text(), err)
	}
	message := func(action, key, node string, attempt int) string {
		undoes := ""
		if action == "undo" {
			undoes, key = key, key+"/undo"
		}
		return fmt.Sprintf(
			`{"schema":%q,"action":%q,"idempotencyKey":%q,"undoes":%q,"cluster":"c","attempt":%d,"token":1,"target":{"node":%q,`+
				`"component":"host"},"fault":{"state":"FAILED"}}`,
			receiver.Schema, action, key, undoes, attempt, node)
	}
	for _, c := range []struct{ message, want string }{
		{message("do", "c/r/0", "n1", 1), "done"},
		{message("do", "c/r/0", "n1", 1), "done"},
		{message("do", "c/r/0", "n1", 2), "done"},
		{message("undo", "c/r/0", "n1", 3), "done"},
		{message("do", "c/r/0", "n1", 2), "stale"},
		{message("do", "c/r/1", "busy", 1), "unchanged"},
		{message("do", "c/r/2", "half", 1), "partly"},
		{message("status", "c/r/2", "half", 1), "partly"},
		{message("status", "c/r/3", "n1", 1), "none"},
		{message("explode", "c/r/3", "n1", 1), "unchanged"},
		{`{"schema":"other"}`, "422 Unprocessable Entity"},
	} {
		if got := post(t, "http://"+addr, secret, c.message); got != c.want {
			t.Errorf("%s: %s, want %s", c.message, got, c.want)
		}
	}
	if got := post(t, "http://"+addr, []byte("another secret, long enough"), message("do", "c/r/4", "n1", 1)); !strings.HasPrefix(got,
		"401 ") {
		t.Errorf("signed by another: %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(ran)
	if want := "do n1 host FAILED\nundo n1 host FAILED\ndo busy host FAILED\ndo half host FAILED\n"; err != nil || string(b) != want {
		t.Errorf("%q, %v", b, err)
	}
}

func TestRemediatorRefusesUnusableSecrets(t *testing.T) {
	short := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(short, []byte("whsec_AAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"no such file": {"-secrets", "/nonexistent", "-run", "true"},
		"at least 24":  {"-secrets", short, "-run", "true"},
	} {
		if err := serve(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
