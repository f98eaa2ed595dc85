package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestLeaveCommandAnnouncesThatNodeLeaves: the command succeeds only when the host half says that the supervisors have committed the
// notice.
func TestLeaveCommandAnnouncesThatNodeLeaves(t *testing.T) {
	c := node(t)
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := write(t, c, "")
	leave := func() (code int, out string) {
		var b bytes.Buffer
		code = execute(t.Context(), []string{"leave", "--config", file}, nil, &b, &b)
		return code, b.String()
	}
	if code, out := leave(); code != 1 || !strings.Contains(out, "leave") {
		t.Errorf("without a host half: exit code %d, %s", code, out)
	}
	var got []fault.Stop
	var refuse error
	l, err := net.Listen("unix", filepath.Join(c.StateDir, local.StatusSocket))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: local.StatusHandler(nil, nil, func(_ context.Context, s fault.Stop) error {
		got = append(got, s)
		return refuse
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	defer func() { _ = srv.Close(); <-done }()
	if code, out := leave(); code != 0 || len(got) != 1 || got[0] != fault.StopLeave ||
		!strings.Contains(out, "have this node's notice") {
		t.Errorf("exit code %d, notices %v, %s: want a leave", code, got, out)
	}
	refuse = errors.New("no supervisor answers")
	if code, out := leave(); code != 1 || !strings.Contains(out, refuse.Error()) {
		t.Errorf("exit code %d, %s: want the refusal", code, out)
	}
}
