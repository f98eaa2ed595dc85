package servicenet

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Orders and statuses of peers stay in their bounds and come from the allowed role, and a status may be relayed.
func TestPeerMessagesAreBounded(t *testing.T) {
	peer := func(d uint32, node, address string) *lofamov1.Peer {
		return &lofamov1.Peer{Direction: d, Node: node, Address: address}
	}
	order := func(edit func(*lofamov1.PeerOrder)) error {
		o := &lofamov1.PeerOrder{Node: "n0", Number: 4, Coord: "1,0,1", Peers: []*lofamov1.Peer{peer(1, "x", "10.0.0.9:7001"), peer(6, "y", "")}}
		edit(o)
		return checkPeerOrder(o)
	}
	status := func(edit func(*lofamov1.PeerStatus)) error {
		s := &lofamov1.PeerStatus{Node: "n0", Epoch: 3, Ends: []*lofamov1.Peer{peer(1, "", "[fe80::1%eth0]:7")},
			Configured: []*lofamov1.Peer{peer(2, "z", "10.0.0.1:1")}}
		edit(s)
		return checkPeerStatus(s)
	}
	if err := order(func(*lofamov1.PeerOrder) {}); err != nil {
		t.Error(err)
	}
	if err := status(func(s *lofamov1.PeerStatus) { s.Epoch = 0 }); err != nil { // a spare that waits
		t.Error(err)
	}
	for want, err := range map[string]error{
		"peer_order.node":          order(func(o *lofamov1.PeerOrder) { o.Node = "" }),
		"peer_order.number":        order(func(o *lofamov1.PeerOrder) { o.Number = 0 }),
		"peer_order.coord":         order(func(o *lofamov1.PeerOrder) { o.Coord = "1;0" }),
		"peers.direction: given 7": order(func(o *lofamov1.PeerOrder) { o.Peers[0].Direction = 7 }),
		"peers.direction: given 1": order(func(o *lofamov1.PeerOrder) { o.Peers[1].Direction = 1 }),
		"peers.node":               order(func(o *lofamov1.PeerOrder) { o.Peers[0].Node = "" }),
		`address: given "0.0.0.0`:  order(func(o *lofamov1.PeerOrder) { o.Peers[0].Address = "0.0.0.0:7" }),
		`address: given "somewhe`:  order(func(o *lofamov1.PeerOrder) { o.Peers[0].Address = "somewhere:7" }),
		"peers: given 7":           order(func(o *lofamov1.PeerOrder) { o.Peers = make([]*lofamov1.Peer, 7) }),
		"peer_status.epoch":        status(func(s *lofamov1.PeerStatus) { s.Epoch = uint64(MaxEpoch) + 1 }),
		"ends.address":             status(func(s *lofamov1.PeerStatus) { s.Ends[0].Address = "10.0.0.1:0" }),
		"configured.node":          status(func(s *lofamov1.PeerStatus) { s.Configured[0].Node = "a b" }),
		"peer_status.peers":        status(func(s *lofamov1.PeerStatus) { s.Peers = []*lofamov1.Peer{peer(0, "x", "")} }),
		"peer_status.coord":        status(func(s *lofamov1.PeerStatus) { s.Coord = "here" }),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	said, role := bySpeaker(&lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: &lofamov1.PeerStatus{Node: "n0"}}})
	if role != RoleNode || said != (fault.Origin{Node: "n0", Half: fault.HalfDNP}) {
		t.Errorf("a status is said by %s %v", role, said)
	}
	if _, role := bySpeaker(&lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: &lofamov1.PeerOrder{}}}); role != RoleSupervisor {
		t.Errorf("an order is said by a %s", role)
	}
}
