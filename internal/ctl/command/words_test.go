package command

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// TestPageHasSameWords: the page for browsers says each phrase as lofamoctl does, for a torus and for an ordinary cluster.
func TestPageHasSameWords(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "web", "src", "words.ts"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^  (\w+): (?:'(.*)'|"(.*)"),$`)
	for name, words := range map[string]Words{"torus": torusWords, "ordinary": ordinaryWords} {
		_, table, _ := strings.Cut(string(b), "const "+name+": Words = {")
		table, _, _ = strings.Cut(table, "\n}")
		page := map[string]string{}
		for _, m := range line.FindAllStringSubmatch(table, -1) {
			page[strings.ToLower(m[1])] = m[2] + m[3]
		}
		v := reflect.ValueOf(words)
		for i := range v.NumField() {
			field := v.Type().Field(i).Name
			if said, ok := page[strings.ToLower(field)]; !ok || said != v.Field(i).String() {
				t.Errorf("%s, %s: the page says %q, lofamoctl %q", name, field, said, v.Field(i))
			}
		}
		if len(page) != v.NumField() {
			t.Errorf("%s: the page has %d phrases, lofamoctl %d", name, len(page), v.NumField())
		}
	}
}

// TestOrdinaryWordsHaveNoTorus: readers without a torus meet none of its terms.
func TestOrdinaryWordsHaveNoTorus(t *testing.T) {
	v := reflect.ValueOf(ordinaryWords)
	for i := range v.NumField() {
		if term := regexp.MustCompile(`(?i)torus|DNP|plane|rail|spare|halves|tray`).FindString(v.Field(i).String()); term != "" {
			t.Errorf("%s has %q: %s", v.Type().Field(i).Name, term, v.Field(i))
		}
	}
}

// TestGroupsWithoutPlacesAreNodesTogether: only groups that have their names from places lose them, and keep their region and their cause.
func TestGroupsWithoutPlacesAreNodesTogether(t *testing.T) {
	for id, want := range map[string]string{
		"plane/Z=0": "nodes together", "row/X=0,Y=0/LINK": "nodes together/LINK", "block/0,0,0..1,1,0": "nodes together",
		"partition/0,0,4": "nodes together", "west/plane/Z=0": "west/nodes together", "label/rack=r1": "label/rack=r1",
		"label/row=plane/x": "label/row=plane/x", "west/label/rack=r1/LINK": "west/label/rack=r1/LINK", "": "",
	} {
		if got := ordinaryWords.Group(id); got != want {
			t.Errorf("%q is %q, want %q", id, got, want)
		}
		if got := torusWords.Group(id); got != id {
			t.Errorf("in a torus %q is %q", id, got)
		}
	}
}

// TestOrdinaryAnswersHaveNoTorus prints each kind of answer to readers without a torus: none has a place or one of its terms.
func TestOrdinaryAnswersHaveNoTorus(t *testing.T) {
	var out strings.Builder
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC, Stdout: &out}}
	const failed = lofamov1.State_FAILED
	group := &lofamov1.Group{Id: "plane/Z=0", Kind: lofamov1.GroupKind_PLANE, State: failed, Size: 4, Members: []string{"n1", "n2"}}
	node := &lofamov1.Node{Id: "n1", Coord: "0,0,0", State: failed, Groups: []string{"plane/Z=0"}}
	spare := &lofamov1.Node{Id: "n9", Spare: true, State: lofamov1.State_UNKNOWN}
	cluster := &lofamov1.ClusterInfo{Ordinary: true, Dims: "4x2x1 without 1,1,0"}
	if err := PrintExplanation(a, &lofamov1.ExplainResponse{Node: "n1", Component: "node", Coord: "0,0,0", State: failed, Cluster: cluster,
		Groups: []*lofamov1.Group{group}}); err != nil { // from which the others know the kind of cluster
		t.Fatal(err)
	}
	if err := PrintExplanation(a, &lofamov1.ExplainResponse{Component: "group", State: failed, Groups: []*lofamov1.Group{group}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*lofamov1.Node{node, spare} {
		if err := PrintNode(a, n, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, wide := range []bool{false, true} {
		for _, rows := range [][][]string{
			NodeRows(a, []*lofamov1.Node{node, spare}, wide), GroupRows(a, []*lofamov1.Group{group}, wide),
			LinkRows(a, []*lofamov1.Link{{Node: "n1", Coord: "0,0,0", Direction: "X+", Peer: "n2", PeerCoord: "1,0,0", State: failed}}, wide),
			EventRows(a, []*lofamov1.Event{{Node: "n1", Coord: "0,0,0", Component: "node", To: failed},
				{Kind: lofamov1.EventKind_GROUP_CHANGED, Group: group, To: failed}}, wide),
		} {
			if err := a.Table(rows); err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				if len(r) != len(rows[0]) {
					t.Errorf("the heading has %d cells, a row %d: %q", len(rows[0]), len(r), r)
				}
			}
		}
	}
	if got := a.Words().ResponseTarget(&lofamov1.Response{Group: "plane/Z=0"}); got != "group nodes together" {
		t.Errorf("a response to a group is for %q", got)
	}
	for _, want := range []string{"nodes together", "takes no part"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	for line := range strings.Lines(out.String()) {
		if term := regexp.MustCompile(`(?i)torus|plane|Z=|\bspare|COORD|\d,\d,\d|\dx\d`).FindString(line); term != "" {
			t.Errorf("%q in: %s", term, line)
		}
	}
}

// TestDeadLeaderIsNotCalledLeader: a stale answer has the last leader, which may be what died.
func TestDeadLeaderIsNotCalledLeader(t *testing.T) {
	for _, tc := range []struct {
		info *lofamov1.ClusterInfo
		want string
	}{
		{&lofamov1.ClusterInfo{Leader: "s2"}, "leader s2"},
		{&lofamov1.ClusterInfo{Leader: "s2", Stale: true}, "no leader (the last was s2)"},
		{&lofamov1.ClusterInfo{Stale: true}, "no leader"},
	} {
		if got := Leader(tc.info); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.info, got, tc.want)
		}
	}
}

// TestAlarmOfClusterIsNoIllnessOfSupervisor: the leader shows an open circuit breaker, and is well.
func TestAlarmOfClusterIsNoIllnessOfSupervisor(t *testing.T) {
	for _, tc := range []struct {
		state  lofamov1.State
		alarms []string
		want   bool
	}{
		{lofamov1.State_NORMAL, nil, false},
		{lofamov1.State_NORMAL, []string{"response breaker open: 9 nodes"}, false},
		{lofamov1.State_NORMAL, []string{"region cut off: west"}, false},
		{lofamov1.State_NORMAL, []string{"response breaker open: 9 nodes", "store full"}, true},
		{lofamov1.State_FAILED, nil, true},
	} {
		if got := Unhealthy(&lofamov1.Supervisor{State: tc.state, Alarms: tc.alarms}); got != tc.want {
			t.Errorf("%v %v: %v, want %v", tc.state, tc.alarms, got, tc.want)
		}
	}
}
