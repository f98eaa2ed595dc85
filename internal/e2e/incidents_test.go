package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestOneFaultIsOneIncident injects faults into real processes, one at a time: each is exactly one open incident with the
// faulty part as its root cause, also under another leader, and CLOSED once it is healed.
func TestOneFaultIsOneIncident(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: func(c *config.Supervisor) {
		c.IncidentQuiet = 0 // as soon as the periods allow
	}})
	for _, tc := range []struct {
		name, at        string
		fault           cluster.Fault
		node, component string
		cause           lofamov1.Cause
		killLeader      bool
	}{
		{"node killed", "1,1,1", simple(cluster.KillNode), "n1-1-1", "node", lofamov1.Cause_NODE, true},
		{"DNP half killed", "0,1,0", simple(cluster.KillDNP), "n0-1-0", "dnp", lofamov1.Cause_DNP, false},
		{"host half killed", "1,0,1", simple(cluster.KillHost), "n1-0-1", "host", lofamov1.Cause_HOST, false},
		{"cable cut", "0,0,0", cluster.Fault{Kind: cluster.CutLink, Dir: grid.YPlus}, "n0-0-0", "link/Y+", lofamov1.Cause_LINK, true},
		{"sensor hot", "1,0,0", sensor("temperature", 110), "n1-0-0", "temperature", lofamov1.Cause_SENSOR, false},
		{"service network cut", "0,1,1", simple(cluster.CutService), "n0-1-1", "service-network", lofamov1.Cause_SERVICE_NETWORK, false},
	} {
		try(t, l, tc.name, func(t trial) {
			before := t.incidents()
			t.inject(tc.at, tc.fault)
			t.becomes(tc.node, tc.component, sick, failed)
			in := t.steady(t.oneIncident(before, tc.node, tc.component).GetId())
			if in.GetCause() != tc.cause {
				t.Errorf("cause %s: want %s", in.GetCause(), tc.cause)
			}
			if v := in.GetVerdict(); v.GetReason() == "" || len(v.GetEvidence()) == 0 || v.GetTime() == nil {
				t.Errorf("verdict %v: want a reason, evidence and a time", v)
			}
			t.statusShows(in.GetId())
			if tc.killLeader {
				t.survivesLeader(in, tc.node, tc.component)
			}
			t.heal(tc.at)
			eventually(t.T, "the incident to be CLOSED", func() bool { return t.incident(in.GetId()).GetState() == lofamov1.IncidentState_CLOSED })
			t.onlyOneSince(before, in.GetId())
		})
	}
}

// incidents returns all incidents by id.
func (t trial) incidents() map[string]*lofamov1.Incident {
	t.Helper()
	out := map[string]*lofamov1.Incident{}
	eventually(t.T, "a list of incidents", func() bool {
		resp, err := t.Client.AllIncidents(t.Context(), &lofamov1.ListIncidentsRequest{}, 0)
		if err != nil || resp.GetStale() {
			return false
		}
		for _, in := range resp.GetIncidents() {
			out[in.GetId()] = in
		}
		return true
	})
	return out
}

func (t trial) incident(id string) *lofamov1.Incident {
	t.Helper()
	return answered(t.T, "read incident "+id, func() (*lofamov1.Incident, error) { return t.Client.GetIncident(t.Context(), id) })
}

// oneIncident waits for the incident of a fault and returns it. No other may be open.
func (t trial) oneIncident(before map[string]*lofamov1.Incident, node, component string) *lofamov1.Incident {
	t.Helper()
	var open []*lofamov1.Incident
	eventually(t.T, fmt.Sprintf("one open incident: %s of %s", component, node), func() bool {
		open = nil
		for id, in := range t.incidents() {
			if before[id] == nil && in.GetState() == lofamov1.IncidentState_OPEN {
				open = append(open, in)
			}
		}
		return len(open) == 1 && open[0].GetNode() == node && open[0].GetComponent() == component
	})
	return open[0]
}

// steady returns an incident once its cause and verdict have been the same for two seconds: the evidence of other witnesses
// follows the first.
func (t trial) steady(id string) (in *lofamov1.Incident) {
	t.Helper()
	since := time.Now()
	eventually(t.T, "the verdict of incident "+id+" to stay the same", func() bool {
		now := t.incident(id)
		if now.GetCause() != in.GetCause() || now.GetVerdict().String() != in.GetVerdict().String() {
			in, since = now, time.Now()
		}
		return in != nil && time.Since(since) >= 2*time.Second
	})
	return in
}

// statusShows waits until one screen of lofamoctl answers a person's questions about the only fault.
func (t trial) statusShows(id string) {
	t.Helper()
	var screen, missing string
	defer func() {
		if t.Failed() {
			t.Logf("lofamoctl status lacks %q:\n%s", missing, screen)
		}
	}()
	eventually(t.T, "lofamoctl status to show "+id, func() bool {
		in := t.incident(id)
		subject := in.GetNode()
		if in.GetComponent() != "node" {
			subject += " " + in.GetComponent()
		}
		screen = t.lofamoctl("status")
		for _, missing = range []string{
			"1 incident open, ", "\nOPEN " + in.GetSeverity().String() + " " + id + ": " + in.GetSummary() + "\n",
			"\n  since         ", in.GetSince().AsTime().Local().Format("15:04:05.000") + ", ", "\n  cause         ", "\n  consequences  ",
			"\n  being done    ", " lofamoctl explain " + subject + "\n", " lofamoctl acknowledge " + id + " --note NOTE\n",
			"\ncircuit breaker ", "\nsupervisors     3 of 3 NORMAL; leader ", "\nnodes           ",
		} {
			if !strings.Contains(screen, missing) {
				return false
			}
		}
		return true
	})
}

// survivesLeader kills the leader: the next one must have the same incident, and give the same reason for a dead node,
// about which no newer evidence comes.
func (t trial) survivesLeader(in *lofamov1.Incident, node, component string) {
	t.Helper()
	why := func() string {
		return answered(t.T, "explain "+component+" of "+node, func() (*lofamov1.ExplainResponse, error) {
			return t.Client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: node, Component: component})
		}).GetSummary()
	}
	reason := why()
	t.acknowledges(in.GetId())
	old := t.leaderFirst()[0]
	t.kill(old)
	eventually(t.T, "another leader", func() bool { return t.leaderFirst()[0] != old })
	now := t.incident(in.GetId())
	if now.GetState() != lofamov1.IncidentState_OPEN || now.GetVerdict().String() != in.GetVerdict().String() ||
		!now.GetSince().AsTime().Equal(in.GetSince().AsTime()) {
		t.Errorf("under another leader: %v\nbefore: %v", now, in)
	}
	if now.GetAcknowledgement() == nil || len(now.GetNotes()) != 1 {
		t.Errorf("under another leader: acknowledgement %v, notes %v", now.GetAcknowledgement(), now.GetNotes())
	}
	if again := why(); again != reason && component == "node" {
		t.Errorf("another leader explains %q: before %q", again, reason)
	}
	t.start(old)
}

// acknowledges acknowledges an incident; what is wrong is refused.
func (t trial) acknowledges(id string) {
	t.Helper()
	operator, err := t.Cluster.RegionClient(pki.RoleOperator, "")
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	resp, err := operator.AcknowledgeIncident(t.Context(), id, "on my way")
	if err != nil || resp.GetIncident().GetAcknowledgement().GetBy() == "" || resp.GetIncident().GetNotes()[0].GetText() != "on my way" {
		t.Errorf("%v, %v", resp, err)
	}
	for _, tc := range []struct {
		id, note string
		code     codes.Code
		says     string
	}{
		{id, strings.Repeat("x", 4097), codes.InvalidArgument, "note: given 4097 bytes: want at most 4096"},
		{"nothing", "", codes.InvalidArgument, `id: given "nothing"`},
		{id[:5] + "aaaaaaaa", "", codes.NotFound, "there is none"},
		{"aaaa" + id[4:], "", codes.NotFound, "belongs to another cluster"},
	} {
		_, err := operator.AcknowledgeIncident(t.Context(), tc.id, tc.note)
		if status.Code(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("acknowledge %s: %v: want %s with %q", tc.id, err, tc.code, tc.says)
		}
	}
	if _, err := t.Client.AcknowledgeIncident(t.Context(), id, ""); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer acknowledges: %v", err)
	}
}

// onlyOneSince checks that no other incident was opened, and that a closed one takes no acknowledgement.
func (t trial) onlyOneSince(before map[string]*lofamov1.Incident, id string) {
	t.Helper()
	var others []string
	for other, in := range t.incidents() {
		if before[other] == nil && other != id {
			others = append(others, fmt.Sprintf("%s %s of %s %s", other, in.GetComponent(), in.GetNode(), in.GetSummary()))
		}
	}
	slices.Sort(others)
	if len(others) > 0 {
		t.Errorf("besides %s there were %q", id, others)
	}
	operator, err := t.Cluster.RegionClient(pki.RoleOperator, "")
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	if _, err := operator.AcknowledgeIncident(t.Context(), id, ""); status.Code(err) != codes.Aborted {
		t.Errorf("acknowledge a closed incident: %v", err)
	}
}
