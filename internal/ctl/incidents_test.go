package ctl

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// troubled is a cluster with a dead node, a cut cable and a closed incident.
func troubled(t *testing.T) *clienttest.Map {
	t.Helper()
	m := ctltest.Healthy(t, "2x2x2")
	m.Incidents = []*lofamov1.Incident{
		{
			Id: "k3f9-aaaaaaaa", State: lofamov1.IncidentState_OPEN, Severity: lofamov1.IncidentSeverity_WARNING, Node: "n0-0-0", Coord: "0,0,0",
			Component: "link/Y+", Cause: lofamov1.Cause_LINK, Peer: "n0-1-0", Fault: lofamov1.State_FAILED, Since: ctltest.Ago(90 * time.Second),
			Summary: "link/Y+ of n0-0-0 to n0-1-0 is FAILED: the near end's view of the link", ConsequenceCount: 1,
			Consequences: []*lofamov1.Consequence{{Node: "n0-1-0", Component: "link/Y-", State: lofamov1.State_FAILED, Cause: lofamov1.Cause_LINK,
				Reason: "near-end"}},
			Verdict: &lofamov1.Verdict{Time: ctltest.Ago(90 * time.Second), Rule: "near-end", Leader: "s1", Witnesses: []string{"n0-0-0/host"}},
			Version: 1, Revision: 7,
		},
		{
			Id: "k3f9-bbbbbbbb", State: lofamov1.IncidentState_OPEN, Severity: lofamov1.IncidentSeverity_CRITICAL, Node: "n1-1-1", Coord: "1,1,1",
			Component: "node", Cause: lofamov1.Cause_NODE, Fault: lofamov1.State_FAILED, Since: ctltest.Ago(30 * time.Second),
			Summary: "node n1-1-1 is FAILED: 3 of 3 live witnesses hear nothing", ConsequenceCount: 70, Runbook: "LofamoNodeFailed",
			Consequences: []*lofamov1.Consequence{{Node: "n0-1-1", Component: "link/X+", State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
				Reason: "peer-dead"}},
			Verdict: &lofamov1.Verdict{Time: ctltest.Ago(30 * time.Second), Rule: "quorum", Reason: "3 of 3 hear nothing", Leader: "s1",
				Witnesses: []string{"n0-1-1/host", "n1-0-1/host"}, Evidence: []*lofamov1.Evidence{
					{Kind: "SILENCE", Observer: "n0-1-1/host", State: lofamov1.State_FAILED, Age: durationpb.New(95 * time.Millisecond)},
				}},
			Acknowledgement: &lofamov1.Acknowledgement{By: "operator/ada", Time: ctltest.Ago(10 * time.Second)},
			Notes:           []*lofamov1.IncidentNote{{By: "operator/ada", Time: ctltest.Ago(10 * time.Second), Text: "on my way"}},
			Version:         2, Revision: 9,
		},
		{
			Id: "k3f9-cccccccc", State: lofamov1.IncidentState_CLOSED, Severity: lofamov1.IncidentSeverity_WARNING, Node: "n1-0-0", Coord: "1,0,0",
			Component: "temperature", Cause: lofamov1.Cause_SENSOR, Fault: lofamov1.State_SICK, Since: ctltest.Ago(time.Hour),
			Until: ctltest.Ago(30 * time.Minute), Summary: "temperature of n1-0-0 is SICK", Verdict: &lofamov1.Verdict{}, Version: 4, Revision: 5,
		},
	}
	return m
}

func TestIncidentsOutput(t *testing.T) {
	none := ctltest.Healthy(t, "2x1x1")
	for _, tc := range []struct {
		name, args string
		m          *clienttest.Map
	}{
		{"get-incidents.txt", "get incidents", troubled(t)},
		{"get-incidents-wide.txt", "get incidents -o wide --state all", troubled(t)},
		{"get-incidents.json", "get incidents -o json", troubled(t)},
		{"get-incidents-name.txt", "get inc -o name", troubled(t)},
		{"get-incidents-closed.yaml", "get incidents -o yaml --state closed", troubled(t)},
		{"get-incidents-one.txt", "get incidents k3f9-bbbbbbbb", troubled(t)},
		{"get-incidents-none.txt", "get incidents", none},
		{"get-incidents-none.json", "get incidents -o json", none},
		{"acknowledge.txt", "acknowledge incident/k3f9-bbbbbbbb --note mine", troubled(t)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, ctltest.StartRemote(t, tc.m).Flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

// TestAllStatesWinInAnyOrder: "all" beside another state selects all incidents.
func TestAllStatesWinInAnyOrder(t *testing.T) {
	r := ctltest.StartRemote(t, troubled(t))
	for _, states := range []string{"all", "closed,all", "all,closed", "open,ALL,closed"} {
		got := run(t, nil, r.Flags("get", "incidents", "-o", "name", "--state", states)...)
		if got.code != 0 || strings.Count(got.stdout, "\n") != 3 {
			t.Errorf("%s: %d, %q: want all three incidents", states, got.code, got.stdout)
		}
	}
}

// TestIncidentsJSONHasOneKey: programs read {"incidents": [...]} and nothing beside it.
func TestIncidentsJSONHasOneKey(t *testing.T) {
	got := run(t, nil, ctltest.StartRemote(t, troubled(t)).Flags("get", "incidents", "-o", "json")...)
	var all map[string][]map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || len(all) != 1 || len(all["incidents"]) != 3 {
		t.Fatalf("%v in %s", err, got.stdout)
	}
	for _, in := range all["incidents"] {
		for _, key := range []string{"id", "state", "node", "component", "cause", "since"} {
			if v, ok := in[key].(string); !ok || v == "" {
				t.Errorf("%s is %v in %v", key, in[key], in)
			}
		}
		if _, err := time.Parse(time.RFC3339, in["since"].(string)); err != nil {
			t.Error(err)
		}
	}
}

// TestWatchedIncidentsKeepTheFormat: -w prints what -o asks for. The server of the test sends one response, and ends.
func TestWatchedIncidentsKeepTheFormat(t *testing.T) {
	for format, want := range map[string]string{
		"yaml": "incidents:\n- ", "json": `{"incidents":[{`, "name": "incident/k3f9-",
		"jsonpath={.incidents[*].id}": "k3f9-bbbbbbbb k3f9-aaaaaaaa k3f9-cccccccc\n",
	} {
		got := run(t, nil, ctltest.StartRemote(t, troubled(t)).Flags("get", "incidents", "-w", "-o", format)...)
		if !strings.HasPrefix(got.stdout, want) {
			t.Errorf("-o %s: %q: want it to begin with %q", format, got.stdout, want)
		}
	}
}

// TestWatchedIncidentsGoOnInReplacedStore: the supervisors' store is replaced by one with an older revision. The server of the test sends
// one response, and ends.
func TestWatchedIncidentsGoOnInReplacedStore(t *testing.T) {
	m := troubled(t)
	m.IncidentWatches = [][]*lofamov1.WatchIncidentsResponse{{{Revision: 500}}}
	r := ctltest.StartRemote(t, m)
	r.Server.RefuseIf(func(req proto.Message) error {
		if w, ok := req.(*lofamov1.WatchIncidentsRequest); ok && w.GetAfterRevision() > 20 {
			return status.Error(codes.OutOfRange, "the store is at 20")
		}
		return nil
	})
	got := run(t, nil, r.Flags("get", "incidents", "-w", "-o", "name")...)
	if !strings.HasPrefix(got.stdout, "incident/k3f9-") || !strings.Contains(got.stderr, "the store is at 20: all incidents follow again\n") {
		t.Errorf("%+v: want all incidents, and a warning", got)
	}
}

// TestOneIncidentIsWatched: with an ID, -w prints this incident alone.
func TestOneIncidentIsWatched(t *testing.T) {
	for format, want := range map[string]string{
		"table": "incident   k3f9-aaaaaaaa", "name": "incident/k3f9-aaaaaaaa\n", "jsonpath={.incidents[*].id}": "k3f9-aaaaaaaa\n",
	} {
		got := run(t, nil, ctltest.StartRemote(t, troubled(t)).Flags("get", "incidents", "k3f9-aaaaaaaa", "-w", "-o", format)...)
		if !strings.HasPrefix(got.stdout, want) || strings.Contains(got.stdout, "k3f9-bbbbbbbb") {
			t.Errorf("-o %s: %q: want it to begin with %q, and no other incident", format, got.stdout, want)
		}
	}
}

func TestIncidentsRefuse(t *testing.T) {
	r := ctltest.StartRemote(t, troubled(t))
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"get incidents k3f9-bbbbbbbb --state open", 2, "--state, --node and --since choose among all incidents: want none of them with an ID"},
		{"get incidents --state bad", 2, `--state "bad": want OPEN, RECOVERING, CLOSED or all`},
		{"get incidents --since -5s", 2, `--since "-5s": want a time above zero`},
		{"get incidents --since yesterday", 2, `--since "yesterday"`},
		{"get incidents k3f9-zzzzzzzz", 2, "get incident k3f9-zzzzzzzz: incident k3f9-zzzzzzzz: there is none"},
		{"acknowledge", 2, "INCIDENT"},
		{"acknowledge k3f9-bbbbbbbb --note " + strings.Repeat("x", 4097), 2, "--note: given 4097 bytes: want at most 4096"},
		{"acknowledge k3f9-bbbbbbbb --note " + strings.Repeat("x", 8<<20), 2, "--note: given 8388608 bytes: want at most 4096"},
		{"acknowledge k3f9-zzzzzzzz", 2, "acknowledge incident k3f9-zzzzzzzz: incident k3f9-zzzzzzzz: there is none"},
	} {
		got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
		if got.code != tc.code || len(got.stderr) > 1000 || !strings.Contains(got.stderr, tc.says) {
			t.Errorf("%.80s: exit code %d, %.1000q; want %d with %q", tc.args, got.code, got.stderr, tc.code, tc.says)
		}
	}
}

// TestRecoveringIncidentSaysWhenItCloses: an incident and the explanation of its node say when it closes.
func TestRecoveringIncidentSaysWhenItCloses(t *testing.T) {
	m := troubled(t)
	in := m.Incidents[1]
	in.State, in.Until = lofamov1.IncidentState_RECOVERING, ctltest.Ago(500*time.Millisecond)
	m.Summary.Cluster = &lofamov1.ClusterInfo{Preset: "default"}
	m.Explanation = &lofamov1.ExplainResponse{Node: "n1-1-1", Component: "node", State: lofamov1.State_NORMAL, Cluster: m.Summary.GetCluster()}
	r := ctltest.StartRemote(t, m)
	const want = "wait: all faults ended 500ms ago; " +
		"the incident closes after incidentQuiet of the supervisors without a fault (1m by default)\n"
	for args, prefix := range map[string]string{
		"get incidents k3f9-bbbbbbbb": "\nrecovering ", "explain n1-1-1": "\nIncident k3f9-bbbbbbbb is RECOVERING: ",
	} {
		if got := run(t, nil, r.Flags(strings.Fields(args)...)...); got.code != 0 || !strings.Contains(got.stdout, prefix+want) {
			t.Errorf("%s: %+v: want %q", args, got, prefix+want)
		}
	}
	m.Explanation.Node = "n0-0-0"
	if got := run(t, nil, r.Flags("explain", "n0-0-0")...); strings.Contains(got.stdout, "RECOVERING") {
		t.Errorf("an incident of another node: %s", got.stdout)
	}
}

// TestIncidentShowsResponsesAndOutdatedAcknowledgement: an incident names its responses, and an acknowledgement for an earlier state
// does not count.
func TestIncidentShowsResponsesAndOutdatedAcknowledgement(t *testing.T) {
	m := troubled(t)
	in := m.Incidents[1]
	in.Escalations, in.Escalated, in.Acknowledgement.Outdated = 1, ctltest.Ago(5*time.Second), true
	in.ResponseCount, in.Responses = 18, []*lofamov1.IncidentResponse{
		{Id: "r7-1", Policy: "chat", Mode: lofamov1.PolicyMode_ENFORCE, Node: "n0-1-1", Component: "link/X+", Step: "chat",
			Executor: "webhook.notify", State: lofamov1.ResponseState_RESPONSE_DONE, Since: ctltest.Ago(29 * time.Second),
			Closed: ctltest.Ago(20 * time.Second), Result: "chat: 200"},
		{Id: "r7-2", Policy: "drain", Mode: lofamov1.PolicyMode_OBSERVE_ONLY, Node: "n1-1-1", Component: "node", Step: "drain",
			State: lofamov1.ResponseState_RESPONSE_WAITING, Since: ctltest.Ago(28 * time.Second)},
		{Id: "r7-3", Policy: "rack", Mode: lofamov1.PolicyMode_ENFORCE, Group: "label/rack=r7", Step: "call",
			State: lofamov1.ResponseState_RESPONSE_FAILED, Since: ctltest.Ago(27 * time.Second), Result: "step failed: call: no answer"},
	}
	r := ctltest.StartRemote(t, m)
	for name, args := range map[string][]string{
		"get-incidents-responses.txt": {"get", "incidents", "k3f9-bbbbbbbb"}, "get-incidents-outdated.txt": {"get", "incidents"},
	} {
		got := run(t, nil, r.Flags(args...)...)
		if got.code != 0 || got.stderr != "" {
			t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
		}
		ctltest.Golden(t, name, got.stdout)
	}
}
