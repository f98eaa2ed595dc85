package supervisor_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// policyServer is an API server that has only FaultPolicies. The first part of a path names the replica that asks.
type policyServer struct {
	mu      sync.Mutex
	version int
	objects map[string]*policyObject
	writers []string // of all writes
}

type policyObject struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta            `json:"metadata"`
	Spec     json.RawMessage              `json:"spec"`
	Status   kubernetes.FaultPolicyStatus `json:"status"`
}

func (f *policyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	replica, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	path, ours := strings.CutPrefix(path, "apis/lofamo.io/v1alpha1/namespaces/fabric/faultpolicies")
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Has("watch") { // without events
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name, isStatus := strings.CutSuffix(strings.TrimPrefix(path, "/"), "/status")
	switch o := f.objects[name]; {
	case ours && name == "" && r.Method == http.MethodGet:
		var items []*policyObject
		for _, o := range f.objects {
			items = append(items, o)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "lofamo.io/v1alpha1", "kind": "FaultPolicyList",
			"metadata": metav1.ListMeta{ResourceVersion: fmt.Sprint(f.version)}, "items": items})
	case ours && isStatus && o != nil && r.Method == http.MethodPatch:
		var in policyObject
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Metadata.ResourceVersion != o.Metadata.ResourceVersion {
			w.WriteHeader(http.StatusConflict)
			return
		}
		f.version++
		f.writers = append(f.writers, replica)
		o.Status, o.Metadata.ResourceVersion = in.Status, fmt.Sprint(f.version)
		_ = json.NewEncoder(w).Encode(o)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

func (f *policyServer) put(name, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	spec := fmt.Sprintf(`{"match":"fault.component == \"memory\"","steps":[{"name":"taint","executor":"kubernetes.taint",
		"parameters":{"key":%q,"effect":"NoSchedule"}}]}`, key)
	f.objects[name] = &policyObject{TypeMeta: metav1.TypeMeta{APIVersion: "lofamo.io/v1alpha1", Kind: "FaultPolicy"},
		Spec: json.RawMessage(spec), Metadata: metav1.ObjectMeta{Name: name, Generation: 1,
			UID: types.UID("u" + name), ResourceVersion: fmt.Sprint(f.version)}}
}

// standing renders the status of an object, and returns the number of writes.
func (f *policyServer) standing(name string) (string, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.objects[name].Status
	if len(st.Conditions) != 1 {
		return "", len(f.writers)
	}
	return fmt.Sprintf("%s %s %d", st.Conditions[0].Status, st.Mode, st.Version), len(f.writers)
}

// TestLeaderTakesPoliciesOfObjects: the leader puts the policies of objects in force, and no replica lets people change them. The next
// leader repeats nothing, and withdraws the policy of an object that went meanwhile.
func TestLeaderTakesPoliciesOfObjects(t *testing.T) {
	t.Parallel()
	f := &policyServer{objects: map[string]*policyObject{}}
	f.put("a", "a")
	f.put("b", "b")
	server, dir := httptest.NewServer(f), t.TempDir()
	t.Cleanup(server.Close)
	c, replicas, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		path := filepath.Join(dir, cfg.ID)
		text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],
clusters: [{name: a, cluster: {server: "` + server.URL + "/" + cfg.ID + `"}}]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		cfg.Kubernetes = config.KubernetesObjects{Namespace: "fabric", Kubeconfig: path, Policies: true}
	}})
	accepted := func(name string) bool { st, _ := f.standing(name); return st == "True observe-only 1" }
	supervisortest.Eventually(t, "both policies", func() bool { return accepted("a") && accepted("b") })
	inForce := func(at int) string {
		client := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleViewer, c.Configs[at].GRPC))
		resp, err := client.ListPolicies(t.Context(), &lofamov1.ListPoliciesRequest{})
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, p := range resp.GetPolicies() {
			out = append(out, fmt.Sprintf("%s %d %s", p.GetName(), p.GetVersion(), p.GetBy()))
		}
		return strings.Join(out, ", ")
	}
	if got, want := inForce(leader), "a 1 kubernetes/fabric, b 1 kubernetes/fabric"; got != want {
		t.Errorf("%s: want %s", got, want)
	}
	for _, at := range []int{leader, (leader + 1) % 3} {
		operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, c.Configs[at].GRPC))
		_, err := operator.DeletePolicies(t.Context(), &lofamov1.DeletePoliciesRequest{Names: []string{"a"}})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the FaultPolicy object a") {
			t.Errorf("replica %d: %v: want a refusal that names the object", at, err)
		}
	}
	f.mu.Lock()
	delete(f.objects, "b")
	f.mu.Unlock()
	_, before := f.standing("a")
	stop(t, replicas[leader])
	next := c.AwaitLeader(t, (leader+1)%3, (leader+2)%3)
	supervisortest.Eventually(t, "the next leader to withdraw the policy without an object", func() bool {
		return inForce(next) == "a 1 kubernetes/fabric"
	})
	if st, after := f.standing("a"); st != "True observe-only 1" || after != before {
		t.Errorf("%s, %d writes before and %d after the change of leader: want no more", st, before, after)
	}
}
