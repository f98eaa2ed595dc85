package agent

import (
	"bytes"
	"context"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/probes"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// testMark begins a probe on the rails of the service network. No envelope begins so, and no chunk.
var testMark = [...]byte{0, 'L', 'F', 'T'}

// carry gives a probe to a module within the DNP half.
func (d *dnpHalf) carry(now time.Time, p selftest.Probe) {
	if p.Module.Kind == selftest.Register {
		d.tests.each(p.Module, p.Data, func(b []byte) {
			d.do(now, d.core.Step(now, dnpcore.Test{Event: probes.Register(d.page.file, p, b)}))
		})
	} else if !d.tests.take(p) {
		d.do(now, d.core.Step(now, dnpcore.Test{Event: selftest.Void{Module: p.Module, ID: p.ID}}))
	}
}

// tellTests tells the host half what the self-test found before it reads in the registers that it found something.
func (d *dnpHalf) tellTests(now time.Time) {
	if own, tell := d.fares.look(now); tell {
		tellOther(d.box, own)
	}
}

// sendTest puts a test message into the mailbox.
func (d *dnpHalf) sendTest(t dnpcore.TestMail) { d.tests.mail(d.box, t.Echo, t.Data) }

// testFrame lets a test frame pass, but in tests.
func (d *dnpHalf) testFrame(o *dnpcore.Outgoing) {
	if d.tests.seam == nil || o.Frame.Type != torus.TypeTest {
		return
	}
	m := selftest.Module{Kind: selftest.Link, Index: uint8(o.Dir.Index())}
	instead, _ := d.tests.instead(m, o.Frame.Payload)
	o.Frame.Payload = nil // lost behind the link's own count
	if len(instead) > 0 {
		o.Frame.Payload = instead[0]
	}
}

// mail puts a test message into the mailbox.
func (p *prober) mail(box *mailbox.Box, echo bool, data []byte) {
	if echo {
		sendTestMail(box, echo, data)
		return
	}
	p.each(selftest.Module{Kind: selftest.Mailbox}, data, func(b []byte) { sendTestMail(box, echo, b) })
}

// carry gives a probe to a module of the host half, and returns what is known of it at once.
func (h *hostHalf) carry(p selftest.Probe) (known []selftest.Event) {
	sent := true
	switch p.Module.Kind {
	case selftest.Register:
		h.tests.each(p.Module, p.Data, func(b []byte) { known = append(known, probes.Register(h.page.file, p, b)) })
	case selftest.Direct:
		sent = h.testDirect(p)
	case selftest.Gossip:
		sent = h.testGossip(p)
	default:
		sent = h.tests.take(p)
	}
	if !sent {
		known = append(known, selftest.Void{Module: p.Module, ID: p.ID})
	}
	return known
}

// testDirect sends a probe from the socket of a service interface to itself, as everything else is sent. What lies
// beyond the node is found by the answers to reports and path requests: thousands of nodes that also sent probes to
// every supervisor would cost these more than their reports do. A socket that is bound to a network interface
// hears nothing of itself, so that its rail stays untested.
func (h *hostHalf) testDirect(p selftest.Probe) (sent bool) {
	s := h.nets[p.Module.Index]
	if s.Blocked() {
		return false
	}
	sent = true
	h.tests.each(p.Module, p.Data, func(data []byte) {
		b := append(testMark[:], data...)
		for range failpoint.Packet(failpoint.HostSend, b) {
			sent = s.Send(loop(s.LocalAddr()), b) == nil && sent
		}
	})
	return sent
}

// loop is where a socket of ours is reached from this machine.
func loop(local netip.AddrPort) netip.AddrPort {
	switch addr := local.Addr(); {
	case !addr.IsUnspecified():
		return local
	case addr.Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), local.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), local.Port())
}

// testGossip sends a probe as a member of the gossip to itself, by its socket and under the key.
func (h *hostHalf) testGossip(p selftest.Probe) (sent bool) {
	if h.gossip == nil || h.gossip.Blocked() {
		return false
	}
	sent = true
	h.tests.each(p.Module, p.Data, func(b []byte) { sent = h.gossip.Loop(b) == nil && sent })
	return sent
}

// onLoop takes a probe of the gossip rail.
func (h *hostHalf) onLoop(b []byte) {
	h.tested(selftest.Returned{Module: selftest.Module{Kind: selftest.Gossip}, Data: b})
}

// takesProbe says whether a datagram is a probe of this half's own, and takes it.
func (h *hostHalf) takesProbe(k uint8, from netip.AddrPort, b []byte) bool {
	data, marked := bytes.CutPrefix(b, testMark[:])
	if !marked || from != loop(h.nets[k].LocalAddr()) {
		return false
	}
	h.tested(selftest.Returned{Module: selftest.Module{Kind: selftest.Direct, Index: k}, Data: data})
	return true
}

func (h *hostHalf) tested(ev selftest.Event) { h.step(hostcore.Test{Event: ev}) }

// sendTest puts a test message into the mailbox.
func (h *hostHalf) sendTest(t hostcore.TestMail) { h.tests.mail(h.box, t.Echo, t.Data) }

// seamOf is what tests put between a half and its modules.
func seamOf(ctx context.Context) *seam { s, _ := ctx.Value(seamKey{}).(*seam); return s }

// begin tells a test that the half begins.
func (p *prober) begin(results func() []selftest.Result) {
	if p.seam != nil {
		p.seam.began(p.c.self(), results)
	}
}

// testResults is what the self-test says now.
func (d *dnpHalf) testResults() []selftest.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.SelfTest().Results(time.Now())
}

func (h *hostHalf) testResults() []selftest.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.SelfTest().Results(time.Now())
}
