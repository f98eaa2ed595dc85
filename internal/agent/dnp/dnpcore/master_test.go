package dnpcore

import (
	"bytes"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A round whose number is made up, or comes from a clock that is ahead, blocks later rounds only while its messages may
// still arrive.
func TestForgedMasterRoundBlocksOnlyBriefly(t *testing.T) {
	w := newMesh(t, "6", 1, nil)
	w.run(time.Second)
	word := append(bytes.Repeat([]byte{0xff}, 8), 0, 0, 0, 1) // claims that node 1 is the master
	if _, err := w.nodes[5].m.raiseEureka(w.now, express.TopicMaster, masterPriority, word); err != nil {
		t.Fatal(err)
	}
	w.run(time.Second)
	w.nodes[3].host.ServiceNetwork, w.nodes[0].host.ServiceNetwork, w.nodes[1].host.ServiceNetwork = watchdog.HealthBroken,
		watchdog.HealthBroken, watchdog.HealthBroken
	w.run(2 * masterAgain)
	for i, n := range w.nodes {
		if rank, cutOff, known := n.m.Master(w.now); rank != 2 || cutOff || !known {
			t.Errorf("node %d: master %d, cut off %t, known %t", i, rank, cutOff, known)
		}
	}
}

// A part that has started cold and entirely cut off also gets a master when a margin for the Network Delay makes a
// round longer than the usual time between two.
func TestMasterIsFoundDespiteLongRounds(t *testing.T) {
	w := newMesh(t, "2x2x2", 1, func(c *Config) { c.Periods.LinkPeriod = 250 * time.Millisecond })
	for _, n := range w.nodes {
		n.host.ServiceNetwork = watchdog.HealthBroken
	}
	w.run(masterAfter + 3*time.Minute)
	if n := w.nodes[7].m; n.masterEvery() <= masterAgain {
		t.Fatalf("a round takes %s: the test shows nothing", n.masterEvery())
	}
	for i, n := range w.nodes {
		if rank, cutOff, known := n.m.Master(w.now); rank != 0 || !cutOff || !known {
			t.Errorf("node %d: master %d, cut off %t, known %t", i, rank, cutOff, known)
		}
	}
}

// Each part of the torus has a master, which all of its nodes know, as soon as one of them has no service network. The
// master is a node with a service network if there is one; otherwise the part is cut off. In a healthy torus there is
// none.
func TestEachConnectedPartHasOneMaster(t *testing.T) {
	w := newMesh(t, "6", 1, nil)
	check := func(what string, nodes []int, rank int, cutOff, known bool) {
		t.Helper()
		for _, i := range nodes {
			r, c, k := w.nodes[i].m.Master(w.now)
			if r != rank || c != cutOff || k != known {
				t.Errorf("%s: node %d: master %d, cut off %t, known %t; want %d, %t, %t", what, i, r, c, k, rank, cutOff, known)
			}
		}
	}
	all := []int{0, 1, 2, 3, 4, 5}
	w.run(masterAfter + masterAgain)
	check("all are well", all, 0, false, false)
	if n := w.nodes[0].m.ExpressStats().Delivered[express.TopicMaster]; n != 0 {
		t.Errorf("%d broadcasts where all are well", n)
	}
	w.nodes[4].host.ServiceNetwork = watchdog.HealthBroken
	w.run(masterAfter + masterAgain)
	check("one has no service network", all, 0, false, true)
	for _, i := range []int{2, 3} { // 2, 3 and 4 form a part without any service network
		w.nodes[i].host.ServiceNetwork = watchdog.HealthBroken
	}
	w.cut(w.nodes[1], grid.XPlus)
	w.cut(w.nodes[4], grid.XPlus)
	w.run(2*masterAgain + masterAfter)
	check("a part that is cut off", []int{2, 3, 4}, 2, true, true)
	w.nodes[3].host.ServiceNetwork = watchdog.HealthNormal
	w.run(2 * masterAgain)
	check("one of them reaches the supervisors again", []int{2, 3, 4}, 3, false, true)
	for _, i := range []int{2, 4} {
		w.nodes[i].host.ServiceNetwork = watchdog.HealthNormal
	}
	w.run(2*masterAgain + time.Second)
	check("all are well again", all, 0, false, false)
	w.noRuleBroken()
}
