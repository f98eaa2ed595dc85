package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestNoticeAfterItsOwnEndDelaysNothing delivers the end of a restart first, and then a copy of the notice that began it.
func TestNoticeAfterItsOwnEndDelaysNothing(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 3, Y: 3, Z: 3}))
	if err != nil {
		t.Fatal(err)
	}
	id := w.m.nodes[0].id
	notice := func(seq fault.Seq, within time.Duration) {
		w.step(Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
			ID:      fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: seq},
			Restart: fault.RestartNotice{Half: fault.HalfDNP, Within: within},
		}}})
	}
	notice(8, 0)
	w.now = w.now.Add(time.Second)
	notice(7, fault.MaxRestart)
	if r := w.m.announced(w.m.nodes[0], w.now); r.Half != 0 {
		t.Errorf("%+v: want no restart", r)
	}
	w.now = w.now.Add(time.Second)
	notice(9, fault.MaxRestart)
	if r := w.m.announced(w.m.nodes[0], w.now); r.Half != fault.HalfDNP {
		t.Errorf("%+v: want the restart of the DNP half", r)
	}
}

// TestNoticeAfterReturnOfNodeDelaysNothing delivers the return of a node first, and then the notice of a restart that it ends.
func TestNoticeAfterReturnOfNodeDelaysNothing(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	n := w.m.nodes[0]
	report := func(seq fault.Seq, r fault.Report) {
		r.ID = fault.ReportID{Origin: fault.Origin{Node: n.id, Half: fault.HalfHost}, Epoch: n.voice(fault.HalfHost).epoch, Seq: seq}
		w.step(Evidence{fault.Delivery{Path: fault.PathDirect, Report: r}})
		w.now = w.now.Add(time.Second)
	}
	restart := fault.Report{Restart: fault.RestartNotice{Half: fault.HalfHost, Within: fault.MaxRestart}}
	report(109, fault.Report{Stop: fault.StopOver})
	report(108, restart)
	if r := w.m.announced(n, w.now); r.Half != 0 {
		t.Errorf("%+v: want no restart", r)
	}
	report(110, restart)
	if r := w.m.announced(n, w.now); r.Half != fault.HalfHost {
		t.Errorf("%+v: want the restart of the host half", r)
	}
}

// TestStopsAgainAndAgainHideNoFault: a node that announces stops and returns without end uses up its budget. Then its faults show.
func TestStopsAgainAndAgainHideNoFault(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 2, Y: 2, Z: 2}))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.order {
		w.boot(a)
	}
	w.run(time.Second)
	id := w.id(0)
	liar := w.actor(id, fault.HalfHost)
	w.say(liar, subject{id, fault.ComponentMemory}, fault.Failed, fault.KindSelf, 0)
	for range 60 {
		for _, s := range []fault.Stop{fault.StopDaemon, fault.StopOver} {
			liar.stop = s
			w.report(liar, false)
			w.run(700 * time.Millisecond)
		}
	}
	st, _ := w.m.Node(id)
	if st.Stop.Reason != 0 || st.State != fault.Sick || st.Cause != fault.CauseMemory {
		t.Errorf("after 60 stops in 84 s: %s, cause %s, stop %q: want SICK, cause MEMORY, and no stop", st.State, st.Cause, st.Stop.Reason)
	}
}

// TestRepeatedRestartsHideNoBrokenLink: a node with a cut link announces restart after restart of its DNP half, and the end of each. It
// also claims a restart of its host half each time. The recovery time of its links uses up its budget. Then the leader marks the link as
// FAILED.
func TestRepeatedRestartsHideNoBrokenLink(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 2, Y: 2, Z: 2})
	cfg.HoldOff = 2 * time.Second
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.order {
		w.boot(a)
	}
	w.run(time.Second)
	id, peer := w.id(0), w.id(1)
	liar, d := w.actor(id, fault.HalfHost), grid.Directions()[0]
	w.say(liar, subject{id, fault.Link(d)}, fault.Failed, fault.KindSilence, 0)
	w.say(w.actor(peer, fault.HalfHost), subject{peer, fault.Link(d.Opposite())}, fault.Failed, fault.KindSilence, 0)
	for range 60 {
		for _, within := range []time.Duration{time.Second, 0} {
			liar.restart = fault.RestartNotice{Half: fault.HalfDNP, Within: within}
			liar.born = w.now
			w.report(liar, false)
			w.run(700 * time.Millisecond)
		}
	}
	st, _ := w.m.Node(id)
	if c := st.Components[fault.Link(d)-fault.ComponentHost]; c.State != fault.Failed || c.Cause != fault.CauseLink {
		t.Errorf("after 60 restarts in 84 s: %s is %s, cause %s: want FAILED, cause LINK", c.Component, c.State, c.Cause)
	}
}

// TestStopAfterItsOwnEndStopsNothing: the notice was held up, and arrives after the announcement of the return. The agent resumed from its
// copy, in the same boot epoch.
func TestStopAfterItsOwnEndStopsNothing(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	a := w.actor("n0-0-0", fault.HalfHost)
	a.lost, a.stop = true, fault.StopDaemon
	w.report(a, false)
	notice := a.sent[len(a.sent)-1]
	w.run(time.Second)
	a.lost, a.stop = false, fault.StopOver
	w.report(a, false)
	for _, later := range []time.Duration{10 * time.Millisecond, 10 * time.Second} {
		w.run(later)
		notice.Hops = []fault.Hop{{Node: a.origin.Node, Half: fault.HalfHost, Held: time.Second + later}}
		w.step(Evidence{notice})
		if st, _ := w.m.Node("n0-0-0"); st.Stop.Reason != 0 || st.State != fault.Normal {
			t.Fatalf("%s after its return, it is %s, stop %q: want NORMAL, and no stop", later, st.State, st.Stop.Reason)
		}
	}
	if n := w.m.nodes[w.m.ranks["n0-0-0"]]; n.restless {
		t.Error("each of its reports leads to another look at it")
	}
	w.run(stopBudget*w.cfg.StopLimit + time.Minute)
	if len(w.m.stops) != 0 {
		t.Error("the notice is kept for ever")
	}
}
