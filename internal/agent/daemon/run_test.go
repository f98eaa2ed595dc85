package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A daemon that cannot run the checks retries until it can, and warns of a reason once.
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
		tries = 0 // while it waits, it ends with ctx
		ctx, cancel = context.WithTimeout(t.Context(), checksRetry/2)
		defer cancel()
		d.serveChecks(ctx, func(context.Context, config.Agent) error { tries++; return errors.New("never") })
		if tries != 1 {
			t.Errorf("%d tries until the end: want 1", tries)
		}
	})
}

// A half that refuses its configuration at its first two starts, or a file at the very first one, ends the daemon. A half that panics does
// not, though its code equals that of a refusal on a terminal, nor does a half that refuses while the other half may be well.
func TestBadConfigEndsDaemon(t *testing.T) {
	const refused, file, panics = half.ExitRefused, half.ExitRefusedFile, half.ExitConfig
	for _, tc := range []struct {
		name   string
		codes  []int                  // of the first start, and of all later ones
		old    halfcore.RecoveryState // of the host half; 0: there is no history
		policy Restart
		last   int  // the code with which the daemon ends; 0: it runs on
		final  bool // a restart of the daemon cannot help
		slow   bool // the half takes longer than a second to read its configuration
	}{
		{"refused", []int{refused, refused}, 0, RestartAlways, refused, true, false},
		{"refused on a slow machine", []int{refused, refused}, 0, RestartAlways, refused, true, true},
		{"refused after a stop", []int{refused, refused}, halfcore.Stopped, RestartAlways, refused, true, false},
		{"refused while the file is rewritten", []int{refused, panics}, 0, RestartAlways, 0, false, false},
		{"refused, and then a file is", []int{refused, file}, 0, RestartAlways, file, false, false},
		{"refused, and not started again", []int{refused, panics}, 0, RestartNever, refused, false, false},
		{"a file is refused", []int{file, panics}, 0, RestartAlways, file, false, false},
		{"refused, and a daemon was killed", []int{refused, refused}, halfcore.Running, RestartAlways, 0, false, false},
		{"panics", []int{panics, refused}, 0, RestartAlways, 0, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := agenttest.NodeConfig(t)
			cfg.Recovery.Restarts = 1
			if err := half.MakeStateDir(cfg.StateDir); err != nil {
				t.Fatal(err)
			}
			if tc.old != 0 {
				d := &daemon{cfg: RunConfig{Agent: cfg}, log: slog.New(slog.DiscardHandler)}
				old := halfcore.RecoveryRecord{Half: fault.HalfHost, State: tc.old}
				if err := d.writeHistory(fault.HalfHost, halfcore.RecoveryHistory{Record: old}); err != nil {
					t.Fatal(err)
				}
			}
			program := filepath.Join(t.TempDir(), "halves")
			reads := "true"
			if tc.slow {
				reads = fmt.Sprintf("sleep %v", 1.2*settled.Seconds())
			}
			script := fmt.Sprintf("#!/bin/sh\n[ $1 = dnp ] || exec sleep 1000\n%s\n[ -e $0.begun ] && exit %d\n: > $0.begun\nexit %d\n",
				reads, tc.codes[1], tc.codes[0])
			if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, RunConfig{Agent: cfg, Program: program, Restart: tc.policy}, slog.New(slog.DiscardHandler))
			}()
			if tc.last != 0 {
				agenttest.Await(t, "the end of the daemon", func() bool { return len(done) > 0 })
				err := <-done
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("start the dnp half: it ended with code %d", tc.last)) {
					t.Errorf("%v", err)
				}
				if got := Final(err, cfg.StateDir, 0); got != tc.final {
					t.Errorf("%v: final %t, want %t", err, got, tc.final)
				}
				return
			}
			agenttest.Await(t, "the DNP half is given up", func() bool {
				h, err := ReadRecovery(cfg.StateDir, fault.HalfDNP)
				return err == nil && h != nil && h.Record.State == halfcore.GivenUp
			})
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the daemon has ended: %v", err)
			}
		})
	}
}

// A start that the machine cannot make is no restart: a budget of one restart lasts through any number of them, and the half runs as soon
// as the machine can start it.
func TestShortageSpendsNoBudget(t *testing.T) {
	for name, script := range map[string]string{
		"the program cannot be executed": "",
		"the half ends for a shortage":   fmt.Sprintf("[ -e $0.enough ] || exit %d\n", half.ExitShortage),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := agenttest.NodeConfig(t)
			cfg.Recovery.Restarts = 1
			program := filepath.Join(t.TempDir(), "halves")
			write := func(path string) {
				t.Helper()
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"exec sleep 1000\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if script != "" {
				write(program)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, RunConfig{Agent: cfg, Program: program, Restart: RestartAlways}, slog.New(slog.DiscardHandler))
			}()
			await := func(what string, is func(halfcore.RecoveryRecord) bool) {
				t.Helper()
				agenttest.Await(t, what, func() bool {
					h, err := ReadRecovery(cfg.StateDir, fault.HalfDNP)
					return err == nil && h != nil && is(h.Record)
				})
			}
			await("four starts that could not be made, and no restart", func(r halfcore.RecoveryRecord) bool {
				if r.State == halfcore.GivenUp || r.Restarts > 1 {
					t.Fatalf("%+v", r)
				}
				return r.Count(halfcore.NotStarted) >= 4 && r.Restarts == 0 && strings.HasPrefix(r.Reason, "could not be started")
			})
			write(map[bool]string{true: program, false: program + ".enough"}[script == ""])
			await("a process of the half", func(r halfcore.RecoveryRecord) bool { return r.PID != 0 && r.Last.Started != 0 })
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the daemon has ended: %v", err)
			}
		})
	}
}

// While both halves are given up, the daemon itself reports that to the supervisors, under the host half's certificate.
func TestDaemonReportsThatBothHalvesAreGivenUp(t *testing.T) {
	cfg := agenttest.NodeConfig(t)
	cfg.Recovery.Restarts = 1
	supervisor, err := net.ListenPacket("udp", cfg.Supervisors[0].Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = supervisor.Close() }()
	port, err := net.ListenPacket("udp", cfg.Service.Listen) // of a host half that is being started
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = port.Close() }()
	verifier, err := pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "halves")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := &daemon{cfg: RunConfig{Agent: cfg}, log: slog.New(slog.DiscardHandler)}
	if err := half.MakeStateDir(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	old := halfcore.RecoveryRecord{Half: fault.HalfHost, State: halfcore.Running} // the daemon goes on: ends at the first start do not end it
	if err := d.writeHistory(fault.HalfHost, halfcore.RecoveryHistory{Record: old}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, RunConfig{Agent: cfg, Program: program, Restart: RestartAlways}, slog.New(slog.DiscardHandler))
	}()
	if err := supervisor.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, servicenet.MaxDatagram)
	n, _, err := supervisor.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	r, err := servicenet.Unwrap(b[:n], fault.PathDirect, verifier)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.List) != 1 || r.List[0].Digest || r.List[0].ID.Origin != (fault.Origin{Node: cfg.Node, Half: fault.HalfHost}) {
		t.Fatalf("%+v", r)
	}
	for h, is := range map[string]*lofamov1.HalfHealth{"host": r.Health.Host, "dnp": r.Health.DNP} {
		const want = "next start after 1m0s: 1 restart within 1m0s, the last ended with code 1"
		if s := is.GetRecovery(); s.GetState() != lofamov1.RecoveryState_GIVEN_UP || s.GetReason() != want {
			t.Errorf("%s half: %v: want %q", h, s, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the daemon has ended: %v", err)
	}
}

// TestReportOfHalvesThatAreDownIsOfTheirPresentState: a half that has served meanwhile has a later epoch than the earlier report. Halves
// that the machine cannot start are reported as well.
func TestReportOfHalvesThatAreDownIsOfTheirPresentState(t *testing.T) {
	cfg := agenttest.NodeConfig(t)
	supervisor, err := net.ListenPacket("udp", cfg.Supervisors[0].Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = supervisor.Close() }()
	verifier, err := pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster)
	if err = errors.Join(err, half.MakeStateDir(cfg.StateDir), supervisor.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	cause := halfcore.Cause{Kind: halfcore.NotStarted, Detail: "no memory"}
	d := &daemon{cfg: RunConfig{Agent: cfg}, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1),
		halves:  map[fault.Half]*child{},
		givenUp: []byte("earlier")}
	for _, h := range d.cfg.halves() {
		d.halves[h] = &child{d: d, half: h, begun: true, record: halfcore.RecoveryRecord{Half: h, State: halfcore.Restarting, Budget: 5,
			Reason: cause.String(), Last: &halfcore.Recovery{Cause: cause, Attempt: 6}}}
	}
	d.changed <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.remind(ctx) }()
	defer func() { cancel(); <-done }()
	b := make([]byte, servicenet.MaxDatagram)
	n, _, err := supervisor.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	r, err := servicenet.Unwrap(b[:n], fault.PathDirect, verifier)
	if err != nil {
		t.Fatalf("given %.20q: %v", b[:n], err)
	}
	s := r.Health.Host.GetRecovery()
	if s.GetState() != lofamov1.RecoveryState_GIVEN_UP || s.GetReason() != "could not be started: no memory" {
		t.Errorf("%v: want given up, with the reason", s)
	}
}

// TestHalfWithProcessIsNotDown: only such halves are down that have no process, and are given up or could not be started for a while.
func TestHalfWithProcessIsNotDown(t *testing.T) {
	last := func(kind halfcore.CauseKind, attempt int) *halfcore.Recovery {
		return &halfcore.Recovery{Cause: halfcore.Cause{Kind: kind}, Attempt: attempt}
	}
	for name, tc := range map[string]struct {
		r    halfcore.RecoveryRecord
		want bool
	}{
		"given up":                  {halfcore.RecoveryRecord{State: halfcore.GivenUp}, true},
		"given up, cold start":      {halfcore.RecoveryRecord{State: halfcore.GivenUp, PID: 7}, false},
		"could not be started":      {halfcore.RecoveryRecord{State: halfcore.Restarting, Budget: 5, Last: last(halfcore.NotStarted, 6)}, true},
		"could not be started once": {halfcore.RecoveryRecord{State: halfcore.Restarting, Budget: 5, Last: last(halfcore.NotStarted, 1)}, false},
		"being restarted":           {halfcore.RecoveryRecord{State: halfcore.Restarting, Budget: 5, Last: last(halfcore.Killed, 6)}, false},
		"running":                   {halfcore.RecoveryRecord{State: halfcore.Running, Last: last(halfcore.NotStarted, 6)}, false},
	} {
		if got := isDown(tc.r); got != tc.want {
			t.Errorf("%s: down %v, want %v", name, got, tc.want)
		}
	}
}
