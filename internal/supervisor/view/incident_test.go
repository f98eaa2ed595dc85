package view

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// alertRule is a Prometheus alert on incidents.
type alertRule struct {
	Alert, Expr string
	Labels      map[string]string
}

var (
	incidentSelector = regexp.MustCompile(`lofamo:incident\{([^}]*)\}`)
	labelMatcher     = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
)

// fires reports whether one of the rule's selectors matches an incident of these labels. It ignores exclusions by "unless".
func (r *alertRule) fires(t *testing.T, labels map[string]string) bool {
	t.Helper()
	expr, _, _ := strings.Cut(r.Expr, " unless ")
	return slices.ContainsFunc(incidentSelector.FindAllStringSubmatch(expr, -1), func(selector []string) bool {
		matchers := labelMatcher.FindAllStringSubmatch(selector[1], -1)
		if len(matchers) == 0 {
			t.Fatalf("alert %s: no matchers in %q", r.Alert, selector[0])
		}
		return !slices.ContainsFunc(matchers, func(m []string) bool {
			equal := labels[m[1]] == m[3]
			if strings.HasSuffix(m[2], "~") {
				equal = regexp.MustCompile(`^(?:` + m[3] + `)$`).MatchString(labels[m[1]])
			}
			return equal == strings.HasPrefix(m[2], "!")
		})
	})
}

// TestIncidentHasSeverityAndRunbookOfItsAlert: an incident of any kind fires one alert, with its severity and its runbook.
func TestIncidentHasSeverityAndRunbookOfItsAlert(t *testing.T) {
	b, err := os.ReadFile("../../../deploy/prometheus/lofamo-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	var rules []alertRule
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if strings.HasPrefix(r.Expr, "lofamo:incident{") {
				rules = append(rules, r)
			}
		}
	}
	for _, in := range incidentsOfAllKinds(t) {
		doc := Incident(in)
		labels := map[string]string{"component": doc.GetComponent(), "fault": doc.GetFault().String()}
		var fired []string
		for i := range rules {
			if rules[i].fires(t, labels) {
				fired = append(fired, fmt.Sprintf("%s %s", rules[i].Alert, rules[i].Labels["severity"]))
			}
		}
		want := []string{fmt.Sprintf("%s %s", doc.GetRunbook(), strings.ToLower(doc.GetSeverity().String()))}
		if !slices.Equal(fired, want) {
			t.Errorf("%s fires %q: its incident has %q", labels, fired, want)
		}
	}
}

// incidentsOfAllKinds returns the incidents of every component that is SICK or FAILED, each alone, of a dead row and of a partition.
func incidentsOfAllKinds(t *testing.T) (out []*awareness.Incident) {
	t.Helper()
	dims := grid.Dims{X: 4, Y: 4, Z: 4}
	ids := make(map[grid.Coord]fault.NodeID)
	for rank := range dims.Nodes() {
		ids[dims.At(rank)] = fault.DefaultNodeID(dims.At(rank))
	}
	now := time.Unix(1_700_000_000, 0)
	cfg := awareness.IncidentsOf("test", awareness.Config{Dims: dims, IDs: ids, Supervisor: "s1", DigestPeriod: time.Second})
	one := func(what string, u awareness.IncidentUpdate) {
		t.Helper()
		l, err := awareness.NewIncidents(cfg, now, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		u.Status = func(fault.NodeID) (awareness.NodeStatus, bool) { return awareness.NodeStatus{}, false }
		if l.Update(now, u); len(l.All()) != 1 {
			t.Fatalf("%s: %d incidents: want 1", what, len(l.All()))
		}
		out = append(out, l.All()[0])
	}
	for _, c := range fault.Components() {
		for _, state := range []fault.State{fault.Sick, fault.Failed} {
			st := awareness.NodeStatus{ID: "n0-0-0", State: state, Cause: c.Cause(), Since: now}
			if c != fault.ComponentNode {
				st.State = fault.Sick
				st.Components = []awareness.ComponentStatus{{Component: c, State: state, Cause: c.Cause(), Since: now}}
			} else if state == fault.Sick {
				continue // a part of it is the root cause, but for bad ports
			}
			one(c.String(), awareness.IncidentUpdate{Nodes: []awareness.NodeStatus{st}})
		}
	}
	ports := awareness.NodeStatus{ID: "n0-0-0", State: fault.Sick, Cause: fault.CauseLink, Since: now}
	for _, d := range []grid.Direction{grid.XPlus, grid.YPlus, grid.ZPlus} {
		ports.Components = append(ports.Components, awareness.ComponentStatus{Component: fault.Link(d), State: fault.Failed,
			Cause: fault.CauseLink, Since: now})
	}
	one("bad ports", awareness.IncidentUpdate{Nodes: []awareness.NodeStatus{ports}})
	row := awareness.GroupStatus{ID: "row/Y=0,Z=0", Kind: awareness.GroupRow, State: fault.Failed, Cause: fault.CauseNode, Since: now, Of: 4}
	var dead []awareness.NodeStatus
	for x := range 4 {
		at := grid.Coord{X: x}
		row.Members = append(row.Members, ids[at])
		dead = append(dead, awareness.NodeStatus{ID: ids[at], Coord: at, State: fault.Failed, Cause: fault.CauseNode, Since: now})
	}
	one("a dead row", awareness.IncidentUpdate{Nodes: dead, Groups: []awareness.GroupStatus{row}})
	one("a partition", awareness.IncidentUpdate{Groups: []awareness.GroupStatus{{ID: "partition/0,0,0", Kind: awareness.GroupPartition,
		State: fault.Unknown, Cause: fault.CauseNone, Since: now, Members: row.Members, Of: 64}}})
	return out
}

// TestIncidentOfAnotherVersionIsRestored: evidence and consequences of unknown kinds are left out, and everything else is kept. An
// incident with an unknown root cause is refused.
func TestIncidentOfAnotherVersionIsRestored(t *testing.T) {
	in := awareness.Incident{
		ID: "k3f9-aaaaaaaa", State: awareness.IncidentOpen, Severity: awareness.IncidentWarning, Coord: grid.Coord{X: 1},
		Root: awareness.Part{Node: "n1-0-0", Component: fault.ComponentMemory}, Cause: fault.CauseMemory, Fault: fault.Failed, Escalations: 2,
		Version: 3,
	}
	doc := Incident(&in)
	doc.Consequences = []*lofamov1.Consequence{{Node: "n1-0-0", Component: "quantum"}, {Node: "n1-0-0", Component: "host"}}
	doc.Verdict.Evidence = []*lofamov1.Evidence{{Kind: "DREAM"}, {Kind: fault.KindSelf.String()}}
	got, err := RestoreIncident(doc)
	if err != nil || len(got.Consequences) != 1 || len(got.Verdict.Evidence) != 1 || got.Root != in.Root || got.Escalations != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, spoil := range []func(*lofamov1.Incident){
		func(d *lofamov1.Incident) { d.Component = "quantum" }, func(d *lofamov1.Incident) { d.State = 9 },
		func(d *lofamov1.Incident) { d.Id = "" },
	} {
		bad := Incident(&in)
		spoil(bad)
		if _, err := RestoreIncident(bad); err == nil {
			t.Errorf("%v is restored", bad)
		}
	}
}
