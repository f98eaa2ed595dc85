package dnp

import (
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
)

// carry sends a probe through a module within the DNP half.
func (d *dnpHalf) carry(p selftest.Probe) {
	if p.Module.Kind == selftest.Register {
		d.tests.Each(p.Module, p.Data, func(b []byte) {
			d.then(dnpcore.Test{Event: half.ProbeRegister(d.page.File, p, b)})
		})
	} else if !d.tests.Take(p) {
		d.then(dnpcore.Test{Event: selftest.Void{Module: p.Module, ID: p.ID}})
	}
}

// tellTests sends the self-test's findings to the host half before that half reads in the registers that there are any.
func (d *dnpHalf) tellTests(now time.Time) {
	if own, tell := d.halfStatus.Look(now); tell {
		half.TellOther(d.box, own)
	}
}

// sendTest puts a test message into the mailbox.
func (d *dnpHalf) sendTest(t dnpcore.TestMail) { d.tests.Mail(d.box, t.Echo, t.Data) }

// testFrame lets a test frame pass, except in tests that spoil it.
func (d *dnpHalf) testFrame(o *dnpcore.Outgoing) {
	if d.tests.Seam == nil || o.Frame.Type != torus.TypeTest {
		return
	}
	m := selftest.Module{Kind: selftest.Link, Index: uint8(o.Dir.Index())}
	instead, _ := d.tests.Instead(m, o.Frame.Payload)
	o.Frame.Payload = nil // lost where the link does not count it
	if len(instead) > 0 {
		o.Frame.Payload = instead[0]
	}
}

// testResults returns the current results of the self-test.
func (d *dnpHalf) testResults() []selftest.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.SelfTest().Results(time.Now())
}
