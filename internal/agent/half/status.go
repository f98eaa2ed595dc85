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

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/health"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/selftestconfig"
)

// How a half fares is known in three places: the daemon counts its restarts and tells both halves (mailbox.Recovery, and
// the environment of a half that starts), the half itself knows how it went on and what its self-tests found, and tells
// the other one (mailbox.Health). Each half's machine says all of it with its digests.

// Status is what a half itself says of how it fares. It is under the half's mutex.
type Status struct {
	// results are those of the self-tests; nil: there are none.
	Results func(now time.Time) []selftest.Result
	// resumption says how the half went on when it was started, and cold why it could not.
	resumption lofamov1.Resumption
	Cold       string

	told   uint64 // words of what was last told
	tellAt time.Time
}

// own is what the half says of itself. Of its restarts it knows nothing.
func (f *Status) own(now time.Time) *lofamov1.HalfHealth {
	h := &lofamov1.HalfHealth{}
	if f.resumption != lofamov1.Resumption_RESUMPTION_UNSPECIFIED {
		h.Recovery = &lofamov1.RecoveryStatus{Resumption: f.resumption, Cold: f.Cold}
	}
	if f.Results != nil {
		h.Tests = health.Tests(f.Results(now))
	}
	return h
}

// WentOn takes how the half went on when it was started: from its copy, or not, and why.
func (f *Status) WentOn(cold string) {
	f.resumption, f.Cold = lofamov1.Resumption_RESUMED, health.Text(cold)
	if cold != "" {
		f.resumption = lofamov1.Resumption_COLD
	}
}

// Look returns what the half says of itself, and whether the other half is to be told now: when it says something new,
// and every health.TellEvery.
func (f *Status) Look(now time.Time) (h *lofamov1.HalfHealth, tell bool) {
	h = f.own(now)
	if h.GetRecovery() == nil && len(h.GetTests()) == 0 {
		return nil, false
	}
	words := servicenet.Health{Host: h}.Words()
	if tell = words != f.told || !now.Before(f.tellAt); tell {
		f.told, f.tellAt = words, now.Add(health.TellEvery)
	}
	return h, tell
}

// TellOther tells the other half, where it is there and has room. What is lost is told again.
func TellOther(box *mailbox.Box, h *lofamov1.HalfHealth) {
	if b, err := proto.Marshal(h); err == nil && len(b) <= mailbox.MaxPayload {
		_ = box.SendSpare(mailbox.Message{Type: mailbox.Health, Payload: b})
	}
}

// Validity is when a certificate begins and ends, in seconds since 1970.
type Validity struct{ Begins, Ends int64 }

// HeardHealth reads what the daemon or the other half says; nil: nothing that could be understood.
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
	r, err := recovery.Decode(b)
	if err != nil {
		return 0, nil
	}
	return r.Half, &lofamov1.HalfHealth{Recovery: health.Recovery(r, Monotonic())}
}

// GivenHealth is what the daemon that started this half knew of it.
func GivenHealth() (fault.Half, *lofamov1.HalfHealth) {
	return ofRecord([]byte(os.Getenv(RecoveryEnv)))
}

// TellManager tells the service manager of a half that is a service of its own how it fares.
func (c *Common) TellManager(other watchdog.Verdict, m *selftest.Machine) {
	if c.Manager == nil {
		return
	}
	words := c.Half.String() + " half serves"
	if m.Proving() {
		words += ", and has been restarted"
	}
	if failing, _ := selftestconfig.Failing(m); len(failing) > 0 {
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

// NoteWrong tells the daemon when the self-test fails in what is this half's own alone, whatever others do, or a reader of its own is stuck: then a restart is
// likely to help. What is late only is not ended for it.
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
		p.note(p.File.NoteTests(what))
	}
}
