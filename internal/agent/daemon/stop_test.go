package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/attempts"
)

// TestStopReasonFollowsSystemd: the files of systemd tell a reboot and a shutdown from a stop of the agent.
func TestStopReasonFollowsSystemd(t *testing.T) {
	later := time.Now().Add(12 * time.Hour).UnixMicro() // the agent restarts in the morning, and the machine goes down in the evening
	for name, tc := range map[string]struct {
		scheduled string
		noLogin   bool
		want      fault.Stop
	}{
		"nothing":          {want: fault.StopDaemon},
		"reboot":           {scheduled: "USEC=1\nWARN_WALL=1\nMODE=reboot\n", want: fault.StopReboot},
		"soft reboot":      {scheduled: "USEC=1\nMODE=soft-reboot\n", want: fault.StopReboot},
		"reboot later":     {scheduled: fmt.Sprintf("USEC=%d\nMODE=reboot\n", later), want: fault.StopDaemon},
		"power off later":  {scheduled: fmt.Sprintf("USEC=%d\nMODE=poweroff\n", later), want: fault.StopDaemon},
		"no time":          {scheduled: "MODE=poweroff\n", want: fault.StopDaemon},
		"power off":        {scheduled: "USEC=1\nMODE=poweroff\n", noLogin: true, want: fault.StopShutdown},
		"rehearsal":        {scheduled: "USEC=1\nMODE=dry-reboot\n", want: fault.StopDaemon},
		"no login":         {noLogin: true, want: fault.StopShutdown},
		"garbage":          {scheduled: "\x00\xff MODE=reboot", want: fault.StopDaemon},
		"garbage, closing": {scheduled: "\x00", noLogin: true, want: fault.StopShutdown},
	} {
		dir := t.TempDir()
		at := shutdownAt{scheduled: filepath.Join(dir, "scheduled"), noLogin: filepath.Join(dir, "nologin")}
		if tc.scheduled != "" {
			if err := os.WriteFile(at.scheduled, []byte(tc.scheduled), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if tc.noLogin {
			if err := os.WriteFile(at.noLogin, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := stopReason(t.Context(), at, false); got != tc.want {
			t.Errorf("%s: %s: want %s", name, got, tc.want)
		}
		leaves := tc.want == fault.StopShutdown && tc.scheduled == "USEC=1\nMODE=poweroff\n"
		if got := stopReason(t.Context(), at, true); leaves != (got == fault.StopLeave) {
			t.Errorf("%s: %s: want a leave %v, only if the machine certainly stays off", name, got, leaves)
		}
	}
}

// TestSystemdTellsOfShutdown: `systemctl reboot` ends the agent before any file shows the shutdown, so the jobs of systemd count. A node
// leaves at a shutdown, and not at a reboot.
func TestSystemdTellsOfShutdown(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const stops = "  7 lofamo-agent.service stop running\n"
	for jobs, want := range map[string][2]fault.Stop{
		stops + " 12 poweroff.target start waiting\n": {fault.StopShutdown, fault.StopLeave},
		stops + " 12 halt.target start waiting\n":     {fault.StopShutdown, fault.StopLeave},
		stops + " 12 reboot.target start waiting\n":   {fault.StopReboot, fault.StopReboot},
		stops + " 12 kexec.target start waiting\n":    {fault.StopReboot, fault.StopReboot},
		stops:                               {fault.StopDaemon, fault.StopDaemon},
		"1 multi-user.target start waiting": {fault.StopDaemon, fault.StopDaemon},
		"garbage\x00":                       {fault.StopDaemon, fault.StopDaemon},
	} {
		script := "#!/bin/sh\ncat <<'E'\n" + jobs + "\nE\n"
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		for i, leave := range []bool{false, true} {
			// systemctl gets little time, which a busy machine may use up to start it.
			attempts.One(t, 5, fmt.Sprintf("jobs %q, leave %v: want %s", jobs, leave, want[i]), func() bool {
				return stopReason(t.Context(), shutdownAt{systemd: dir}, leave) == want[i]
			})
		}
		if got := stopReason(t.Context(), shutdownAt{}, true); got != fault.StopDaemon {
			t.Errorf("without systemd: %s: want %s", got, fault.StopDaemon)
		}
	}
}

// TestDaemonOfOneHalfStopsNodeOnlyWithTheOther: the end of one half's daemon is no stop of the node, unless the machine goes down
// or the other half's daemon ends too.
func TestDaemonOfOneHalfStopsNodeOnlyWithTheOther(t *testing.T) {
	dir := t.TempDir()
	of := func(h fault.Half) *daemon {
		return &daemon{cfg: RunConfig{Half: h, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
	}
	host, dnp := of(fault.HalfHost), of(fault.HalfDNP)
	if !of(0).nodeStops(t.Context(), fault.StopDaemon) || !dnp.nodeStops(t.Context(), fault.StopReboot) {
		t.Error("the daemon of both halves, or the machine, goes down: want a stop of the node")
	}
	if dnp.nodeStops(t.Context(), fault.StopDaemon) {
		t.Error("the DNP half's daemon stops alone: want no stop of the node")
	}
	// Each daemon waits only briefly for the other, so on a busy machine one attempt may fail.
	attempts.One(t, 5, "both daemons stop: a stop of the node", func() bool {
		defer func() { // the daemons end, and others start
			for _, d := range []*daemon{host, dnp} {
				_ = d.stopLock.Close()
			}
		}()
		_ = dnp.stopLock.Close()
		both := make(chan bool, 1)
		go func() { both <- dnp.nodeStops(t.Context(), fault.StopDaemon) }()
		here := host.nodeStops(t.Context(), fault.StopDaemon)
		return <-both && here
	})
}

// TestStopBeyondWindowIsAnnouncedAsRestart: when the machine of the DNP half goes down, the host half on another kernel learns by the
// mailbox that the DNP half restarts. Nothing confirms that, so it does not count as committed. No end of a restart follows.
func TestStopBeyondWindowIsAnnouncedAsRestart(t *testing.T) {
	d, write, received := beyondWindow(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.announceStop(t.Context(), fault.StopReboot)
	}()
	writeUntil(done, write)
	d.announceReturn(t.Context())           // of its own start: too late
	d.endNotice(t.Context(), fault.HalfDNP) // of an earlier restart: too late
	agenttest.Await(t, "the notices", func() bool { return len(received()) >= throughNotices })
	for _, within := range received() {
		if within != restartWithin {
			t.Errorf("notice for %s: want %s", within, restartWithin)
		}
	}
	if d.announced.Load() {
		t.Error("the notice counts as committed")
	}
}

// beyondWindow returns a daemon of a DNP half whose host half has another kernel. write writes the host half's watchdog word, as the window
// does. received returns the announced restart time of each notice that has arrived; 0 is the end of the restart.
func beyondWindow(t *testing.T) (d *daemon, write func(), received func() []time.Duration) {
	t.Helper()
	dir := t.TempDir()
	box, err := mailbox.Open(dir, fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Close() })
	host, err := regfile.Open(filepath.Join(dir, half.RegisterFile), fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	d = &daemon{cfg: RunConfig{Half: fault.HalfDNP, Agent: config.Agent{StateDir: dir, Window: config.WindowConfig{Listen: "[fe80::1]:1"}}},
		log: slog.New(slog.DiscardHandler)}
	write = func() {
		if err := host.StoreHost(watchdog.HostWord{}); err != nil {
			t.Error(err)
		}
	}
	var mu sync.Mutex
	var all []time.Duration
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		_ = box.Run(t.Context(), func(m mailbox.Message) {
			within, err := half.ReadRestart(m.Payload)
			if m.Type != mailbox.Restart || err != nil {
				t.Errorf("%s: %v", m.Type, err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, within)
		})
	}()
	return d, write, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// writeUntil writes the host half's watchdog word again and again until done is closed.
func writeUntil(done <-chan struct{}, write func()) {
	for {
		write()
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestRestartBeyondWindowIsAnnouncedToReturningHostHalf: the host half on the other kernel is away when the DNP half's daemon ends, and
// serves again later. It gets the notice then.
func TestRestartBeyondWindowIsAnnouncedToReturningHostHalf(t *testing.T) {
	d, write, received := beyondWindow(t)
	done := make(chan struct{})
	go func() { defer close(done); d.announceStop(t.Context(), fault.StopReboot) }()
	// A daemon that did not wait for the host half would send throughNotices, and no more.
	agenttest.Await(t, "the daemon to wait", func() bool { return len(received()) > throughNotices })
	early := len(received())
	writeUntil(done, write)
	agenttest.Await(t, "notices after the return", func() bool { return len(received()) >= early+throughNotices-1 })
}

// TestNoticeOfStopBeyondWindowIsTheLastOne: the host half on the other kernel is away, so the daemon repeats the end of a restart. Then
// the daemon begins to stop. It sends no end of the restart after the notice of the stop.
func TestNoticeOfStopBeyondWindowIsTheLastOne(t *testing.T) {
	d, _, received := beyondWindow(t)
	done := make(chan struct{})
	go func() { defer close(done); d.endNotice(t.Context(), fault.HalfDNP) }()
	agenttest.Await(t, "the end of the restart", func() bool { return len(received()) > 0 })
	d.announceStop(t.Context(), fault.StopReboot)
	<-done
	last := mailbox.Message{Type: mailbox.Restart, Payload: half.AppendRestart(nil, fault.MaxRestart)}
	if err := mailbox.Tell(d.cfg.Agent.StateDir, fault.HalfHost, last); err != nil {
		t.Fatal(err)
	}
	agenttest.Await(t, "the last message", func() bool { all := received(); return all[len(all)-1] == fault.MaxRestart })
	all := received()
	if before := all[len(all)-2]; before != restartWithin {
		t.Errorf("the last notice is for %s: want %s; all: %v", before, restartWithin, all)
	}
	if first := slices.Index(all, restartWithin); slices.Contains(all[first:], 0) {
		t.Errorf("an end of a restart follows the notice of the stop: %v", all)
	}
}

// TestReturnBeyondWindowFailsUntilHostHalfServes: while the host half on the other kernel is away, tellReturn returns an error, so the
// daemon tries again. Once the host half serves, throughNotices notices are enough.
func TestReturnBeyondWindowFailsUntilHostHalfServes(t *testing.T) {
	d, write, received := beyondWindow(t)
	if err := d.tellReturn(t.Context()); err == nil {
		t.Error("the host half is away: want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { writeUntil(ctx.Done(), write) })
	before := len(received())
	// A try has little time, which a busy machine may use up.
	attempts.One(t, 5, "the host half serves: no error", func() bool { return d.tellReturn(t.Context()) == nil })
	cancel()
	writing.Wait()
	agenttest.Await(t, "the notices", func() bool { return len(received()) >= before+throughNotices })
	for _, within := range received() {
		if within != 0 {
			t.Errorf("notice for %s: want the end of the restart", within)
		}
	}
}

// TestNoReturnFollowsStop: a daemon that must stop before it has announced its return announces only the stop. A return after the
// stop would make the supervisors take the stop as over. If the daemon is already announcing the return, the stop follows it.
func TestNoReturnFollowsStop(t *testing.T) {
	for name, announcing := range map[string]bool{"return not announced yet": false, "return being announced": true} {
		t.Run(name, func(t *testing.T) {
			dir := agenttest.Dir(t)
			d := &daemon{cfg: RunConfig{Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
			notices, begun, release := make(chan fault.Stop, 2), make(chan bool), make(chan bool)
			defer serveStatus(t, dir, local.StatusHandler(nil, nil, func(_ context.Context, s fault.Stop) error {
				if s == fault.StopOver {
					begun <- true
					<-release
				}
				notices <- s
				return nil
			}))()
			next := func() fault.Stop {
				select {
				case s := <-notices:
					return s
				case <-time.After(10 * time.Second):
					t.Fatal("no notice")
				}
				return 0
			}
			returned := make(chan struct{})
			if !announcing {
				d.announceStop(t.Context(), fault.StopReboot)
				go func() { defer close(returned); d.announceReturn(t.Context()) }()
				select {
				case <-begun:
					close(release)
					t.Error("a return is announced after the stop")
				case <-returned:
				}
				if got := next(); got != fault.StopReboot {
					t.Errorf("notice: %s", got)
				}
				return
			}
			asked := time.Now()
			go func() { defer close(returned); d.announceReturn(t.Context()) }()
			<-begun
			gaveUp := func() bool { return time.Since(asked) > returnWithin } // on a busy machine the return may time out, and the stop comes first
			stopped := make(chan struct{})
			go func() { defer close(stopped); d.announceStop(t.Context(), fault.StopReboot) }()
			select {
			case s := <-notices:
				if !gaveUp() {
					t.Errorf("%s overtakes the return", s)
				}
				notices <- s // next reads it below
			case <-time.After(returnWithin / 5): // long enough for a notice that does not wait
			}
			close(release)
			if first, second := next(), next(); !gaveUp() && (first != fault.StopOver || second != fault.StopReboot) {
				t.Errorf("notices %s, %s: want the return and then the stop", first, second)
			}
			<-returned
			<-stopped
		})
	}
}

// dnpDaemon returns a daemon of the DNP half alone. serve answers restart notices as the host half of the same state directory does,
// until end.
func dnpDaemon(t *testing.T) (d *daemon, serve func(announce func(context.Context, fault.RestartNotice) error) (end func())) {
	t.Helper()
	dir := agenttest.Dir(t)
	d = &daemon{cfg: RunConfig{Half: fault.HalfDNP, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
	return d, func(announce func(context.Context, fault.RestartNotice) error) func() {
		return serveStatus(t, dir, local.StatusHandler(nil, announce, nil))
	}
}

// serveStatus answers the daemon as the host half of a state directory does, until end.
func serveStatus(t *testing.T, dir string, handler http.Handler) (end func()) {
	t.Helper()
	l, err := half.ListenUnix(t.Context(), filepath.Join(dir, local.StatusSocket))
	if err != nil {
		t.Fatal(err)
	}
	srv, done := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}, make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	return func() { _ = srv.Close(); <-done }
}

// TestRestartIsAnnouncedByNextHostHalf: two daemons, one for each half, are replaced at once. If the host half ends before the
// supervisors have committed the restart of the DNP half, the DNP half's daemon asks the host half that takes over.
func TestRestartIsAnnouncedByNextHostHalf(t *testing.T) {
	d, serve := dnpDaemon(t)
	asked := make(chan fault.RestartNotice, 2)
	endOld := serve(func(ctx context.Context, n fault.RestartNotice) error {
		asked <- n
		<-ctx.Done() // never committed
		return ctx.Err()
	})
	committed := make(chan bool, 1)
	go func() { committed <- d.announce(t.Context(), fault.HalfDNP, announceWithin) }()
	want := fault.RestartNotice{Half: fault.HalfDNP, Within: restartWithin}
	if got := <-asked; got != want {
		t.Errorf("the first host half announces %+v: want %+v", got, want)
	}
	endOld()
	defer serve(func(_ context.Context, n fault.RestartNotice) error {
		asked <- n
		return nil
	})()
	if !<-committed {
		t.Fatal("the next host half announced nothing: want the restart of the DNP half")
	}
	if got := <-asked; got != want {
		t.Errorf("the next host half announces %+v: want %+v", got, want)
	}
}

// TestRefusedRestartNoticeIsNotRepeated: the daemon takes a refusal as final, and stops asking when its context ends.
func TestRefusedRestartNoticeIsNotRepeated(t *testing.T) {
	d, serve := dnpDaemon(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if d.announce(ended, fault.HalfDNP, announceWithin) {
		t.Error("without a host half: committed")
	}
	times := 0
	end := serve(func(context.Context, fault.RestartNotice) error {
		times++
		return errors.New("no supervisor has committed the notice")
	})
	if d.announce(t.Context(), fault.HalfDNP, announceWithin) {
		t.Error("refused: committed")
	}
	if end(); times != 1 {
		t.Errorf("asked %d times: want 1", times)
	}
}

// TestReturnWaitsForTakeoverOfOtherHalf: the daemons of both halves are replaced at the same time, and the host half's old daemon ends
// last. The old host half has passed its self-tests. Still, the DNP half's new daemon announces no return: it would end the notice of the
// host half's restart.
func TestReturnWaitsForTakeoverOfOtherHalf(t *testing.T) {
	d := &daemon{cfg: RunConfig{Half: fault.HalfDNP, Agent: config.Agent{StateDir: t.TempDir()}}, log: slog.New(slog.DiscardHandler)}
	start := func() *regfile.File {
		t.Helper()
		f, err := regfile.Open(d.statePath(half.RegisterFile), fault.HalfHost)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	pass := func(f *regfile.File) {
		t.Helper()
		if err := f.NoteTests(regfile.Proven); err != nil {
			t.Fatal(err)
		}
	}
	want := func(proven bool, when string) {
		t.Helper()
		if got := d.proven(); got != proven {
			t.Errorf("%s: proven %t: want %t", when, got, proven)
		}
	}
	old := start()
	want(false, "the host half starts")
	pass(old)
	want(true, "the host half has passed its self-tests")
	waiting, err := lockAlone(d.statePath(awaitedLock(fault.HalfHost)), "run")
	if err != nil {
		t.Fatal(err)
	}
	want(false, "the next daemon of the host half waits")
	if err := errors.Join(old.Close(), waiting.Close()); err != nil {
		t.Fatal(err)
	}
	want(false, "no host half runs")
	next := start()
	defer func() { _ = next.Close() }()
	want(false, "the next host half starts")
	pass(next)
	want(true, "the next host half has passed its self-tests")
}

// TestTakeoverWaitsForNewLeader: the supervisors are replaced together with the agents, so the commit of a restart notice takes longer
// than announceWithin. If another daemon waits to take over, the old one waits for the commit. Otherwise it would end its half before the
// supervisors know of the restart.
func TestTakeoverWaitsForNewLeader(t *testing.T) {
	d, serve := dnpDaemon(t)
	waiting, err := lockAlone(d.statePath(awaitedLock(fault.HalfDNP)), "run")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	asked := make(chan fault.RestartNotice, 1)
	defer serve(func(ctx context.Context, n fault.RestartNotice) error {
		asked <- n
		select {
		case <-time.After(announceWithin + time.Second): // the supervisors have no leader
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})()
	d.announceStop(t.Context(), fault.StopDaemon)
	if n := <-asked; !d.announced.Load() || n.Half != fault.HalfDNP {
		t.Errorf("announced %+v, committed %t: want the restart of the DNP half, committed", n, d.announced.Load())
	}
}

// TestTakeoverAnnouncesBothHalves: the daemon of both halves announces both restarts at once. The second announcement does not wait for the
// commit of the first one.
func TestTakeoverAnnouncesBothHalves(t *testing.T) {
	d, serve := dnpDaemon(t)
	d.cfg.Half = 0
	for _, h := range d.cfg.halves() {
		waiting, err := lockAlone(d.statePath(awaitedLock(h)), "run")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = waiting.Close() }()
	}
	var both sync.WaitGroup
	both.Add(2)
	defer serve(func(context.Context, fault.RestartNotice) error {
		both.Done()
		both.Wait() // no commit before both are announced
		return nil
	})()
	ctx, cancel := context.WithTimeout(t.Context(), takeOverWithin)
	defer cancel()
	if d.announceStop(ctx, fault.StopDaemon); !d.announced.Load() {
		t.Error("want both restarts announced and committed")
	}
}

// TestReturnSparesRestartOfStoppingOtherHalf: the units of the two halves are restarted one after the other. The daemon of the DNP half
// stops when the host half has just passed its self-tests. The host half's daemon then ends only the notice of the host half.
func TestReturnSparesRestartOfStoppingOtherHalf(t *testing.T) {
	dir := agenttest.Dir(t)
	of := func(h fault.Half) *daemon {
		return &daemon{cfg: RunConfig{Half: h, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
	}
	host, dnp := of(fault.HalfHost), of(fault.HalfDNP)
	f, err := regfile.Open(host.statePath(half.RegisterFile), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.NoteTests(regfile.Proven); err != nil || !host.proven() {
		t.Fatalf("proven %t, %v", host.proven(), err)
	}
	if dnp.nodeStops(t.Context(), fault.StopDaemon) {
		t.Fatal("the DNP half's daemon stops alone: want no stop of the node")
	}
	defer func() { _ = dnp.stopLock.Close() }()
	said := make(chan any, 10)
	defer serveStatus(t, dir, local.StatusHandler(nil, func(_ context.Context, n fault.RestartNotice) error {
		said <- n
		return nil
	}, func(_ context.Context, s fault.Stop) error {
		said <- s
		return nil
	}))()
	if host.proven() {
		t.Error("the DNP half is about to end: want no proof")
	}
	// A try has little time, which a busy machine may use up.
	attempts.One(t, 5, "the notice is answered", func() bool { return host.tellReturn(t.Context()) == nil })
	if got, want := <-said, any(fault.RestartNotice{Half: fault.HalfHost}); got != want {
		t.Errorf("announced %+v: want %+v", got, want)
	}
}

// TestLateReturnWaitsForHalfThatRestarts: the first try to announce the return fails, and a half restarts before the next one. The daemon
// announces the return only after that half has passed its self-tests again, because the return ends the notice of the restart.
func TestLateReturnWaitsForHalfThatRestarts(t *testing.T) {
	dir := agenttest.Dir(t)
	d := &daemon{cfg: RunConfig{Half: fault.HalfHost, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
	f, err := regfile.Open(d.statePath(half.RegisterFile), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	tests := func(result string) {
		if err := f.NoteTests(result); err != nil {
			t.Error(err)
		}
	}
	tests(regfile.Proven)
	var tries atomic.Int32
	said := make(chan bool, 10) // whether the half had passed
	defer serveStatus(t, dir, local.StatusHandler(nil, nil, func(context.Context, fault.Stop) error {
		if tries.Add(1) == 1 {
			tests("") // the half restarts
			return errors.New("not now")
		}
		said <- d.proven()
		return nil
	}))()
	done := make(chan struct{})
	go func() { defer close(done); d.announceReturn(t.Context()) }()
	select {
	case <-said:
		t.Error("the return is announced while the half restarts")
	case <-time.After(2 * returnRetry):
	}
	tests(regfile.Proven)
	<-done
	if !<-said {
		t.Error("the return is announced before the half has passed its self-tests")
	}
}

// TestEarlyTakeoverEndsOnlyItsOwnNotice: the old daemon of the host half has crashed, so the new one took over early. If the new daemon of
// the DNP half still waits, the host half's daemon ends only the host half's notice: the DNP half may have announced its restart.
func TestEarlyTakeoverEndsOnlyItsOwnNotice(t *testing.T) {
	for want, waits := range map[any]bool{fault.RestartNotice{Half: fault.HalfHost}: true, fault.StopOver: false} {
		dir := agenttest.Dir(t)
		d := &daemon{cfg: RunConfig{Half: fault.HalfHost, Agent: config.Agent{StateDir: dir}}, log: slog.New(slog.DiscardHandler)}
		said := make(chan any, 10)
		end := serveStatus(t, dir, local.StatusHandler(nil, func(_ context.Context, n fault.RestartNotice) error {
			said <- n
			return nil
		}, func(_ context.Context, s fault.Stop) error {
			said <- s
			return nil
		}))
		if waits {
			waiting, err := lockAlone(d.statePath(awaitedLock(fault.HalfDNP)), "run")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = waiting.Close() }()
		}
		// A try has little time, which a busy machine may use up.
		attempts.One(t, 5, "the notice is answered", func() bool { return d.tellReturn(t.Context()) == nil })
		if got := <-said; got != want {
			t.Errorf("the DNP half's new daemon waits: %t: announced %+v: want %+v", waits, got, want)
		}
		end()
	}
}
