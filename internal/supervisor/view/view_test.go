package view

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func sample() awareness.NodeStatus {
	return awareness.NodeStatus{
		ID: "n1-0-0", Coord: grid.Coord{X: 1}, State: fault.Sick, Cause: fault.CauseHost, SingleWitness: true,
		Since: now.Add(-time.Hour), Life: now.Add(-time.Second), RegistersAt: now.Add(-2 * time.Second),
		Registers: fault.Registers{DNPWatchdog: 1, HostWatchdog: 2, RemoteFaultDescriptor: 3}, HostEpoch: 7, DNPEpoch: 9,
		Restart: awareness.Restart{Half: fault.HalfDNP, Until: now.Add(time.Second), Other: now.Add(time.Millisecond)},
		Components: []awareness.ComponentStatus{
			{Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost, Since: now.Add(-time.Minute),
				Evidence: []awareness.EvidenceStatus{
					{Kind: fault.KindWatchdog, Observer: "n1-0-0/dnp", Path: fault.PathTorus, At: now.Add(-3 * time.Second), State: fault.Failed,
						Detail: "Valid still 0"},
				}},
			{Component: fault.Link(grid.XPlus), State: fault.Failed, Cause: fault.CauseNode, Since: now},
		},
	}
}

// The enums of the API and of package fault must mean the same numbers.
func TestEnumsOfPIAndFaultAgree(t *testing.T) {
	for s := fault.Unknown; s.Valid(); s++ {
		if got := lofamov1.State(s).String(); got != s.String() {
			t.Errorf("state %s is %s in the API", s, got)
		}
	}
	for c := fault.CauseNone; c <= fault.CauseNode; c++ {
		if got := lofamov1.Cause(c).String(); got != c.String() {
			t.Errorf("cause %s is %s in the API", c, got)
		}
	}
	for p := fault.PathDirect; p.Valid(); p++ {
		if got := lofamov1.Path(p).String(); got != p.String() {
			t.Errorf("path %s is %s in the API", p, got)
		}
	}
}

// A node's delivery status has an age, and counts as old from a certain age on.
func TestDeliveryHasAge(t *testing.T) {
	e := Entry{Status: sample()}
	if n := Node(e, now); n.GetDeliveryAge() != nil || n.GetDeliveryOld() {
		t.Errorf("nothing was said: %v", n)
	}
	e.Delivery, e.DeliveryAt, e.DeliveryOldAt = &lofamov1.DeliveryStatus{Logged: 1}, now.Add(-3*time.Second), now
	for at, old := range map[time.Time]bool{now.Add(-1): false, now: true} {
		if n := Node(e, at); n.GetDeliveryOld() != old || n.GetDeliveryAge().AsDuration() != at.Sub(e.DeliveryAt) ||
			n.GetDelivery() != e.Delivery {
			t.Errorf("at %s: age %v, old %t, want %t", at, n.GetDeliveryAge(), n.GetDeliveryOld(), old)
		}
	}
}

// TestRestartShowsUntilItsTimeIsOver: readers see an announced restart until its time is over, even if the node never ends it.
func TestRestartShowsUntilItsTimeIsOver(t *testing.T) {
	e := Entry{Status: sample()}
	if r := Node(e, now).GetRestarting(); r.GetHalf() != "dnp" || !r.GetUntil().AsTime().Equal(now.Add(time.Second)) {
		t.Errorf("announced: %v", r)
	}
	if r := Node(e, now.Add(time.Second)).GetRestarting(); r != nil {
		t.Errorf("over: %v", r)
	}
	if r := restart(&lofamov1.Restarting{Half: "of a later version"}); r != (awareness.Restart{}) {
		t.Errorf("an unknown half: %+v", r)
	}
}

func TestStoredNodeIsRestored(t *testing.T) {
	want := sample()
	want.Wiring = awareness.Wiring{
		Peers: [grid.NumDirections]fault.NodeID{"n2-0-0", "n0-0-0", "", "", "n1-0-1", "n1-0-1"}, Followed: 1, Unclear: 1 << 5, Revision: 9,
		Former: [2]fault.Epoch{3, 4},
	}
	b, err := proto.Marshal(Stored(want))
	if err != nil {
		t.Fatal(err)
	}
	doc := new(lofamov1.Node)
	if err := proto.Unmarshal(b, doc); err != nil {
		t.Fatal(err)
	}
	got, err := Restore(doc)
	if err != nil {
		t.Fatal(err)
	}
	want.Life, want.RegistersAt, want.Registers = time.Time{}, time.Time{}, fault.Registers{}
	want.Components[0].Evidence[0].At = time.Time{}
	if d := cmp.Diff(want, got.Status); d != "" {
		t.Error(d)
	}
}

// TestAbsentPartStaysAbsentInCopies: a replica without a leader, and the next leader, know which parts a node does not have. A part whose
// state nobody has stated is UNKNOWN.
func TestAbsentPartStaysAbsentInCopies(t *testing.T) {
	st := sample()
	st.Components = append(st.Components,
		awareness.ComponentStatus{Component: fault.ComponentMemory, State: fault.Unknown, Cause: fault.CauseNone,
			Evidence: []awareness.EvidenceStatus{{Kind: fault.KindDigest, Observer: "supervisor/s1", State: fault.Unknown, At: now}}},
		awareness.ComponentStatus{Component: fault.ComponentPower, State: fault.Unknown, Cause: fault.CauseNone,
			Evidence: []awareness.EvidenceStatus{{Kind: fault.KindDigest, Observer: "supervisor/s1", State: fault.Unknown, At: now},
				{Kind: fault.KindAbsent, Observer: "n1-0-0/dnp", State: fault.Unknown, At: now}}})
	stored, err := Restore(Stored(st))
	if err != nil {
		t.Fatal(err)
	}
	b := NewBuilder(torus(grid.Dims{X: 2, Y: 2, Z: 1}), now)
	b.Set(stored)
	copied, _ := b.Map(5).Find("n1-0-0")
	for name, e := range map[string]Entry{"stored": stored, "in the map": copied} {
		for _, c := range Node(e, now).GetComponents() {
			want := map[string]lofamov1.State{"memory": lofamov1.State_UNKNOWN, "power": lofamov1.State_ABSENT}[c.GetName()]
			if want != 0 && c.GetState() != want {
				t.Errorf("%s, %s is %s, want %s", name, c.GetName(), c.GetState(), want)
			}
			if c.GetName() == "memory" && len(c.GetEvidence()) > 0 {
				t.Errorf("%s, memory has old evidence: %v", name, c.GetEvidence())
			}
		}
	}
}

func TestDamagedNodeIsNotRestored(t *testing.T) {
	for name, spoil := range map[string]func(*lofamov1.Node){
		"coord":     func(n *lofamov1.Node) { n.Coord = "x" },
		"state":     func(n *lofamov1.Node) { n.State = 0 },
		"component": func(n *lofamov1.Node) { n.Components[0].Name = "heart" },
		"its state": func(n *lofamov1.Node) { n.Components[0].State = 17 },
		"evidence":  func(n *lofamov1.Node) { n.Components[0].Evidence[0].Kind = "HEARSAY" },
	} {
		n := Stored(sample())
		spoil(n)
		if _, err := Restore(n); err == nil || !strings.Contains(err.Error(), "n1-0-0") {
			t.Errorf("bad %s: %v", name, err)
		}
	}
}

func TestNodeShowsAges(t *testing.T) {
	n := Node(Entry{Status: sample(), Revision: 5}, now)
	if got := n.GetAge().AsDuration(); got != time.Second {
		t.Errorf("age %v", got)
	}
	if got := n.GetRegisters().GetAge().AsDuration(); got != 2*time.Second {
		t.Errorf("registers' age %v", got)
	}
	if got := n.GetComponents()[0].GetEvidence()[0].GetAge().AsDuration(); got != 3*time.Second {
		t.Errorf("evidence's age %v", got)
	}
	st := sample()
	st.Life, st.RegistersAt, st.Components[0].Evidence[0].At = time.Time{}, time.Time{}, time.Time{}
	n = Node(Entry{Status: st}, now)
	if n.Age != nil || n.Registers != nil || n.GetComponents()[0].GetEvidence()[0].Age != nil {
		t.Errorf("unknown ages are shown: %v", n)
	}
}

func TestLinkHasPeerAndCause(t *testing.T) {
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	b := NewBuilder(NewNames(dims, map[grid.Coord]fault.NodeID{{}: "n0-0-0", {X: 1}: "n1-0-0"}), now)
	m := b.Map(1)
	links := NodeLinks(m, Entry{Status: sample()}, now)
	if len(links) != 1 || links[0].GetDirection() != "X+" || links[0].GetPeer() != "n0-0-0" || links[0].GetCause() != lofamov1.Cause_NODE {
		t.Errorf("%v", links)
	}
}

func TestEventHasLatencyIfKnown(t *testing.T) {
	ev := Event(awareness.Change{Node: "a", Component: fault.ComponentNode, From: fault.Normal, To: fault.Failed,
		Cause: fault.CauseNode, Latency: -1}, grid.Coord{}, now)
	if ev.AwarenessLatency != nil || ev.GetComponent() != "node" || ev.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		t.Errorf("%v", ev)
	}
	if ev = Event(awareness.Change{Latency: time.Second}, grid.Coord{}, now); ev.GetAwarenessLatency().AsDuration() != time.Second {
		t.Errorf("%v", ev)
	}
}

func TestNamesFollowTopology(t *testing.T) {
	dims := grid.Dims{X: 2, Y: 2, Z: 2}
	ids := map[grid.Coord]fault.NodeID{}
	for r := range dims.Nodes() {
		ids[dims.At(r)] = fault.DefaultNodeID(dims.At(r))
	}
	names := NewNames(dims, ids)
	top := names.Topology()
	service := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7")}
	nodes := append(slices.Clone(top.Nodes), topology.Node{ID: "x", Spare: true, Labels: map[string]string{"rack": "r1"}, Service: service})
	if !names.Set(topology.New(dims, nodes, nil, 5)) || names.Set(topology.New(dims, top.Nodes, nil, 5)) || names.Set(top) {
		t.Error("only what is newer is to be followed")
	}
	if id, err := names.Find("x"); id != "x" || err != nil || names.Known("x") || len(names.All()) != 8 {
		t.Errorf("the spare: %q, %v", id, err)
	}
	if owner, ok := names.Owner(netip.MustParseAddrPort("[::ffff:10.0.0.1]:7")); owner != "x" || !ok ||
		names.Labels("x")["rack"] != "r1" || len(names.Services("x")) != 1 {
		t.Errorf("the spare's address is of %q", owner)
	}
	if _, ok := names.Owner(netip.AddrPort{}); ok || names.Labels("nobody") != nil || names.Services("n0-0-0") != nil || names.Dims() != dims {
		t.Error("what nobody has is known")
	}
	for _, name := range []string{"n1-0-1", "1,0,1"} {
		if id, err := names.Find(name); err != nil || id != "n1-0-1" {
			t.Errorf("%q: %q, %v", name, id, err)
		}
	}
	for name, want := range map[string]string{
		"": "empty", "2,0,0": "outside the 2x2x2 torus", "1,a": "neither an id nor coordinates", "n0,1": "neither",
		"n9-9-9": "no node of that id",
	} {
		_, err := names.Find(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
		var unknown *UnknownNodeError
		if errors.As(err, &unknown) != (name == "n9-9-9") {
			t.Errorf("%q: %T", name, err)
		}
	}
}
