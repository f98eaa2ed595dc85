package charttest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// kubelets bounds TestKubeletsRunTheChart.
const kubelets = 10 * time.Minute

// TestKubeletsRunTheChart does what docs/install.md tells a user to do, on a Kubernetes of three nodes with real kubelets and containerd:
// 'helm install' leads to a map of three NORMAL nodes. Then it upgrades, rolls back, kills a kubelet, and removes a node. Only
// the removed node may be FAILED.
func TestKubeletsRunTheChart(t *testing.T) {
	programs := requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir)
	helm(t)
	for program, from := range map[string]string{"containerd": "package containerd", "runc": "package runc", "unshare": "package util-linux"} {
		requirements.Program(t, from, program)
	}
	if _, err := os.Stat("/usr/lib/cni/ptp"); err != nil {
		requirements.Missing(t, "plugins for the pods' network: package containernetworking-plugins: %v", err)
	}
	if err := kubetest.HasKubelet(); err != nil {
		requirements.Missing(t, "%v", err)
	}
	group := os.Getenv(groupVariable)
	if group == "" {
		if err := kubetest.RemoveStaleGroups(); err != nil {
			t.Log(err)
		}
		group = kubetest.GroupName()
		if err := kubetest.TryGroup(group); err != nil {
			t.Skipf("the pods' control groups: %v", err)
		}
		t.Setenv(groupVariable, group)
		t.Setenv("TMPDIR", t.TempDir()) // its files go even if the process in the namespaces is killed
		t.Cleanup(func() {
			if err := kubetest.RemoveGroup(group); err != nil {
				t.Error(err)
			}
		})
	}
	if !netnstest.InsideMachine(t, kubelets) {
		return
	}
	k := installKubernetes(t, programs, group)
	k.install()
	k.confined()
	k.step("helm test", func() {
		if _, err := k.helm("test", "lofamo"); err != nil {
			t.Fatal(err)
		}
	})
	k.step("upgrade", func() {
		k.roll("v2", "upgrade", "lofamo", chart, "--reset-then-reuse-values", "--set", "images.tag=v2")
	})
	k.step("rollback", func() { k.roll("v1", "rollback", "lofamo") })
	k.step("a kubelet is killed", k.killKubelet)
	k.step("a node is removed", k.removeNode)
}

// groupVariable names the nodes' control group for the process in the namespaces.
const groupVariable = "LOFAMO_TEST_CGROUP"

// kubernetes is a cluster of three nodes, with the files that a user has before the installation.
type kubernetes struct {
	server
	ctx     context.Context
	c       *kubetest.Cluster
	nodes   []*kubetest.Node
	config  string // kubeconfig
	hall    string
	client  *client.Client
	since   uint64
	started time.Time
}

func (k *kubernetes) step(name string, do func()) {
	k.t.Helper()
	begun := time.Now()
	do()
	k.t.Logf("%s: %.1f s", name, time.Since(begun).Seconds())
}

// count is the number of nodes; each has a supervisor, too.
const count = 3

func installKubernetes(t *testing.T, programs, group string) *kubernetes {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), kubelets-20*time.Second)
	t.Cleanup(cancel)
	k := &kubernetes{ctx: ctx, hall: filepath.Join(dir, "hall"), config: filepath.Join(dir, "kubeconfig"), started: time.Now()}
	inv, nodes := []string{"cluster: hall7\ndims: 3x1x1\npreset: relaxed\nsupervisors:"}, []string{"nodes:"}
	var targets []string
	for i := range count {
		a := kubetest.NodeAddress(i + 1)
		inv = append(inv, fmt.Sprintf("- {id: s%d, address: %s}", i+1, a))
		nodes = append(nodes, fmt.Sprintf("- {id: n%d, coord: \"%d,0,0\", service: %s}", i+1, i, a))
		targets = append(targets, netip.AddrPortFrom(a, 7946).String())
	}
	// Helm takes the nodes from their labels; 'lofamoctl cluster init' needs their names.
	write(t, filepath.Join(dir, "inventory.yaml"), strings.Join(inv, "\n"))
	write(t, filepath.Join(dir, "names.yaml"), strings.Join(append(inv, nodes...), "\n"))
	of, err := inventory.Load(filepath.Join(dir, "names.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := inventory.Open(k.hall).Init(of); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "values.yaml"), "images: {registry: docker.io/lab, tag: v1, pullPolicy: Never}\ntopology: {from: labels}\n"+
		"networkPolicy: {enabled: true}\n"+
		// The supervisors get a projected token of their account, and the certificate of the API server.
		"supervisors: {kubernetes: {enabled: true}, nodes: {s1: n1, s2: n2, s3: n3}}\n")
	images := kubeletImages(t, programs, dir)
	c, err := kubetest.StartCluster(dir, group)
	if err != nil {
		t.Fatal(err)
	}
	k.c = c
	t.Cleanup(c.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			k.explain()
		}
	})
	k.server = server{t, c.Admin}
	script, err := filepath.Abs(filepath.Join(root, "hack", "kubelet", "node"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		id := fmt.Sprintf("n%d", i+1)
		n, err := c.AddNode(script, id, filepath.Join(k.hall, "nodes", id), images,
			map[string]string{"lofamo.io/coord": fmt.Sprintf("%d-0-0", i)})
		if err != nil {
			t.Fatal(err)
		}
		k.nodes = append(k.nodes, n)
	}
	t.Logf("control plane: %.1f s", time.Since(k.started).Seconds())
	for _, n := range k.nodes {
		k.ready(n.Name, "True")
	}
	t.Logf("three nodes Ready: %.1f s", time.Since(k.started).Seconds())
	k.client = viewer(t, k.hall, targets...)
	return k
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// helm runs Helm as the user does.
func (k *kubernetes) helm(args ...string) (string, error) {
	return run(k.t, []string{"KUBECONFIG=" + k.config}, append(args, "--namespace", "lofamo")...)
}

// install makes the namespace and the Secrets of docs/install.md, and installs the chart.
func (k *kubernetes) install() {
	k.t.Helper()
	k.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "lofamo",
		"labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}, "")
	for i := range count {
		id := fmt.Sprintf("s%d", i+1)
		at := filepath.Join(k.hall, "supervisors", id)
		k.secret("lofamo-supervisor-"+id, filepath.Join(at, "pki", "*"), filepath.Join(at, "gossip.key"))
	}
	k.secret("lofamo-viewer", filepath.Join(k.hall, "operators", "ca.pem"), filepath.Join(k.hall, "operators", "viewer.*"))
	dir := filepath.Dir(k.config)
	if _, err := k.helm("upgrade", "--install", "lofamo", chart, "--values", filepath.Join(dir, "values.yaml"), "--set-file",
		"inventory="+filepath.Join(dir, "inventory.yaml")); err != nil {
		k.t.Fatal(err)
	}
	k.rolled("v1")
	k.t.Logf("all pods Ready: %.1f s", time.Since(k.started).Seconds())
	if err := allNormal(k.ctx, k.client, count); err != nil {
		k.t.Fatal(err)
	}
	k.t.Logf("a map of three NORMAL nodes: %.1f s", time.Since(k.started).Seconds())
	now, err := k.client.ListEvents(k.ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		k.t.Fatal(err)
	}
	k.since = now.GetRevision()
}

// secret makes a Secret of files, as 'kubectl create secret generic --from-file' does.
func (k *kubernetes) secret(name string, patterns ...string) {
	k.t.Helper()
	data := map[string]any{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			k.t.Fatalf("%s: %v: no file", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				k.t.Fatal(err)
			}
			data[filepath.Base(f)] = base64.StdEncoding.EncodeToString(b)
		}
	}
	k.apply(object{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": "lofamo"}, "data": data}, "")
}

// until waits for a condition, for three minutes at most. A failure names the last observation.
func (k *kubernetes) until(what string, is func() (bool, string)) {
	k.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(3 * bound)
	defer late.Stop()
	for {
		done, seen := is()
		if done {
			return
		}
		select {
		case <-tick.C:
			continue
		case <-late.C:
		case <-k.ctx.Done():
		}
		k.t.Fatalf("not in time: %s: %s", what, seen)
	}
}

// ready waits until the condition Ready of a node has this status.
func (k *kubernetes) ready(node, status string) {
	k.t.Helper()
	k.until("node "+node+" has Ready="+status, func() (bool, string) {
		b, err := k.server.c.Do(http.MethodGet, "/api/v1/nodes/"+node, "", nil)
		if err != nil {
			return false, err.Error()
		}
		var o object
		if err := json.Unmarshal(b, &o); err != nil {
			k.t.Fatal(err)
		}
		for _, c := range list(o, "status", "conditions") {
			if c.text("type") == "Ready" {
				return c.text("status") == status, fmt.Sprint(c)
			}
		}
		return false, "no condition Ready"
	})
}

// rolled waits until all pods of the chart run this version, and are ready.
func (k *kubernetes) rolled(version string) {
	k.t.Helper()
	k.until("all pods run "+version, func() (bool, string) {
		ds, set := k.get("apps/v1", "DaemonSet", "lofamo-agent"), k.get("apps/v1", "StatefulSet", "lofamo-supervisor")
		got := func(o object, keys ...string) string {
			var out []string
			for _, key := range append(keys, "observedGeneration") {
				out = append(out, fmt.Sprintf("%s=%v", key, o.at("status", key)))
			}
			return strings.Join(out, " ") + fmt.Sprintf(" of %v", o.at("metadata", "generation"))
		}
		a := got(ds, "desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable", "currentNumberScheduled")
		s := got(set, "replicas", "updatedReplicas", "availableReplicas", "readyReplicas")
		pods := k.pods("")
		ok := a == fmt.Sprintf("desiredNumberScheduled=%d updatedNumberScheduled=%d numberAvailable=%d currentNumberScheduled=%d "+
			"observedGeneration=%v of %[5]v", count, count, count, count, ds.at("metadata", "generation")) &&
			s == fmt.Sprintf("replicas=%d updatedReplicas=%d availableReplicas=%d readyReplicas=%d observedGeneration=%v of %[5]v", count, count,
				count, count, set.at("metadata", "generation")) && len(pods) == 3*count
		seen := []string{a, s}
		for _, p := range pods {
			state := k.state(p)
			seen = append(seen, p.text("metadata", "name")+" "+state)
			c := list(p, "spec", "containers")
			ok = ok && state == "Ready" && strings.HasSuffix(c[0].text("image"), ":"+version)
		}
		return ok, strings.Join(seen, "; ")
	})
}

// pods returns the pods of the namespace, of one node if it is given.
func (k *kubernetes) pods(node string) []object {
	k.t.Helper()
	path := "/api/v1/namespaces/lofamo/pods"
	if node != "" {
		path += "?fieldSelector=spec.nodeName%3D" + node
	}
	b, err := k.server.c.Do(http.MethodGet, path, "", nil)
	if err != nil {
		k.t.Fatal(err)
	}
	var all object
	if err := json.Unmarshal(b, &all); err != nil {
		k.t.Fatal(err)
	}
	return list(all, "items")
}

// state returns Ready, or why a pod is not.
func (k *kubernetes) state(p object) string {
	if p.text("metadata", "deletionTimestamp") != "" {
		return "ends"
	}
	for _, c := range list(p, "status", "conditions") {
		if c.text("type") == "Ready" && c.text("status") == "True" {
			return "Ready"
		}
	}
	var why []string
	for _, key := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, c := range list(p, "status", key) {
			if c.at("ready") != true {
				why = append(why, c.text("name")+": "+fmt.Sprint(c.at("state")))
			}
		}
	}
	return p.text("status", "phase") + " " + strings.Join(why, ", ")
}

// roll runs a command of Helm that gives all pods another version, and waits for that.
func (k *kubernetes) roll(version string, args ...string) {
	k.t.Helper()
	if _, err := k.helm(args...); err != nil {
		k.t.Fatal(err)
	}
	k.rolled(version)
	k.wellAfter(time.Now())
}

// wellAfter waits until a verdict about anything before this time would be there, and fails if there is one.
func (k *kubernetes) wellAfter(since time.Time) {
	k.t.Helper()
	for i := range count {
		if err := heard(k.ctx, k.client, fmt.Sprintf("n%d", i+1), since); err != nil {
			k.t.Fatal(err)
		}
	}
	events, err := k.client.AllEvents(k.ctx, &lofamov1.ListEventsRequest{AfterRevision: k.since})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, e := range events.GetEvents() {
		if e.GetTo() == lofamov1.State_FAILED {
			k.t.Errorf("%s %s: %s → %s, cause %s (%s)", e.GetNode(), e.GetComponent(), e.GetFrom(), e.GetTo(), e.GetCause(), e.GetReason())
		}
	}
}

// killKubelet: without its kubelet a node is NotReady in Kubernetes, and NORMAL here, because its agent runs on.
func (k *kubernetes) killKubelet() {
	k.t.Helper()
	n := k.nodes[2]
	if err := n.KillKubelet(); err != nil {
		k.t.Fatal(err)
	}
	k.ready(n.Name, "Unknown")
	k.wellAfter(time.Now())
	if err := n.StartKubelet(); err != nil {
		k.t.Fatal(err)
	}
	k.ready(n.Name, "True")
	k.rolled("v1")
	k.wellAfter(time.Now())
}

// removeNode drains a node and deletes it, as 'kubectl drain --ignore-daemonsets' and 'kubectl delete node' do. Its agent runs on until
// Kubernetes ends the pods of a node that is gone. When its kubelet registers again, the node comes back.
func (k *kubernetes) removeNode() {
	k.t.Helper()
	n := k.nodes[2]
	do := func(method, path, kind, body string) {
		k.t.Helper()
		if _, err := k.server.c.Do(method, path, kind, []byte(body)); err != nil {
			k.t.Fatal(err)
		}
	}
	do(http.MethodPatch, "/api/v1/nodes/"+n.Name, kubetest.MergePatch, `{"spec":{"unschedulable":true}}`)
	for _, p := range k.pods(n.Name) {
		if name := p.text("metadata", "name"); !strings.HasPrefix(name, "lofamo-agent-") {
			do(http.MethodPost, "/api/v1/namespaces/lofamo/pods/"+name+"/eviction", "",
				`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+name+`","namespace":"lofamo"}}`)
		}
	}
	// The supervisors' nodes are fixed: evicted pods come back to this node.
	k.rolled("v1")
	k.wellAfter(time.Now())
	do(http.MethodDelete, "/api/v1/nodes/"+n.Name, "", "")
	k.until("Kubernetes has ended the pods of the deleted node", func() (bool, string) {
		left := k.pods(n.Name)
		return len(left) == 0, fmt.Sprint(left)
	})
	k.until("n3 alone is FAILED: nobody has marked it", func() (bool, string) {
		all, err := k.client.ListNodes(k.ctx, &lofamov1.ListNodesRequest{})
		if err != nil {
			return false, err.Error()
		}
		var states []string
		for _, n := range all.GetNodes() {
			states = append(states, fmt.Sprintf("%s %s", n.GetId(), n.GetState()))
		}
		seen := strings.Join(states, ", ")
		return seen == "n1 NORMAL, n2 NORMAL, n3 FAILED", seen
	})
	if err := n.RestartKubelet(); err != nil { // only a kubelet that starts registers its node
		k.t.Fatal(err)
	}
	k.ready(n.Name, "True")
	k.rolled("v1")
	if err := allNormal(k.ctx, k.client, count); err != nil {
		k.t.Fatal(err)
	}
}

// confined checks the agents' and supervisors' processes in the kernel: seccomp filters and capabilities.
func (k *kubernetes) confined() {
	k.t.Helper()
	seen := 0
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		k.t.Fatal(err)
	}
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(b, []byte("Name:\tlofamo-")) {
			continue // it has ended meanwhile, or is another program
		}
		seen++
		for _, want := range []string{`(?m)^Seccomp:\t2$`, `(?m)^NoNewPrivs:\t1$`, `(?m)^CapEff:\t0000000000(000000|800000)$`} {
			if !regexp.MustCompile(want).Match(b) {
				k.t.Errorf("want %s of\n%s", want, b)
			}
		}
	}
	if seen < 5*count { // two daemons, two halves and a supervisor on each
		k.t.Errorf("%d processes of lofamo: want %d", seen, 5*count)
	}
}

// explain logs the state of nodes and pods after a failure.
func (k *kubernetes) explain() {
	for _, n := range k.nodes {
		k.t.Log(n.Log())
	}
	b, err := k.server.c.Do(http.MethodGet, "/api/v1/namespaces/lofamo/pods", "", nil)
	if err != nil {
		k.t.Log(err)
		return
	}
	var all object
	if err := json.Unmarshal(b, &all); err != nil {
		k.t.Log(err)
		return
	}
	for _, p := range list(all, "items") {
		name := p.text("metadata", "name")
		k.t.Logf("%s: %s", name, k.state(p))
		for _, key := range []string{"initContainers", "containers"} {
			for _, c := range list(p, "spec", key) {
				b, err := k.server.c.Do(http.MethodGet, "/api/v1/namespaces/lofamo/pods/"+name+"/log?tailLines=15&container="+c.text("name"), "", nil)
				k.t.Logf("%s %s: %v\n%s", name, c.text("name"), err, b)
			}
		}
	}
}
