package top

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// topOf is a model that has a map loaded and is watched.
func topOf(t testing.TB, m *clienttest.Map, w, h int) *topModel {
	t.Helper()
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	top := newTopModel(a, command.Painter{}, topSize{w, h})
	l := topLoaded{nodes: proto.Clone(m.Nodes).(*lofamov1.ListNodesResponse), links: proto.Clone(m.Links).(*lofamov1.ListLinksResponse)}
	for _, n := range l.nodes.GetNodes() {
		if n.GetState() != lofamov1.State_NORMAL {
			l.odd = append(l.odd, proto.Clone(n).(*lofamov1.Node))
		}
		n.Components, n.Registers = nil, nil
	}
	top.update(l)
	top.update(topProgress{target: "sup-1:1"})
	return top
}

// press presses keys, one after the other; text that is no key's name is typed.
func press(m *topModel, keys ...string) (effects []any) {
	for _, k := range keys {
		text := ""
		if len(k) == 1 {
			text = k
		}
		effects = append(effects, m.update(topKey{name: k, text: text})...)
	}
	return effects
}

func committed(revision uint64, events ...*lofamov1.Event) topWatched {
	for _, e := range events {
		e.Revision = revision
	}
	return topWatched{&lofamov1.WatchResponse{Revision: revision, Events: events}}
}

func nodeEvent(id string, from, to lofamov1.State, c lofamov1.Cause) *lofamov1.Event {
	return &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: id, Component: "node", From: from, To: to, Cause: c,
		Time: ctltest.Ago(time.Second), AwarenessLatency: durationpb.New(120 * time.Millisecond)}
}

// wants checks the content of the screen.
func wants(t *testing.T, m *topModel, want ...string) {
	t.Helper()
	got := m.view()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not on the screen:\n%s", w, got)
		}
	}
}

func lacks(t *testing.T, m *topModel, not ...string) {
	t.Helper()
	got := m.view()
	for _, n := range not {
		if strings.Contains(got, n) {
			t.Errorf("%q is on the screen:\n%s", n, got)
		}
	}
}

func TestTopScreens(t *testing.T) {
	waiting := &lofamov1.Response{
		Id: "r7-12", Policy: "reset-dead-host", Node: "n1-0-1", Component: "host", State: lofamov1.ResponseState_RESPONSE_WAITING,
		Reason: "approval", Detail: "0 of 1",
		Proposed: ctltest.Ago(9 * time.Second), Asked: ctltest.Ago(8 * time.Second), ApprovalsWanted: 1,
		Steps: []*lofamov1.ResponseStep{{Name: "reset", Executor: "power.reset"}},
	}
	for _, tc := range []struct {
		name string
		w, h int
		keys []string
	}{
		{"top-80x24.txt", 80, 24, nil},
		{"top-150x40.txt", 150, 40, nil},
		{"top-responses.txt", 80, 24, []string{"4"}},
		{"top-help.txt", 80, 24, []string{"?"}},
		{"top-map-alone.txt", 80, 30, []string{"2", "z", "l"}},
	} {
		m := topOf(t, ctltest.Harmed(t), tc.w, tc.h)
		m.update(committed(42, &lofamov1.Event{
			Kind: lofamov1.EventKind_GROUP_CHANGED, To: lofamov1.State_FAILED, From: lofamov1.State_UNKNOWN, Time: ctltest.Ago(3 * time.Second),
			Group: &lofamov1.Group{Id: "label/rack=r1", Kind: lofamov1.GroupKind_LABEL, State: lofamov1.State_FAILED,
				Cause: lofamov1.Cause_NODE, Size: 2, Since: ctltest.Ago(3 * time.Second)},
		}))
		m.update(topResponses{resp: &lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{waiting},
			Breaker: &lofamov1.ResponseBreaker{}}, anew: true})
		press(m, tc.keys...)
		ctltest.Golden(t, tc.name, m.view()+"\n")
	}
}

// TestTopHeaderNamesWorstIncident: the header counts the OPEN incidents, and names the root cause of the worst one.
func TestTopHeaderNamesWorstIncident(t *testing.T) {
	incident := func(id, node, component string, severity lofamov1.IncidentSeverity) *lofamov1.Incident {
		return &lofamov1.Incident{Id: id, Node: node, Component: component, Severity: severity, State: lofamov1.IncidentState_OPEN,
			Fault: lofamov1.State_FAILED, Since: ctltest.Ago(30 * time.Second)}
	}
	link := incident("k3f9-aaaaaaaa", "n0-0-0", "link/Y+", lofamov1.IncidentSeverity_WARNING)
	link.Peer = "n0-1-0"
	node := incident("k3f9-bbbbbbbb", "n1-1-1", "node", lofamov1.IncidentSeverity_CRITICAL)
	rack := incident("k3f9-cccccccc", "", "group", lofamov1.IncidentSeverity_CRITICAL)
	rack.Group, rack.ConsequenceCount = "label/rack=r7", 169
	over := proto.CloneOf(rack)
	over.State = lofamov1.IncidentState_RECOVERING
	m := topOf(t, ctltest.Harmed(t), 80, 24)
	lacks(t, m, "incident")
	for _, step := range []struct {
		what string
		msg  topIncidents
		want string // in the header; empty: no incident
	}{
		{"a cable", topIncidents{changed: []*lofamov1.Incident{link}, anew: true}, "1 incident open  link/Y+ of n0-0-0 - n0-1-0 FAILED for 30s"},
		{"a node too", topIncidents{changed: []*lofamov1.Incident{node}}, "2 incidents open  worst: n1-1-1 FAILED for 30s"},
		{"a rack too", topIncidents{changed: []*lofamov1.Incident{rack}}, "3 incidents open  worst: label/rack=r7 FAILED for 30s"},
		{"the rack recovers", topIncidents{changed: []*lofamov1.Incident{over}}, "2 incidents open  worst: n1-1-1 FAILED"},
		{"the node's is no longer kept", topIncidents{gone: []string{node.GetId()}}, "1 incident open  link/Y+ of"},
		{"another supervisor", topIncidents{anew: true}, ""},
	} {
		m.update(step.msg)
		line := strings.Split(m.view(), "\n")[2]
		if step.want == "" && strings.Contains(m.view(), "incident") || !strings.HasPrefix(line, step.want) {
			t.Errorf("%s: %q, want %q", step.what, line, step.want)
		}
		wants(t, m, "live from sup-1:1", "q quit")
		if got := m.view(); strings.Count(got, "\n") != 23 {
			t.Errorf("%s: want 24 lines:\n%s", step.what, got)
		}
	}
}

// TestTopOfOrdinaryClusterHasTiles: the map pane has the tiles of `lofamoctl map`. Keys go from node to node, and no text speaks of a
// torus.
func TestTopOfOrdinaryClusterHasTiles(t *testing.T) {
	c := ctltest.Healthy(t, "5")
	c.Nodes.Cluster.Ordinary = true
	for i, n := range c.Nodes.GetNodes() {
		n.Labels = map[string]string{"rack": fmt.Sprint("r", i%2)}
	}
	c.Nodes.Cluster.DomainLabels = []string{"rack"}
	c.Nodes.Nodes[3].State = lofamov1.State_FAILED
	m := topOf(t, c, 120, 30)
	m.update(committed(42, &lofamov1.Event{Kind: lofamov1.EventKind_GROUP_CHANGED, To: lofamov1.State_FAILED, Time: ctltest.Ago(time.Second),
		Group: &lofamov1.Group{Id: "plane/Z=0", Kind: lofamov1.GroupKind_PLANE, State: lofamov1.State_FAILED, Size: 2}}))
	wants(t, m, "rack r0", "rack r1", "[X", "nodes together", "2 Map  n0-0-0 NORMAL")
	lacks(t, m, "plane", "PLANE", "Z=0", "0,0,0", "──[")
	for _, step := range []struct{ key, want string }{
		{"2", ">"}, {"n", "n3-0-0 FAILED"}, {"n", "n3-0-0 FAILED"}, {"g", "n0-0-0"}, {"left", "n3-0-0"}, {"right", "n0-0-0"}, {"down", "n2-0-0"},
		{"up", "n0-0-0"}, {"G", "n3-0-0"}, {"]", "n3-0-0"},
	} {
		press(m, step.key)
		wants(t, m, step.want)
		if step.key != "2" {
			wants(t, m, "2 Map  "+step.want)
		}
	}
	press(m, "?")
	wants(t, m, "the next node with a fault")
	lacks(t, m, "plane", "cables")
}

// At any size, with anything open, the content fills the screen exactly, and no text from the network moves the cursor.
func TestTopFillsEveryScreen(t *testing.T) {
	for _, dims := range []string{"0x0x0", "2x2x2", "4", "1x1x3", "10x10", "7x7x3", "22x22", "ordinary 0x0x0", "ordinary 3x2x1",
		"ordinary 9x9x2"} {
		sizes, ordinary := strings.CutPrefix(dims, "ordinary ")
		d, err := grid.ParseDims(sizes)
		if err != nil {
			t.Fatal(err)
		}
		fault := ctltest.HealthyMap(d)
		fault.Nodes.Cluster.Ordinary = ordinary
		if d.Nodes() > 0 { // else no node has joined yet
			fault.Nodes.Nodes[1].State, fault.Nodes.Nodes[1].Reason = lofamov1.State_SICK, "\x1b[2J"
			fault.Nodes.Nodes[1].Components[0] = &lofamov1.Component{Name: "host\x1b[2J", State: lofamov1.State_FAILED}
			fault.Links.Links[len(fault.Links.Links)-1].State = lofamov1.State_FAILED
		}
		for _, keys := range [][]string{nil, {"2"}, {"2", "z", "G", "j", "]"}, {"3", "z", "down"}, {"4"}, {"?", "down"}, {"/", "x", "x"},
			{"/", "n", "1", "enter", "down", "enter"}, {"1", "z", "pgdown"}} {
			m := topOf(t, fault, 100, 30)
			press(m, keys...)
			for _, size := range []topSize{{1, 1}, {20, 5}, {60, 16}, {61, 17}, {80, 24}, {100, 30}, {139, 41}, {140, 41}, {200, 100}} {
				m.update(size)
				m.update(topIncidents{anew: true, changed: []*lofamov1.Incident{{Id: "k3f9-aaaaaaaa", Node: "n\x1b[2J",
					State: lofamov1.IncidentState_OPEN}}})
				got := m.view()
				if strings.Contains(got, "\x1b") {
					t.Fatalf("%s at %v after %q: an escape code is on the screen: %q", dims, size, keys, got)
				}
				lines := strings.Split(got, "\n")
				if len(lines) != size.height {
					t.Fatalf("%s at %v after %q: %d lines:\n%s", dims, size, keys, len(lines), got)
				}
				for _, l := range lines {
					if lipgloss.Width(l) != size.width {
						t.Fatalf("%s at %v after %q: a line of %d columns: %q\n%s", dims, size, keys, lipgloss.Width(l), l, got)
					}
				}
			}
		}
	}
}

func TestTopFollowsWhatChanges(t *testing.T) {
	m := topOf(t, ctltest.Healthy(t, "2x2x2"), 140, 30)
	wants(t, m, "nodes 8: 8 NORMAL", "all is NORMAL", "live from sup-1:1")
	effects := m.update(committed(50, nodeEvent("n1-0-1", lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.Cause_HOST),
		&lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: "link/X+", From: lofamov1.State_NORMAL,
			To: lofamov1.State_FAILED, Cause: lofamov1.Cause_LINK, Time: ctltest.Ago(time.Second)}))
	if len(effects) != 1 || !slices.Equal(effects[0].(askNodes).ids, []string{"n0-0-0", "n1-0-1"}) {
		t.Fatalf("effects %+v: want the two nodes asked for, and no others", effects)
	}
	wants(t, m, "nodes 8: 7 NORMAL, 1 SICK", "links 48: 47 NORMAL, 1 FAILED", "! n1-0-1 SICK HOST", "[!n1-0-1 ]", "╳╳", "revision 50",
		"NORMAL → SICK", "after 120ms")

	// While a query is in progress, no other one starts.
	if e := m.update(committed(51, nodeEvent("n0-1-1", lofamov1.State_NORMAL, lofamov1.State_FAILED, lofamov1.Cause_NODE))); len(e) != 0 {
		t.Errorf("effects %+v while a question is under way", e)
	}
	full := proto.Clone(m.nodes["n1-0-1"]).(*lofamov1.Node)
	full.Components = []*lofamov1.Component{{Name: "host", State: lofamov1.State_FAILED,
		Evidence: []*lofamov1.Evidence{{Kind: "WATCHDOG", Observer: "n1-0-1/dnp", State: lofamov1.State_FAILED}}}}
	m.update(topNodes{asked: []string{"n0-0-0", "n1-0-1"}, nodes: []*lofamov1.Node{full}})
	wants(t, m, "host FAILED (WATCHDOG by n1-0-1/dnp)")
	if e := m.update(topTick{ctltest.Now}); len(e) != 1 || !slices.Equal(e[0].(askNodes).ids, []string{"n0-1-1"}) {
		t.Errorf("effects %+v: want what changed meanwhile asked for", e)
	}

	// The gravest comes first.
	rows := m.topRows()
	if len(rows) != 2 || rows[0].node != "n0-1-1" || rows[1].node != "n1-0-1" {
		t.Errorf("rows %+v: want n0-1-1 before n1-0-1", rows)
	}
	m.update(committed(52, nodeEvent("n1-0-1", lofamov1.State_SICK, lofamov1.State_NORMAL, lofamov1.Cause_NONE)))
	if rows := m.topRows(); len(rows) != 1 || rows[0].node != "n0-1-1" {
		t.Errorf("rows %+v: want n1-0-1 gone", rows)
	}
}

// A supervisor may answer with a state from before a change that was seen already.
func TestTopKeepsTheNewerState(t *testing.T) {
	m := topOf(t, ctltest.Healthy(t, "2x2x2"), 80, 24)
	old := proto.Clone(m.nodes["n1-0-1"]).(*lofamov1.Node)
	m.update(committed(50, nodeEvent("n1-0-1", lofamov1.State_NORMAL, lofamov1.State_FAILED, lofamov1.Cause_NODE)))
	m.update(topNodes{asked: []string{"n1-0-1"}, nodes: []*lofamov1.Node{old}})
	wants(t, m, "nodes 8: 7 NORMAL, 1 FAILED", "n1-0-1 FAILED NODE")
	if e := m.update(topTick{ctltest.Now}); len(e) != 1 {
		t.Errorf("effects %+v: want it asked for again", e)
	}
}

func TestTopAsksForManyAtOnce(t *testing.T) {
	m := topOf(t, ctltest.Healthy(t, "4x4x4"), 80, 24)
	var events []*lofamov1.Event
	for i := range topSingles + 1 {
		events = append(events, &lofamov1.Event{Kind: lofamov1.EventKind_WARNING_CHANGED, Node: m.torus.Nodes[i].GetId(),
			Component: "temperature", Time: ctltest.Ago(0)})
	}
	m.torus.Nodes[0].Warnings = []*lofamov1.Warning{{Component: "temperature", Quantity: "temperature", Reason: "temperature rises"}}
	m.noteNode(m.torus.Nodes[0])
	effects := m.update(committed(50, events...))
	if len(effects) != 1 || len(effects[0].(askOdd).dirty) != topSingles+1 {
		t.Fatalf("effects %+v: want one question for all that is not normal", effects)
	}
	wants(t, m, "1 Not normal: 1", "temperature rises")
	m.update(topNodes{asked: effects[0].(askOdd).dirty, odd: true}) // all are normal again
	wants(t, m, "1 Not normal: 0")
}

// TestTopListsStarvedNodes: a starved node that is NORMAL is listed, from the first list on and after an event.
func TestTopListsStarvedNodes(t *testing.T) {
	all := ctltest.Healthy(t, "4x4x4")
	first, second := all.Nodes.GetNodes()[0], all.Nodes.GetNodes()[1]
	first.Starved = &lofamov1.Starved{Half: "host", LongestMs: 120, SharePermille: 300}
	m := topOf(t, all, 120, 40)
	wants(t, m, "1 Not normal: 1", first.GetId()+" starved", "starved of processor time")
	event := func(n *lofamov1.Node, half string, ended bool) *lofamov1.Event {
		return &lofamov1.Event{Kind: lofamov1.EventKind_STARVATION_CHANGED, Node: n.GetId(), Component: half, From: lofamov1.State_NORMAL,
			To: lofamov1.State_NORMAL, Ended: ended, Time: ctltest.Ago(0)}
	}
	effects := m.update(committed(50, event(first, "dnp", true), event(second, "dnp", false)))
	if len(effects) != 1 || len(effects[0].(askNodes).ids) != 2 {
		t.Errorf("effects %+v: want both nodes asked for", effects)
	}
	wants(t, m, "1 Not normal: 2", second.GetId()+" starved")
	m.update(topNodes{asked: []string{first.GetId(), second.GetId()}, odd: true}) // the list of nodes that are not normal has none
	wants(t, m, "1 Not normal: 2")
	m.update(committed(51, event(first, "host", true)))
	wants(t, m, "1 Not normal: 1", second.GetId()+" starved")
}

func TestTopListsAnew(t *testing.T) {
	for _, e := range []*lofamov1.Event{{Kind: lofamov1.EventKind_TOPOLOGY_CHANGED, Time: ctltest.Ago(0)},
		nodeEvent("n9-9-9", lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.Cause_NONE)} {
		m := topOf(t, ctltest.Healthy(t, "2x2x2"), 80, 24)
		if got := m.update(committed(50, e)); len(got) != 1 || got[0] != any(askAgain{}) {
			t.Errorf("%v: effects %+v: want all listed anew", e, got)
		}
	}
}

func TestTopSaysWhatIsOldOrLost(t *testing.T) {
	lost := status.Error(codes.Unavailable, "connection refused")
	cluster := func(change func(*lofamov1.ClusterInfo)) *lofamov1.ClusterInfo {
		c := proto.Clone(ctltest.Harmed(t).Nodes.GetCluster()).(*lofamov1.ClusterInfo)
		change(c)
		return c
	}
	for _, tc := range []struct {
		name string
		msgs []any
		want string
	}{
		{"live", nil, "live from sup-1:1"},
		{"the watch fell", []any{topProgress{"sup-1:1", lost}}, "LOST the supervisor, trying the others: connection refused"},
		{"another one", []any{topProgress{"sup-1:1", lost}, topProgress{"sup-2:1", nil}}, "live from sup-2:1"},
		{"nobody", []any{topTick{ctltest.Now.Add(12 * time.Second)}, topPolled{err: lost}},
			"LOST: no supervisor answers, this view is 12s old"},
		{"somebody again", []any{topPolled{err: lost}, topPolled{target: "sup-1:1", cluster: cluster(func(*lofamov1.ClusterInfo) {})}},
			"live from sup-1:1"},
		{"silence", []any{topTick{ctltest.Now.Add(5 * time.Second)}}, "STALE: nothing heard of the supervisor for 5s"},
		{"no leader", []any{topPolled{cluster: cluster(func(c *lofamov1.ClusterInfo) { c.Leader = "" })}}, "NO LEADER"},
		{"stale", []any{topPolled{cluster: cluster(func(c *lofamov1.ClusterInfo) {
			c.Stale, c.StaleAge = true,
				durationpb.New(9*time.Second)
		})}}, "STALE: no leader is reached, this view may be 9s old"},
		{"stale from its start", []any{topPolled{cluster: cluster(func(c *lofamov1.ClusterInfo) { c.Stale = true })}},
			"STALE: no leader was reached"},
		{"a region", []any{topPolled{cluster: cluster(func(c *lofamov1.ClusterInfo) {
			c.Regions = []*lofamov1.Region{{Name: "region-0", State: lofamov1.State_NORMAL}, {Name: "region-1", State: lofamov1.State_UNKNOWN}}
		})}}, "CUT OFF: region-1 not heard"},
		{"the breaker", []any{topResponses{resp: &lofamov1.WatchResponsesResponse{Breaker: &lofamov1.ResponseBreaker{Open: true}}}},
			"BREAKER OPEN"},
		{"no responses", []any{topResponses{err: lost}, topKey{name: "4"}}, "breaker not known"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := topOf(t, ctltest.Harmed(t), 100, 24)
			for _, msg := range tc.msgs {
				m.update(msg)
			}
			wants(t, m, tc.want)
			if tc.name != "live" && tc.want != "live from sup-1:1" && strings.HasPrefix(tc.want, "STALE") {
				lacks(t, m, "live from")
			}
		})
	}
}

// A supervisor that is cut off from the others stays silent for ever: the watch moves to one with better answers.
func TestTopGoesToWhoAnswersBetter(t *testing.T) {
	m := topOf(t, ctltest.Harmed(t), 80, 24)
	here, there := topPolled{target: "sup-1:1", cluster: m.cluster}, topPolled{target: "sup-2:1", cluster: m.cluster}
	for i, msg := range []topPolled{there, here, there} {
		if e := m.update(msg); len(e) != 0 {
			t.Errorf("answer %d: effects %+v after one answer from elsewhere", i, e)
		}
	}
	if e := m.update(there); len(e) != 1 || e[0] != any(askElsewhere{}) {
		t.Errorf("effects %+v: want the watch moved", e)
	}
}

func TestTopAsksBeforeItActs(t *testing.T) {
	for _, tc := range []struct {
		name string
		keys []string
		want []any
	}{
		{"not from another list", []string{"a", "y"}, nil},
		{"approve", []string{"4", "a", "y"}, []any{sayWord{topWord{approve: true, id: "r7-12"}}}},
		{"approve after all not", []string{"4", "a", "n", "y"}, nil},
		{"approve, escape", []string{"4", "a", "esc", "y"}, nil},
		{"deny", []string{"4", "d", "n", "o", "enter", "y"}, []any{sayWord{topWord{id: "r7-12", reason: "no"}}}},
		{"deny wants a reason", []string{"4", "d", "enter", "y", "enter"}, nil},
		{"deny, not", []string{"4", "d", "n", "o", "enter", "enter", "y"}, nil},
		{"deny, escape", []string{"4", "d", "n", "esc", "y"}, nil},
		{"the second", []string{"4", "down", "a", "y"}, []any{sayWord{topWord{approve: true, id: "r7-11"}}}},
		{"leave", []string{"q"}, []any{topQuit{}}},
		{"leave a question", []string{"4", "a", "ctrl+c"}, []any{topQuit{}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := topOf(t, ctltest.Harmed(t), 80, 24)
			m.update(topResponses{resp: &lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{
				{Id: "r7-11", Node: "n0-1-0", State: lofamov1.ResponseState_RESPONSE_RUNNING, Proposed: ctltest.Ago(time.Second)},
				{Id: "r7-12", Node: "n1-0-1", State: lofamov1.ResponseState_RESPONSE_WAITING, Proposed: ctltest.Ago(time.Minute),
					Asked: ctltest.Ago(time.Minute), ApprovalsWanted: 1},
			}}})
			got := press(m, tc.keys...)
			for i, e := range got {
				if w, is := e.(sayWord); is {
					w.word.what = "" // the question's words
					got[i] = w
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("effects %+v, want %+v", got, tc.want)
			}
		})
	}
	m := topOf(t, ctltest.Harmed(t), 80, 24)
	m.update(topResponses{resp: &lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{{Id: "r7-11", Node: "n0-1-0",
		Component: "host", Policy: "reset"}}}})
	press(m, "4", "a")
	wants(t, m, "y, and nothing else, to approve r7-11: n0-1-0/host, policy reset")
	press(m, "x")
	wants(t, m, "no decision sent for r7-11")
	m.update(topActed{err: status.Error(codes.PermissionDenied, "want the role approver")})
	wants(t, m, "NOT DONE", "want the role approver")
}

// Finished responses leave the list: closed ones, and those that a supervisor omits when it sends everything again.
func TestTopForgetsResponsesThatAreOver(t *testing.T) {
	r := func(id string, closed bool) *lofamov1.Response {
		r := &lofamov1.Response{Id: id, Node: "n1-0-1", State: lofamov1.ResponseState_RESPONSE_WAITING,
			Proposed: ctltest.Ago(time.Minute), Asked: ctltest.Ago(time.Minute), ApprovalsWanted: 1}
		if closed {
			r.State, r.Closed = lofamov1.ResponseState_RESPONSE_DONE, ctltest.Ago(0)
		}
		return r
	}
	m := topOf(t, ctltest.Harmed(t), 80, 24)
	press(m, "4")
	for _, step := range []struct {
		resp *lofamov1.WatchResponsesResponse
		anew bool
		want string
	}{
		{&lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{r("r7-11", false), r("r7-12", false)}}, true, "4 Responses: 2"},
		{&lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{r("r7-11", true)}}, false, "4 Responses: 1"},
		{&lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{r("r7-13", false)}}, false, "4 Responses: 2"},
		{&lofamov1.WatchResponsesResponse{Responses: []*lofamov1.Response{r("r7-13", false)}}, true, "4 Responses: 1"},
		{&lofamov1.WatchResponsesResponse{Gone: []string{"r7-13"}}, false, "4 Responses: 0"},
	} {
		m.update(topResponses{resp: step.resp, anew: step.anew})
		wants(t, m, step.want)
	}
	lacks(t, m, "waiting for a person")
}

func TestTopFilterAndChoice(t *testing.T) {
	m := topOf(t, ctltest.Harmed(t), 100, 24)
	press(m, "down")
	wants(t, m, ">! n1-0-1") // the second
	m.update(committed(50, nodeEvent("n1-1-1", lofamov1.State_NORMAL, lofamov1.State_FAILED, lofamov1.Cause_NODE)))
	wants(t, m, ">! n1-0-1", "X n1-1-1") // the chosen row stays chosen when others come
	press(m, "/", "H", "O", "S", "T")
	wants(t, m, `1 Not normal: 2 of 3 with "HOST"`, "/HOST")
	press(m, "enter", "esc")
	wants(t, m, "1 Not normal: 3")
	m.update(committed(51, nodeEvent("n1-0-1", lofamov1.State_SICK, lofamov1.State_NORMAL, lofamov1.Cause_NONE)))
	wants(t, m, "1 Not normal: 2", ">X") // the one that was chosen is gone: another is
}

func TestTopOpensWhatIsChosen(t *testing.T) {
	m := topOf(t, ctltest.Harmed(t), 100, 24)
	if e := press(m, "enter"); !slices.Equal(e, []any{askDetail{"node/n1-0-1"}}) && !slices.Equal(e, []any{askDetail{"node/n0-1-0"}}) {
		t.Fatalf("effects %+v", e)
	}
	key := m.page.key
	m.update(topDetail{key: "node/another", text: "late"})
	lacks(t, m, "late")
	m.update(topDetail{key: key, text: strings.Repeat("because\n", 40) + "a long line that goes on " + strings.Repeat("and on ",
		20) + "to its end"})
	wants(t, m, "because", "more lines below")
	press(m, "G")
	wants(t, m, "to its end")
	press(m, "esc")
	lacks(t, m, "because")
	press(m, "2", "l")
	if e := press(m, "enter"); !slices.Equal(e, []any{askDetail{"node/n1-0-0"}}) {
		t.Errorf("effects %+v: want the node that is chosen in the map", e)
	}
	m.update(topDetail{key: "node/n1-0-0", err: status.Error(codes.Unavailable, "gone\x1b[2J")})
	wants(t, m, "No answer", "gone·[2J")
}

// large returns a model of ten thousand nodes, some of them dead.
func large(t testing.TB) *topModel {
	d, err := grid.ParseDims("22x22x21")
	if err != nil {
		t.Fatal(err)
	}
	m := ctltest.HealthyMap(d)
	for i := 100; i < len(m.Nodes.Nodes); i += 500 {
		m.Nodes.Nodes[i].State, m.Nodes.Nodes[i].Cause = lofamov1.State_FAILED, lofamov1.Cause_NODE
	}
	return topOf(t, m, 120, 50)
}

func TestTopOfALargeSystem(t *testing.T) {
	m := large(t)
	wants(t, m, "nodes 10164: 10143 NORMAL, 21 FAILED", "z [X]X", "x 0 to 21, y 0 to")
	m.update(committed(50, nodeEvent("n3-4-20", lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.Cause_HOST)))
	press(m, "2", "[") // round to the last plane
	if m.at.Z != 20 {
		t.Fatalf("plane %d, want 20", m.at.Z)
	}
	wants(t, m, "!", "20")
	press(m, "1", "end")
	wants(t, m, ">! n3-4-20   SICK ", "2 Map  n3-4-20 SICK")
}

// The cost of a key or a change with ten thousand nodes: it has to be far below the 16 ms of a frame.
func BenchmarkTopView(b *testing.B) {
	m := large(b)
	states := []lofamov1.State{lofamov1.State_NORMAL, lofamov1.State_FAILED}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.update(committed(uint64(50+i), nodeEvent(fmt.Sprintf("n%d-4-3", i%22), states[i/22%2], states[(i/22+1)%2], lofamov1.Cause_NODE)))
		if m.view() == "" {
			b.Fatal("nothing drawn")
		}
	}
}

// listen runs one loop of a shell that is connected to these supervisors. hear waits for its next message.
func listen[M any](t *testing.T, dir, servers string, loop func(*topShell, context.Context)) (shell *topShell, hear func() M) {
	t.Helper()
	file := func(name string) string { return filepath.Join(dir, name) }
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Getenv: func(string) string { return "" }},
		Server: servers, CA: file("ca.pem"), Cert: file("viewer.pem"), Key: file("viewer.key")}
	s, err := a.Connect()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	heard := make(chan M)
	shell = &topShell{app: a, s: s, send: func(msg any) {
		select {
		case heard <- msg.(M):
		case <-ctx.Done():
		}
	}}
	var group sync.WaitGroup
	group.Go(func() { loop(shell, ctx) })
	t.Cleanup(func() {
		cancel()
		group.Wait()
		_ = s.Close()
	})
	return shell, func() (m M) {
		t.Helper()
		select {
		case m = <-heard:
		case <-ctx.Done():
			t.Fatal("the shell sends nothing")
		}
		return m
	}
}

// When the watch moves to another supervisor, so does the watch of responses: a supervisor that is cut off sends
// nothing more, and does not end its stream.
func TestTopAsksTheOtherOneForResponsesToo(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	said := func(id string) []*lofamov1.WatchResponsesResponse {
		return []*lofamov1.WatchResponsesResponse{{Responses: []*lofamov1.Response{{Id: id}}, Breaker: &lofamov1.ResponseBreaker{}}}
	}
	first, other := clienttest.Serve(t, dir, ctltest.Healthy(t, "2x2x2")), clienttest.Serve(t, dir, ctltest.Healthy(t, "2x2x2"))
	first.Responses.Changes, first.Responses.Silent = said("r1-1"), true
	other.Responses.Changes, other.Responses.Silent = said("r2-1"), true
	shell, hear := listen[topResponses](t, dir, first.Address+","+other.Address, (*topShell).responses)
	next := func(want string) {
		t.Helper()
		r := hear()
		if got := r.resp.GetResponses(); r.err != nil || len(got) != 1 || got[0].GetId() != want || !r.anew {
			t.Errorf("%v: want %s, anew", r, want)
		}
	}
	next("r1-1")
	first.Refuse(status.Error(codes.Unavailable, "away"))
	if _, err := shell.s.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{}); err != nil || shell.s.Answered() != other.Address {
		t.Fatalf("%v: %s answers", err, shell.s.Answered())
	}
	shell.restart(false)
	next("r2-1")
}

// TestTopWatchesIncidents: the shell passes on the incidents of its watch, as those of a new stream.
func TestTopWatchesIncidents(t *testing.T) {
	m := ctltest.Healthy(t, "2x2x2")
	m.Incidents = []*lofamov1.Incident{{Id: "k3f9-aaaaaaaa", Node: "n1-1-1", Component: "node", State: lofamov1.IncidentState_OPEN}}
	r := ctltest.StartRemote(t, m)
	_, hear := listen[topIncidents](t, r.Dir, r.Server.Address, (*topShell).incidents)
	for range 2 { // the server of the test ends each stream
		if got := hear(); len(got.changed) != 1 || got.changed[0].GetId() != "k3f9-aaaaaaaa" || !got.anew {
			t.Errorf("%+v: want the incident, of a new stream", got)
		}
	}
}

// The shell uses the same calls as the other commands, and shows their output.
func TestTopShell(t *testing.T) {
	r := ctltest.Responding(t)
	r.Map.Explanation = &lofamov1.ExplainResponse{Node: "n1-0-1", Component: "node", Coord: "1,0,1", State: lofamov1.State_NORMAL,
		Summary: "n1-0-1 is NORMAL: it speaks"}
	flag := func(name string) string { return filepath.Join(r.Dir, name) }
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC,
		Getenv: func(string) string { return "" }}, Server: r.Server.Address, CA: flag("ca.pem"), Cert: flag("viewer.pem"),
		Key: flag("viewer.key")}
	s, err := a.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	shell := &topShell{app: a, s: s}
	for key, want := range map[string]string{
		"node/n1-0-1": "n1-0-1 is NORMAL: it speaks", "response/r7-12": "1 of 2 that the policy wants",
	} {
		if d := shell.detail(t.Context(), key); d.err != nil || d.key != key || !strings.Contains(d.text, want) {
			t.Errorf("%s: %q, %v: want %q in it", key, d.text, d.err, want)
		}
	}
	if d := shell.detail(t.Context(), "node/n1-0-1"); !strings.Contains(d.text, "Registers") {
		t.Errorf("the registers are missing in %q", d.text)
	}
	if got := shell.nodes(t.Context(), []string{"n1-0-1", "n0-0-0"}); got.err != nil || len(got.nodes) != 2 {
		t.Errorf("%d nodes, %v: want 2", len(got.nodes), got.err)
	}
	if got := shell.nodes(t.Context(), []string{"n1-0-1", "n9-9-9"}); got.err == nil || len(got.asked) != 2 {
		t.Errorf("%+v: want that one is not there", got)
	}
	for _, w := range []topWord{{approve: true, id: "r7-12"}, {id: "r7-12", reason: "no"}} {
		if got := shell.word(t.Context(), w); got.err != nil || !strings.Contains(got.text, "r7-12 for n1-0-1/memory is waiting") {
			t.Errorf("%+v: %+v", w, got)
		}
	}
	asked := strings.Join(r.Server.Responses.Asked, "\n")
	for _, want := range []string{`approve id:"r7-12"`, `deny id:"r7-12"`, `reason:"no"`} {
		if !strings.Contains(strings.ReplaceAll(asked, "  ", " "), want) {
			t.Errorf("%q was not said:\n%s", want, asked)
		}
	}
	r.Server.Responses.Err = status.Error(codes.PermissionDenied, "want the role approver")
	if got := shell.word(t.Context(), topWord{approve: true, id: "r7-12"}); got.err == nil {
		t.Errorf("%+v: want the refusal", got)
	}
}
