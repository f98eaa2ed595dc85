package response_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

var start = time.Unix(1_800_000_000, 0).UTC()

// failer is a test, or one example of a property.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// lab is an engine with its environment: a store that commits its records, and a map. It checks the invariants with
// every step.
type lab struct {
	t       failer
	cfg     response.Config
	e       *response.Engine
	twin    *response.Engine // gets the same input, and must give the same output
	now     time.Time
	wake    time.Time
	token   uint64
	leads   bool
	newborn bool
	store   map[string]response.Record
	topo    response.TopologyChanged
	sups    []response.SupervisorInfo
	marks   []fault.NodeID
	pols    []*response.Policy
	faults  map[response.Target]response.Fault
	groups  map[string]response.Group
	epochs  map[fault.NodeID]fault.Epoch
	stale   bool                  // newer evidence is not available
	flying  []response.Effect     // effects without a result yet
	on      func(response.Output) // receives every output, after the commit

	unsettled []response.Effect // former leaders' attempts, until their executors report the outcomes
}

// testPolicies reads testdata/policies.yaml.
func testPolicies(t testing.TB) map[string]*response.Policy {
	t.Helper()
	b, err := os.ReadFile("testdata/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := policy.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*response.Policy{}
	for _, d := range docs {
		out[d.Name] = d.Policy
	}
	return out
}

// topology returns a torus in which the nodes of one X share a rack.
func topology(dims grid.Dims) response.TopologyChanged {
	topo := response.TopologyChanged{Dims: dims}
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		topo.Nodes = append(topo.Nodes, response.NodeInfo{ID: fault.DefaultNodeID(at), Coord: at,
			Labels: map[string]string{"rack": fmt.Sprintf("r%d", at.X)}})
	}
	return topo
}

func newLab(t failer, cfg response.Config, dims grid.Dims, pols ...*response.Policy) *lab {
	t.Helper()
	l := &lab{
		t: t, cfg: cfg, now: start, store: map[string]response.Record{}, topo: topology(dims), pols: pols,
		faults: map[response.Target]response.Fault{},
		groups: map[string]response.Group{}, epochs: map[fault.NodeID]fault.Epoch{}, sups: []response.SupervisorInfo{{ID: "s1", Alive: true}},
	}
	for _, n := range l.topo.Nodes {
		l.epochs[n.ID] = 7
	}
	return l
}

// lead makes another replica lead that only knows the committed state. Unless newborn, it has run for a minute.
func (l *lab) lead() {
	l.t.Helper()
	e, err := response.New(l.cfg)
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	if l.twin, err = response.New(l.cfg); err != nil {
		l.t.Fatalf("%v", err)
	}
	l.e, l.leads, l.unsettled = e, false, nil
	if !l.newborn {
		began := l.now.Add(-time.Minute)
		l.e.Step(began, l.topo)
		l.twin.Step(began, l.topo)
	}
	l.token++
	led := response.Led{Token: l.token, Records: slices.Collect(maps.Values(l.store))}
	for _, t := range slices.SortedFunc(maps.Keys(l.faults), compareTargets) {
		led.Faults = append(led.Faults, l.faults[t])
	}
	for _, id := range slices.Sorted(maps.Keys(l.groups)) {
		led.Groups = append(led.Groups, l.groups[id])
	}
	for _, id := range slices.Sorted(maps.Keys(l.epochs)) {
		led.Epochs = append(led.Epochs, response.Booted{Node: id, Epoch: l.epochs[id]})
	}
	for _, ev := range []response.Event{
		l.topo, response.SupervisorsChanged{Supervisors: l.sups}, response.MaintenanceChanged{Nodes: l.marks},
		response.PoliciesChanged{Policies: l.pols}, led,
	} {
		_, l.leads = ev.(response.Led)
		l.step(ev)
	}
}

func compareTargets(a, b response.Target) int { return strings.Compare(a.String(), b.String()) }

// step feeds an event to the engine, commits, checks, and answers the engine's requests.
func (l *lab) step(ev response.Event) error {
	l.t.Helper()
	out := l.e.Step(l.now, ev)
	if l.twin != nil {
		if again := l.twin.Step(l.now, ev); !reflect.DeepEqual(out, again) {
			l.t.Fatalf("%T: the same engine says %+v, and %+v", ev, out, again)
		}
	}
	l.wake = out.Wake
	for _, r := range out.Records {
		l.store[r.Key()] = r
	}
	for _, key := range out.Forget {
		delete(l.store, key)
	}
	l.check(out)
	l.flying = append(l.flying, out.Effects...)
	l.unsettled = append(l.unsettled, out.Unsettled...)
	if l.on != nil {
		l.on(out)
	}
	for _, t := range out.Look {
		if evd, ok := l.e.Evidence(t); ok && !l.stale {
			evd.At = l.now
			l.step(response.Seen{Target: t, Evidence: evd})
		}
	}
	return out.Err
}

// check verifies the invariants after every commit.
func (l *lab) check(out response.Output) {
	l.t.Helper()
	for _, f := range out.Effects {
		r, ok := l.store["response/"+f.Response].(*response.Response)
		if !ok || r.State != response.Running || r.Step != f.Step || r.Token != f.Token || f.Token != l.token || r.Undoing != f.Undo ||
			r.Mode != response.Enforce {
			l.t.Fatalf("effect %+v without its intent: committed is %+v", f, r)
		}
		want := response.Acting
		if f.Undo {
			want = response.Undoing
		}
		if s := r.Steps[f.Step]; s.State != want || s.Attempt != f.Attempt.Attempt || !s.Changed {
			l.t.Fatalf("effect %+v without its intent: committed is step %+v", f, s)
		}
	}
	l.checkCaps()
}

// checkCaps counts the nodes under response from the store, in the simplest way.
func (l *lab) checkCaps() {
	l.t.Helper()
	held := map[fault.NodeID]bool{}
	for _, rec := range l.store {
		r, ok := rec.(*response.Response)
		if !ok || !r.Closed.IsZero() {
			continue
		}
		for _, s := range r.Steps {
			if s.Changed && s.Kind.Traits().Class != response.Notify {
				held[r.Target.Node] = true
			}
		}
	}
	percent := max(1, len(l.topo.Nodes)*l.cfg.MaxPercent/100)
	if n := len(held); n > min(l.cfg.MaxNodes, percent) {
		l.t.Fatalf("%d nodes under response: want at most %d and %d%%", n, l.cfg.MaxNodes, l.cfg.MaxPercent)
	}
	if n := l.e.UnderResponse(); l.leads && n != len(held) {
		l.t.Fatalf("the engine counts %d nodes under response, the store has %d", n, len(held))
	}
	racks, planes := map[string]int{}, map[string]int{}
	for _, n := range l.topo.Nodes {
		if !held[n.ID] {
			continue
		}
		racks[n.Labels["rack"]]++
		for axis, at := range []int{n.Coord.X, n.Coord.Y, n.Coord.Z} {
			planes[fmt.Sprint(axis, "=", at)]++
		}
	}
	for rack, n := range racks {
		if n > l.cfg.MaxPerDomain {
			l.t.Fatalf("%d nodes under response in rack %s: want at most %d", n, rack, l.cfg.MaxPerDomain)
		}
	}
	for p, n := range planes {
		if n > l.cfg.MaxPerPlane {
			l.t.Fatalf("%d nodes under response in plane %s: want at most %d", n, p, l.cfg.MaxPerPlane)
		}
	}
	if len(l.sups) < 3 {
		return
	}
	lost := 0
	for _, s := range l.sups {
		if held[s.Node] {
			lost++
		}
	}
	if lost > (len(l.sups)-1)/2 {
		l.t.Fatalf("%d of %d supervisors are on nodes under response", lost, len(l.sups))
	}
}

// until advances time, with a Tick at every Wake of the engine.
func (l *lab) until(at time.Time) {
	l.t.Helper()
	for n := 0; !l.wake.IsZero() && !l.wake.After(at); n++ {
		if n > 10_000 {
			l.t.Fatalf("the engine wakes without end at %s", l.now.Sub(start))
		}
		if l.wake.After(l.now) {
			l.now = l.wake
		}
		l.step(response.Tick{})
	}
	l.now = at
}

// set changes a component's state, with fresh evidence.
func (l *lab) set(f response.Fault) {
	l.t.Helper()
	if f.State == fault.Normal {
		delete(l.faults, f.Target())
	} else {
		l.faults[f.Target()] = f
	}
	l.step(response.FaultChanged{Fault: f})
}

// own returns a fault that the node itself has measured.
func (l *lab) own(id fault.NodeID, c fault.Component, s fault.State) response.Fault {
	cause := c.Cause()
	if s == fault.Normal {
		cause = fault.CauseNone
	}
	_, link := c.LinkDirection()
	return response.Fault{
		Node: id, Component: c, State: s, Cause: cause, Since: l.now, Platform: fault.PlatformDPU,
		Evidence: response.Evidence{At: l.now, Kind: fault.KindSelf, Own: !link, Port: link, Witnesses: []string{string(id) + "/host"}},
	}
}

// answer feeds an executor's result for an effect.
func (l *lab) answer(f response.Effect, o response.Outcome, detail string) {
	l.t.Helper()
	l.step(response.Result{Attempt: f.Attempt, Outcome: o, Detail: detail})
}

// land answers all pending effects, and those that follow from the answers.
func (l *lab) land(o response.Outcome, detail string) {
	l.t.Helper()
	flying := l.flying
	l.flying = nil
	for _, f := range flying {
		l.answer(f, o, detail)
	}
}

// ask feeds a person's request.
func (l *lab) ask(subject string, v response.Verb, id string) error {
	l.t.Helper()
	return l.step(response.Asked{Subject: subject, Verb: v, Response: id})
}

func defaultPolicies(t testing.TB) []*response.Policy {
	t.Helper()
	docs, err := policy.Default()
	if err != nil {
		t.Fatal(err)
	}
	return policy.Policies(docs)
}

func parsed(t testing.TB, b []byte) []*response.Policy {
	t.Helper()
	docs, err := policy.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Policies(docs)
}
