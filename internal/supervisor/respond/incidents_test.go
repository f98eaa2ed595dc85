package respond

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestRootsOfOpenIncidents(t *testing.T) {
	of := func(id, node, component, peer, group string, s lofamov1.IncidentState) *store.StoredIncident {
		return &store.StoredIncident{Incident: &lofamov1.Incident{Id: id, Node: node, Component: component, Peer: peer, Group: group, State: s}}
	}
	got := rootsOf([]*store.StoredIncident{
		of("a", "n1", "link/Y+", "n2", "", lofamov1.IncidentState_OPEN), of("b", "n3", "node", "", "", lofamov1.IncidentState_OPEN),
		of("c", "", "group", "", "row/Y=1", lofamov1.IncidentState_OPEN), of("d", "n4", "node", "", "", lofamov1.IncidentState_RECOVERING),
		of("e", "n5", "a component of another version", "", "", lofamov1.IncidentState_OPEN),
	})
	lower := response.Target{Node: "n1", Component: fault.Link(grid.YPlus)}
	want := response.IncidentsChanged{
		Roots: map[response.Target]string{
			lower: "a", {Node: "n3", Component: fault.ComponentNode}: "b", {Group: "row/Y=1"}: "c",
		},
		Ends:     map[response.Target]response.Target{lower: {Node: "n2", Component: fault.Link(grid.YMinus)}},
		Parts:    map[response.Target]string{},
		Standing: map[string]uint32{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
}

// TestRootsDoNotDependOnTheOrderOfIncidents compares rootsOf with a plain version that sorts: of two incidents with one root
// or consequence, an OPEN one counts, and then the one with the greater id.
func TestRootsDoNotDependOnTheOrderOfIncidents(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		all := make([]*store.StoredIncident, r.IntN(12))
		for i := range all {
			all[i] = &store.StoredIncident{Incident: &lofamov1.Incident{Id: fmt.Sprintf("i%02d", i), Node: fmt.Sprint("n", r.IntN(3)),
				Component: [...]string{"node", "link/X+", "memory"}[r.IntN(3)], State: lofamov1.IncidentState(1 + r.IntN(3))}}
			if r.IntN(3) == 0 {
				all[i].Group = fmt.Sprint("row/Y=", r.IntN(2))
			}
			for range r.IntN(3) {
				all[i].Consequences = append(all[i].Consequences, &lofamov1.Consequence{Node: fmt.Sprint("n", r.IntN(3)), Component: "host"})
			}
			if r.IntN(3) > 0 {
				all[i].Peer = "peer of " + all[i].GetNode()
			}
			all[i].Acknowledgement = &lofamov1.Acknowledgement{Outdated: r.IntN(2) == 0, Escalations: uint32(r.IntN(3))}
		}
		want := sortedRoots(all)
		for range 5 {
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if got := rootsOf(all); !sameRoots(got, want) {
				t.Fatalf("round %d: %v: want %v", round, got, want)
			}
		}
	}
}

// sortedRoots is a plain version of rootsOf: it sorts the incidents and lets later ones replace earlier ones.
func sortedRoots(all []*store.StoredIncident) response.IncidentsChanged {
	out := response.IncidentsChanged{Roots: map[response.Target]string{}, Ends: map[response.Target]response.Target{},
		Parts: map[response.Target]string{}, Standing: map[string]uint32{}}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *store.StoredIncident) int {
		return cmp.Or(cmp.Compare(b.GetState(), a.GetState()), strings.Compare(a.GetId(), b.GetId()))
	})
	of := func(node, component string) response.Target {
		c, _ := fault.ParseComponent(component)
		return response.Target{Node: fault.NodeID(node), Component: c}
	}
	for _, in := range all {
		if in.GetState() == lofamov1.IncidentState_CLOSED {
			continue
		}
		out.Standing[in.GetId()] = 0
		if in.GetAcknowledgement().GetOutdated() {
			out.Standing[in.GetId()] = in.GetAcknowledgement().GetEscalations() + 1
		}
		for _, part := range in.GetConsequences() {
			out.Parts[of(part.GetNode(), part.GetComponent())] = in.GetId()
		}
		switch root := of(in.GetNode(), in.GetComponent()); {
		case in.GetState() != lofamov1.IncidentState_OPEN:
		case in.GetGroup() != "":
			out.Roots[response.Target{Group: in.GetGroup()}] = in.GetId()
		default:
			out.Roots[root] = in.GetId()
			delete(out.Ends, root)
			if in.GetComponent() == "link/X+" && in.GetPeer() != "" {
				out.Ends[root] = of(in.GetPeer(), "link/X-")
			}
		}
	}
	return out
}

// TestIncidentListsResponsesFromTheStore: the responder commits its responses to an incident beside the incident's record,
// and a reader of the incident finds them.
func TestIncidentListsResponsesFromTheStore(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, cordonAndTell)
	const id = "k3f9-aaaaaaaa"
	kv, err := store.IncidentPut(&lofamov1.Incident{
		Id: id, State: lofamov1.IncidentState_OPEN, Node: "n0-0-0", Component: "memory", Fault: lofamov1.State_FAILED,
	})
	must(t, err)
	_, err = l.c.Put(t.Context(), kv.Key, string(kv.Value))
	must(t, err)
	r := l.start("", 0)
	defer l.end(r)
	supervisortest.Eventually(t, "the responder to lead", r.Leading)
	l.set("n0-0-0", fault.Failed)
	var in *store.StoredIncident
	supervisortest.Eventually(t, "the response of the incident to be done", func() bool {
		in, err = l.store.LocalIncident(t.Context(), id)
		must(t, err)
		return len(in.GetResponses()) == 1 && in.GetResponses()[0].GetState() == lofamov1.ResponseState_RESPONSE_DONE
	})
	got := in.GetResponses()[0]
	if got.GetPolicy() != "cordon" || got.GetStep() != "cordon" || got.GetExecutor() != "kubernetes.cordon" || got.GetNode() != "n0-0-0" ||
		got.GetComponent() != "memory" || got.GetMode() != lofamov1.PolicyMode_ENFORCE || got.GetSince() == nil || got.GetClosed() != nil ||
		in.GetResponseCount() != 1 {
		t.Errorf("response %v", got)
	}
	for _, in := range r.incidents.View().Incidents {
		if in.GetRevision() == 0 || len(in.GetResponses()) > 1 {
			t.Errorf("the feed has %v", in)
		}
	}
}

// TestOneAlertStandsForAnIncident: of several responses to an incident, one maintains the alert: the oldest of those
// with the newest notice.
func TestOneAlertStandsForAnIncident(t *testing.T) {
	parameters := map[string]string{"severity": "critical"}
	key := response.NotificationKey(response.Alertmanager, parameters)
	job := func(id string) executor.Job {
		return executor.Job{Effect: response.Effect{Attempt: response.Attempt{Response: id}, Kind: response.Alertmanager, Parameters: parameters}}
	}
	of := func(id string, notice uint32) response.IncidentResponse {
		return response.IncidentResponse{ID: id, Notified: []string{key}, Notice: notice, Label: notice}
	}
	merged := of("r3", 0) // whose alert has a notice of another incident
	merged.Label = 3
	records := []response.Record{
		&response.IncidentRecord{Incident: "a", Responses: []response.IncidentResponse{of("r1", 0), of("r2", 0)}},
		&response.IncidentRecord{Incident: "b", Responses: []response.IncidentResponse{merged, of("r4", 2), of("r5", 2)}},
		&response.IncidentRecord{Incident: "c", Responses: []response.IncidentResponse{{ID: "r6", Label: 4}, {ID: "r7"}}},
	}
	var got []string
	for _, j := range onePerIncident([]executor.Job{job("r5"), job("r2"), job("r1"), job("r3"), job("r4"), job("r6"), job("r7"), job("r8")},
		records) {
		got = append(got, fmt.Sprint(j.Response, j.Incident, " ", j.Notice))
	}
	if want := []string{"r1a 0", "r4b 2", "r6c 4", "r7c 0", "r8 0"}; !slices.Equal(got, want) {
		t.Errorf("standing alerts %q: want %q", got, want)
	}
}

// TestAlertSaysHowMachineDied: the text of a fault for alerts, webhooks and events has the traces of the machine's death, within its
// bound. Faults of other parts, and of other nodes, do not.
func TestAlertSaysHowMachineDied(t *testing.T) {
	of := func(node, component string, in *lofamov1.Incident) *store.StoredIncident {
		in.Node, in.Component = node, component
		return &store.StoredIncident{Incident: in}
	}
	standing := []*store.StoredIncident{
		of("n1", "node", &lofamov1.Incident{Kernel: &lofamov1.KernelVerdict{
			Dead: lofamov1.KernelDead_KERNEL_DEAD_YES, Why: "its kernel is dead: two"},
			LastWords: "last kernel words, not authenticated: Kernel panic", LastBoot: "last boot ended by: a kernel panic"}),
		of("n2", "memory", &lofamov1.Incident{LastWords: "forged"}), of("n3", "quantum", &lofamov1.Incident{LastWords: "later"}),
		of("n5", "dnp", &lofamov1.Incident{Kernel: &lofamov1.KernelVerdict{Why: "the DNP's"}}),
		of("n4", "node", &lofamov1.Incident{LastWords: strings.Repeat("ä", 2000)}),
	}
	for _, tt := range []struct {
		t    response.Target
		want string
	}{
		{response.Target{Node: "n1", Component: fault.ComponentNode}, "its kernel is dead: two; " +
			"the machine's last kernel words, not authenticated: Kernel panic; the machine's last boot ended by: a kernel panic"},
		{response.Target{Node: "n1", Component: fault.ComponentMemory}, ""},
		{response.Target{Node: "n2", Component: fault.ComponentHost}, ""},
		{response.Target{Node: "n3", Component: fault.ComponentHost}, ""},
		{response.Target{Node: "n5", Component: fault.ComponentHost}, ""},
		{response.Target{Node: "n5", Component: fault.ComponentDNP}, "the DNP's"},
		{response.Target{Node: "n5", Component: fault.ComponentNode}, "the DNP's"},
		{response.Target{Group: "row/Y=1"}, ""},
	} {
		if got := deathOf(standing, tt.t); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.t, got, tt.want)
		}
	}
	r := &response.Response{Target: response.Target{Node: "n4", Component: fault.ComponentNode}, FaultState: fault.Failed,
		FaultCause: fault.CauseNode, FaultSince: time.Unix(0, 0)}
	f := faultOf(r, deathOf(standing, r.Target))
	if len(f.Detail) > maxFaultDetail || !utf8.ValidString(f.Detail) ||
		!strings.HasPrefix(f.Detail, "n4/node is FAILED since 1970-01-01T00:00:00Z (NODE); the machine's ää") {
		t.Errorf("%d bytes: %.100q", len(f.Detail), f.Detail)
	}
}
