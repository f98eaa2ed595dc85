package half

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// The first byte of a test message in the mailbox.
const (
	mailAsks byte = 1 // a probe, to be sent back
	mailEcho byte = 2 // a probe of the receiver's, sent back
)

// Prober carries the slow probes, those of the report path (two signatures) and of bulk, beside the half and without
// its mutex. Their results come back as events.
type Prober struct {
	c       *Common
	waiting chan selftest.Probe // room for one test of both modules; a probe that finds no room counts as not tested
	Seam    *Seam
}

// Seam lets tests intercept the traffic between a half and its modules. A running program has none.
type Seam struct {
	// Instead returns the data that a module gets in place of a probe, and after which delay.
	Instead func(of fault.Origin, m selftest.Module, data []byte) ([][]byte, time.Duration)
	// Began receives the new half's self-test results.
	Began func(of fault.Origin, results func() []selftest.Result)
}

// SeamKey is the context key of a test's seam between a half and its probes.
type SeamKey struct{}

// NewProber returns the prober of a half, which answers the probes of its self-test.
func NewProber(ctx context.Context, c *Common) *Prober {
	return &Prober{c: c, waiting: make(chan selftest.Probe, 2*selftest.MaxSlots), Seam: seamOf(ctx)}
}

// SelfTest is how the half tests itself.
func (c *Common) SelfTest() halfcore.SelfTestConfig {
	cfg := halfcore.SelfTestConfig{
		Interval: time.Duration(c.Config.SelfTest.Interval), IdleAfter: time.Duration(c.Config.SelfTest.IdleAfter),
	}
	of, h := GivenHealth()
	daemon := of == c.Half
	if c.Copy.File.Cold() == "" { // it resumes from an earlier incarnation
		cfg.Kept = c.Copy.File.Baselines()
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

// recovers reports whether a start, with the daemon's status r, ends a failure. A recovery that served already
// belongs to an earlier start.
func recovers(r *lofamov1.RecoveryStatus) bool { return r.GetAgeNs() > 0 && r.GetServingUs() == 0 }

// SaveTests stores the self-test's baselines for after a restart.
func (c *Common) SaveTests(baselines []byte) {
	c.Copy.Note(c.Log, c.Copy.File.StoreBaselines(baselines))
}

// Take accepts a probe, and reports whether there was room.
func (p *Prober) Take(probe selftest.Probe) bool {
	select {
	case p.waiting <- probe:
		return true
	default:
		return false
	}
}

// Run carries probes until ctx ends.
func (p *Prober) Run(ctx context.Context, tell func(selftest.Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case probe := <-p.waiting:
			began := time.Now()
			instead, after := p.Instead(probe.Module, probe.Data)
			time.Sleep(after)
			for _, data := range instead {
				back, err := p.carry(probe.Module.Kind, data)
				if err != nil {
					p.c.Log.Debug("self-test", "module", probe.Module.String(), "err", err)
					tell(selftest.Refused{Module: probe.Module, ID: probe.ID, Why: err.Error()})
					continue
				}
				tell(selftest.Returned{Module: probe.Module, Data: back, Took: time.Since(began)})
			}
		}
	}
}

// Instead returns a module's data for a probe, and its delay: the probe at once, except in tests.
func (p *Prober) Instead(m selftest.Module, data []byte) ([][]byte, time.Duration) {
	if p.Seam == nil {
		return [][]byte{data}, 0
	}
	return p.Seam.Instead(p.c.Origin(), m, data)
}

// Each gives a module its data for a probe, in tests perhaps later.
func (p *Prober) Each(m selftest.Module, data []byte, give func([]byte)) {
	instead, after := p.Instead(m, data)
	for _, b := range instead {
		if after == 0 {
			give(b)
		} else {
			time.AfterFunc(after, func() { give(b) })
		}
	}
}

// carry takes a probe through a module, and returns the module's output.
func (p *Prober) carry(k selftest.Kind, data []byte) ([]byte, error) {
	if k == selftest.Bulk {
		return ProbeBulk(p.c.Origin(), data)
	}
	return ProbeReport(p.c.Origin(), data, p.c.Signer, p.c.Verifier)
}

// sendTestMail puts a test message into the mailbox, once there is room.
func sendTestMail(box *mailbox.Box, echo bool, data []byte) {
	what := mailAsks
	if echo {
		what = mailEcho
	}
	box.SendSoon(mailbox.Message{Type: mailbox.Test, Payload: append([]byte{what}, data...)}) // lost: found by the test
}

// ProbeMail reads a test message.
func ProbeMail(m mailbox.Message) (echo bool, data []byte) {
	if len(m.Payload) == 0 {
		return false, nil
	}
	return m.Payload[0] == mailEcho, m.Payload[1:]
}

// ProbeMark is the prefix of a probe on the rails of the service network. Envelopes and chunks begin otherwise.
var ProbeMark = [...]byte{0, 'L', 'F', 'T'}

// Mail puts a test message into the mailbox.
func (p *Prober) Mail(box *mailbox.Box, echo bool, data []byte) {
	if echo {
		sendTestMail(box, echo, data)
		return
	}
	p.Each(selftest.Module{Kind: selftest.Mailbox}, data, func(b []byte) { sendTestMail(box, echo, b) })
}

// Loopback is where a socket of ours is reached from this machine.
func Loopback(local netip.AddrPort) netip.AddrPort {
	switch addr := local.Addr(); {
	case !addr.IsUnspecified():
		return local
	case addr.Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), local.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), local.Port())
}

// seamOf returns the tests' seam between a half and its modules.
func seamOf(ctx context.Context) *Seam { s, _ := ctx.Value(SeamKey{}).(*Seam); return s }

// Begin informs a test that the half begins.
func (p *Prober) Begin(results func() []selftest.Result) {
	if p.Seam != nil {
		p.Seam.Began(p.c.Origin(), results)
	}
}
