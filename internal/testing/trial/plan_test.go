package trial

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var shapes = []Shape{
	{Dims: grid.Dims{X: 2, Y: 2, Z: 1}, Supervisors: 3},
	{Dims: grid.Dims{X: 2, Y: 2, Z: 2}, Supervisors: 3, Restarts: true, Load: 4},
	{Dims: grid.Dims{X: 3, Y: 3, Z: 3}, Supervisors: 5, Restarts: true, Load: 16},
}

func source(seed uint64) Rand { return rand.New(rand.NewPCG(seed, 1)) }

func TestSameSeedGivesSameRounds(t *testing.T) {
	for _, s := range shapes {
		a, b, other := NewPlan(source(7), s), NewPlan(source(7), s), NewPlan(source(8), s)
		same := true
		for range 50 {
			first, second, third := fmt.Sprint(a.Next()), fmt.Sprint(b.Next()), fmt.Sprint(other.Next())
			if first != second {
				t.Fatalf("%s: %s and %s by the same seed", s.Dims, first, second)
			}
			same = same && first == third
		}
		if same {
			t.Errorf("%s: 50 rounds are the same by another seed", s.Dims)
		}
	}
}

func TestPlanCoversEveryKindOfStep(t *testing.T) {
	for _, s := range shapes {
		ops, texts, loops := map[Op]int{}, map[string]int{}, map[int]int{}
		p := NewPlan(source(1), s)
		for range 3000 {
			r := p.Next()
			loops[r.Loops]++
			if r.Loops > s.Load || r.Pressure && r.Loops < 16 {
				t.Fatalf("%s: round %+v has more load than %d", s.Dims, r, s.Load)
			}
			for _, step := range r.Steps {
				ops[step.Op]++
				if step.Op == Inject {
					f, err := ParseFault(step.At, step.Fault)
					if err != nil {
						t.Fatal(err)
					}
					texts[f.Kind]++
					checkSyntax(t, s.Dims, step.Fault)
				}
			}
		}
		for op := Inject; op <= Pause; op++ {
			if ops[op] == 0 && (op != Restart || s.Restarts) {
				t.Errorf("%s: no step %s in 3000 rounds", s.Dims, op)
			}
		}
		if len(texts) != 14 {
			t.Errorf("%s: faults of %d kinds, want 14: %v", s.Dims, len(texts), texts)
		}
		if s.Load > 0 && loops[s.Load] == 0 {
			t.Errorf("%s: no round with %d loops", s.Dims, s.Load)
		}
	}
}

// TestUnharmedProcessesHaveNoFault: no step ends or stops them, and the plan has every other kind of step.
func TestUnharmedProcessesHaveNoFault(t *testing.T) {
	harm := map[Op]bool{KillSupervisor: true, StopSupervisor: true, StartSupervisors: true}
	for _, text := range []string{"", "supervisors", "daemons", "supervisors,daemons"} {
		unharmed, err := ParseUnharmed(text)
		if err != nil || unharmed.String() != text {
			t.Fatalf("unharmed %q: %q, %v", text, unharmed, err)
		}
		s, ops := shapes[1], map[Op]int{}
		s.Unharmed = unharmed
		p := NewPlan(source(3), s)
		for range 1000 {
			for _, step := range p.Next().Steps {
				ops[step.Op]++
			}
		}
		for op := Inject; op <= Pause; op++ {
			leftOut := harm[op] && unharmed.Supervisors || op == KillDaemon && unharmed.Daemons
			if got := ops[op] == 0; got != leftOut {
				t.Errorf("unharmed %q: %d steps %s in 1000 rounds: want none: %t", text, ops[op], op, leftOut)
			}
		}
	}
	for _, text := range []string{"halves", "supervisors,", ",daemons", "supervisors daemons"} {
		if s, err := ParseUnharmed(text); err == nil || s != (Unharmed{}) {
			t.Errorf("unharmed %q: %+v, %v: want an error", text, s, err)
		}
	}
}

// checkSyntax checks that the cluster takes a fault as lofamoctl inject does.
func checkSyntax(t *testing.T, d grid.Dims, text string) {
	t.Helper()
	f, err := injectable(text)
	if err == nil {
		err = f.Check(d)
	}
	if err != nil {
		t.Fatalf("fault %q: %v", text, err)
	}
	if f.Kind == cluster.CutLink && f.String() != text {
		t.Errorf("fault %q is %q to the cluster", text, f)
	}
}

// model is a naive cluster: it commits the documented consequences of every fault at once.
type model struct {
	dims     grid.Dims
	states   map[part]lofamov1.State
	revision uint64
	events   []*lofamov1.Event
}

func newModel(d grid.Dims) *model {
	m := &model{dims: d, states: map[part]lofamov1.State{}}
	for rank := range d.Nodes() {
		for _, c := range m.components() {
			m.states[part{NodeID(d.At(rank)), c}] = lofamov1.State_NORMAL
		}
	}
	return m
}

func (m *model) components() []string {
	out := []string{"node", "host", "dnp", "dnp-core", "service-network", "memory", "peripheral/0", "temperature", "voltage", "power"}
	for _, d := range m.dims.Links() {
		out = append(out, "link/"+d.String())
	}
	return out
}

func (m *model) nodes() []*lofamov1.Node {
	var out []*lofamov1.Node
	for rank := range m.dims.Nodes() {
		id := NodeID(m.dims.At(rank))
		n := &lofamov1.Node{Id: id, State: m.states[part{id, "node"}]}
		for _, c := range m.components()[1:] {
			n.Components = append(n.Components, &lofamov1.Component{Name: c, State: m.states[part{id, c}]})
		}
		out = append(out, n)
	}
	return out
}

func (m *model) set(at grid.Coord, component string, to lofamov1.State) {
	p := part{NodeID(at), component}
	if m.states[p] == to {
		return
	}
	m.revision++
	m.events = append(m.events, &lofamov1.Event{Revision: m.revision, Index: 1, Node: p.node, Component: component, From: m.states[p], To: to,
		Kind: lofamov1.EventKind_COMPONENT_CHANGED})
	m.states[p] = to
}

func (m *model) inject(f Fault) {
	const failed = lofamov1.State_FAILED
	switch {
	case f.link():
		peer, _ := m.dims.Neighbour(f.At, f.Dir)
		m.set(f.At, "link/"+f.Dir.String(), failed)
		m.set(peer, "link/"+f.Dir.Opposite().String(), failed)
	case f.host() || f.dnp():
		if f.host() {
			m.set(f.At, "host", failed)
		}
		if f.dnp() {
			m.set(f.At, "dnp", failed)
			for _, d := range m.dims.Links() {
				peer, _ := m.dims.Neighbour(f.At, d)
				m.set(f.At, "link/"+d.String(), failed)
				m.set(peer, "link/"+d.Opposite().String(), failed)
			}
		}
		if f.host() && f.dnp() {
			m.set(f.At, "node", failed)
		}
	case f.Kind == "cut-service":
		m.set(f.At, "service-network", failed)
	default:
		m.set(f.At, f.Kind, failed)
	}
}

func (m *model) heal() {
	for rank := range m.dims.Nodes() {
		for _, c := range m.components() {
			m.set(m.dims.At(rank), c, lofamov1.State_NORMAL)
		}
	}
}

// TestModelledTrialsBreakNoInvariant plays plans on the model: the checker finds nothing, and every fault is named.
func TestModelledTrialsBreakNoInvariant(t *testing.T) {
	for _, s := range shapes {
		for seed := range uint64(20) {
			m := newModel(s.Dims)
			truth := NewTruth(s.Dims, false)
			c := NewChecker(truth, m.nodes(), 0)
			p, taken := NewPlan(source(seed), s), 0
			for range 20 {
				for _, step := range p.Next().Steps {
					if step.Op != Inject {
						continue
					}
					f, err := ParseFault(step.At, step.Fault)
					if err != nil {
						t.Fatal(err)
					}
					truth.Begin(f)
					m.inject(f)
					if !slices.ContainsFunc(m.events[taken:], func(e *lofamov1.Event) bool { return truth.Named(f, e) }) {
						t.Fatalf("%s, seed %d: nothing names %s at %s", s.Dims, seed, f.Text, f.At)
					}
				}
				m.heal()
				for _, e := range m.events[taken:] {
					for _, bad := range c.Event(e) {
						t.Fatalf("%s, seed %d: %s", s.Dims, seed, bad)
					}
				}
				if bad := slices.Concat(c.CompareKept(m.events[taken:]), c.CompareList(m.nodes()), c.Unsettled(m.nodes())); len(bad) > 0 {
					t.Fatalf("%s, seed %d: %s", s.Dims, seed, bad)
				}
				taken = len(m.events)
				c.Forget()
				truth.Settled()
			}
		}
	}
}

func TestBoundOfDeadNodeDependsOnItsWitnesses(t *testing.T) {
	b := Bounds{Half: 1, Node: 2, Single: 3, Link: 4, Corrupt: 5, Service: 6, Sensor: 7, Peripheral: 8}
	for _, tt := range []struct {
		faults []string // at 0,0,0, 1,0,0 and 0,1,0
		want   time.Duration
	}{
		{[]string{"kill-node"}, b.Node},
		{[]string{"kill-node", "kill-dnp"}, b.Single},
		{[]string{"kill-node", "", "sensor power 5000"}, b.Single},
		{[]string{"hang-host", "kill-node"}, b.Half},
		{[]string{"cut-link X+ --one-way"}, b.Link},
		{[]string{"corrupt-link X+ 0.3"}, b.Corrupt},
		{[]string{"cut-service"}, b.Service},
		{[]string{"sensor memory-ue 5"}, b.Sensor},
		{[]string{"sensor peripheral/0 2"}, b.Peripheral},
	} {
		truth := NewTruth(grid.Dims{X: 3, Y: 3, Z: 1}, false)
		at := []grid.Coord{{}, {X: 1}, {Y: 1}}
		for i, text := range tt.faults {
			if text == "" {
				continue
			}
			f, err := ParseFault(at[i], text)
			if err != nil {
				t.Fatal(err)
			}
			truth.Begin(f)
		}
		if got := truth.Bound(b, truth.faults[0]); got != tt.want {
			t.Errorf("%q: bound %d, want %d", tt.faults, got, tt.want)
		}
	}
}
