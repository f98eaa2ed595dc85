package notify

import (
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestLongListGoesInBursts: a node that lacks a long list gets it in bursts, one with each digest, until it has the
// list, and again after a pause.
func TestLongListGoesInBursts(t *testing.T) {
	var parts []*lofamov1.DenyPart
	for i := range 3 * denyBurst {
		parts = append(parts, &lofamov1.DenyPart{Version: 1, Part: uint32(i), Parts: 3 * denyBurst, Data: []byte("x")})
	}
	var sent []uint32
	d := &denials{nodes: map[fault.NodeID]*denied{}, highest: new(atomic.Uint64),
		send: func(_ fault.NodeID, p *lofamov1.DenyPart) { sent = append(sent, p.GetPart()) }}
	now, period := time.Unix(1000, 0), 500*time.Millisecond
	d.heard(now, "n1", 0, period)
	if len(sent) > 0 {
		t.Fatalf("%d parts were sent without a list", len(sent))
	}
	d.replace(now, 1, parts, period)
	for round := 1; round <= 3; round++ {
		if len(sent) != round*denyBurst {
			t.Fatalf("after %d digests %d parts were sent: want %d", round-1, len(sent), round*denyBurst)
		}
		now = now.Add(period)
		if round < 3 {
			d.heard(now, "n1", 0, period)
		}
	}
	for i, part := range sent {
		if part != uint32(i) {
			t.Fatalf("part %d was sent as number %d", part, i)
		}
	}
	d.heard(now, "n1", 0, period) // its pause is over
	d.heard(now, "n1", 1, period)
	if len(sent) != 4*denyBurst {
		t.Errorf("%d parts were sent to a node that has the list meanwhile: want %d", len(sent), 4*denyBurst)
	}
}

// TestSilentNodesAreForgotten: a node whose digests have stopped takes no memory, with or without a new list. A node that
// still sends them keeps its entry.
func TestSilentNodesAreForgotten(t *testing.T) {
	d := &denials{nodes: map[fault.NodeID]*denied{}, highest: new(atomic.Uint64), send: func(fault.NodeID, *lofamov1.DenyPart) {}}
	now, period := time.Unix(1000, 0), 500*time.Millisecond
	d.heard(now, "gone", 0, period)
	now = now.Add(denyForget + 1)
	d.heard(now, "stays", 0, period)
	if d.expire(now); len(d.nodes) != 1 || d.nodes["stays"] == nil {
		t.Errorf("nodes %v: want only the one that is heard", d.nodes)
	}
}

// TestNextVersionAfterLieIsAccepted: a node tells one replica alone the highest version that it believes. Another replica, which
// judges the next list by its own list, accepts the version after it.
func TestNextVersionAfterLieIsAccepted(t *testing.T) {
	d := &denials{version: 7, nodes: map[fault.NodeID]*denied{}, highest: new(atomic.Uint64), send: func(fault.NodeID, *lofamov1.DenyPart) {}}
	for lie := uint64(7 + pki.MaxVersionJump - 2); lie < 7+pki.MaxVersionJump+2; lie++ {
		d.heard(time.Unix(1000, 0), "liar", lie, time.Second)
	}
	if next := d.highest.Load() + 1; next <= 7 || next-7 > pki.MaxVersionJump {
		t.Errorf("next version %d: want at most %d above 7", next, uint64(pki.MaxVersionJump))
	}
}
