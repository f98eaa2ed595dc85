package ctl

import (
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// history is a 2x2x2 map: n1-0-1 was SICK because of its memory from 10m to 5m ago, and has been FAILED for 1m;
// n0-0-0's end X+ broke 8m ago; n0-1-0 was under maintenance from 9m to 7m ago.
func history(t *testing.T) *clienttest.Map {
	t.Helper()
	m := ctltest.Healthy(t, "2x2x2")
	n := m.Nodes.Nodes[5]
	n.State, n.Cause, n.Since = lofamov1.State_FAILED, lofamov1.Cause_NODE, ctltest.Ago(time.Minute)
	m.Links.Links[0].State = lofamov1.State_FAILED
	m.OldestRevision = 1
	revision := uint64(2)
	commit := func(before time.Duration, e *lofamov1.Event) {
		e.Time = ctltest.Ago(before)
		m.Commit(revision, e)
		revision++
	}
	of := func(component string, from, to lofamov1.State, cause lofamov1.Cause) *lofamov1.Event {
		return &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n1-0-1", Coord: "1,0,1", Component: component,
			From: from, To: to, Cause: cause}
	}
	mark := &lofamov1.Maintenance{Node: "n0-1-0", Reason: "new fan", By: "operator/ann", Since: ctltest.Ago(9 * time.Minute)}
	commit(10*time.Minute, of("memory", lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.Cause_MEMORY))
	commit(10*time.Minute, of("node", lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.Cause_MEMORY))
	commit(9*time.Minute, &lofamov1.Event{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-1-0", Coord: "0,1,0", Maintenance: mark})
	commit(500*time.Second, &lofamov1.Event{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-1-0", Coord: "0,1,0",
		Maintenance: mark}) // changed
	commit(8*time.Minute, &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Coord: "0,0,0",
		Component: "link/X+", From: lofamov1.State_NORMAL, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_LINK})
	commit(7*time.Minute, &lofamov1.Event{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-1-0", Coord: "0,1,0",
		Maintenance: mark, Ended: true})
	commit(5*time.Minute, of("memory", lofamov1.State_SICK, lofamov1.State_NORMAL, lofamov1.Cause_NONE))
	commit(5*time.Minute, of("node", lofamov1.State_SICK, lofamov1.State_NORMAL, lofamov1.Cause_NONE))
	commit(time.Minute, of("node", lofamov1.State_NORMAL, lofamov1.State_FAILED, lofamov1.Cause_NODE))
	return m
}

// TestMapAt: the map of a moment is the present one with every later change undone.
func TestMapAt(t *testing.T) {
	r := ctltest.StartRemote(t, history(t))
	for _, tc := range []struct {
		at        string
		want, not []string
	}{
		{"30s", []string{"nodes:     8: 7 NORMAL, 1 FAILED", "n1-0-1  FAILED  NODE", "1 FAILED\n2x2x2"}, []string{"maintenance"}},
		{"2m", []string{"nodes:     8: 8 NORMAL", "47 NORMAL, 1 FAILED"}, []string{"Not normal", "maintenance"}},
		{"7m30s", []string{"nodes:     8: 7 NORMAL, 1 SICK", "n1-0-1  SICK  MEMORY  10m  memory SICK", "47 NORMAL, 1 FAILED", "new fan"}, nil},
		{"8m30s", []string{"n1-0-1  SICK  MEMORY", "link ends: 48: 48 NORMAL", "new fan"}, []string{"1 FAILED"}},
		{"9m30s", []string{"n1-0-1  SICK  MEMORY"}, []string{"new fan"}},
		{"11m", []string{"nodes:     8: 8 NORMAL", "link ends: 48: 48 NORMAL", "As it was at 11:49:00.000, 11m ago."},
			[]string{"1 SICK", "1 FAILED", "Not normal"}},
		{"11:58", []string{"nodes:     8: 8 NORMAL", "47 NORMAL, 1 FAILED"}, nil},
		{"11:52:30", []string{"n1-0-1  SICK  MEMORY", "new fan"}, nil},
		{"2024-05-06T13:52:30+02:00", []string{"n1-0-1  SICK  MEMORY", "new fan"}, nil},
		{"23:00", []string{"nodes:     8: 8 NORMAL", "13h0m ago"}, nil},                                    // yesterday's
		{"0001-01-01T00:00:00Z", []string{"nodes:     8: 8 NORMAL", "As it was at"}, []string{"1 FAILED"}}, // a time like another
	} {
		got := run(t, nil, r.Flags("map", "--at", tc.at)...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("--at %s: exit code %d, %s", tc.at, got.code, got.stderr)
		}
		for _, w := range tc.want {
			if !strings.Contains(got.stdout, w) {
				t.Errorf("--at %s: no %q in\n%s", tc.at, w, got.stdout)
			}
		}
		for _, w := range tc.not {
			if strings.Contains(got.stdout, w) {
				t.Errorf("--at %s: %q in\n%s", tc.at, w, got.stdout)
			}
		}
	}
}

// A moment that cannot be shown is refused with the reason.
func TestMapAtRefused(t *testing.T) {
	m := history(t)
	m.OldestRevision = 2
	r := ctltest.StartRemote(t, m)
	for _, tc := range []struct{ at, want string }{
		{"yesterday", `--at "yesterday": want "15:04"`},
		{"-5m", `--at "-5m": that is yet to come`},
		{"2024-05-06T12:00:01Z", "that is yet to come"},
		{"", `--at "": want`},
		{"11m", "changes are not kept as far back as 11:49:00.000: they are since 11:50:00.000"},
	} {
		if got := run(t, nil, r.Flags("map", "--at="+tc.at)...); got.code == 0 || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("--at %q: exit code %d, %s: want %q", tc.at, got.code, got.stderr, tc.want)
		}
	}
	if got := run(t, nil, ctltest.StartRemote(t, ctltest.Healthy(t, "2")).Flags("map", "--at", "1m")...); got.code == 0 ||
		!strings.Contains(got.stderr, "as far back as 11:59:00.000: none are") {
		t.Errorf("no changes are kept: exit code %d, %s", got.code, got.stderr)
	}
}
