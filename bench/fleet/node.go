package fleet

import (
	"crypto/ecdh"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// firstEpoch is the boot epoch of every emulated half before its first restart.
const firstEpoch fault.Epoch = 1

// Node is one emulated agent: its host half, which speaks for both.
type Node struct {
	id     fault.NodeID
	coord  grid.Coord
	signer *pki.Signer
	source []byte       // the control message that gives its datagrams its address
	peers  []peer       // at the end of each link
	target atomic.Int32 // replica of its primary path, among
	first  int          // it reports to count supervisors from this one on
	count  int
	dead   atomic.Bool
	signed atomic.Bool // it has signed an accusation that is not sent yet
	agent  *Agent      // nil: its place and its peers never change

	mu      sync.Mutex
	epoch   fault.Epoch
	path    uint64 // number of the newest exchange
	seq     fault.Seq
	key     *ecdh.PrivateKey // of the exchange under way
	session *servicenet.SessionKey
	states  map[subject]fault.Observation // the states in its digests
	order   []subject
	started time.Time
	view    uint64 // revision up to which it knows its part of the map
}

type peer struct {
	dir  grid.Direction
	node fault.NodeID
	rank int
}

// subject is the subject of an observation.
type subject struct {
	node      fault.NodeID
	component fault.Component
}

func newNode(f *Fleet, rank int) (*Node, error) {
	dims := f.cfg.Dims
	at := dims.At(rank)
	n := newSilent(fault.DefaultNodeID(at), rank)
	n.coord = at
	var err error
	if n.signer, err = f.ca.IssueSigner(pki.NodeIdentity(clusterName, n.id, fault.HalfHost)); err != nil {
		return nil, err
	}
	for _, d := range dims.Links() {
		if p, ok := dims.Neighbour(at, d); ok {
			n.peers = append(n.peers, peer{d, fault.DefaultNodeID(p), dims.Rank(p)})
		}
	}
	n.healthy()
	return n, nil
}

// newSilent makes a node without keys, states and peers.
func newSilent(id fault.NodeID, rank int) *Node {
	return &Node{id: id, epoch: firstEpoch, path: 1, states: make(map[subject]fault.Observation), started: time.Now(),
		source: unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: address(rank).As4()})}
}

// healthy fills in the observations of a healthy host half.
func (n *Node) healthy() {
	n.say(fault.Observation{Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindWatchdog})
	for _, c := range own {
		n.say(fault.Observation{Component: c, State: fault.Normal, Kind: fault.KindSelf})
	}
	for _, p := range n.peers {
		n.say(fault.Observation{Component: fault.Link(p.dir), State: fault.Normal, Kind: fault.KindSelf})
		n.say(fault.Observation{Node: p.node, Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindDescriptor})
	}
}

// own are the components that a node states of itself, besides its DNP and its links.
var own = []fault.Component{
	fault.ComponentDNPCore, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
	fault.ComponentPeripheral1, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage,
}

// say notes a state for the digests. Callers but healthy hold the lock.
func (n *Node) say(o fault.Observation) fault.Observation {
	if o.Node == "" {
		o.Node = n.id
	}
	s := subject{o.Node, o.Component}
	if _, ok := n.states[s]; !ok {
		n.order = append(n.order, s)
	}
	n.states[s] = o
	return o
}

// ID is the node's name.
func (n *Node) ID() fault.NodeID { return n.id }

// Kill makes the node silent. It answers no challenge.
func (n *Node) Kill() { n.dead.Store(true) }

// report makes the next report of the half. The lock is held.
func (n *Node) report(digest bool, obs []fault.Observation) fault.Report {
	n.seq++
	return fault.Report{
		ID:     fault.ReportID{Origin: fault.Origin{Node: n.id, Half: fault.HalfHost}, Epoch: n.epoch, Seq: n.seq},
		Digest: digest, Observations: obs, Uptime: time.Since(n.started),
		Registers: fault.Registers{DNPWatchdog: 1, HostWatchdog: 1},
	}
}

// digest seals a full statement: under the MAC of the session, signed without one.
func (n *Node) digest() ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	obs := make([]fault.Observation, len(n.order))
	for i, s := range n.order {
		obs[i] = n.states[s]
	}
	status := &lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED, Primary: "service>s", ViewRevision: n.view}
	return servicenet.SealReports([]fault.Report{n.report(true, obs)}, status, n.signer, servicenet.SealOptions{Session: n.session})
}

// hears notes the revision of an update; its content is of no interest here.
func (n *Node) hears(t *lofamov1.FaultUpdate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.GetPart() == t.GetParts()-1 && (t.GetSince() == 0 || t.GetSince() <= n.view) {
		n.view = max(n.view, t.GetRevision())
	}
}

// Batch is a signed datagram of reports.
type Batch struct {
	node    *Node
	last    fault.Seq // the newest report in it
	count   int       // reports
	changes int       // states that it changes
	data    []byte
}

// Changes is the number of states of the map that the batch changes.
func (b *Batch) Changes() int { return b.changes }

// Changes signs a batch of so many changes of the node's own components: each turns one from NORMAL to SICK or back.
// Every report changes up to eight components, and one signature covers the batch.
func (n *Node) Changes(count int) (*Batch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var reports []fault.Report
	for left := count; left > 0; left -= len(own) {
		var obs []fault.Observation
		for _, c := range own[:min(left, len(own))] {
			o := fault.Observation{Component: c, State: fault.Sick, Kind: fault.KindSelf}
			if n.states[subject{n.id, c}].State == fault.Sick {
				o.State = fault.Normal
			}
			obs = append(obs, n.say(o))
		}
		reports = append(reports, n.report(false, obs))
	}
	return n.seal(reports, count)
}

// State signs the node's report that one of its own components turned into a state.
func (n *Node) State(c fault.Component, s fault.State) (*Batch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.say(fault.Observation{Component: c, State: s, Kind: fault.KindSelf})
	return n.seal([]fault.Report{n.report(false, []fault.Observation{o})}, 1)
}

// Accuse signs the node's report that its links to others have fallen silent. Until it is sent, the node sends no digest,
// which would accuse them too early.
func (n *Node) Accuse(silent time.Duration, dead func(rank int) bool) (*Batch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.signed.Store(true)
	var obs []fault.Observation
	for _, p := range n.peers {
		if dead(p.rank) {
			obs = append(obs, n.say(fault.Observation{Component: fault.Link(p.dir), State: fault.Failed, Kind: fault.KindSilence,
				Age: silent, Detail: "nothing heard"}),
				n.say(fault.Observation{Node: p.node, Component: fault.ComponentHost, State: fault.Unknown, Kind: fault.KindDescriptor}))
		}
	}
	return n.seal([]fault.Report{n.report(false, obs)}, len(obs)/2)
}

func (n *Node) seal(reports []fault.Report, changes int) (*Batch, error) {
	data, err := servicenet.SealReports(reports, nil, n.signer, servicenet.SealOptions{})
	if err != nil {
		return nil, err
	}
	return &Batch{node: n, last: reports[len(reports)-1].ID.Seq, count: len(reports), changes: changes, data: data}, nil
}

// turnTo makes the node report to another replica. Until the node has a session there, it signs its reports.
func (n *Node) turnTo(replica int32) {
	n.target.Store(replica)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.session, n.key = nil, nil
	n.path++
}

// waits reports whether the node lives and has no session.
func (n *Node) waits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.session == nil && !n.dead.Load()
}

// pathRequest signs a REQ with a fresh key.
func (n *Node) pathRequest(key *ecdh.PrivateKey) ([]byte, error) {
	n.mu.Lock()
	n.key = key
	epoch, path := n.epoch, n.path
	n.mu.Unlock()
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_PathRequest{PathRequest: &lofamov1.PathRequest{
		Node: string(n.id), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(epoch), Id: path,
		Checksums: []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C}, Key: key.PublicKey().Bytes(),
	}}}, n.signer)
}

// pathAck signs an ACK.
func (n *Node) pathAck() ([]byte, error) {
	n.mu.Lock()
	epoch, path := n.epoch, n.path
	n.mu.Unlock()
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_PathAck{PathAck: &lofamov1.PathAck{
		Node: string(n.id), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(epoch), Id: path,
	}}}, n.signer)
}

// answer signs the answer to a challenge.
func (n *Node) answer(c *lofamov1.Challenge) ([]byte, error) {
	n.mu.Lock()
	epoch := n.epoch
	n.mu.Unlock()
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: c.GetNonce(), Node: string(n.id), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(epoch),
	}}}, n.signer)
}
