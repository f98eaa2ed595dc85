package charttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestAPIServerAcceptsEveryObject: a real API server accepts every object of the chart, then unchanged a second time, and then with changed
// values. First each set of values is applied as by kubectl, then by Helm itself, with an upgrade and a rollback, and
// the topology from the nodes' labels.
func TestAPIServerAcceptsEveryObject(t *testing.T) {
	t.Parallel()
	helm(t)
	s, err := kubetest.Start(t.TempDir())
	if errors.Is(err, kubetest.ErrMissing) {
		requirements.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	k := server{t, s.Admin}
	crds, err := os.ReadFile("testdata/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range append(objects(t, string(crds)), objects(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: lofamo}\n")...) {
		k.apply(o, "")
	}
	for _, kind := range []string{"PodMonitor", "PrometheusRule", "Certificate"} {
		k.established(kind)
	}
	for _, name := range names() {
		first := map[string]string{}
		all := render(t, given(t, matrix[name]...)...)
		for _, o := range all {
			first[o.String()] = k.apply(o, "")
		}
		for _, o := range all {
			again := k.apply(o, "")
			if o.text("kind") == "CustomResourceDefinition" {
				continue // the API server itself writes its status meanwhile
			}
			if again != first[o.String()] {
				t.Errorf("%s: %s, applied twice, has changed", name, o)
			}
		}
		for _, o := range render(t, given(t, append(matrix[name], "images.tag=v2", "agents.update.minReadySeconds=9")...)...) {
			k.apply(o, "")
			if first[o.String()] == "" {
				all = append(all, o) // another image gives another Job, because a Job is immutable
			}
		}
		// Remove objects that the next set of values does not use, and immutable ones: a StatefulSet's claims and a
		// volume's node.
		for _, o := range all {
			k.remove(o)
		}
	}
	t.Run("helm", func(t *testing.T) { testHelm(t, s, server{t, s.Admin}) })
}

// testHelm installs, upgrades and rolls back with Helm itself.
func testHelm(t *testing.T, s *kubetest.Server, k server) {
	dir := t.TempDir()
	config := filepath.Join(dir, "kubeconfig")
	if err := s.Kubeconfig(config, s.Addr, s.Token()); err != nil {
		t.Fatal(err)
	}
	inventory := filepath.Join(dir, "inventory.yaml")
	if err := os.WriteFile(inventory, []byte("cluster: hall7\ndims: 2x1x1\nsupervisors: [{id: s1, address: 10.0.0.101}]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) (string, error) {
		return run(t, []string{"KUBECONFIG=" + config}, append(args, "--namespace", "lofamo")...)
	}
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte("images: {registry: registry.example.org/lofamo}\nsupervisors: {nodes: {s1: control-1}}\n"+
		"topology: {from: labels, labels: {rack: example.org/rack}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	labels := []string{"--values", values, "--set-file", "inventory=" + inventory}
	if _, err := do(append([]string{"install", "lofamo", chart}, labels...)...); err == nil ||
		!strings.Contains(err.Error(), "no node with the label lofamo.io/coord is seen") {
		t.Errorf("installed without a labelled node: %v", err)
	}
	for name, node := range map[string]struct{ coord, address string }{"worker-1": {"0-0-0", "10.0.0.1"},
		"worker-2": {"1-0-0", "10.0.0.2"}, "control-1": {"", "10.0.0.101"}} {
		text := "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + ", labels: {example.org/rack: r1}}\n"
		if node.coord != "" {
			text = strings.Replace(text, "r1}", "r1, lofamo.io/coord: "+node.coord+"}", 1)
		}
		o := objects(t, text)[0]
		k.apply(o, "")
		o["status"] = map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": node.address}}}
		k.apply(o, "/status")
	}
	if _, err := do(append([]string{"upgrade", "--install", "lofamo", chart}, labels...)...); err != nil {
		t.Fatal(err)
	}
	var inv struct {
		Nodes []map[string]any `json:"nodes"`
	}
	placed := k.get("v1", "ConfigMap", "lofamo")
	if err := yaml.Unmarshal([]byte(placed.text("data", "inventory.yaml")), &inv); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"id": "worker-1", "coord": "0,0,0", "service": "10.0.0.1", "labels": map[string]any{"rack": "r1"}},
		{"id": "worker-2", "coord": "1,0,0", "service": "10.0.0.2", "labels": map[string]any{"rack": "r1"}},
	}
	if diff := cmp.Diff(want, inv.Nodes); diff != "" {
		t.Errorf("topology from labels:\n%s", diff)
	}
	template := func() (string, any) {
		o := k.get("apps/v1", "DaemonSet", "lofamo-agent")
		c, _ := o.at("spec", "template", "spec", "containers").([]any)
		return object(c[0].(map[string]any)).text("image"), o.at("metadata", "generation")
	}
	image, generation := template()
	if _, err := do(append([]string{"upgrade", "lofamo", chart}, labels...)...); err != nil {
		t.Fatal(err)
	}
	if i, g := template(); i != image || g != generation {
		t.Errorf("upgraded without a change: image %s, generation %v: want %s, %v", i, g, image, generation)
	}
	if _, err := do("upgrade", "lofamo", chart, "--reset-then-reuse-values", "--set", "images.tag=v2"); err != nil {
		t.Fatal(err)
	}
	if i, _ := template(); !strings.HasSuffix(i, "/lofamo-agent:v2") {
		t.Errorf("upgraded to v2: image %s", i)
	}
	if _, err := do("rollback", "lofamo"); err != nil {
		t.Fatal(err)
	}
	if i, _ := template(); i != image {
		t.Errorf("after the rollback: image %s: want %s", i, image)
	}
	// A supervisor's node replaces a lost one: its volume is immutable, so it is deleted and created again.
	volume := func() object { return k.get("v1", "PersistentVolume", "lofamo-lofamo-supervisor-0") }
	k.remove(volume())
	if _, err := do("upgrade", "lofamo", chart, "--reset-then-reuse-values", "--set", "supervisors.nodes.s1=control-4"); err != nil {
		t.Fatal(err)
	}
	if at := fmt.Sprint(volume().at("spec", "nodeAffinity")); !strings.Contains(at, "control-4") {
		t.Errorf("the volume of s1, made anew for control-4, is at %s", at)
	}
	// Add the executor process, first with its Job. Values set since the installation must stay.
	executor := filepath.Join(dir, "executor.yaml")
	if err := os.WriteFile(executor, []byte("executor: {enabled: true, address: 10.0.0.101:7950, node: control-1, config: {atOnce: 4}}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := do("upgrade", "lofamo", chart, "--reset-then-reuse-values", "--values", executor, "--set", "executor.init=true"); err != nil {
		t.Fatal(err)
	}
	if _, err := do("upgrade", "lofamo", chart, "--reset-then-reuse-values", "--set", "executor.init=false"); err != nil {
		t.Fatal(err)
	}
	k.get("apps/v1", "Deployment", "lofamo-executor")
	if at := fmt.Sprint(volume().at("spec", "nodeAffinity")); !strings.Contains(at, "control-4") {
		t.Errorf("with the executor process the volume of s1 is at %s: want control-4, as set before", at)
	}
	if _, err := do("uninstall", "lofamo"); err != nil {
		t.Fatal(err)
	}
	// The volume stays, with the store in it.
	volume()
}

// server is the API server.
type server struct {
	t *testing.T
	c *kubetest.Client
}

// plurals lists the irregular plurals.
var plurals = map[string]string{"NetworkPolicy": "networkpolicies"}

// clusterScoped lists the kinds without a namespace.
var clusterScoped = map[string]bool{"Namespace": true, "Node": true, "PersistentVolume": true, "ClusterRole": true,
	"ClusterRoleBinding": true, "CustomResourceDefinition": true}

func (k server) path(version, kind, namespace, name string) string {
	path := "/apis/" + version
	if !strings.Contains(version, "/") {
		path = "/api/" + version
	}
	if !clusterScoped[kind] {
		path += "/namespaces/" + namespace
	}
	plural := plurals[kind]
	if plural == "" {
		plural = strings.ToLower(kind) + "s"
	}
	return path + "/" + plural + "/" + name
}

func (k server) pathOf(o object) string {
	return k.path(o.text("apiVersion"), o.text("kind"), o.text("metadata", "namespace"), o.text("metadata", "name"))
}

// apply applies an object and returns a text that identifies its state.
func (k server) apply(o object, subresource string) string {
	k.t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		k.t.Fatal(err)
	}
	b, err = k.c.Do(http.MethodPatch, k.pathOf(o)+subresource+"?fieldManager=test&force=true&fieldValidation=Strict", kubetest.Apply, b)
	if err != nil {
		k.t.Fatalf("%s: %v", o, err)
	}
	var got object
	if err := json.Unmarshal(b, &got); err != nil {
		k.t.Fatal(err)
	}
	if got.text("kind") != "PersistentVolumeClaim" {
		return got.text("metadata", "resourceVersion")
	}
	// The resourceVersion of a claim changes once on a second write, although nothing else does.
	delete(got["metadata"].(map[string]any), "resourceVersion")
	if b, err = json.Marshal(got); err != nil {
		k.t.Fatal(err)
	}
	return string(b)
}

func (k server) get(version, kind, name string) object {
	k.t.Helper()
	b, err := k.c.Do(http.MethodGet, k.path(version, kind, "lofamo", name), "", nil)
	if err != nil {
		k.t.Fatal(err)
	}
	var got object
	if err := json.Unmarshal(b, &got); err != nil {
		k.t.Fatal(err)
	}
	return got
}

// remove deletes an object immediately, because no controller here would end its pods or release its volume.
func (k server) remove(o object) {
	k.t.Helper()
	if _, err := k.c.Do(http.MethodDelete, k.pathOf(o)+"?gracePeriodSeconds=0", "", nil); err != nil {
		k.t.Fatalf("%s: %v", o, err)
	}
	if finalizers := []byte(`{"metadata":{"finalizers":null}}`); slices.Contains([]string{"PersistentVolume", "PersistentVolumeClaim",
		"Pod", "Job"}, o.text("kind")) {
		var gone *kubetest.StatusError
		if _, err := k.c.Do(http.MethodPatch, k.pathOf(o), kubetest.MergePatch, finalizers); err != nil &&
			(!errors.As(err, &gone) || gone.Code != http.StatusNotFound) {
			k.t.Fatalf("%s: %v", o, err)
		}
	}
}

// established waits until a custom kind is served.
func (k server) established(kind string) {
	k.t.Helper()
	groups := map[string]string{"PodMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1",
		"Certificate": "cert-manager.io/v1"}
	path := strings.TrimSuffix(k.path(groups[kind], kind, "lofamo", ""), "/")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); ; <-tick.C {
		_, err := k.c.Do(http.MethodGet, path, "", nil)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			k.t.Fatalf("%s is not served: %v", kind, err)
		}
	}
}

// TestChartRendersSameTwice: the chart renders the same output twice. A changing annotation would restart all nodes with each upgrade.
func TestChartRendersSameTwice(t *testing.T) {
	t.Parallel()
	args := given(t, matrix["everything"]...)
	first := template(t, args...)
	again, err := rendering(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the same values, rendered twice:\n%s", diff)
	}
}
