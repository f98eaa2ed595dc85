package kubernetes

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
)

// objectsShared is the common environment of the tests with custom resources.
var objectsShared struct {
	start sync.Once
	err   error
	asked sync.Map // all requests: "verb resource"
	names atomic.Int64
}

// objectsManifests are the shipped roles for custom resources.
var objectsManifests = []string{"../../../deploy/kubernetes/rbac-objects.yaml", "../../../deploy/kubernetes/rbac-policies.yaml"}

// definitions are the custom resource definitions that the project ships.
var definitions = []string{"../../../deploy/kubernetes/crd-faults.yaml", "../../../deploy/kubernetes/crd-faultpolicies.yaml"}

// objectsNamespace creates the custom resources, and returns a namespace in which the supervisor's account has the shipped roles.
func objectsNamespace(t testing.TB) string {
	t.Helper()
	s := cluster(t)
	objectsShared.start.Do(func() {
		for _, path := range definitions {
			b, err := os.ReadFile(path)
			if err == nil {
				err = s.Admin.Apply(b)
			}
			if err != nil {
				objectsShared.err = err
				return
			}
		}
	})
	if objectsShared.err != nil {
		t.Fatal(objectsShared.err)
	}
	name := fmt.Sprintf("objects-%d", objectsShared.names.Add(1))
	admin(t, http.MethodPost, "/api/v1/namespaces", "", `{"metadata":{"name":"`+name+`"}}`)
	for _, path := range objectsManifests {
		if err := s.Admin.Apply(rolesIn(t, path, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range definitions { // served some moments after it was created
		_, plural, _ := strings.Cut(strings.TrimSuffix(path, ".yaml"), "crd-")
		await(t, plural+" to be served", func() bool {
			_, err := s.Admin.Do(http.MethodGet, objectsPath(name, plural), "", nil)
			return err == nil
		})
	}
	return name
}

// rolesIn returns a shipped manifest with its roles in another namespace.
func rolesIn(t testing.TB, path, namespace string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	roles, _, _ := strings.Cut(string(b), "\nsubjects:")
	return []byte(strings.ReplaceAll(roles, "namespace: lofamo", "namespace: "+namespace) +
		"\nsubjects:\n- {kind: ServiceAccount, name: lofamo-supervisor, namespace: lofamo}\n")
}

func objectsPath(namespace, plural string) string {
	return "/apis/" + objectsVersion + "/namespaces/" + namespace + "/" + plural
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	eventually(t, holds, what)
}

// objectsClient returns a client of the supervisor's service account, without a pace. A request to a server that hangs ends only with
// its context.
func objectsClient(t testing.TB, addr string) *client {
	t.Helper()
	cfg := Config{Kubeconfig: kubeconfig(t, addr, serviceToken(t)), QPS: 1000, Burst: 1000,
		RequestTimeout: config.Duration(time.Minute)}.Filled()
	rc, err := restConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper { return notingObjects{next} })
	c, err := newClient(cfg, rc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// notingObjects records the requests for custom resources.
type notingObjects struct{ next http.RoundTripper }

func (n notingObjects) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[5:] // apis/GROUP/VERSION/namespaces/NAMESPACE
	verbs := []string{map[string]string{"GET": "list", "PATCH": "patch", "DELETE": "delete"}[r.Method]}
	resource := parts[0]
	switch {
	case len(parts) > 2:
		resource += "/" + parts[2]
	case r.URL.Query().Get("watch") != "":
		verbs = []string{"watch"}
	case r.Method == http.MethodPatch:
		verbs = append(verbs, "create") // which a server-side apply of a new object needs as well
	}
	for _, verb := range verbs {
		objectsShared.asked.Store(verb+" "+resource, true)
	}
	return n.next.RoundTrip(r)
}

func (n notingObjects) WrappedRoundTripper() http.RoundTripper { return n.next }

// objectRightsAreMinimal compares the shipped roles with the requests of all tests: they allow no unused right.
func objectRightsAreMinimal() error {
	if len(os.Args) > 1 && strings.Contains(strings.Join(os.Args, " "), "-test.run") {
		return nil
	}
	allowed, used := map[string]bool{}, map[string]bool{}
	for _, path := range objectsManifests {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(string(b), "\n---\n")
		var role struct {
			Rules []struct{ Resources, Verbs []string }
		}
		if err := yaml.Unmarshal([]byte(first), &role); err != nil {
			return err
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					allowed[verb+" "+resource] = true
				}
			}
		}
	}
	objectsShared.asked.Range(func(k, _ any) bool { used[k.(string)] = true; return true })
	if !maps.Equal(allowed, used) {
		return fmt.Errorf("%v allow %v, the tests have asked for %v: want the same", objectsManifests, slices.Sorted(maps.Keys(allowed)),
			slices.Sorted(maps.Keys(used)))
	}
	return nil
}

// listObjects reads all objects as an administrator.
func listObjects(t testing.TB, namespace, plural string) map[string]object {
	t.Helper()
	var l struct {
		Items []object `json:"items"`
	}
	if err := json.Unmarshal(admin(t, http.MethodGet, objectsPath(namespace, plural), "", ""), &l); err != nil {
		t.Fatal(err)
	}
	out := map[string]object{}
	for _, o := range l.Items {
		out[o.Metadata.Name] = o
	}
	return out
}

var quiet = slog.New(slog.DiscardHandler)

// TestLateAnswerReplacesNoNewerObject: the answer to a write of a deleted object comes after the watch has shown the object that has its
// name now.
func TestLateAnswerReplacesNoNewerObject(t *testing.T) {
	r := newResource(nil, "a", "faults", "Fault", "", 10, quiet)
	of := func(uid, version string) object {
		return object{Metadata: objectMeta{Name: "a", UID: types.UID(uid), ResourceVersion: version}}
	}
	r.watched("ADDED", of("u1", "10"))
	r.watched("DELETED", of("u1", "12"))
	r.watched("ADDED", of("u2", "13"))
	r.put(of("u1", "11"), true)
	if have, _, _ := r.all(); have["a"].Metadata.UID != "u2" {
		t.Errorf("the copy has %s: want the object that exists", have["a"].Metadata.UID)
	}
}

// TestAppliedRolesHold: after Apply has returned, the applied roles are in force.
func TestAppliedRolesHold(t *testing.T) {
	objectsNamespace(t) // the custom resources
	s, client := cluster(t), objectsClient(t, cluster(t).Addr)
	for i := range 20 {
		name := fmt.Sprintf("applied-%d", i)
		admin(t, http.MethodPost, "/api/v1/namespaces", "", `{"metadata":{"name":"`+name+`"}}`)
		if err := s.Admin.Apply(rolesIn(t, objectsManifests[1], name)); err != nil {
			t.Fatal(err)
		}
		p := newPolicies(config.KubernetesObjects{Namespace: name}, client, nil, quiet)
		if _, err := p.r.list(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
