package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// well is a cluster without faults: all its supervisors are NORMAL.
func well(t *testing.T) *clienttest.Map {
	t.Helper()
	m := ctltest.Healthy(t, "2x2x2")
	m.Supervisors.Supervisors[2].State = lofamov1.State_NORMAL
	m.Summary = &lofamov1.GetSummaryResponse{Nodes: &lofamov1.Count{Normal: 8}, Links: &lofamov1.Count{Normal: 48}, Revision: 41,
		Cluster: m.Nodes.GetCluster()}
	m.Summary.Cluster.Cluster = "hall"
	return m
}

// watchedByOne is a cluster without faults, whose summary names some nodes with a single witness.
func watchedByOne(t *testing.T, nodes int) *clienttest.Map {
	t.Helper()
	m := well(t)
	for range nodes {
		m.Summary.SingleWitness = append(m.Summary.SingleWitness, fifth())
	}
	return m
}

// broken has the incidents of troubled, a supervisor that does not answer, and one with an alarm.
func broken(t *testing.T) *clienttest.Map {
	t.Helper()
	m := well(t)
	m.Incidents = troubled(t).Incidents
	m.Supervisors.Supervisors[2].State = lofamov1.State_FAILED
	m.Supervisors.Supervisors[0].Alarms = []string{"store slow: 1.2s"}
	m.Summary.Nodes, m.Summary.Links = &lofamov1.Count{Normal: 7, Failed: 1}, &lofamov1.Count{Normal: 40, Failed: 8}
	m.Summary.Maintenance, m.Summary.Warnings = 1, 2
	m.Incidents[0].Acknowledgement = &lofamov1.Acknowledgement{By: "operator/bob", Time: ctltest.Ago(80 * time.Second), Outdated: true}
	m.Incidents[0].Escalations, m.Incidents[0].Escalated = 1, ctltest.Ago(70*time.Second)
	m.Incidents[0].Responses = []*lofamov1.IncidentResponse{{Id: "r7-5"}}
	return m
}

// acting answers with responses to the incidents of troubled, and with an open breaker.
func acting(r ctltest.Remote) ctltest.Remote {
	response := func(id, policy, node, component, reason string, state lofamov1.ResponseState) *lofamov1.Response {
		return &lofamov1.Response{Id: id, Policy: policy, Node: node, Component: component, State: state, Reason: reason, Detail: "0 of 1",
			Proposed: ctltest.Ago(20 * time.Second), Mode: lofamov1.PolicyMode_ENFORCE, Steps: []*lofamov1.ResponseStep{{Name: "drain"}}}
	}
	observed := response("r7-3", "mask-link", "n0-1-0", "link/Y-", "", lofamov1.ResponseState_RESPONSE_DONE)
	observed.Detail, observed.Step, observed.Mode = "", 1, lofamov1.PolicyMode_OBSERVE_ONLY
	r.Server.Responses.List = &lofamov1.ListResponsesResponse{
		Breaker: &lofamov1.ResponseBreaker{Open: true, At: ctltest.Ago(time.Minute), Detail: "13 of 64 nodes went bad within 5m0s"},
		Responses: []*lofamov1.Response{
			response("r7-1", "drain", "n1-1-1", "node", "approval", lofamov1.ResponseState_RESPONSE_WAITING),
			response("r7-2", "power", "n1-1-1", "node", "no answer", lofamov1.ResponseState_RESPONSE_FAILED),
			response("r7-4", "elsewhere", "n0-0-1", "node", "approval", lofamov1.ResponseState_RESPONSE_WAITING),
			response("r7-5", "far", "n1-1-0", "host", "", lofamov1.ResponseState_RESPONSE_RUNNING), // only the incident says to which it belongs
			observed,
		},
	}
	return r
}

// racks has more incidents than a screen holds, one of a rack with consequences of many kinds.
func racks(t *testing.T) *clienttest.Map {
	t.Helper()
	m := well(t)
	rack := &lofamov1.Incident{
		Id: "k3f9-rackrack", State: lofamov1.IncidentState_OPEN, Severity: lofamov1.IncidentSeverity_CRITICAL, Component: "group",
		Group: "label/rack=r1", Cause: lofamov1.Cause_NODE, Fault: lofamov1.State_FAILED, Since: ctltest.Ago(5 * time.Minute),
		Summary: "label/rack=r1 is FAILED: 4 of the 4 nodes of rack r1 are dead", ConsequenceCount: 80, Runbook: "LofamoGroupFailed",
		Verdict: &lofamov1.Verdict{SingleWitness: true},
	}
	for i, c := range []string{"node", "node", "node", "node", "host", "link/X+", "link/X-", "memory"} {
		state := lofamov1.State_FAILED
		if i > 2 {
			state = lofamov1.State_UNKNOWN
		}
		rack.Consequences = append(rack.Consequences, &lofamov1.Consequence{Node: "n0-0-1", Component: c, State: state})
	}
	m.Incidents = append(m.Incidents, rack)
	for i := range 14 {
		m.Incidents = append(m.Incidents, &lofamov1.Incident{
			Id: fmt.Sprintf("k3f9-hothot%02d", i), State: lofamov1.IncidentState_RECOVERING, Severity: lofamov1.IncidentSeverity_WARNING,
			Node: "n0-0-0", Component: "temperature", Cause: lofamov1.Cause_SENSOR, Fault: lofamov1.State_SICK,
			Since: ctltest.Ago(time.Duration(60-i) * time.Second), Summary: "temperature of n0-0-0 is SICK: 81 °C", Verdict: &lofamov1.Verdict{},
		})
	}
	return m
}

func TestStatusOutput(t *testing.T) {
	closed := &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
	start := func(m *clienttest.Map) ctltest.Remote {
		r := ctltest.StartRemote(t, m)
		r.Server.Responses.List = closed
		return r
	}
	for _, tc := range []struct {
		name, args string
		r          ctltest.Remote
	}{
		{"status.txt", "status", acting(ctltest.StartRemote(t, broken(t)))},
		{"status.json", "status -o json", acting(ctltest.StartRemote(t, broken(t)))},
		{"status-well.txt", "status", start(well(t))},
		{"status-well.yaml", "status -o yaml", start(well(t))},
		{"status-five.txt", "status", start(watchedByOne(t, 1))},
		{"status-five.yaml", "status -o yaml", start(watchedByOne(t, 1))},
		{"status-single-witnesses.txt", "status", start(watchedByOne(t, 5))},
		{"status-rack.txt", "status", start(racks(t))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, tc.r.Flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

// TestStatusOfParentNamesTheRegion: a parent of regions changes nothing, so the next commands go to the region that keeps the incident.
func TestStatusOfParentNamesTheRegion(t *testing.T) {
	m := well(t)
	m.Incidents = []*lofamov1.Incident{{Id: "west/k3f9-aaaaaaaa", Region: "west", Node: "n1-0-1", Component: "node",
		State: lofamov1.IncidentState_OPEN, Fault: lofamov1.State_FAILED}}
	got := run(t, nil, acting(ctltest.StartRemote(t, m)).Flags("status")...)
	if want := " lofamoctl --server SUPERVISORS-OF-west acknowledge k3f9-aaaaaaaa --note NOTE\n"; !strings.Contains(got.stdout, want) {
		t.Errorf("want %q in\n%s%s", want, got.stdout, got.stderr)
	}
}

// TestStatusSaysWhereToLookForTheCauseOfAGroup: the links between two planes share a cable tray, nodes rather their power.
func TestStatusSaysWhereToLookForTheCauseOfAGroup(t *testing.T) {
	for group, want := range map[string]string{
		"plane/X=1/LINK":     "all links between two planes have failed",
		"plane/X=1/HOST":     "neighbouring nodes have the same fault",
		"label/rack=a/LINK":  "nodes with rack=a have the same fault",
		"partition/0,0,1":    "no living path leads to this part of the torus",
		"block/0,0,0..1,1,0": "neighbouring nodes have the same fault",
		"west/label/rack=a":  "nodes with rack=a have the same fault", // at a parent of regions
	} {
		m := racks(t)
		m.Incidents[0].Group = group
		if strings.HasPrefix(group, "west/") {
			m.Incidents[0].Region = "west"
		}
		if got := run(t, nil, ctltest.StartRemote(t, m).Flags("status")...); !strings.Contains(got.stdout, "\n  cause         "+want) {
			t.Errorf("%s: want cause %q:\n%s", group, want, got.stdout)
		}
	}
}

// TestStatusFitsOneScreen: however many incidents there are, the status has at most 50 lines.
func TestStatusFitsOneScreen(t *testing.T) {
	m := racks(t)
	for i := range 500 {
		more := proto.CloneOf(m.Incidents[0])
		more.Id = fmt.Sprintf("k3f9-rack%04d", i)
		m.Incidents = append(m.Incidents, more)
	}
	got := run(t, nil, acting(ctltest.StartRemote(t, m)).Flags("status")...)
	if n := strings.Count(got.stdout, "\n"); n > 50 || !strings.Contains(got.stdout, "507 incidents more: lofamoctl get incidents\n") {
		t.Errorf("%d lines:\n%s", n, got.stdout)
	}
}

// TestStatusNamesEveryProblem: the first line is "nothing is broken" only if nothing is. UNKNOWN nodes have no incident, but no evidence
// says that they work. Nodes that announced their stop are no fault, and the first line tells them apart.
func TestStatusNamesEveryProblem(t *testing.T) {
	for want, harm := range map[string]func(*clienttest.Map, *lofamov1.ListResponsesResponse){
		"nothing is broken":      func(*clienttest.Map, *lofamov1.ListResponsesResponse) {},
		"no leader":              func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) { m.Summary.Cluster.Leader = "" },
		"this answer is STALE":   func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) { m.Summary.Cluster.Stale = true },
		"circuit breaker OPEN":   func(_ *clienttest.Map, l *lofamov1.ListResponsesResponse) { l.Breaker.Open = true },
		"1 supervisor unhealthy": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) { m.Supervisors.Supervisors[1].State = 0 },
		"2 supervisors unhealthy": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Supervisors.Supervisors[1].Alarms, m.Supervisors.Supervisors[0].State = []string{"store full"}, lofamov1.State_FAILED
		},
		"regions cut off": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Summary.Cluster.Regions = []*lofamov1.Region{{Name: "west", State: lofamov1.State_UNKNOWN}}
		},
		"8 nodes UNKNOWN": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Summary.Nodes, m.Summary.Links = &lofamov1.Count{Unknown: 8}, &lofamov1.Count{Unknown: 48}
		},
		"nothing is broken; 1 node stopped as announced": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Summary.Nodes, m.Summary.Stopped = &lofamov1.Count{Unknown: 1, Normal: 7}, 1
		},
		"1 node UNKNOWN; 2 nodes stopped as announced": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Summary.Nodes, m.Summary.Stopped = &lofamov1.Count{Unknown: 3, Normal: 5}, 2
		},
		"verdicts are held back": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Summary.Cluster.VerdictsHeld = "datagrams are dropped"
		},
		"1 incident recovering": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Incidents = []*lofamov1.Incident{{Id: "k3f9-aaaaaaaa", State: lofamov1.IncidentState_RECOVERING}}
		},
		"1 incident open, 0 CRITICAL": func(m *clienttest.Map, _ *lofamov1.ListResponsesResponse) {
			m.Incidents = []*lofamov1.Incident{{Id: "k3f9-aaaaaaaa", State: lofamov1.IncidentState_OPEN}}
		},
	} {
		m, l := well(t), &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
		harm(m, l)
		r := ctltest.StartRemote(t, m)
		r.Server.Responses.List = l
		got := run(t, nil, r.Flags("status")...)
		if first, _, _ := strings.Cut(got.stdout, "\n"); got.code != 0 || first != want {
			t.Errorf("exit code %d, %q: want %q\n%s", got.code, first, want, got.stderr)
		}
	}
}

// TestStatusCountsStoppedNodes: the counts below name the stopped nodes, and how to list them.
func TestStatusCountsStoppedNodes(t *testing.T) {
	m := well(t)
	m.Summary.Nodes, m.Summary.Stopped = &lofamov1.Count{Unknown: 3, Normal: 5}, 2
	r := ctltest.StartRemote(t, m)
	r.Server.Responses.List = &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
	const want = "\nstopped         2 of the UNKNOWN nodes: lofamoctl get nodes --state unknown\n"
	if got := run(t, nil, r.Flags("status")...); got.code != 0 || !strings.Contains(got.stdout, want) {
		t.Errorf("exit code %d: want %q in\n%s%s", got.code, want, got.stdout, got.stderr)
	}
	var all struct{ Stopped int }
	got := run(t, nil, r.Flags("status", "-o", "json")...)
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || all.Stopped != 2 {
		t.Errorf("%d stopped, %v: want 2 in %s", all.Stopped, err, got.stdout)
	}
}

// TestStatusNamesMissingParts: an earlier parent of regions keeps no incidents and says who does.
func TestStatusNamesMissingParts(t *testing.T) {
	r := ctltest.StartRemote(t, well(t))
	r.Server.RefuseIf(func(req proto.Message) error {
		if _, ok := req.(*lofamov1.ListIncidentsRequest); ok {
			return status.Error(codes.FailedPrecondition, "ask the supervisors of region west")
		}
		return nil
	})
	r.Server.Responses.Err = status.Error(codes.Unimplemented, "responses are switched off")
	got := run(t, nil, r.Flags("status")...)
	for _, want := range []string{"nothing is broken in the parts below\n", "incidents: ask the supervisors of region west\n",
		"responses: responses are switched off\n"} {
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("exit code %d: want %q in\n%s%s", got.code, want, got.stdout, got.stderr)
		}
	}
	got = run(t, nil, r.Flags("status", "-o", "json")...)
	var all struct{ Missing []string }
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || len(all.Missing) != 2 {
		t.Errorf("%v in %s", err, got.stdout)
	}
}

// TestTranscripts: docs/incidents.md has the output of the commands for the answers of a real cluster, which hack/transcript saved.
func TestTranscripts(t *testing.T) {
	for name, heading := range map[string]string{"node": "## A killed node", "cable": "## A cut cable", "rack": "## A dead rack"} {
		r, at := replay(t, "testdata/transcript-"+name+".json")
		var text strings.Builder
		for _, args := range []string{"status", "get incidents"} {
			got := runAt(t, at, nil, r.Flags(strings.Fields(args)...)...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("%s: %s: %+v", name, args, got)
			}
			text.WriteString("$ lofamoctl " + args + "\n" + got.stdout + "\n")
		}
		ctltest.GoldenBlock(t, "../../docs/incidents.md", heading, strings.TrimSuffix(text.String(), "\n"))
	}
}

// replay serves the saved output of `lofamoctl status -o json`, and returns the time of the answers.
func replay(t *testing.T, file string) (ctltest.Remote, time.Time) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var st struct {
		Time                              time.Time
		Incidents, Responses, Supervisors []json.RawMessage
		Breaker, Nodes, Links, Cluster    json.RawMessage
		Groups, Warnings, Maintenance     uint32
	}
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	read := func(b []byte, m proto.Message) {
		if err := protojson.Unmarshal(b, m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	m := clienttest.NewMap()
	s := &lofamov1.GetSummaryResponse{Nodes: &lofamov1.Count{}, Links: &lofamov1.Count{}, Groups: st.Groups, Warnings: st.Warnings,
		Maintenance: st.Maintenance, Cluster: &lofamov1.ClusterInfo{}}
	read(st.Nodes, s.Nodes)
	read(st.Links, s.Links)
	read(st.Cluster, s.Cluster)
	m.Summary = s
	list := &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
	read(st.Breaker, list.Breaker)
	for _, b := range st.Responses {
		list.Responses = append(list.Responses, &lofamov1.Response{})
		read(b, list.Responses[len(list.Responses)-1])
	}
	for _, b := range st.Incidents {
		m.Incidents = append(m.Incidents, &lofamov1.Incident{})
		read(b, m.Incidents[len(m.Incidents)-1])
	}
	for _, b := range st.Supervisors {
		m.Supervisors.Supervisors = append(m.Supervisors.Supervisors, &lofamov1.Supervisor{})
		read(b, m.Supervisors.Supervisors[len(m.Supervisors.Supervisors)-1])
	}
	if len(m.Incidents) != 1 || len(m.Supervisors.GetSupervisors()) == 0 || st.Time.IsZero() {
		t.Fatalf("%s: %d incidents and %d supervisors at %v: want one incident", file, len(m.Incidents), len(m.Supervisors.GetSupervisors()),
			st.Time)
	}
	r := ctltest.StartRemote(t, m)
	r.Server.Responses.List = list
	return r, st.Time
}

func TestStatusRefuses(t *testing.T) {
	r := ctltest.StartRemote(t, well(t))
	for args, want := range map[string]string{
		"status everything": `argument "everything": want none`,
		"status -o wide":    `want one of table, json, yaml, jsonpath=TEMPLATE`,
	} {
		if got := run(t, nil, r.Flags(strings.Fields(args)...)...); got.code != command.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit code %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
	r.Server.Refuse(status.Error(codes.PermissionDenied, "not you"))
	for _, args := range []string{"status", "status -w"} {
		got := run(t, nil, r.Flags(strings.Fields(args)...)...)
		if got.code != command.ExitFailure || got.stderr != "lofamoctl: status: not you\n" || got.stdout != "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestWatchedStatusPrintsChangesOnly: a new revision of the map prints nothing, a new incident prints all again.
func TestWatchedStatusPrintsChangesOnly(t *testing.T) {
	for format, want := range map[string]struct{ first, each string }{
		"table": {"nothing is broken\n", "supervisors "}, "json": {`"incidents":[],`, `"groups":0,`}, "yaml": {"incidents: []\n", "\ntime: "},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			m, asked := well(t), make(chan struct{}, 1)
			r := ctltest.StartRemote(t, m)
			r.Server.Responses.List = &lofamov1.ListResponsesResponse{Breaker: &lofamov1.ResponseBreaker{}}
			out, stop := follow(t, r.Flags("status", "-w", "-o", format)...)
			out.until(t, want.first)
			m.Edit(func(m *clienttest.Map) { m.Summary.Revision++ })
			r.Server.RefuseIf(func(req proto.Message) error {
				if _, ok := req.(*lofamov1.GetSummaryRequest); ok {
					select {
					case asked <- struct{}{}:
					default:
					}
				}
				return nil
			})
			<-asked
			<-asked // the answer to the request before it was printed or not
			r.Server.RefuseIf(nil)
			m.Edit(func(m *clienttest.Map) { m.Incidents = troubled(t).Incidents })
			out.until(t, "k3f9-aaaaaaaa")
			if code := stop(); code != command.ExitOK {
				t.Errorf("exit code %d after Ctrl-C", code)
			}
			text := out.until(t, "k3f9-aaaaaaaa")
			if n := strings.Count(text, want.each); n != 2 {
				t.Errorf("printed %d times: want 2:\n%s", n, text)
			}
		})
	}
}
