package awareness

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestConfigNamesEveryBadField checks that every bad field is named, all at once.
func TestConfigNamesEveryBadField(t *testing.T) {
	good := testConfig(grid.Dims{X: 2, Y: 2, Z: 1})
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	ids := func(change func(map[grid.Coord]fault.NodeID)) map[grid.Coord]fault.NodeID {
		m := testConfig(good.Dims).IDs
		change(m)
		return m
	}
	for _, tc := range []struct {
		change func(*Config)
		names  string
	}{
		{func(c *Config) { c.Dims.X = 0 }, "size of X is 0"},
		{func(c *Config) { c.IDs = ids(func(m map[grid.Coord]fault.NodeID) { delete(m, grid.Coord{X: 1}) }) }, "no id for 1,0,0"},
		{func(c *Config) { c.IDs = ids(func(m map[grid.Coord]fault.NodeID) { m[grid.Coord{X: 1}] = "n0-0-0" }) }, `both "n0-0-0"`},
		{func(c *Config) { c.IDs = ids(func(m map[grid.Coord]fault.NodeID) { m[grid.Coord{X: 7}] = "x" }) }, "given 5 ids: want 4"},
		{func(c *Config) { c.Supervisor = "" }, "Supervisor"},
		{func(c *Config) { c.ChallengeNode = 0 }, "ChallengeNode: given 0s"},
		{func(c *Config) { c.ChallengeHalf = -1 }, "ChallengeHalf"},
		{func(c *Config) { c.ChallengeSingle = 0 }, "ChallengeSingle"},
		{func(c *Config) { c.DigestPeriod = 0 }, "DigestPeriod"},
		{func(c *Config) { c.DigestMisses = 1 }, "DigestMisses: given 1: want 2 or more"},
		{func(c *Config) { c.HalfBound = 0 }, "HalfBound"},
		{func(c *Config) { c.Grace = -time.Second }, "Grace: given -1s"},
		{func(c *Config) { c.LinkSettle = -1 }, "LinkSettle"},
		{func(c *Config) { c.PauseSettle = -1 }, "PauseSettle"},
		{func(c *Config) { c.HoldOff = -1 }, "HoldOff"},
		{func(c *Config) { c.DomainLabels = []string{"rack", "rack"} }, `DomainLabels: given "rack"`},
		{func(c *Config) { c.DomainLabels = []string{""} }, `DomainLabels: given ""`},
		{func(c *Config) { c.Labels = map[fault.NodeID]map[string]string{"x": {"rack": "r1"}} }, "Labels: given for 1 nodes, of which 0"},
		{func(c *Config) { c.Nonce = nil }, "Nonce"},
	} {
		c := good
		tc.change(&c)
		_, err := New(c, epoch0, nil)
		if err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v, want one that names %q", err, tc.names)
		}
		c.Nonce, c.HoldOff = nil, -1
		if err := c.Validate(); !strings.Contains(err.Error(), tc.names) || !strings.Contains(err.Error(), "Nonce") ||
			!strings.Contains(err.Error(), "HoldOff") {
			t.Errorf("not all bad fields are named: %v", err)
		}
	}
}

func TestDamagedMapIsNotRestored(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 2, Y: 1, Z: 1})
	node := NodeStatus{ID: "n0-0-0", State: fault.Normal, Cause: fault.CauseNone}
	for names, saved := range map[string][]NodeStatus{
		`node "x"`:                   {{ID: "x", State: fault.Normal}},
		"given twice":                {node, node},
		"coordinate 1,0,0: want 0,":  {{ID: "n0-0-0", Coord: grid.Coord{X: 1}, State: fault.Normal}},
		"component node is State(0)": {{ID: "n0-0-0"}},
		"Component(99)":              {{ID: "n0-0-0", State: fault.Normal, Components: []ComponentStatus{{Component: 99, State: fault.Normal}}}},
	} {
		if _, err := New(cfg, epoch0, saved); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("error %v, want one that names %q", err, names)
		}
	}
}

// TestRestoreIsExact checks that the map of a cluster with every kind of fault is restored unchanged, even if the store
// kept no causes of components, and that the first steps of the new leader change nothing.
func TestRestoreIsExact(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 1})
	for _, h := range halves {
		w.actor("n1-1-0", h).alive = false
	}
	w.actor("n0-0-0", fault.HalfHost).alive = false
	w.say(w.actor("n0-0-0", fault.HalfDNP), subject{"n0-0-0", fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 0)
	w.actor("n2-2-0", fault.HalfDNP).alive = false
	w.say(w.actor("n2-2-0", fault.HalfHost), subject{"n2-2-0", fault.ComponentDNP}, fault.Failed, fault.KindWatchdog, 0)
	w.say(w.actor("n2-0-0", fault.HalfHost), subject{"n2-0-0", fault.ComponentMemory}, fault.Sick, fault.KindSelf, 0)
	w.run(80 * time.Millisecond)
	w.silence("n1-1-0", false, 80*time.Millisecond)
	w.run(time.Second)
	saved := w.m.Nodes()
	want := summary(w.m)
	for _, s := range []string{"n1-1-0 FAILED NODE", "n0-0-0 SICK HOST", "n2-2-0 SICK DNP", "n2-0-0 SICK MEMORY", "=FAILED/NODE",
		"=FAILED/DNP"} {
		if !strings.Contains(want, s) {
			t.Fatalf("no %q in\n%s", s, want)
		}
	}
	for i := range saved {
		for j := range saved[i].Components {
			saved[i].Components[j].Cause = 0
		}
	}
	m, err := New(w.cfg, w.now, saved)
	if err != nil {
		t.Fatal(err)
	}
	out := m.Step(w.now, Tick{})
	if got := summary(m); got != want || len(out.Changes) > 0 {
		t.Fatalf("restored\n%s\nwant\n%s\nchanges %+v", got, want, out.Changes)
	}
	if out.Wake.IsZero() {
		t.Error("no wake: what stays unheard would never become UNKNOWN")
	}
	for i, n := range m.Nodes() {
		if n.HostEpoch != saved[i].HostEpoch || n.DNPEpoch != saved[i].DNPEpoch || !n.Since.Equal(saved[i].Since) || !n.Life.IsZero() {
			t.Errorf("%s: restored as %+v", n.ID, n)
		}
	}
	// Old reports of a lower epoch, replayed to the new leader, are no evidence.
	for _, d := range w.actor("n1-1-0", fault.HalfHost).sent {
		d.Report.ID.Epoch--
		m.Step(w.now, Evidence{d})
	}
	// Without any reports, everything except FAILED halves and nodes becomes UNKNOWN in the end.
	m.Step(w.now.Add(m.window()), Tick{})
	for _, n := range m.Nodes() {
		switch n.ID {
		case "n1-1-0":
			if n.State != fault.Failed {
				t.Errorf("%s is %s", n.ID, n.State)
			}
		case "n0-0-0", "n2-2-0":
			if n.State != fault.Sick {
				t.Errorf("%s is %s", n.ID, n.State)
			}
		default:
			if n.State != fault.Unknown {
				t.Errorf("%s is %s", n.ID, n.State)
			}
		}
	}
}
