package agent

import (
	"encoding/binary"
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

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/health"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/agent/tests"
)

// How a half fares is known in three places: the daemon counts its restarts and tells both halves (mailbox.Recovery, and
// the environment of a half that starts), the half itself knows how it went on and what its self-tests found, and tells
// the other one (mailbox.Health). Each half's machine says all of it with its digests.

// fares is what a half itself says of how it fares. It is under the half's mutex.
type fares struct {
	// results are those of the self-tests; nil: there are none.
	results func(now time.Time) []selftest.Result
	// resumption says how the half went on when it was started, and cold why it could not.
	resumption lofamov1.Resumption
	cold       string

	told   uint64 // words of what was last told
	tellAt time.Time
}

// own is what the half says of itself. Of its restarts it knows nothing.
func (f *fares) own(now time.Time) *lofamov1.HalfHealth {
	h := &lofamov1.HalfHealth{}
	if f.resumption != lofamov1.Resumption_RESUMPTION_UNSPECIFIED {
		h.Recovery = &lofamov1.RecoveryStatus{Resumption: f.resumption, Cold: f.cold}
	}
	if f.results != nil {
		h.Tests = health.Tests(f.results(now))
	}
	return h
}

// wentOn takes how the half went on when it was started: from its copy, or not, and why.
func (f *fares) wentOn(cold string) {
	f.resumption, f.cold = lofamov1.Resumption_RESUMED, health.Text(cold)
	if cold != "" {
		f.resumption = lofamov1.Resumption_COLD
	}
}

// look returns what the half says of itself, and whether the other half is to be told now: when it says something new,
// and every health.TellEvery.
func (f *fares) look(now time.Time) (h *lofamov1.HalfHealth, tell bool) {
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

// tellOther tells the other half, where it is there and has room. What is lost is told again.
func tellOther(box *mailbox.Box, h *lofamov1.HalfHealth) {
	if b, err := proto.Marshal(h); err == nil && len(b) <= mailbox.MaxPayload {
		_ = box.SendSpare(mailbox.Message{Type: mailbox.Health, Payload: b})
	}
}

// span is when a certificate begins and ends, in seconds since 1970.
type span struct{ begins, ends int64 }

// tellSpan tells the host half, which serves the metrics, when the DNP half's certificate ends and begins.
func (d *dnpHalf) tellSpan(now time.Time) {
	if now.Before(d.spanAt) {
		return
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(d.signer.Expires().Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(d.signer.Begins().Unix()))
	if d.box.SendSpare(mailbox.Message{Type: mailbox.Certificate, Payload: b}) == nil { // else the host half is not there yet
		d.spanAt = now.Add(time.Minute)
	}
}

// onSpan takes that message. A DNP half of an earlier version sends the end alone; other lengths are ignored.
func (h *hostHalf) onSpan(b []byte) {
	switch len(b) {
	case 8:
		h.dnpCert.Store(&span{ends: int64(binary.BigEndian.Uint64(b))})
	case 16:
		h.dnpCert.Store(&span{ends: int64(binary.BigEndian.Uint64(b)), begins: int64(binary.BigEndian.Uint64(b[8:]))})
	}
}

// heard reads what the daemon or the other half says; nil: nothing that could be understood.
func heard(m mailbox.Message, other fault.Half) (fault.Half, *lofamov1.HalfHealth) {
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
	return r.Half, &lofamov1.HalfHealth{Recovery: health.Recovery(r, monotonic())}
}

// given is what the daemon that started this half knew of it.
func given() (fault.Half, *lofamov1.HalfHealth) {
	return ofRecord([]byte(os.Getenv(recoveryEnv)))
}

// lookAtFares is called once a second.
func (h *hostHalf) lookAtFares(now time.Time) {
	h.noteWrong(h.page, h.readers.stuck(), h.core.SelfTest().Results(now))
	h.tellManager(h.core.Verdict(), h.core.SelfTest())
	own, tell := h.fares.look(now)
	if own == nil {
		return
	}
	if tell {
		tellOther(h.box, own)
	}
	h.do(now, h.core.Step(now, hostcore.Health{Half: fault.HalfHost, Health: own}))
}

func (d *dnpHalf) lookAtFares(now time.Time) {
	d.noteWrong(d.page, d.readers.stuck(), d.core.SelfTest().Results(now))
	d.tellManager(d.core.Verdict(), d.core.SelfTest())
	d.tellSpan(now)
	own, tell := d.fares.look(now)
	if own == nil {
		return
	}
	if tell {
		tellOther(d.box, own)
	}
	d.do(now, d.core.Step(now, dnpcore.Health{Half: fault.HalfDNP, Health: own}))
}

// tellManager tells the service manager of a half that is a service of its own how it fares.
func (c *common) tellManager(other watchdog.Verdict, m *selftest.Machine) {
	if c.manager == nil {
		return
	}
	words := c.half.String() + " half serves"
	if m.Proving() {
		words += ", and has been restarted"
	}
	if failing, _ := tests.Failing(m); len(failing) > 0 {
		words += "; " + strings.Join(failing, "; ")
	}
	c.manager.Status(fmt.Sprintf("%s; the %s half is %s", words, c.half.Other(), strings.ToLower(other.String())))
}

// noteProven tells the daemon, once, that the half has passed the self-test that follows a restart.
func (c *common) noteProven(p *page, proving bool) {
	if !proving && c.tests == "" {
		c.noteTests(p, regfile.Proven)
	}
}

// noteWrong tells the daemon when the self-test fails in what is this half's own alone, whatever others do, or a reader of its own is stuck: then a restart is
// likely to help. What is late only is not ended for it.
func (c *common) noteWrong(p *page, stuck string, results []selftest.Result) {
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

func (c *common) noteTests(p *page, what string) {
	if c.tests != what {
		c.tests = what
		p.note(p.file.NoteTests(what))
	}
}
