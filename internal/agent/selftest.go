package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"

	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/probes"
	"github.com/lofamo/lofamo/internal/agent/tests"
)

// The first byte of a test message in the mailbox.
const (
	mailAsks byte = 1 // a probe, to be sent back
	mailEcho byte = 2 // a probe of the receiver's, sent back
)

// prober carries the probes that take their time, those of the report path (two signatures) and of bulk, beside the
// half and without its mutex. What becomes of them comes back as an event.
type prober struct {
	c       *common
	waiting chan selftest.Probe // a test of both modules; what has no room was not tested
	seam    *seam
}

// seam lets tests put themselves between a half and its modules. There is none in a running program.
type seam struct {
	// instead says what a module gets instead of a probe, and after how long.
	instead func(of fault.Origin, m selftest.Module, data []byte) ([][]byte, time.Duration)
	// began is told how the results of a half are had that begins.
	began func(of fault.Origin, results func() []selftest.Result)
}

type seamKey struct{}

func newProber(ctx context.Context, c *common) *prober {
	return &prober{c: c, waiting: make(chan selftest.Probe, 2*selftest.MaxSlots), seam: seamOf(ctx)}
}

// selfTest is how the half tests itself.
func (c *common) selfTest() tests.Config {
	cfg := tests.Config{
		Interval: time.Duration(c.cfg.SelfTest.Interval), IdleAfter: time.Duration(c.cfg.SelfTest.IdleAfter),
	}
	of, h := given()
	daemon := of == c.half
	if c.copy.file.Cold() == "" { // it goes on where an earlier life was
		cfg.Kept = c.copy.file.Baselines()
		// A daemon tells which starts follow a failure. Without a daemon, any start may follow one.
		cfg.Prove = !daemon
	}
	if daemon && recovers(h.GetRecovery()) {
		cfg.Prove = true
	}
	var first [8]byte
	_, _ = rand.Read(first[:]) // never fails
	cfg.First = binary.BigEndian.Uint64(first[:])
	return cfg
}

// recovers reports whether a start, of which its daemon says r, ends a failure. A recovery that served already belongs to an earlier start.
func recovers(r *lofamov1.RecoveryStatus) bool { return r.GetAgeNs() > 0 && r.GetServingUs() == 0 }

// saveTests keeps what the self-test has to have after a restart.
func (c *common) saveTests(baselines []byte) {
	c.copy.note(c.log, c.copy.file.StoreBaselines(baselines))
}

// take takes a probe, and says whether there is room for it.
func (p *prober) take(probe selftest.Probe) bool {
	select {
	case p.waiting <- probe:
		return true
	default:
		return false
	}
}

// run carries probes until ctx ends.
func (p *prober) run(ctx context.Context, tell func(selftest.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case probe := <-p.waiting:
			began := time.Now()
			instead, after := p.instead(probe.Module, probe.Data)
			time.Sleep(after)
			for _, data := range instead {
				back, err := p.carry(probe.Module.Kind, data)
				if err != nil {
					p.c.log.Debug("self-test", "module", probe.Module.String(), "err", err)
					tell(selftest.Refused{Module: probe.Module, ID: probe.ID, Why: err.Error()})
					continue
				}
				tell(selftest.Returned{Module: probe.Module, Data: back, Took: time.Since(began)})
			}
		}
	}
}

// instead is what a module gets for a probe, and when: the probe now, but in tests.
func (p *prober) instead(m selftest.Module, data []byte) ([][]byte, time.Duration) {
	if p.seam == nil {
		return [][]byte{data}, 0
	}
	return p.seam.instead(p.c.self(), m, data)
}

// each gives to a module what it gets for a probe, in tests perhaps later.
func (p *prober) each(m selftest.Module, data []byte, give func([]byte)) {
	instead, after := p.instead(m, data)
	for _, b := range instead {
		if after == 0 {
			give(b)
		} else {
			time.AfterFunc(after, func() { give(b) })
		}
	}
}

// carry takes a probe through a module, and returns what comes out of it.
func (p *prober) carry(k selftest.Kind, data []byte) ([]byte, error) {
	if k == selftest.Bulk {
		return probes.Bulk(p.c.self(), data)
	}
	return probes.Report(p.c.self(), data, p.c.signer, p.c.verifier)
}

// sendTestMail puts a test message into the mailbox, once there is room for it.
func sendTestMail(box *mailbox.Box, echo bool, data []byte) {
	what := mailAsks
	if echo {
		what = mailEcho
	}
	box.SendSoon(mailbox.Message{Type: mailbox.Test, Payload: append([]byte{what}, data...)}) // lost: found by the test
}

// testMail reads a test message.
func testMail(m mailbox.Message) (echo bool, data []byte) {
	if len(m.Payload) == 0 {
		return false, nil
	}
	return m.Payload[0] == mailEcho, m.Payload[1:]
}
