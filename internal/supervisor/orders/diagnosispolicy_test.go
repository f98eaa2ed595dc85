package orders

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
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

// A suspect whose time lies in the future comes from a former leader whose clock was ahead. It waits from its first sight in this term. If
// the link recovers and is SICK again, the new time counts.
func TestSuspectFromTheFutureIsDiagnosed(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	peer := func(fault.NodeID, grid.Direction) (fault.NodeID, bool) { return "", false }
	auto := newAutoDiagnosis(DiagnosisPolicy{Links: true, After: 20 * time.Second, MinInterval: time.Minute})
	a, b := Suspect{"a", grid.XPlus, at(3600)}, Suspect{"b", grid.XPlus, at(3600)}
	for _, step := range []struct {
		now      int
		suspects []Suspect
		want     fault.NodeID // empty: none
	}{
		{5, []Suspect{a}, ""},
		{20, []Suspect{a, b}, ""},
		{24, []Suspect{a, b}, ""},
		{25, []Suspect{a, b}, "a"},
		{39, []Suspect{a, b}, ""},
		{40, []Suspect{a, b}, "b"},
		{50, []Suspect{b}, ""},
		{90, []Suspect{{"a", grid.XPlus, at(85)}}, ""},
		{104, []Suspect{{"a", grid.XPlus, at(85)}}, ""},
		{105, []Suspect{{"a", grid.XPlus, at(85)}}, "a"},
		{200, []Suspect{a}, ""}, // seen again, in the future again
		{220, []Suspect{a}, "a"},
	} {
		if req, ok := auto.Next(at(step.now), step.suspects, peer); ok != (step.want != "") || req.Node != step.want {
			t.Errorf("at %d s: %s, %t: want %q", step.now, req, ok, step.want)
		}
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

// A change of leader begins no second procedure within the interval. This holds for a report from the future too, but for one
// interval only.
func TestNewLeaderKeepsTheDrainInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.cfg.Pause = time.Millisecond
		drains := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour, Drain: true}, func() int {
			return len(slices.DeleteFunc(slices.Clone(n.procedures), (*lofamov1.ProcedureOrder).GetAsk))
		})
		drains(7, time.Minute, 1)
		drains(8, 50*time.Minute, 1)
		drains(9, 10*time.Minute, 2)
		r, err := n.m.LastProcedure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Started.Seconds += int64((48 * time.Hour).Seconds())
		n.m.keep(t.Context(), store.Write{}, nil, r)
		drains(10, 59*time.Minute, 2)
		drains(11, 61*time.Minute, 3)
	})
}

// A change of leader repeats no test of a link within the interval.
func TestNewLeaderKeepsTheIntervalOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		tests := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func() int { return len(n.orders) / 2 })
		tests(7, time.Minute, 1)
		tests(8, 50*time.Minute, 1)
		tests(9, 10*time.Minute, 2)
		r, err := n.m.LastDiagnosis(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Started.Seconds += int64((48 * time.Hour).Seconds())
		n.m.keep(t.Context(), store.Write{}, r, nil)
		tests(10, 59*time.Minute, 2)
		tests(11, 61*time.Minute, 3)
	})
}

// A new leader keeps the policy's intervals, even if another requester's diagnosis or procedure followed that of the policy.
func TestOthersDiagnosisKeepsTheInterval(t *testing.T) {
	operator := "operator/a"
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		tests := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func() int { return len(n.orders) / 2 })
		tests(7, time.Minute, 1)
		n.m.keep(t.Context(), store.Write{}, &lofamov1.DiagnosisReport{Subject: operator, Started: timestamppb.Now()}, nil)
		tests(8, 50*time.Minute, 1)
		tests(9, 10*time.Minute, 2)
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.cfg.Pause = time.Millisecond
		drains := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour, Drain: true}, func() int {
			return len(slices.DeleteFunc(slices.Clone(n.procedures), (*lofamov1.ProcedureOrder).GetAsk))
		})
		drains(7, time.Minute, 1)
		d := &lofamov1.DiagnosisReport{Subject: operator, Started: timestamppb.Now()}
		n.m.keep(t.Context(), store.Write{}, d, &lofamov1.ProcedureReport{Subject: operator, Started: timestamppb.Now(), Diagnosis: d})
		drains(8, 50*time.Minute, 1)
		drains(9, 10*time.Minute, 2)
	})
}

// A new leader keeps the interval of every link that the policy has tested.
func TestNewLeaderKeepsTheIntervalOfEveryLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		since := time.Now().Add(-time.Minute)
		for term := uint64(7); term < 10; term++ {
			n.m.Lead(term)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			n.m.Watch(ctx, DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func(context.Context) ([]Suspect, error) {
				return []Suspect{{"n0-0-0", grid.XPlus, since}, {"n0-0-0", grid.YPlus, since}}, nil
			})
			cancel()
			n.m.Lead(0)
			if got := len(n.orders) / 2; got != 2 {
				t.Errorf("term %d: %d tests: want 2", term, got)
			}
		}
	})
}

// watched returns a function that lets a leader apply the policy for a time, with one suspect link. Then it compares the count.
func (n *diagnosedNodes) watched(p DiagnosisPolicy, count func() int) func(term uint64, d time.Duration, want int) {
	since := time.Now().Add(-time.Minute)
	return func(term uint64, d time.Duration, want int) {
		n.t.Helper()
		n.m.Lead(term)
		ctx, cancel := context.WithTimeout(n.t.Context(), d)
		defer cancel()
		n.m.Watch(ctx, p, func(context.Context) ([]Suspect, error) { return []Suspect{{"n0-0-0", grid.XPlus, since}}, nil })
		n.m.Lead(0)
		if got := count(); got != want {
			n.t.Errorf("term %d: %d times: want %d", term, got, want)
		}
	}
}
