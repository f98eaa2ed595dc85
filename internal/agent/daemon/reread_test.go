package daemon

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/config"
)

// A daemon refuses a restart for each change that it can take only with both halves, or only at its own start.
func TestRestartIsRefusedForKeysOfDaemon(t *testing.T) {
	misses := 5
	for _, tc := range []struct {
		want string // in the refusal; empty: none
		edit func(*config.Agent)
	}{
		{"", func(*config.Agent) {}},
		{"", func(c *config.Agent) { c.Responses.RestartHalf, c.Log.Level = true, "debug" }},
		{"in preset or periods:", func(c *config.Agent) { c.Preset = config.PresetFast }},
		{"in preset or periods:", func(c *config.Agent) { c.Periods = &config.PeriodsOverride{ReadMisses: &misses} }},
		{"in preset or periods and window:", func(c *config.Agent) { c.Preset, c.Window.Listen = config.PresetFast, "[fe80::1]:1" }},
		{"in recovery:", func(c *config.Agent) { c.Recovery.Restarts++ }},
		{"in hardwareWatchdog:", func(c *config.Agent) { c.HardwareWatchdog.Device = "/dev/watchdog0" }},
	} {
		cfg := config.DefaultAgent()
		d := &daemon{cfg: RunConfig{Agent: cfg}}
		tc.edit(&cfg)
		switch err := d.refusal(cfg); {
		case tc.want == "" && err != nil:
			t.Errorf("%v: want no refusal", err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%v: want %q", err, tc.want)
		}
	}
}

// Reading the configuration again ends in time even if the disk hangs, and each attempt starts no further read. A half that a person
// restarts then starts with the configuration that was checked before.
func TestHungDiskDelaysNoReread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, reads := make(chan struct{}), atomic.Int32{}
		d := &daemon{log: slog.New(slog.DiscardHandler), reading: make(chan struct{}, 1), rechecked: make(chan struct{}, 1),
			cfg: RunConfig{Agent: config.DefaultAgent(), Reread: func() (config.Agent, error) {
				reads.Add(1)
				<-hung
				return config.Agent{}, nil
			}}}
		for range 3 {
			start := time.Now()
			if _, err := d.readAgain(time.Second); err == nil || time.Since(start) != time.Second {
				t.Errorf("%v after %s: want an error after 1s", err, time.Since(start))
			}
		}
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads: want 1", n)
		}
		c, checked := &child{d: d, half: fault.HalfHost, log: d.log}, config.DefaultAgent()
		checked.Responses.RestartHalf = true
		c.checked.Store(&checked)
		if c.reread(); !d.present().Responses.RestartHalf {
			t.Error("the responses of the checked configuration do not count")
		}
		close(hung)
	})
}

// Allowed acts follow the configuration. When limits of the frequency become allowed, the runner records the frequencies, as at its start.
func TestAllowedActsFollowConfiguration(t *testing.T) {
	w := newActionWorld(t, func(c *ActionRunnerConfig) { c.Allowed = config.ResponsesConfig{RestartHalf: true} })
	limit := func(percent string) actions.Status {
		return w.make(w.order(actions.KindLimitFrequency, map[string]string{"percent": percent}))
	}
	w.want(limit("60"), actions.Unchanged, "does not allow node.limit-frequency")
	w.Allow(fault.HalfHost, config.ResponsesConfig{LimitFrequency: true, LowestFrequency: 50})
	w.Wait()
	if !w.noticed {
		t.Error("the frequencies were not recorded")
	}
	w.want(limit("40"), actions.Unchanged, "allows 50 to 100")
	w.want(limit("60"), actions.Done, "limited")
	w.Allow(fault.HalfHost, config.ResponsesConfig{})
	if s := w.Ask(&actions.Order{Kind: actions.KindLimitFrequency, Ask: true}); len(s.Allowed) > 0 {
		t.Errorf("allowed: %v", s.Allowed)
	}
}
