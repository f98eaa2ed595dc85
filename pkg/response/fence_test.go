package response_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestNodeAtBorderIsNotKnownFenced: the supervisors of a region do not know whether a neighbour in another region keeps a node in
// contact. So they never call such a node down.
func TestNodeAtBorderIsNotKnownFenced(t *testing.T) {
	for id, atBorder := range map[fault.NodeID]bool{"n0-0-0": true, "n1-0-0": false, "n2-0-0": true} {
		cfg := quick()
		cfg.MaxPercent = 100
		l := newLab(t, cfg, grid.Dims{X: 4, Y: 1, Z: 1}, testPolicies(t)["fence"])
		l.topo.Nodes = l.topo.Nodes[:3] // n3-0-0 is of another region
		l.lead()
		p := &player{t: t, l: l}
		p.cut(id)
		f := l.own(id, fault.ComponentNode, fault.Failed)
		f.Evidence.Own, f.Evidence.Kind, f.Evidence.Witnesses = false, fault.KindVotes, []string{"n0-0-0/host", "n1-0-0/host", "n2-0-0/host"}
		f.Watchdog = response.Watchdog{Armed: true, Timeout: 10 * time.Second, ContactWithin: 10 * time.Second, Boot: 1}
		l.set(f)
		l.until(start.Add(2 * time.Minute))
		r := l.e.Responses()[0]
		fence := r.Steps[0]
		if down := fence.State == response.Acted; down == atBorder || atBorder && !strings.Contains(fence.Detail, "another region") {
			t.Errorf("%s: fence %s: %s", id, fence.State, fence.Detail)
		}
	}
}

// TestDenialEndsWaitForFencing: a denied response does not wait for the node any more.
func TestDenialEndsWaitForFencing(t *testing.T) {
	p := *testPolicies(t)["fence"]
	p.Guards.Approvals = 1
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 1, Z: 1}, &p)
	l.lead()
	f := l.own("n1-0-0", fault.ComponentNode, fault.Failed)
	f.Watchdog = response.Watchdog{Armed: true, Timeout: 10 * time.Second, ContactWithin: 10 * time.Second, Boot: 1}
	l.set(f)
	r := l.e.Responses()[0]
	if r.State != response.Running || r.Steps[0].State != response.Acting {
		t.Fatalf("%s, fence %s: want it to wait for the fencing", r.State, r.Steps[0].State)
	}
	if err := l.ask("operator/ann", response.Deny, r.ID); err != nil {
		t.Fatal(err)
	}
	r = l.e.Responses()[0]
	if r.State != response.Expired || r.Reason != response.ReasonDenied || r.Steps[0].State != response.Pending {
		t.Errorf("%s (%s), fence %s: want it denied, and the fence pending", r.State, r.Reason, r.Steps[0].State)
	}
}

// TestResponseShowsWhyFencingIsNotCertain: the end of the wait is shown only while it is known. A neighbour that regains contact takes
// its place.
func TestResponseShowsWhyFencingIsNotCertain(t *testing.T) {
	cfg := quick()
	cfg.MaxPercent = 100
	l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, testPolicies(t)["fence"])
	l.lead()
	p := &player{t: t, l: l}
	p.cut("n1-0-0")
	f := l.own("n1-0-0", fault.ComponentNode, fault.Failed)
	f.Evidence.Own, f.Evidence.Kind, f.Evidence.Witnesses = false, fault.KindVotes, []string{"n0-0-0/host", "n2-0-0/host"}
	f.Watchdog = response.Watchdog{Armed: true, Timeout: 10 * time.Second, ContactWithin: 10 * time.Second, Boot: 1}
	l.set(f)
	mark := func(ids ...fault.NodeID) {
		l.marks = ids
		l.step(response.MaintenanceChanged{Nodes: ids})
	}
	link := l.own("n0-0-0", fault.Link(grid.XPlus), fault.Failed)
	well := link
	well.State = fault.Normal
	mark("n1-0-0")
	l.until(start.Add(2 * time.Minute))
	l.set(well)
	l.set(link)
	mark()
	if r := l.e.Responses()[0]; r.Reason != response.ReasonNotFenced || !strings.HasPrefix(r.Detail, "until ") {
		t.Fatalf("%s (%s): want it to wait for the fencing until a known time", r.Reason, r.Detail)
	}
	l.set(well)
	l.until(start.Add(10 * time.Minute))
	if r := l.e.Responses()[0]; r.Reason != response.ReasonNotFenced || !strings.Contains(r.Detail, "n0-0-0") {
		t.Errorf("%s (%s): want the neighbour that may be in contact", r.Reason, r.Detail)
	}
}
