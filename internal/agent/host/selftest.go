package host

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// carry gives a probe to a module of the host half, and returns the events that are known at once.
func (h *hostHalf) carry(p selftest.Probe) (known []selftest.Event) {
	sent := true
	switch p.Module.Kind {
	case selftest.Register:
		h.tests.Each(p.Module, p.Data, func(b []byte) { known = append(known, half.ProbeRegister(h.page.File, p, b)) })
	case selftest.Direct:
		sent = h.testDirect(p)
	case selftest.Gossip:
		sent = h.testGossip(p)
	default:
		sent = h.tests.Take(p)
	}
	if !sent {
		known = append(known, selftest.Void{Module: p.Module, ID: p.ID})
	}
	return known
}

// testDirect sends a probe from the socket of a service interface to itself, like all other traffic. Failures beyond
// the node show in the answers to reports and path requests: probes from thousands of nodes to every supervisor would
// cost these more than the reports do. A socket that is bound to a network interface does not receive its own probes,
// so its rail stays untested.
func (h *hostHalf) testDirect(p selftest.Probe) (sent bool) {
	s := h.nets[p.Module.Index]
	if s.Blocked() {
		return false
	}
	var failed atomic.Bool // tests delay probes
	h.tests.Each(p.Module, p.Data, func(data []byte) {
		b := append(half.ProbeMark[:], data...)
		for range failpoint.Packet(failpoint.HostSend, b) {
			// If the kernel refuses the call as malformed, the probe counts as sent, and so as lost.
			if err := s.Send(half.Loopback(s.LocalAddr()), b); err != nil && !s.Damaged(err) {
				failed.Store(true)
			}
		}
	})
	return !failed.Load()
}

// testGossip sends a probe as a member of the gossip to itself, by its socket and under the key.
func (h *hostHalf) testGossip(p selftest.Probe) (sent bool) {
	if h.gossip == nil || h.gossip.Blocked() {
		return false
	}
	var failed atomic.Bool // tests delay probes
	h.tests.Each(p.Module, p.Data, func(b []byte) {
		if h.gossip.Loop(b) != nil {
			failed.Store(true)
		}
	})
	return !failed.Load()
}

// onLoop takes a probe of the gossip rail.
func (h *hostHalf) onLoop(b []byte) {
	h.tested(selftest.Returned{Module: selftest.Module{Kind: selftest.Gossip}, Data: b})
}

// takesProbe reports whether a datagram is a probe of this half's own, and handles it.
func (h *hostHalf) takesProbe(k uint8, from netip.AddrPort, b []byte) bool {
	data, marked := bytes.CutPrefix(b, half.ProbeMark[:])
	if !marked || from != half.Loopback(h.nets[k].LocalAddr()) {
		return false
	}
	h.tested(selftest.Returned{Module: selftest.Module{Kind: selftest.Direct, Index: k}, Data: data})
	return true
}

func (h *hostHalf) tested(ev selftest.Event) { h.step(hostcore.Test{Event: ev}) }

// sendTest puts a test message into the mailbox.
func (h *hostHalf) sendTest(t hostcore.TestMail) { h.tests.Mail(h.box, t.Echo, t.Data) }

func (h *hostHalf) testResults() []selftest.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.SelfTest().Results(time.Now())
}
