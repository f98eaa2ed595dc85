package orders

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestSuspectLinkIsDiagnosedAutomatically(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	peer := func(id fault.NodeID, _ grid.Direction) (fault.NodeID, bool) {
		other := map[fault.NodeID]fault.NodeID{"a": "b", "b": "a"}[id]
		return other, other != ""
	}
	policy := DiagnosisPolicy{Links: true, After: 20 * time.Second, MinInterval: 5 * time.Minute}
	auto := newAutoDiagnosis(policy)
	a, b, c := Suspect{"a", grid.XPlus, at(10)}, Suspect{"b", grid.XMinus, at(5)}, Suspect{"c", grid.YPlus, at(12)}
	for _, step := range []struct {
		now      int
		suspects []Suspect
		want     fault.NodeID // empty: none
	}{
		{20, []Suspect{a, b, c}, ""},                       // none for long enough
		{26, []Suspect{a, b, c}, "b"},                      // the longest
		{32, []Suspect{a, b, c}, ""},                       // too soon after that
		{36, []Suspect{a, b, c}, "c"},                      // a's is the same link as b's
		{60, []Suspect{a, b, c}, ""},                       // lately
		{330, []Suspect{a, b, c}, "b"},                     // again
		{345, []Suspect{a, b}, ""},                         // nor by its other end
		{346, nil, ""},                                     // all is well
		{700, []Suspect{a}, "a"},                           // by that end
		{720, []Suspect{a, b}, ""},                         // lately
		{721, []Suspect{{"c", grid.YMinus, at(700)}}, "c"}, // another link of the same node
	} {
		req, ok := auto.Next(at(step.now), step.suspects, peer)
		if ok != (step.want != "") || req.Node != step.want {
			t.Errorf("at %d s: %s, %t: want %q", step.now, req, ok, step.want)
		}
		if ok && (req.Rounds != autoRounds || req.Subject != PolicySubject || !req.Link.Valid()) {
			t.Errorf("%+v", req)
		}
	}
	if _, ok := newAutoDiagnosis(DiagnosisPolicy{After: time.Second, MinInterval: time.Second}).Next(at(100), []Suspect{a}, peer); ok {
		t.Error("it is off, and diagnoses")
	}
}

// Watch diagnoses a link that is suspect, once.
func TestWatchDiagnosesSuspectOnce(t *testing.T) {
	t.Parallel()
	n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
	n.m.Lead(7)
	n.m.Watch(t.Context(), DiagnosisPolicy{}, nil) // off: it returns
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	n.m.Watch(ctx, DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func(context.Context) ([]Suspect, error) {
		if looks++; looks == 2 {
			cancel()
		}
		return []Suspect{{"n0-0-0", grid.XPlus, time.Now().Add(-time.Minute)}}, nil
	})
	r, err := n.m.LastDiagnosis(t.Context())
	if err != nil || r.GetSubject() != PolicySubject || r.GetScope() != "link n0-0-0 X+" || n.m.count != 1 {
		t.Errorf("%v, %v, %d diagnoses", r, err, n.m.count)
	}
}

// With drain, one procedure covers all suspects; one that was busy is retried soon.
func TestOneProcedureCoversAllSuspects(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	peer := func(fault.NodeID, grid.Direction) (fault.NodeID, bool) { return "", false }
	auto := newAutoDiagnosis(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: 5 * time.Minute, Drain: true})
	suspects := []Suspect{{"a", grid.XPlus, at(0)}, {"b", grid.YPlus, at(1)}}
	next := func(s int, want fault.NodeID) DiagnosisRequest {
		t.Helper()
		req, ok := auto.Next(at(s), suspects, peer)
		if ok != (want != "") || req.Node != want {
			t.Errorf("at %d s: %s, %t: want %q", s, req, ok, want)
		}
		return req
	}
	req := next(10, "a")
	auto.Not(at(12), req, peer) // another diagnosis was running
	next(21, "")
	next(22, "a")
	next(200, "") // b is tested with it
	next(321, "")
	next(322, "a") // it is SICK still
}

// Watch has the torus drained for a link that is suspect, once.
func TestWatchDrainsTorusOnce(t *testing.T) {
	t.Parallel()
	n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
	n.m.Lead(7)
	ctx, cancel := context.WithCancel(t.Context())
	n.m.Watch(ctx, DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour, Drain: true},
		func(context.Context) ([]Suspect, error) {
			if len(n.procedures) > 0 {
				cancel()
			}
			return []Suspect{{"n0-0-0", grid.XPlus, time.Now().Add(-time.Minute)}}, nil
		})
	r, err := n.m.LastProcedure(t.Context())
	if err != nil || r.GetSubject() != PolicySubject || r.GetReason() != "link n0-0-0 X+ is SICK" || len(r.GetDiagnosis().GetLinks()) != 8 {
		t.Errorf("%v, %v", r, err)
	}
}
