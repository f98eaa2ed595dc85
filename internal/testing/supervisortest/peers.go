package supervisortest

import (
	"fmt"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// EndOf returns the address of a node's end of a link in these tests, where no socket listens.
func EndOf(id fault.NodeID, d grid.Direction) string {
	sum := 0
	for _, b := range []byte(id) {
		sum = (sum*31 + int(b)) % 250
	}
	return fmt.Sprintf("10.9.0.%d:%d", 1+sum, 7000+int(d))
}

// Link gives a node link ends, and the peers of its configuration: those of its place, or none for a spare (""). From
// then on it answers peer orders.
func (a *Agent) Link(dims grid.Dims, at string) {
	st := &lofamov1.PeerStatus{Node: string(a.ID), Epoch: 2, Coord: at, Spare: at == "", Moves: true}
	torus := dims.Short()
	if st.Spare {
		st.Epoch, st.Life = 0, 77 // it waits
		torus = "-"
	}
	for _, d := range dims.Links() {
		st.Ends = append(st.Ends, &lofamov1.Peer{Direction: uint32(d), Address: EndOf(a.ID, d)})
		if c, err := grid.ParseCoord(at); err == nil {
			n, _ := dims.Neighbour(c, d)
			peer := fault.DefaultNodeID(n)
			st.Configured = append(st.Configured, &lofamov1.Peer{Direction: uint32(d), Node: string(peer), Address: EndOf(peer, d.Opposite())})
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers, a.torus = st, torus
}

// SayPeers makes the node report its peers.
func (a *Agent) SayPeers(t testing.TB, to string) {
	t.Helper()
	for _, st := range a.statuses() {
		a.Say(t, fault.HalfDNP, to, &lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: st}})
	}
}

// statuses returns both parts of the status: the contents and the configuration of the node.
func (a *Agent) statuses() [2]*lofamov1.PeerStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	held, configured := proto.CloneOf(a.peers), proto.CloneOf(a.peers)
	held.Ends, held.Configured = nil, nil
	configured.Number, configured.Peers, configured.Configuration, configured.Torus = 0, nil, true, a.torus
	return [...]*lofamov1.PeerStatus{held, configured}
}

// Peers returns the node's peers.
func (a *Agent) Peers() *lofamov1.PeerStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return proto.CloneOf(a.peers)
}

// takePeers takes an order like a DNP half or a waiting spare, and answers it unless that half is dead.
func (a *Agent) takePeers(from netip.AddrPort, o *lofamov1.PeerOrder) {
	a.mu.Lock()
	dead := a.dead[fault.HalfDNP] || a.peers == nil
	first := !dead && a.peers.GetNumber() == 0
	if mine := !first || !o.GetLifeUnknown() && o.GetLife() == max(a.peers.GetLife(), a.peers.GetEpoch()); !dead && mine &&
		o.GetNumber() > a.peers.GetNumber() {
		a.peers.Number, a.peers.Peers = o.GetNumber(), o.GetPeers()
		if o.GetCoord() != "" && !a.peers.GetSpare() { // as if its daemon had started the halves again at the ordered place
			a.peers.Spare, a.peers.Configured = true, nil
		}
		if a.peers.GetSpare() {
			a.peers.Coord = o.GetCoord()
		}
		a.peers.Torus = ""
		if dims, err := grid.FromBinary(o.GetTorus()); err == nil {
			a.peers.Torus = dims.Short()
		}
	}
	a.mu.Unlock()
	if dead {
		return
	}
	for _, st := range a.statuses() {
		if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: st}}, a.sign[fault.HalfDNP]); err == nil {
			_ = a.socket.Send(from, b)
		}
	}
}
