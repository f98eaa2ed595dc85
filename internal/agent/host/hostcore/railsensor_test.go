package hostcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// TestRailReturnsAfterPauseOfSensors: a sensor reports that a service interface has failed, then no sensor answers for a while (a read of
// sysfs hangs), and the next reading reports that the interface works. Its rail is in use again. The pause alone brings no rail back.
func TestRailReturnsAfterPauseOfSensors(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	now := start
	m, err := New(Config{
		Topo: halfcore.NewTopology("n0-0-0", grid.Coord{}, grid.Dims{X: 2, Y: 1, Z: 1}, nil), Periods: p, MaxHops: 9,
		Rails: []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}, Interfaces: []string{"eth0", "eth1"}, Sensed: 0,
	}, now, 7)
	if err != nil {
		t.Fatal(err)
	}
	m.Step(now, Supervisors{Targets: []string{"sup-0"}})
	reads := func(s fault.State, down bool) {
		t.Helper()
		m.Step(now, Readings{[]Reading{
			{Component: fault.ComponentServiceNetwork, State: s}, {Component: fault.ComponentMemory, State: fault.Normal},
		}})
		if m.down[0] != down {
			t.Errorf("the sensor reads %s: rail down %t", s, m.down[0])
		}
	}
	run := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(25 * time.Millisecond)
			m.Step(now, Tick{})
		}
	}
	for range 2 { // again after it has recovered
		reads(fault.Normal, false)
		run(time.Second)
		reads(fault.Failed, true)
		run(10 * time.Second)
		if _, known := m.sensors[fault.ComponentServiceNetwork]; known || !m.down[0] {
			t.Fatalf("after a pause: the reading still counts %t, rail down %t", known, m.down[0])
		}
		reads(fault.Failed, true)
		run(10 * time.Second)
		reads(fault.Normal, false)
	}
}
