package half

import (
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// Three processes know a half's health. The daemon counts its restarts and tells both halves (mailbox.Recovery, and
// the environment of a half that starts). The half itself knows how it resumed and the results of its self-tests, and
// tells the other half (mailbox.Health). Each half's machine sends all of these with its digests.

// Status is a half's report of its own health. The half's mutex guards it.
type Status struct {
	// results are those of the self-tests; nil: there are none.
	Results func(now time.Time) []selftest.Result
	// Processor returns the half's processor time; nil: nothing to report.
	Processor func() *lofamov1.ProcessorTime
	// NotRealtime adds to the report that the process lacks real-time scheduling.
	NotRealtime bool
	// resumption is how the half resumed when it started, and Cold why it could not.
	resumption lofamov1.Resumption
	Cold       string

	told   uint64 // hash of the last report
	tellAt time.Time
}

// own returns the half's report of itself. It does not cover restarts, which only the daemon knows.
func (f *Status) own(now time.Time) *lofamov1.HalfHealth {
	h := &lofamov1.HalfHealth{}
	if f.resumption != lofamov1.Resumption_RESUMPTION_UNSPECIFIED {
		h.Recovery = &lofamov1.RecoveryStatus{Resumption: f.resumption, Cold: f.Cold}
	}
	if f.Results != nil {
		h.Tests = halfcore.SelfTestStatuses(f.Results(now))
	}
	if f.Processor != nil {
		h.Processor = f.Processor()
	}
	if f.NotRealtime {
		if h.Processor == nil {
			h.Processor = &lofamov1.ProcessorTime{}
		}
		h.Processor.NotRealtime = true
	}
	return h
}

// WentOn records how the half started: resumed from its copy, or cold for the given reason.
func (f *Status) WentOn(cold string) {
	f.resumption, f.Cold = lofamov1.Resumption_RESUMED, halfcore.CleanText(cold)
	if cold != "" {
		f.resumption = lofamov1.Resumption_COLD
	}
}

// Look returns the half's report of itself, and whether to send it to the other half now: when it has changed, and
// every halfcore.HealthRepeat.
func (f *Status) Look(now time.Time) (h *lofamov1.HalfHealth, tell bool) {
	h = f.own(now)
	if h.GetRecovery() == nil && len(h.GetTests()) == 0 && h.GetProcessor() == nil {
		return nil, false
	}
	words := servicenet.Health{Host: h}.Words()
	if tell = words != f.told || !now.Before(f.tellAt); tell {
		f.told, f.tellAt = words, now.Add(halfcore.HealthRepeat)
	}
	return h, tell
}

// TellOther sends the report to the other half, if that is there and has room. A later report replaces a lost one.
func TellOther(box *mailbox.Box, h *lofamov1.HalfHealth) {
	if b, err := proto.Marshal(h); err == nil && len(b) <= mailbox.MaxPayload {
		_ = box.SendSpare(mailbox.Message{Type: mailbox.Health, Payload: b})
	}
}

// Validity is when a certificate begins and ends, in seconds since 1970.
type Validity struct{ Begins, Ends int64 }

// HeardHealth decodes a health message from the daemon or the other half; nil if it is invalid.
func HeardHealth(m mailbox.Message, other fault.Half) (fault.Half, *lofamov1.HalfHealth) {
	if m.Type == mailbox.Recovery {
		return ofRecord(m.Payload)
	}
	h := &lofamov1.HalfHealth{}
	if err := proto.Unmarshal(m.Payload, h); err != nil || servicenet.CheckHalfHealth(h) != nil {
		return 0, nil
	}
	return other, h
}

// ofRecord reads a record of the daemon's.
func ofRecord(b []byte) (fault.Half, *lofamov1.HalfHealth) {
	r, err := halfcore.DecodeRecovery(b)
	if err != nil {
		return 0, nil
	}
	return r.Half, &lofamov1.HalfHealth{Recovery: halfcore.RecoveryStatus(r, Monotonic()), LastBoot: r.LastBoot.Status(),
		HardwareWatchdog: r.Watchdog.Status()}
}

// GivenHealth returns the daemon's record of this half from the time it started it.
func GivenHealth() (fault.Half, *lofamov1.HalfHealth) {
	return ofRecord([]byte(os.Getenv(RecoveryEnv)))
}

// TellManager reports the half's health to the service manager, if the half is a service of its own.
func (c *Common) TellManager(other watchdog.Verdict, m *selftest.Machine) {
	if c.Manager == nil {
		return
	}
	words := c.Half.String() + " half serves"
	if m.Proving() {
		words += ", and has been restarted"
	}
	if failing, _ := halfcore.FailingModules(m); len(failing) > 0 {
		words += "; " + strings.Join(failing, "; ")
	}
	c.Manager.Status(fmt.Sprintf("%s; the %s half is %s", words, c.Half.Other(), strings.ToLower(other.String())))
}

// NoteProven tells the daemon, once, that the half has passed the self-test that follows a restart.
func (c *Common) NoteProven(p *Page, proving bool) {
	if !proving && c.tests == "" {
		c.noteTests(p, regfile.Proven)
	}
}

// NoteWrong tells the daemon when a restart is likely to help. That is the case if the self-test fails in a module of
// this half alone, whatever others do, or if one of its readers is stuck. A module that is only late is no reason to
// end the half.
func (c *Common) NoteWrong(p *Page, stuck string, results []selftest.Result) {
	what := stuck
	for i := range results {
		r := &results[i]
		switch r.Module.Kind {
		case selftest.Reports, selftest.Bulk, selftest.Register:
			if r.State == selftest.Failed && r.Fault != selftest.Late && what == "" {
				what = r.Name + ": " + r.Why
			}
		default:
		}
	}
	switch {
	case what != "":
		c.noteTests(p, what)
	case c.tests != "" && c.tests != regfile.Proven:
		c.noteTests(p, regfile.Proven)
	}
}

func (c *Common) noteTests(p *Page, what string) {
	if c.tests != what {
		c.tests = what
		p.noteTests(what)
	}
}
