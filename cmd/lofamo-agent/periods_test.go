package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// withPeriods returns a configuration with other watchdog periods.
func withPeriods(c config.Agent, tWrite, tRead time.Duration, misses int) config.Agent {
	w, r := config.Duration(tWrite), config.Duration(tRead)
	c.Periods = &config.PeriodsOverride{TWrite: &w, TRead: &r, ReadMisses: &misses}
	return c
}

// awaitStores waits until a half has stored its word n times, and returns the time that took.
func awaitStores(t *testing.T, c config.Agent, h fault.Half, n uint32) time.Duration {
	t.Helper()
	f, err := regfile.OpenReadOnly(filepath.Join(c.StateDir, "registers"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	first, err := f.Progress(h)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	await(t, "the half stores its word", time.Millisecond, func() (any, bool) {
		now, err := f.Progress(h)
		if err != nil {
			t.Fatal(err)
		}
		return now, now-first >= n
	})
	return time.Since(start)
}

// A restart changes no periods, because the daemon and the other half would judge the restarted half by the old ones. The command says
// so and restarts nothing.
func TestRestartCommandRefusesOtherPeriods(t *testing.T) {
	c := node(t)
	startDaemon(t, c)
	before := map[fault.Half]int{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		before[h] = awaitRecord(t, c, h, "it runs", runs).PID
	}
	relaxed := c
	relaxed.Preset = config.PresetRelaxed
	for _, next := range []config.Agent{withPeriods(c, 2*time.Second, 4*time.Second, 16), relaxed} {
		var out bytes.Buffer
		code := execute(t.Context(), []string{"restart", "--config", write(t, next, "")}, nil, &out, &out)
		if code != 1 || !strings.Contains(out.String(), "preset or periods") || !strings.Contains(out.String(), "systemctl restart") {
			t.Errorf("%d, %s", code, out.String())
		}
	}
	for h, pid := range before {
		if r := awaitRecord(t, c, h, "it runs", runs); r.PID != pid || r.Restarts != 0 {
			t.Errorf("the %s half: %+v after process %d", h, r, pid)
		}
	}
}

// A half that its daemon starts again after a crash keeps the daemon's periods, even if its file has slower ones. With those, it would be
// silent for too long, and the daemon would end it until it is given up.
func TestCrashedHalfKeepsPeriodsOfDaemon(t *testing.T) {
	c := node(t)
	startDaemon(t, c)
	awaitRecord(t, c, fault.HalfHost, "it runs", runs)
	pid := awaitRecord(t, c, fault.HalfDNP, "it runs", runs).PID
	write(t, withPeriods(c, 5*time.Second, 10*time.Second, 16), "")
	signalTo(t, pid, syscall.SIGKILL)
	r := awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pid })
	if took := awaitStores(t, c, fault.HalfDNP, 8); took > 20*time.Second {
		t.Errorf("8 words in %s: want 200 ms", took)
	}
	if now := awaitRecord(t, c, fault.HalfDNP, "it runs", runs); now.PID != r.PID || now.Restarts != 1 {
		t.Errorf("%+v: want process %d and 1 restart", now, r.PID)
	}
}

// A daemon whose file has faster periods than the halves that it adopts keeps theirs, and passes them to a half that it starts. New
// periods come with a start of both halves.
func TestAdoptedHalvesKeepTheirPeriods(t *testing.T) {
	c := withPeriods(node(t), time.Second, 2*time.Second, 16)
	fast := withPeriods(c, 20*time.Millisecond, 40*time.Millisecond, 0)
	d := startDaemon(t, c)
	pids := map[fault.Half]int{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		pids[h] = awaitRecord(t, c, h, "it runs", runs).PID
	}
	d.kill()
	d = startDaemon(t, fast)
	for h, pid := range pids {
		awaitStores(t, c, h, 3)
		if r := awaitRecord(t, c, h, "it runs", runs); r.PID != pid || r.Total != 0 {
			t.Errorf("the %s half: %+v after process %d", h, r, pid)
		}
	}
	signalTo(t, pids[fault.HalfDNP], syscall.SIGKILL)
	awaitRecord(t, c, fault.HalfDNP, "it runs again", func(r halfcore.RecoveryRecord) bool { return runs(r) && r.PID != pids[fault.HalfDNP] })
	if took := awaitStores(t, c, fault.HalfDNP, 4); took < time.Second {
		t.Errorf("4 words in %s: want 3 s", took)
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	startDaemon(t, withPeriods(c, 20*time.Millisecond, 40*time.Millisecond, 16))
	awaitRecord(t, c, fault.HalfDNP, "it runs", runs)
	if took := awaitStores(t, c, fault.HalfDNP, 20); took > 10*time.Second {
		t.Errorf("20 words in %s after a start of both halves: want 400 ms", took)
	}
}
