package trial

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	normal = lofamov1.State_NORMAL
	sick   = lofamov1.State_SICK
	failed = lofamov1.State_FAILED
)

// bench is a checker beside a model, for events made by hand.
type bench struct {
	*Checker
	*model
	truth *Truth
	bad   []string
}

func newBench() *bench {
	d := grid.Dims{X: 3, Y: 3, Z: 1}
	m, truth := newModel(d), NewTruth(d, false)
	return &bench{NewChecker(truth, m.nodes(), 0), m, truth, nil}
}

// event gives the checker an event of the next revision.
func (b *bench) event(node, component string, from, to lofamov1.State) *lofamov1.Event {
	return b.at(b.Revision()+1, 1, node, component, from, to)
}

// at gives the checker an event with an index in a revision.
func (b *bench) at(revision uint64, index uint32, node, component string, from, to lofamov1.State) *lofamov1.Event {
	return b.take(&lofamov1.Event{Revision: revision, Index: index, Node: node, Component: component, From: from, To: to,
		Kind: lofamov1.EventKind_COMPONENT_CHANGED})
}

func (b *bench) take(e *lofamov1.Event) *lofamov1.Event {
	b.bad = append(b.bad, b.Event(e)...)
	return e
}

// causes gives the checker a change to a state, and then one event for each further cause.
func (b *bench) causes(state lofamov1.State, causes ...lofamov1.Cause) {
	from := normal
	for _, c := range causes {
		b.take(&lofamov1.Event{Revision: b.Revision() + 1, Index: 1, Node: "n0-0-0", Component: "link/X+", From: from, To: state, Cause: c,
			Kind: lofamov1.EventKind_COMPONENT_CHANGED})
		from = state
	}
}

func (b *bench) fault(t *testing.T, at grid.Coord, text string) {
	t.Helper()
	f, err := ParseFault(at, text)
	if err != nil {
		t.Fatal(err)
	}
	b.truth.Begin(f)
}

// TestCheckerFindsPlantedDefects gives the checker one defect at a time.
func TestCheckerFindsPlantedDefects(t *testing.T) {
	for _, tt := range []struct {
		name  string
		plant func(t *testing.T, b *bench)
		want  string // part of the only violation; empty: none
	}{
		{"healthy node FAILED", func(_ *testing.T, b *bench) { b.event("n1-1-0", "node", normal, failed) }, "false FAILED"},
		{"neighbour of a dead node FAILED", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{X: 1, Y: 1}, "kill-node")
			b.event("n1-1-0", "node", normal, failed)
			b.event("n0-1-0", "node", normal, failed)
		}, "n0-1-0 node NORMAL→FAILED"},
		{"node of a hung half FAILED", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{X: 1, Y: 1}, "hang-host")
			b.event("n1-1-0", "host", normal, failed)
			b.event("n1-1-0", "node", normal, failed)
		}, "n1-1-0 node NORMAL→FAILED"},
		{"DNP of a hung host half FAILED", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{X: 1, Y: 1}, "hang-host")
			b.event("n1-1-0", "dnp", normal, failed)
		}, "n1-1-0 dnp NORMAL→FAILED"},
		{"another link FAILED", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{}, "cut-link X+")
			b.event("n0-0-0", "link/X+", normal, failed)
			b.event("n1-0-0", "link/X-", normal, failed)
			b.event("n0-0-0", "link/Y+", normal, failed)
		}, "n0-0-0 link/Y+"},
		{"FAILED after the end of the fault", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{}, "kill-host")
			b.event("n0-0-0", "host", normal, failed)
			b.event("n0-0-0", "host", failed, normal)
			b.truth.Settled()
			b.event("n0-0-0", "host", normal, failed)
		}, "false FAILED"},
		{"service network FAILED beside a lost follower", func(_ *testing.T, b *bench) {
			b.truth.Outage(false)
			b.event("n0-0-0", "service-network", normal, failed)
		}, "false FAILED"},
		{"service network FAILED without a quorum", func(_ *testing.T, b *bench) {
			b.truth.Outage(true)
			b.event("n0-0-0", "service-network", normal, failed)
		}, ""},
		{"anything FAILED in a planned restart", func(_ *testing.T, b *bench) {
			b.truth.Restarting()
			b.event("n0-0-0", "dnp", normal, failed)
		}, "false FAILED"},
		{"links beside a dead DNP half FAILED", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{}, "kill-dnp")
			b.event("n2-0-0", "link/X+", normal, failed)
			b.event("n0-1-0", "link/Y-", normal, failed)
		}, ""},
		{"group fault with a healthy member", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{}, "kill-node")
			b.bad = append(b.bad, b.Event(&lofamov1.Event{Revision: 1, Index: 1, Kind: lofamov1.EventKind_GROUP_CHANGED,
				Group: &lofamov1.Group{Id: "row/Y=0", State: failed, Members: []string{"n0-0-0", "n1-0-0"}}})...)
		}, "healthy member n1-0-0"},
		{"missing event in the watch", func(_ *testing.T, b *bench) {
			b.event("n0-0-0", "host", normal, sick)
			b.event("n0-0-0", "host", failed, normal)
		}, "gap"},
		{"revision goes back", func(_ *testing.T, b *bench) {
			b.event("n0-0-0", "host", normal, sick)
			e := &lofamov1.Event{Revision: 0, AsSeen: true}
			b.event("n0-0-0", "dnp", normal, sick)
			e.Revision, e.AsSeen, e.Kind = 1, false, lofamov1.EventKind_MASK_CHANGED
			b.bad = append(b.bad, b.Event(e)...)
		}, "revision 1 comes after 2"},
		{"index left out", func(_ *testing.T, b *bench) {
			b.at(1, 1, "n0-0-0", "host", normal, sick)
			b.at(1, 3, "n0-0-0", "dnp", normal, sick)
		}, "want index 2: revision 1.3:"},
		{"first index left out", func(_ *testing.T, b *bench) {
			b.at(1, 1, "n0-0-0", "host", normal, sick)
			b.at(2, 2, "n0-0-0", "dnp", normal, sick)
			b.at(2, 3, "n0-0-0", "memory", normal, sick)
		}, "want index 1: revision 2.2:"},
		{"index comes again", func(_ *testing.T, b *bench) {
			b.at(1, 1, "n0-0-0", "host", normal, sick)
			b.at(1, 1, "n0-0-0", "dnp", normal, sick)
		}, "want index 2: revision 1.1:"},
		{"event without index", func(_ *testing.T, b *bench) { b.at(1, 0, "n0-0-0", "host", normal, sick) }, "want index 1: revision 1.0:"},
		{"indices in order", func(_ *testing.T, b *bench) {
			b.at(1, 1, "n0-0-0", "host", normal, sick)
			b.take(&lofamov1.Event{Revision: 1, Index: 2, Kind: lofamov1.EventKind_MASK_CHANGED})
			b.at(1, 3, "n0-0-0", "dnp", normal, sick)
			b.at(4, 1, "n0-0-0", "dnp", sick, normal)
		}, ""},
		{"other index in the history", func(_ *testing.T, b *bench) {
			e := proto.Clone(b.event("n0-0-0", "host", normal, sick)).(*lofamov1.Event)
			e.Index = 2
			b.bad = append(b.bad, b.CompareHistory("n0-0-0", []*lofamov1.Event{e})...)
		}, "kept revision 1.2:"},
		{"event without a change", func(_ *testing.T, b *bench) {
			b.causes(sick, lofamov1.Cause_LINK, lofamov1.Cause_LINK)
		}, "nothing changed: revision 2.1:"},
		{"first event of the watch changes no state", func(_ *testing.T, b *bench) {
			b.event("n0-0-0", "host", normal, normal)
		}, "nothing changed: revision 1.1:"},
		{"another cause of the same state", func(_ *testing.T, b *bench) {
			b.causes(sick, lofamov1.Cause_LINK, lofamov1.Cause_NODE, lofamov1.Cause_LINK)
		}, ""},
		{"FAILED by one witness and then by several", func(t *testing.T, b *bench) {
			b.fault(t, grid.Coord{}, "kill-node")
			b.take(&lofamov1.Event{Revision: 1, Index: 1, Node: "n0-0-0", Component: "node", From: normal, To: failed, SingleWitness: true,
				Cause: lofamov1.Cause_NODE, Kind: lofamov1.EventKind_COMPONENT_CHANGED})
			b.take(&lofamov1.Event{Revision: 2, Index: 1, Node: "n0-0-0", Component: "node", From: failed, To: failed,
				Cause: lofamov1.Cause_NODE, Kind: lofamov1.EventKind_COMPONENT_CHANGED})
		}, ""},
		{"uncommitted event", func(_ *testing.T, b *bench) {
			b.bad = append(b.bad, b.Event(&lofamov1.Event{AsSeen: true})...)
		}, "not committed"},
		{"kept event that the watch lacks", func(_ *testing.T, b *bench) {
			e := b.event("n0-0-0", "host", normal, sick)
			other := &lofamov1.Event{Revision: 2, Index: 1, Node: "n0-0-0", Component: "memory", Kind: lofamov1.EventKind_COMPONENT_CHANGED}
			b.bad = append(b.bad, b.CompareKept([]*lofamov1.Event{e, other})...)
		}, "the watch does not"},
		{"watched event that is not kept", func(_ *testing.T, b *bench) {
			b.event("n0-0-0", "host", normal, sick)
			b.bad = append(b.bad, b.CompareKept(nil)...)
		}, "do not have this event"},
		{"history in another order", func(_ *testing.T, b *bench) {
			first, second := b.event("n0-0-0", "host", normal, sick), b.event("n0-0-0", "host", sick, normal)
			b.bad = append(b.bad, b.CompareHistory("n0-0-0", []*lofamov1.Event{second, first})...)
			b.bad = append(b.bad, b.CompareHistory("n0-0-0", []*lofamov1.Event{first, second})...)
		}, "history of n0-0-0 differ"},
		{"list without a watched change", func(_ *testing.T, b *bench) {
			b.event("n0-0-0", "host", normal, sick)
			b.bad = append(b.bad, b.CompareList(b.nodes())...)
		}, "is NORMAL in the list, and SICK by the events"},
		{"component that does not recover", func(_ *testing.T, b *bench) {
			b.set(grid.Coord{}, "memory", failed)
			b.bad = append(b.bad, b.Unsettled(b.nodes())...)
		}, "n0-0-0 memory is FAILED"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench()
			tt.plant(t, b)
			switch {
			case tt.want == "" && len(b.bad) > 0:
				t.Errorf("violations %q, want none", b.bad)
			case tt.want != "" && (len(b.bad) != 1 || !strings.Contains(b.bad[0], tt.want)):
				t.Errorf("violations %q, want one with %q", b.bad, tt.want)
			}
		})
	}
}

func TestSickWithoutFaultIsCounted(t *testing.T) {
	b := newBench()
	b.fault(t, grid.Coord{}, "kill-host")
	b.event("n0-0-0", "node", normal, sick)
	b.event("n1-1-0", "host", normal, sick)
	if b.Sick != 1 || len(b.bad) > 0 || b.Events != 2 {
		t.Errorf("%d SICK without a fault, %d events, violations %q: want 1, 2, none", b.Sick, b.Events, b.bad)
	}
}

func TestLedgerFindsLostChanges(t *testing.T) {
	for _, tt := range []struct {
		name    string
		set     func(l *Ledger)
		present map[string]string
		want    string
	}{
		{"policy is there", func(l *Ledger) { l.Set("policy", "2", true) }, map[string]string{"policy": "2"}, ""},
		{"policy is lost", func(l *Ledger) { l.Set("policy", "2", true) }, nil, `policy is "", and "2" was acknowledged`},
		{"policy is the former one", func(l *Ledger) { l.Set("policy", "1", true); l.Set("policy", "2", true) },
			map[string]string{"policy": "1"}, `policy is "1", and "2" was acknowledged`},
		{"unclear answer, done", func(l *Ledger) { l.Set("mask", "a", true); l.Set("mask", "b", false) }, map[string]string{"mask": "b"}, ""},
		{"unclear answer, not done", func(l *Ledger) { l.Set("mask", "a", true); l.Set("mask", "b", false) },
			map[string]string{"mask": "a"}, ""},
		{"unclear answer, neither", func(l *Ledger) { l.Set("mask", "a", true); l.Set("mask", "b", false) }, nil, "mask"},
		{"two unclear answers, the first done", func(l *Ledger) {
			l.Set("mask", "a", true)
			l.Set("mask", "b", false)
			l.Set("mask", "c", false)
		}, map[string]string{"mask": "b"}, ""},
		{"two unclear answers, the last done", func(l *Ledger) { l.Set("mask", "b", false); l.Set("mask", "c", false) },
			map[string]string{"mask": "c"}, ""},
		{"unclear answers before a clear one", func(l *Ledger) {
			l.Set("mask", "b", false)
			l.Set("mask", "c", false)
			l.Set("mask", "d", true)
		}, map[string]string{"mask": "b"}, `mask is "b", and "d" was acknowledged`},
		{"value that no unclear call set", func(l *Ledger) { l.Set("mask", "b", false) }, map[string]string{"mask": "c"}, "no call set it"},
		{"removed mask is back", func(l *Ledger) { l.Set("mask", "a", true); l.Set("mask", "", true) }, map[string]string{"mask": "a"}, "mask"},
		{"removed", func(l *Ledger) { l.Set("mask", "a", true); l.Set("mask", "", true) }, nil, ""},
		{"from nowhere", func(*Ledger) {}, map[string]string{"mask": "a"}, "no call set it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewLedger()
			tt.set(l)
			bad := l.Compare(tt.present)
			if tt.want == "" && len(bad) > 0 || tt.want != "" && (len(bad) != 1 || !strings.Contains(bad[0], tt.want)) {
				t.Errorf("violations %q, want %q", bad, tt.want)
			}
		})
	}
}

func TestSlope(t *testing.T) {
	var grows, flat []Sample
	for i := range 120 {
		at := time.Duration(i) * time.Minute
		noise := float64(i%3) - 1
		grows = append(grows, Sample{at, 30 + 2*at.Hours() + noise})
		flat = append(flat, Sample{at, 30 + noise})
	}
	if s := Slope(grows); s < 1.9 || s > 2.1 {
		t.Errorf("slope %.3f, want 2 per hour", s)
	}
	if s := Slope(flat); s < -0.1 || s > 0.1 {
		t.Errorf("slope %.3f, want 0", s)
	}
	if s := Slope(grows[:1]); s != 0 {
		t.Errorf("slope of one sample: %v", s)
	}
}

func TestQuantile(t *testing.T) {
	if got := Quantile([]time.Duration{}, 0.5); got != 0 {
		t.Errorf("median of nothing: %v", got)
	}
	v := []int{3, 1, 2, 4}
	for q, want := range map[float64]int{0: 1, 0.5: 2, 0.75: 3, 0.99: 4, 1: 4} {
		if got := Quantile(v, q); got != want {
			t.Errorf("quantile %v: %d, want %d", q, got, want)
		}
	}
}
