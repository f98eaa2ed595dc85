package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// around is a map with the nodes n000 to n009, of which some are quiet.
func around(quiet ...fault.NodeID) Around {
	a := Around{Quiet: map[fault.NodeID]struct{}{}, Known: func(id fault.NodeID) bool { return strings.HasPrefix(string(id), "n00") }}
	for _, id := range quiet {
		a.Quiet[id] = struct{}{}
	}
	return a
}

func reading(version uint64, node fault.NodeID, f, last Finding, at time.Time) Reading {
	return Reading{Answer: Answer{Finding: f}, Node: node, At: at, Since: at, HealthSince: at, Last: last, Version: version}
}

// statuses returns the statuses of a node's conditions in the order of response.ControllerConditions: T, F or U.
func statuses(ev response.OutsideChanged, id fault.NodeID) string {
	var out strings.Builder
	for i, c := range ev.Nodes[id] {
		if c.Type != response.ControllerConditions()[i] {
			return "wrong type " + c.Type
		}
		out.WriteString(c.Status[:1])
	}
	return out.String()
}

// TestConditionsFollowReading: each answer, with a living node or quiet, and what policies may require then.
func TestConditionsFollowReading(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		finding, last Finding
		health        Health
		quiet         bool
		want          string // NodePoweredOff, ControllerSilent, HardwareCritical, PowerFeedSuspected
	}{
		"off":                                {Off, Off, 0, true, "TFUF"},
		"on":                                 {On, On, Good, false, "FFFF"},
		"on, with a dead node":               {On, On, Critical, true, "FFTF"},
		"on, with a warning":                 {On, On, Warning, false, "FFFF"},
		"silent, with a living node":         {Silent, On, 0, false, "UTUF"},
		"silent, with a quiet node":          {Silent, On, 0, true, "UTUT"},
		"silent and off before, quiet node":  {Silent, Off, 0, true, "UTUT"},
		"silent from the first, quiet node":  {Silent, 0, 0, true, "UTUF"},
		"an error":                           {Wrong, On, 0, true, "UFUF"},
		"an error that claims good hardware": {Wrong, On, Good, true, "UFUF"},
	} {
		var b Book
		r := reading(1, "n001", tc.finding, tc.last, start)
		r.Health = tc.health
		a := around()
		if tc.quiet {
			a = around("n001")
		}
		ev, changed := b.Take(start, Batch{Run: "r", Readings: []Reading{r}}, a)
		if got := statuses(ev, "n001"); !changed || got != tc.want || ev.Source != response.FromControllers || !ev.All {
			t.Errorf("%s: %s: want %s", name, got, tc.want)
		}
	}
}

// TestBookTellsChangesOnly: versions, strangers, another run of the process, nodes that leave, and the loss of the process.
func TestBookTellsChangesOnly(t *testing.T) {
	t.Parallel()
	var b Book
	take := func(at time.Time, run string, a Around, r ...Reading) (response.OutsideChanged, bool) {
		return b.Take(at, Batch{Run: run, Readings: r}, a)
	}
	if ev, changed := take(start, "r1", around(), reading(3, "n001", On, On, start), reading(4, "stranger", Off, Off, start),
		reading(5, "n002", 99, 0, start)); !changed || !ev.All || len(ev.Nodes) != 1 {
		t.Errorf("first batch: %+v", ev)
	}
	if run, after := b.Position(); run != "r1" || after != 5 {
		t.Errorf("position %s %d: want r1 5", run, after)
	}
	if ev, changed := take(start.Add(time.Second), "r1", around()); changed {
		t.Errorf("an empty batch: %+v", ev)
	}
	if ev, changed := take(start.Add(time.Second), "r1", around(), reading(2, "n001", Off, Off, start)); changed {
		t.Errorf("an old version: %+v", ev)
	}
	r := reading(6, "n001", On, On, start.Add(10*time.Second))
	r.Since = start.Add(3 * time.Millisecond) // ages of two calls differ a little
	ev, changed := take(start.Add(10*time.Second), "r1", around(), r)
	if c := ev.Nodes["n001"]; !changed || ev.All || !c[0].Since.Equal(start) || !c[0].Beat.Equal(start.Add(10*time.Second)) {
		t.Errorf("a newer answer: %+v: want the same beginning, and a new heartbeat", ev)
	}
	if ev := b.Lost(); !ev.Unknown || ev.Source != response.FromControllers {
		t.Errorf("lost: %+v", ev)
	}
	if _, _, ok := b.Reading("n001"); !ok {
		t.Error("people do not see the last reading any more")
	}
	if ev, changed := take(start.Add(time.Minute), "r1", around()); !changed || !ev.All || len(ev.Nodes["n001"]) == 0 {
		t.Errorf("back: %+v: want all conditions again", ev)
	}
	if ev, changed := take(start.Add(time.Minute), "r2", around(), reading(1, "n003", Off, Off, start)); !changed || !ev.All ||
		len(ev.Nodes) != 1 || statuses(ev, "n003") != "TFUF" {
		t.Errorf("another run: %+v: want its readings alone", ev)
	}
	gone := around()
	gone.Known = func(fault.NodeID) bool { return false }
	if ev, changed := take(start.Add(time.Minute), "r2", gone); !changed || ev.All || ev.Nodes["n003"] != nil || len(ev.Nodes) != 1 {
		t.Errorf("a node that has left: %+v: want no conditions", ev)
	}
}

// TestPowerFeedIsHintedAt: alone, and with others of the same feed. A controller of a living node is no hint.
func TestPowerFeedIsHintedAt(t *testing.T) {
	t.Parallel()
	var b Book
	others := []fault.NodeID{"n002", "n003", "n004"}
	_, _ = b.Take(start, Batch{Run: "r", Readings: []Reading{reading(1, "n001", On, On, start), reading(2, "n002", On, On, start),
		reading(3, "n003", On, On, start)}}, around())
	hint := func(domain string) string {
		for _, n := range b.Notes(start.Add(2*time.Minute), "n001", domain, others) {
			if strings.Contains(n, "hint") {
				return n
			}
		}
		return ""
	}
	at := start.Add(time.Minute)
	ev, _ := b.Take(at, Batch{Run: "r", Readings: []Reading{reading(4, "n001", Silent, On, at)}}, around())
	if statuses(ev, "n001") != "UTUF" || hint("power=a") != "" {
		t.Errorf("a living node: %s, %q", statuses(ev, "n001"), hint("power=a"))
	}
	ev, _ = b.Take(at.Add(time.Second), Batch{Run: "r"}, around("n001"))
	if statuses(ev, "n001") != "UTUT" || !ev.Nodes["n001"][3].Since.Equal(at.Add(time.Second)) {
		t.Errorf("a quiet node: %+v", ev)
	}
	if got := hint("power=a"); !strings.HasPrefix(got, "hint, not a verdict: the node and its controller are both silent") {
		t.Errorf("alone: %q", got)
	}
	_, _ = b.Take(at.Add(time.Second), Batch{Run: "r", Readings: []Reading{reading(5, "n002", Silent, On, at)}}, around("n001", "n002"))
	if got := hint("power=a"); !strings.Contains(got, "2 of 3 nodes of power=a are silent together with their controllers") {
		t.Errorf("with another: %q", got)
	}
	if got := hint(""); strings.Contains(got, "strong") {
		t.Errorf("without a power domain: %q", got)
	}
	ev, _ = b.Take(at.Add(2*time.Second), Batch{Run: "r"}, around())
	if statuses(ev, "n001") != "UTUF" || hint("power=a") != "" {
		t.Errorf("the node is back: %+v", ev)
	}
}

func TestNotesAreForPeople(t *testing.T) {
	t.Parallel()
	var b Book
	r := reading(1, "n001", Off, Off, start)
	r.Health, r.Detail = Critical, "PSU fault"
	r.Log, r.Sensors = []string{"2026-01-01T00:00:00Z Critical: PSU 1 has lost its input"}, []string{"CPU 1 97 °C: Critical"}
	_, _ = b.Take(start, Batch{Run: "r", Readings: []Reading{r}}, around())
	got := strings.Join(b.Notes(start.Add(90*time.Second), "n001", "", nil), "\n")
	want := `outside evidence, not a verdict: management controller: powered off for 1m30s, read 1m30s ago, hardware critical: PSU fault
management controller, sensors: CPU 1 97 °C: Critical
management controller, event log (its own clock): 2026-01-01T00:00:00Z Critical: PSU 1 has lost its input`
	if got != want {
		t.Errorf("notes:\n%s\nwant:\n%s", got, want)
	}
	if n := b.Notes(start, "n002", "", nil); n != nil {
		t.Errorf("a node without a controller: %v", n)
	}
	_, _ = b.Take(start, Batch{Run: "r", Readings: []Reading{{Answer: Answer{Finding: Silent, Detail: "dial: timeout"},
		Node: "n001", At: start,
		Since: start, Last: Off, LastAt: start.Add(-time.Minute), Version: 2}}}, around())
	if got := b.Notes(start, "n001", "", nil)[0]; !strings.HasSuffix(got, "dial: timeout (powered off when it last answered, 1m0s ago)") {
		t.Errorf("silent: %s", got)
	}
}
