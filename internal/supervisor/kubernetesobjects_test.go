package supervisor_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// faultServer is an API server that has only Faults. The first part of a path names the replica that asks.
type faultServer struct {
	mu      sync.Mutex
	version int
	objects map[string]*faultObject
	writers []string // of all writes
}

type faultObject struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta      `json:"metadata"`
	Spec     kubernetes.FaultSpec   `json:"spec"`
	Status   kubernetes.FaultStatus `json:"status"`
}

func (f *faultServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	replica, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	path, ours := strings.CutPrefix(path, "apis/lofamo.io/v1alpha1/namespaces/fabric/faults")
	name, part, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Has("watch") { // nothing happens but what the asking replica does
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ours && name == "" && r.Method == http.MethodGet:
		list := map[string]any{"apiVersion": "lofamo.io/v1alpha1", "kind": "FaultList",
			"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
		var items []*faultObject
		for _, o := range f.objects {
			items = append(items, o)
		}
		list["items"] = items
		_ = json.NewEncoder(w).Encode(list)
	case ours && r.Method == http.MethodPatch:
		var in faultObject
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		f.version++
		f.writers = append(f.writers, replica)
		o := f.objects[name]
		if o == nil {
			o = &faultObject{TypeMeta: metav1.TypeMeta{APIVersion: "lofamo.io/v1alpha1", Kind: "Fault"},
				Metadata: metav1.ObjectMeta{UID: types.UID("u" + strconv.Itoa(f.version))}}
			f.objects[name] = o
		}
		if part == "status" {
			o.Status = in.Status
		} else {
			o.Metadata.Name, o.Metadata.Labels, o.Spec = name, in.Metadata.Labels, in.Spec
		}
		o.Metadata.ResourceVersion = strconv.Itoa(f.version)
		_ = json.NewEncoder(w).Encode(o)
	default: // also deletions: an open incident keeps its object
		w.WriteHeader(http.StatusForbidden)
	}
}

// only returns the only object, and the replicas that have written; false: there is none, or it has no status yet.
func (f *faultServer) only(t *testing.T) (o faultObject, writers []string, ok bool) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.objects) > 1 {
		t.Fatalf("%d Faults: want one", len(f.objects))
	}
	for _, has := range f.objects {
		o = *has
	}
	return o, slices.Clone(f.writers), o.Status.State != ""
}

// TestNextLeaderKeepsFaultObject: the leader, and no other replica, makes a Fault object of an incident. The next leader goes on with
// the same object.
func TestNextLeaderKeepsFaultObject(t *testing.T) {
	t.Parallel()
	f := &faultServer{objects: map[string]*faultObject{}}
	server, dir := httptest.NewServer(f), t.TempDir()
	t.Cleanup(server.Close)
	c, replicas, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		path := filepath.Join(dir, cfg.ID)
		text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],
clusters: [{name: a, cluster: {server: "` + server.URL + "/" + cfg.ID + `"}}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		cfg.Kubernetes = config.KubernetesObjects{Namespace: "fabric", Kubeconfig: path, Faults: true}
	}})
	tell := func(st fault.State, to int) {
		a := c.Agents["n1-0-0"]
		id, b := a.Report(t, fault.HalfHost, false, temperature(st))
		a.Deliver(t, id, b, c.Configs[to].Report)
	}
	tell(fault.Sick, leader)
	supervisortest.Eventually(t, "a Fault", func() bool { _, _, ok := f.only(t); return ok })
	first, writers, _ := f.only(t)
	all := listed(t, c.Client(t, c.Configs[leader].GRPC), &lofamov1.ListIncidentsRequest{})
	if len(all) != 1 {
		t.Fatalf("incidents %v: want one", all)
	}
	if want := (kubernetes.FaultSpec{Cluster: supervisortest.Name, Incident: all[0].GetId()}); first.Spec != want ||
		first.Metadata.Name != all[0].GetId() || first.Metadata.Labels["lofamo.io/node"] != "n1-0-0" {
		t.Errorf("%+v: want %+v", first, want)
	}
	if st := first.Status; st.State != "OPEN" || st.Node != "n1-0-0" || st.Component != "temperature" || st.Fault != "SICK" {
		t.Errorf("status %+v", st)
	}
	old := c.Configs[leader].ID
	if slices.ContainsFunc(writers, func(w string) bool { return w != old }) {
		t.Errorf("%v have written: want only the leader, %s", writers, old)
	}
	stop(t, replicas[leader])
	_, before, _ := f.only(t)
	next := c.AwaitLeader(t, (leader+1)%3, (leader+2)%3)
	tell(fault.Normal, next)
	supervisortest.Eventually(t, "the next leader's word that the fault has gone", func() bool {
		o, _, _ := f.only(t)
		return !o.Status.Until.IsZero()
	})
	o, after, _ := f.only(t)
	if o.Metadata.UID != first.Metadata.UID || o.Status.State == "OPEN" || o.Status.Node != "n1-0-0" {
		t.Errorf("%+v: want the same object", o)
	}
	if slices.Contains(after[len(before):], old) {
		t.Errorf("%v have written after %s stopped", after[len(before):], old)
	}
}

// TestFaultOfIncident: an object has the incident's times and no ages, and its conditions say whether it is active and acknowledged.
func TestFaultOfIncident(t *testing.T) {
	t.Parallel()
	since, ended := time.Unix(1000, 0), time.Unix(1060, 0)
	in := func(state lofamov1.IncidentState, until *timestamppb.Timestamp, by *lofamov1.Acknowledgement) *lofamov1.Incident {
		return &lofamov1.Incident{
			Id: "abcd-efghijkl", State: state, Severity: lofamov1.IncidentSeverity_CRITICAL, Node: "n1", Component: "node",
			Fault: lofamov1.State_FAILED, Since: timestamppb.New(since), Until: until, Acknowledgement: by, ConsequenceCount: 3,
			Verdict: &lofamov1.Verdict{
				Time: timestamppb.New(since.Add(time.Second)), Witnesses: []string{"n2/dnp"}, SingleWitness: true,
				Evidence: []*lofamov1.Evidence{{Kind: "SILENCE", Observer: "n2/dnp", State: lofamov1.State_FAILED,
					Age: durationpb.New(time.Second), Detail: "no beat"}, {Kind: "VOTES", Observer: "supervisor/s1"}},
			},
		}
	}
	until := timestamppb.New(ended)
	ann := func(outdated bool) *lofamov1.Acknowledgement {
		return &lofamov1.Acknowledgement{By: "operator/ann", Time: until, Outdated: outdated}
	}
	for _, tc := range []struct {
		in                   *lofamov1.Incident
		active, acknowledged string // status, reason and seconds
		closed               time.Time
	}{
		{in(lofamov1.IncidentState_OPEN, nil, nil), "True Open 1000", "False NotAcknowledged 1000", time.Time{}},
		{in(lofamov1.IncidentState_OPEN, nil, ann(false)), "True Open 1000", "True Acknowledged 1060", time.Time{}},
		{in(lofamov1.IncidentState_OPEN, nil, ann(true)), "True Open 1000", "False NotAcknowledged 1000", time.Time{}},
		{in(lofamov1.IncidentState_RECOVERING, until, nil), "True Recovering 1000", "False NotAcknowledged 1000", time.Time{}},
		{in(lofamov1.IncidentState_CLOSED, until, nil), "False Closed 1060", "False NotAcknowledged 1000", ended},
	} {
		f := supervisor.FaultOf(tc.in)
		st := f.Status
		if f.Name != "abcd-efghijkl" || !f.Closed.Equal(tc.closed) || st.State != tc.in.GetState().String() || st.Severity != "CRITICAL" ||
			st.Node != "n1" || st.Component != "node" || st.Fault != "FAILED" || st.Consequences != 3 || !st.SingleWitness ||
			!slices.Equal(st.Witnesses, []string{"n2/dnp"}) || st.Since.Unix() != 1000 {
			t.Errorf("%s: %+v", tc.in.GetState(), f)
		}
		if want := "SILENCE of n2/dnp: FAILED since 1970-01-01T00:16:40.000Z: no beat"; len(st.Evidence) != 2 || st.Evidence[0] != want {
			t.Errorf("evidence %q: want %q first", st.Evidence, want)
		}
		for i, want := range []string{tc.active, tc.acknowledged} {
			c := st.Conditions[i]
			if got := string(c.Status) + " " + c.Reason + " " + strconv.FormatInt(c.LastTransitionTime.Unix(), 10); got != want {
				t.Errorf("%s: condition %s is %s: want %s", tc.in.GetState(), c.Type, got, want)
			}
		}
	}
}
