package ctl

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// grouped is a 2x2x2 map with a spare: its plane X=1 has lost its power, with two members that no node sees; n0-0-0 is
// under maintenance, n0-1-0 grows hot, a cable of n0-1-1 flaps.
func grouped(t *testing.T) *clienttest.Map {
	t.Helper()
	m := ctltest.Healthy(t, "2x2x2")
	group := &lofamov1.Group{
		Id: "plane/X=1", Kind: lofamov1.GroupKind_PLANE, State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
		Members: []string{"n1-0-0", "n1-1-0", "n1-0-1", "n1-1-1"}, Size: 4, Of: 4, Inferred: 2, Since: ctltest.Ago(9 * time.Second),
		Reason: "plane",
	}
	ended := &lofamov1.Group{Id: "label/rack=r7", Kind: lofamov1.GroupKind_LABEL, State: lofamov1.State_NORMAL, Size: 3, Of: 8}
	m.Groups.Revision, m.Groups.Cluster = 41, m.Nodes.GetCluster()
	m.Groups.Groups = []*lofamov1.Group{
		{Id: "label/rack=r7", Kind: lofamov1.GroupKind_LABEL, State: lofamov1.State_FAILED, Cause: lofamov1.Cause_SERVICE_NETWORK,
			Members: []string{"n0-0-0"}, Size: 12, Of: 16, Since: ctltest.Ago(time.Hour)},
		group,
	}
	for _, n := range m.Nodes.GetNodes() {
		n.Labels = map[string]string{"rack": "r" + n.GetCoord()[4:], "power": "a"}
		if !strings.HasPrefix(n.GetCoord(), "1") {
			continue
		}
		n.State, n.Cause, n.Groups, n.Reason, n.Since, n.Age = lofamov1.State_FAILED, lofamov1.Cause_NODE, []string{"plane/X=1"}, "quorum",
			ctltest.Ago(9*time.Second), durationpb.New(10*time.Second)
		if n.GetCoord()[2] == '1' {
			n.State, n.Cause, n.Inferred, n.Reason, n.Age = lofamov1.State_UNKNOWN, lofamov1.Cause_NONE, true, "inferred", nil
		}
		for _, c := range n.GetComponents() {
			c.State = lofamov1.State_UNKNOWN
		}
	}
	marked, hot, flaps := m.Nodes.Nodes[0], m.Nodes.Nodes[2], m.Nodes.Nodes[6]
	marked.Maintenance = &lofamov1.Maintenance{Node: "n0-0-0", Reason: "new fan\x1b[2J", By: "operator ada",
		Since: ctltest.Ago(time.Hour), Until: ctltest.Ago(-2 * time.Hour)}
	hot.Warnings = []*lofamov1.Warning{{
		Component: "temperature", Quantity: "temperature", Value: 71.5, Threshold: 85, Slope: 0.05,
		TimeToThreshold: durationpb.New(270 * time.Second), Since: ctltest.Ago(time.Minute),
		Reason: "temperature is 71.5°C and rises by 3°C a minute: 85°C, where it is SICK, in about 4m30s; 8 readings over 35s",
	}}
	link := flaps.Components[5]
	link.State, link.Flapping, link.Reason = lofamov1.State_SICK, true, "near-end"
	for _, l := range m.Links.GetLinks() {
		if l.GetNode() == flaps.GetId() && l.GetDirection() == "X+" {
			l.State, l.Cause, l.Flapping, l.Reason = lofamov1.State_SICK, lofamov1.Cause_LINK, true, "near-end"
		}
	}
	m.Nodes.Nodes = append(m.Nodes.Nodes, &lofamov1.Node{Id: "spare-1", State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE,
		Spare: true, Labels: map[string]string{"rack": "r9"}})
	m.Supervisors.Supervisors[0].Alarms, m.Supervisors.Supervisors[0].QuorumAge = []string{"no quorum",
		"store slow: 2.1s"}, durationpb.New(4*time.Second)
	m.Supervisors.Supervisors[1].EtcdMember, m.Supervisors.Supervisors[2].EtcdMember,
		m.Supervisors.Supervisors[2].EtcdLearner = "8e9e05c52164694d", "91bc3c398fb3c146", true
	events := []*lofamov1.Event{
		{Kind: lofamov1.EventKind_GROUP_CHANGED, From: lofamov1.State_UNKNOWN, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
			Group: group, Time: ctltest.Ago(9 * time.Second), Reason: "plane"},
		{Kind: lofamov1.EventKind_GROUP_CHANGED, From: lofamov1.State_FAILED, To: lofamov1.State_NORMAL, Group: ended,
			Time: ctltest.Ago(8 * time.Second)},
		{Kind: lofamov1.EventKind_WARNING_CHANGED, Node: "n0-1-0", Coord: "0,1,0", Component: "temperature",
			Warning: hot.GetWarnings()[0], Time: ctltest.Ago(7 * time.Second)},
		{Kind: lofamov1.EventKind_WARNING_CHANGED, Node: "n0-1-0", Coord: "0,1,0", Component: "memory", Warning: &lofamov1.Warning{},
			Ended: true, Time: ctltest.Ago(6 * time.Second)},
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-0-0", Coord: "0,0,0", Maintenance: marked.GetMaintenance(),
			Time: ctltest.Ago(5 * time.Second), Observer: "operator ada"},
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-0-1", Coord: "0,0,1", Maintenance: &lofamov1.Maintenance{}, Ended: true,
			Time: ctltest.Ago(4 * time.Second)},
		{Kind: lofamov1.EventKind_TOPOLOGY_CHANGED, Time: ctltest.Ago(3 * time.Second),
			Reason: "topology: 40 nodes are changed: list them again"},
		{Kind: lofamov1.EventKind_REGION_CHANGED, Region: "west", From: lofamov1.State_NORMAL, To: lofamov1.State_UNKNOWN,
			Time: ctltest.Ago(2 * time.Second)},
		{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-1-1", Coord: "0,1,1", Component: "link/X+", From: lofamov1.State_NORMAL,
			To: lofamov1.State_SICK, Cause: lofamov1.Cause_LINK, Flapping: true, Time: ctltest.Ago(time.Second)},
		{Kind: lofamov1.EventKind_DIAGNOSIS_ENDED, Observer: "operator/ada", Time: ctltest.Ago(900 * time.Millisecond),
			Reason: "diagnosis of all: at fault: link n0-0-0 X+ to n1-0-0", Concerned: []string{"n0-0-0", "n1-0-0"}},
		{Kind: lofamov1.EventKind_PROCEDURE_ENDED, Observer: "policy", Time: ctltest.Ago(800 * time.Millisecond),
			Reason: "procedure begun by n0-0-0: clear; 2 rounds, 900 ms", Clear: true},
		{Kind: lofamov1.EventKind_PROCEDURE_ENDED, Node: "n0-1-0", Observer: "supervisor/s1", Time: ctltest.Ago(700 * time.Millisecond),
			Reason: "it has begun 4 procedures by itself within 1h0m0s"},
	}
	m.Initial = []*lofamov1.Event{events[0], {Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n1-0-0", Coord: "1,0,0",
		Component: "node", From: lofamov1.State_UNKNOWN, To: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE}}
	m.Commit(41, events...)
	m.Summary = &lofamov1.GetSummaryResponse{
		Nodes: &lofamov1.Count{Unknown: 2, Normal: 4, Failed: 2}, Links: &lofamov1.Count{Normal: 23, Sick: 1,
			Unknown: 24}, Groups: 2, Warnings: 1, Maintenance: 1, Revision: 41,
		By: []*lofamov1.Tally{
			{Key: "label/rack", Value: "r0", Nodes: &lofamov1.Count{Normal: 2, Failed: 2}}, {Key: "label/rack", Value: "r1",
				Nodes: &lofamov1.Count{Unknown: 2, Normal: 2}},
			{Key: "dimension/X", Value: "1", Nodes: &lofamov1.Count{Unknown: 2, Failed: 2}},
		},
	}
	m.Explanation = &lofamov1.ExplainResponse{
		Node: "n1-0-0", Coord: "1,0,0", Component: "node", State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
		Since: ctltest.Ago(9 * time.Second), Rule: "quorum",
		Summary: "2 of 3 neighbours hear nothing from it, and no challenge was answered within 25ms",
		Because: []string{"n0-0-0 hears nothing on X-", "n1-0-1 does not count: it shares power=b"},
		Until:   []string{"an answer to a challenge", "a report of a newer boot epoch"},
		Evidence: []*lofamov1.Evidence{{Kind: "SILENCE", Observer: "n0-0-0/dnp", Path: lofamov1.Path_DIRECT,
			Age: durationpb.New(9100 * time.Millisecond), State: lofamov1.State_FAILED}},
		Groups: []*lofamov1.Group{group}, Maintenance: marked.GetMaintenance(),
	}
	m.History = &lofamov1.GetHistoryResponse{
		Events: []*lofamov1.Event{events[8], events[0]}, From: ctltest.Ago(26 * time.Hour), Revision: 41,
		TimeIn: []*lofamov1.TimeIn{
			{State: lofamov1.State_UNKNOWN, Time: durationpb.New(time.Minute), Times: 1}, {State: lofamov1.State_NORMAL,
				Time: durationpb.New(26*time.Hour - time.Minute), Times: 1},
			{State: lofamov1.State_SICK, Time: durationpb.New(0)}, {State: lofamov1.State_FAILED, Time: durationpb.New(9 * time.Second), Times: 1},
		},
	}
	return m
}

func TestGoldenOfGroups(t *testing.T) {
	r := ctltest.StartRemote(t, grouped(t))
	for _, tc := range []struct{ name, args string }{
		{"groups-nodes.txt", "get nodes"},
		{"groups-nodes-wide.txt", "get nodes -o wide"},
		{"groups-node-marked.txt", "get node 0,0,0"},
		{"groups-node-hot.txt", "get node 0,1,0"},
		{"groups-node-inferred.txt", "get node 1,1,0"},
		{"groups-links.txt", "get links --state SICK"},
		{"groups-links-wide.txt", "get links --state SICK -o wide"},
		{"groups-groups.txt", "get groups"},
		{"groups-groups-wide.txt", "get groups -o wide"},
		{"groups-groups.json", "get groups -o json"},
		{"groups-events.txt", "get events"},
		{"groups-events-wide.txt", "get events -o wide"},
		{"groups-supervisors.txt", "get supervisors -o wide"},
		{"groups-summary.txt", "summary --by label/rack,dimension/X"},
		{"groups-summary.json", "summary -o json"},
		{"groups-map.txt", "map --width 100"},
		{"groups-explain.txt", "explain 1,0,0"},
		{"groups-explain.yaml", "explain 1,0,0 -o yaml"},
		{"groups-history.txt", "history 0,1,1"},
		{"groups-history.json", "history 0,1,1 -o json"},
		{"groups-watch.txt", "watch --after-revision 1 --count 9"},
		{"groups-watch-initial.txt", "watch --initial --count 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

// TestGoldenOfAGroup: a group fault is explained as such.
func TestGoldenOfAGroup(t *testing.T) {
	m := grouped(t)
	g := m.Explanation.GetGroups()[0]
	m.Explanation = &lofamov1.ExplainResponse{
		State: g.GetState(), Cause: g.GetCause(), Since: g.GetSince(), Rule: "plane", Summary: "4 of the 4 nodes of the plane X=1 are dead",
		Because: []string{"counted: n1-0-0, n1-0-1 (FAILED, quorum)",
			"counted: n1-1-0, n1-1-1 (inferred dead)"}, Until: []string{"members that come back leave it"},
		Groups: []*lofamov1.Group{g},
	}
	r := ctltest.StartRemote(t, m)
	got := run(t, nil, r.Flags("explain", "plane/X=1")...)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
	}
	ctltest.Golden(t, "groups-explain-group.txt", got.stdout)
}

// TestSelectorsAreHandedOn: the request has the user's selectors unchanged.
func TestSelectorsAreHandedOn(t *testing.T) {
	m := grouped(t)
	for _, tc := range []struct {
		args string
		want string // in the request, as text
	}{
		{"get nodes -l rack=r7 --field-selector x=3 --not-normal --with-parts --limit 5",
			`label_selector:"rack=r7" field_selector:"x=3" limit:5 not_normal:true`},
		{"get no --not-normal", `states:UNKNOWN states:SICK states:FAILED limit:1000 not_normal:true`},
		{"get nodes --not-normal --state sick,NORMAL --limit 0", `states:SICK not_normal:true`},
		{"get li --not-normal", `states:UNKNOWN states:SICK states:FAILED limit:1000`},
		{"get ev --since 1h", ``},
		{"get nodes --limit 0 --state SICK", "states:SICK"},
		{"get links 0,0,0 --selector !spare --field-selector direction=X+",
			`node:"0,0,0" label_selector:"!spare" field_selector:"direction=X+" limit:1000`},
		{"get groups 0,0,0", `node:"0,0,0"`},
		{"get events -l gpu --field-selector kind=GROUP_CHANGED --since-revision 7",
			`after_revision:7 label_selector:"gpu" field_selector:"kind=GROUP_CHANGED"`},
		{"get events 0,0,0 --limit 3", `limit:3 node:"0,0,0"`},
		{"summary --by region,dimension/Z -l power=a", `by:"region" by:"dimension/Z" label_selector:"power=a"`},
		{"explain 0,0,0 link/X+", `node:"0,0,0" component:"link/X+"`},
		{"explain n1 X+", `node:"n1" component:"link/X+"`},
		{"explain n1 x+", `node:"n1" component:"link/X+"`}, // as inject takes it
		{"explain label/rack=r1", `group:"label/rack=r1"`},
		{"history west/label/rack=r1 --limit 9", `limit:9 group:"west/label/rack=r1"`},
		{"history n1 Z-", `node:"n1" component:"link/Z-"`},
		{"history 0,0,0 host --limit 9 --since 1h", `node:"0,0,0" component:"host" limit:9 since:{seconds:1714993200}`},
		{"watch 0,0,0 -l a --field-selector to=FAILED --initial --count 1",
			`node:"0,0,0" label_selector:"a" field_selector:"to=FAILED" initial:true`},
	} {
		t.Run(tc.args, func(t *testing.T) {
			r := ctltest.StartRemote(t, m)
			if got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...); got.code != 0 {
				t.Fatal(got.stderr)
			}
			var asked []string
			for _, req := range r.Server.Asked() {
				b, err := prototext.Marshal(req)
				if err != nil {
					t.Fatal(err)
				}
				text := strings.Join(strings.Fields(strings.ReplaceAll(string(b), ": ", ":")), " ") // its spaces are not stable
				if asked = append(asked, text); text == tc.want {
					return
				}
			}
			t.Errorf("asked %q, want %s", asked, tc.want)
		})
	}
}

func TestStaleAnswersSayHowOld(t *testing.T) {
	m := grouped(t)
	m.Nodes.Cluster.Stale, m.Nodes.Cluster.StaleAge = true, durationpb.New(75*time.Second)
	m.Links.Cluster, m.Summary.Cluster, m.Explanation.Cluster = m.Nodes.GetCluster(), m.Nodes.GetCluster(), m.Nodes.GetCluster()
	for _, n := range m.Nodes.GetNodes() {
		n.Stale, n.StaleAge = new(true), m.Nodes.GetCluster().GetStaleAge()
	}
	r := ctltest.StartRemote(t, m)
	for _, args := range []string{"get nodes", "get node 0,0,0", "get links", "get groups", "summary", "status", "explain 0,0,0"} {
		if got := run(t, nil, r.Flags(strings.Fields(args)...)...); got.code != 0 || !strings.Contains(got.stderr, "STALE") ||
			!strings.Contains(got.stderr, "has reached none for 1m15s: the answer may be that old") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestStaleNodeHidesNothingAsUnheard: a node from a replica without a leader is marked, and its unknown fields are not shown as the
// node's silence.
func TestStaleNodeHidesNothingAsUnheard(t *testing.T) {
	m := grouped(t)
	m.Nodes.Nodes = []*lofamov1.Node{{Id: "n0-0-0", Coord: "0,0,0", State: lofamov1.State_NORMAL, Stale: new(true)}}
	r := ctltest.StartRemote(t, m)
	got := run(t, nil, r.Flags("get", "node", "0,0,0")...)
	if got.code != 0 || !strings.Contains(got.stderr, "STALE") || strings.Contains(got.stdout, "since this leader took over") ||
		strings.Count(got.stdout, "unknown: only the leader") != 4 {
		t.Errorf("%+v", got)
	}
	if got := run(t, nil, r.Flags("get", "node", "0,0,0", "-o", "json")...); got.code != 0 || !strings.Contains(got.stdout, `"stale": true`) {
		t.Errorf("%+v", got)
	}
}

// TestStaleMasksDoNotShowWaitingEnds: only the leader knows whether ends wait.
func TestStaleMasksDoNotShowWaitingEnds(t *testing.T) {
	r := ctltest.StartRemote(t, grouped(t))
	r.Server.Operators.Masks = &lofamov1.ListMasksResponse{
		Masks: []*lofamov1.LinkMask{{Node: "n0-0-0", Direction: "X+", Peer: "n1-0-0", By: "operator/ann", Reason: "flaky",
			Since: ctltest.Ago(0)}},
		Stale: true, StaleAge: durationpb.New(75 * time.Second),
	}
	got := run(t, nil, r.Flags("get", "masks")...)
	if got.code != 0 || !strings.Contains(got.stderr, "STALE") || !strings.Contains(got.stderr, "has reached none for 1m15s") ||
		!strings.Contains(strings.Join(strings.Fields(got.stdout), " "), "operator/ann ? flaky") {
		t.Errorf("%+v", got)
	}
}

// TestHeldVerdictsAreShown: the map, the lists and a node show held verdicts, with the reason.
func TestHeldVerdictsAreShown(t *testing.T) {
	m := grouped(t)
	const why = "the leader drops messages of nodes or replicas"
	m.Nodes.Cluster.VerdictsHeld = why
	m.Links.Cluster, m.Summary.Cluster, m.Explanation.Cluster = m.Nodes.GetCluster(), m.Nodes.GetCluster(), m.Nodes.GetCluster()
	for _, n := range m.Nodes.GetNodes() {
		n.VerdictsHeld = why
	}
	r := ctltest.StartRemote(t, m)
	for _, args := range []string{"map", "get nodes", "get node 0,0,0", "get links", "summary", "status", "explain 0,0,0"} {
		if got := run(t, nil, r.Flags(strings.Fields(args)...)...); got.code != 0 || !strings.Contains(got.stderr, "HELD: "+why) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestMissingEventsAreTold(t *testing.T) {
	m := grouped(t)
	m.OldestRevision = 30
	r := ctltest.StartRemote(t, m)
	if got := run(t, nil, r.Flags("get", "events", "--since-revision", "7")...); got.code != 0 ||
		!strings.Contains(got.stderr, "before revision 30 are no longer kept") {
		t.Errorf("%+v", got)
	}
	if got := run(t, nil, r.Flags("get", "events", "--since-revision", "29")...); got.code != 0 || got.stderr != "" {
		t.Errorf("%+v", got)
	}
}

// TestEventsSinceNameMissingHistory: --since prints a warning if and only if the oldest kept change is more recent than that time,
// independently of the filters.
func TestEventsSinceNameMissingHistory(t *testing.T) {
	m := noisy(t) // its oldest change is an hour old
	r := ctltest.StartRemote(t, m)
	for _, tc := range []struct {
		args   string
		oldest uint64
		warns  bool
	}{
		{"get events --since 2h", 2, true},
		{"get events --since 2h", 1, false}, // nothing was ever removed
		{"get events n1-0-0 --since 2h", 2, true},
		{"get events n1-0-0 --since 30m", 2, false},
		{"get events --since 30m", 2, false},
		{"get events --since 30m --limit 2", 2, false},
		{"get events --since 2h --limit 2", 2, true},
	} {
		m.Edit(func(m *clienttest.Map) { m.OldestRevision = tc.oldest })
		got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
		if got.code != 0 || tc.warns != strings.Contains(got.stderr, "no longer kept") || !tc.warns && got.stderr != "" {
			t.Errorf("%s, from revision %d: %d, %q: want a warning: %t", tc.args, tc.oldest, got.code, got.stderr, tc.warns)
		}
	}
}
