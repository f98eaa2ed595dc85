package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/agenttest"
	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/config"
)

// A daemon that cannot run the checks tries again until it can, and warns of a reason once.
func TestChecksAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := &daemon{log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		start, tries := time.Now(), 0
		go func() {
			time.Sleep(time.Hour)
			cancel()
		}()
		d.serveChecks(ctx, func(ctx context.Context, _ config.Agent) error {
			tries++
			switch {
			case tries < 4:
				return errors.New("another lofamo-agent")
			case tries == 4:
				return errors.New("accept")
			}
			if since := time.Since(start); since != 4*checksRetry {
				t.Errorf("the fifth try after %v", since)
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if n := strings.Count(log.String(), "level=WARN"); tries != 5 || n != 2 {
			t.Errorf("%d tries: want 5; %d warnings: want 2:\n%s", tries, n, log.String())
		}
		tries = 0 // and while it waits, it ends with ctx
		ctx, cancel = context.WithTimeout(t.Context(), checksRetry/2)
		defer cancel()
		d.serveChecks(ctx, func(context.Context, config.Agent) error { tries++; return errors.New("never") })
		if tries != 1 {
			t.Errorf("%d tries until the end: want 1", tries)
		}
	})
}

// A half that refuses its configuration at the first start of all ends the daemon. One that panics does not, with the same code
// as a refusal on a terminal has, nor one that refuses when the other half may be well.
func TestFirstStart(t *testing.T) {
	for _, tc := range []struct {
		name  string
		code  int
		old   recovery.State // of the host half; 0: there is no history
		fails bool
	}{
		{"refused", ExitRefused, 0, true},
		{"refused after a stop", ExitRefused, recovery.Stopped, true},
		{"refused, and a daemon was killed", ExitRefused, recovery.Running, false},
		{"panics", ExitConfig, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := agenttest.NodeConfig(t)
			cfg.Recovery.Restarts = 1
			if err := makeStateDir(cfg.StateDir); err != nil {
				t.Fatal(err)
			}
			if tc.old != 0 {
				d := &daemon{cfg: RunConfig{Agent: cfg}, log: slog.New(slog.DiscardHandler)}
				d.keepHistory(fault.HalfHost, recovery.History{Record: recovery.Record{Half: fault.HalfHost, State: tc.old}})
			}
			program := filepath.Join(t.TempDir(), "halves")
			script := fmt.Sprintf("#!/bin/sh\n[ $1 = dnp ] && exit %d\nexec sleep 1000\n", tc.code)
			if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, RunConfig{Agent: cfg, Program: program, Restart: RestartAlways}, slog.New(slog.DiscardHandler))
			}()
			if tc.fails {
				if err := <-done; err == nil || !strings.Contains(err.Error(), "start the dnp half: it ended with code 78") {
					t.Errorf("%v", err)
				}
				return
			}
			agenttest.Await(t, "the DNP half is given up", func() bool {
				h, err := ReadRecovery(cfg.StateDir, fault.HalfDNP)
				return err == nil && h != nil && h.Record.State == recovery.GivenUp
			})
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the daemon has ended: %v", err)
			}
		})
	}
}

func TestStateDirectoryOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	if err := makeStateDir(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if err := makeStateDir(dir); err != nil {
		t.Errorf("its own: %v", err)
	}
	for _, m := range []os.FileMode{0o770, 0o707, 0o777} {
		if err := os.Chmod(dir, m); err != nil {
			t.Fatal(err)
		}
		if err := makeStateDir(dir); err == nil || !strings.Contains(err.Error(), "others may write") {
			t.Errorf("mode %o: %v", m, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, 4711, -1); err != nil {
			t.Fatal(err)
		}
		if err := makeStateDir(dir); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
			t.Errorf("another's: %v", err)
		}
	}
}

// The control sockets are the owner's alone, take the place of a dead one's socket, and of nothing
// else.
func TestControlSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "lofamo-") // short: socket addresses hold 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, RunSocket)
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := serveUnix(t.Context(), path, http.NotFoundHandler()); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("a file in the way: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- serveUnix(ctx, path, http.NotFoundHandler()) }()
		agenttest.Await(t, "a socket that somebody serves", func() bool {
			c, err := net.Dial("unix", path)
			return err == nil && c.Close() == nil
		})
		if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v: want a socket of mode 0600", info.Mode(), err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		leaveSocket(t, path)
	}
}

// leaveSocket leaves the socket of a process that was killed.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
