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
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/internal/testing/previous"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// kubelets bounds each test on real kubelets.
const kubelets = 10 * time.Minute

// release is a version of the chart with its programs.
type release struct{ tag, chart, programs string }

// TestKubeletsRunTheChart does what docs/ordinary-cluster.md tells a user to do, on a Kubernetes of three nodes with real kubelets and
// containerd: 'helm install' alone leads to a map of three NORMAL nodes. Then a node joins, a kubelet is killed, and a node is removed and
// comes back. No node may be FAILED at any time.
func TestKubeletsRunTheChart(t *testing.T) {
	programs := needKubelets(t)
	group, inside := enter(t)
	if !inside {
		return
	}
	k := startKubernetes(t, group, release{"v1", chart, programs})
	k.install()
	k.step("a node joins", k.addNode)
	k.confined()
	k.step("helm test", func() {
		if _, err := k.helm("test", "lofamo"); err != nil {
			t.Fatal(err)
		}
	})
	k.step("a kubelet is killed", k.killKubelet)
	k.step("a node is removed", k.removeNode)
}

// TestKubeletsUpgradeTheChart upgrades an installation of version N-1 to this version of chart and programs. No node may be FAILED at any
// time.
func TestKubeletsUpgradeTheChart(t *testing.T) {
	programs := needKubelets(t)
	dir := os.Getenv(previousVariable)
	if os.Getenv(groupVariable) == "" { // outside the namespaces
		dir = t.TempDir()
		previous.Build(t, root, dir, imaged...)
		t.Setenv(previousVariable, dir)
	}
	group, inside := enter(t)
	if !inside {
		return
	}
	k := startKubernetes(t, group, release{"v1", chart, filepath.Join(dir, "bin")},
		release{"v2", chart, programs})
	k.install()
	k.step("upgrade", k.upgrade)
	k.confined()
}

// previousVariable names the directory of version N-1 for the process in the namespaces.
const previousVariable = "LOFAMO_TEST_PREVIOUS"

// needKubelets skips the test if the machine lacks something, and returns the directory of this version's programs.
func needKubelets(t *testing.T) (programs string) {
	t.Helper()
	programs = requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir)
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
	return programs
}

// enter runs the test again in namespaces, where it returns true and the name of the nodes' control group.
func enter(t *testing.T) (group string, inside bool) {
	t.Helper()
	group = os.Getenv(groupVariable)
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
	return group, netnstest.InsideMachine(t, kubelets)
}

// groupVariable names the nodes' control group for the process in the namespaces.
const groupVariable = "LOFAMO_TEST_CGROUP"

// kubernetes is a cluster of three nodes, with the files that a user has before the installation.
type kubernetes struct {
	server
	ctx     context.Context
	c       *kubetest.Cluster
	present release // installed
	next    []release
	images  []string
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

// supervisors is the number of nodes at the installation; each has a supervisor, too.
const supervisors = 3

// count is the present number of nodes.
func (k *kubernetes) count() int { return len(k.nodes) }

// startKubernetes starts three nodes that have the images of all releases. install will install the first release.
func startKubernetes(t *testing.T, group string, releases ...release) *kubernetes {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), kubelets-20*time.Second)
	t.Cleanup(cancel)
	k := &kubernetes{ctx: ctx, present: releases[0], next: releases[1:], hall: filepath.Join(dir, "hall"),
		config: filepath.Join(dir, "kubeconfig"), started: time.Now()}
	write(t, filepath.Join(dir, "values.yaml"), "images: {registry: docker.io/lab, tag: "+k.present.tag+", pullPolicy: Never}\n"+
		"automatic: {preset: relaxed}\nnetworkPolicy: {enabled: true}\n")
	images := kubeletImages(t, releases, dir)
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
	k.images = images
	for i := range supervisors {
		k.start(fmt.Sprintf("n%d", i+1))
	}
	t.Logf("control plane: %.1f s", time.Since(k.started).Seconds())
	for _, n := range k.nodes {
		k.ready(n.Name, "True")
	}
	t.Logf("three nodes Ready: %.1f s", time.Since(k.started).Seconds())
	return k
}

// start starts a further node without labels.
func (k *kubernetes) start(name string) {
	k.t.Helper()
	script, err := filepath.Abs(filepath.Join(root, "hack", "kubelet", "node"))
	if err != nil {
		k.t.Fatal(err)
	}
	n, err := k.c.AddNode(script, name, k.images, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	k.nodes = append(k.nodes, n)
}

// addNode starts a node. Its agent's pod makes it a node of the torus. Its name is before all others: a later installation that chose the
// supervisors' nodes again would choose it, and could not change their volumes.
func (k *kubernetes) addNode() {
	k.t.Helper()
	k.start("a1")
	k.ready(k.nodes[k.count()-1].Name, "True")
	ready := time.Now()
	if err := allNormal(k.ctx, k.client, k.count()); err != nil {
		k.t.Fatal(err)
	}
	k.t.Logf("from a Ready node to a map of four NORMAL ones: %.1f s", time.Since(ready).Seconds())
	k.rolled()
	k.wellAfter(time.Now())
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

// install makes the namespace, and installs the chart. Nothing else is there before.
func (k *kubernetes) install() {
	k.t.Helper()
	k.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "lofamo",
		"labels": map[string]any{"pod-security.kubernetes.io/enforce": "privileged"}}}, "")
	begun := time.Now()
	values := filepath.Join(filepath.Dir(k.config), "values.yaml")
	if _, err := k.helm("upgrade", "--install", "lofamo", k.present.chart, "--values", values); err != nil {
		k.t.Fatal(err)
	}
	var targets []string
	for _, n := range k.nodes {
		targets = append(targets, netip.AddrPortFrom(n.Address, 7946).String())
	}
	k.person("viewer")
	k.client = viewer(k.t, k.hall, targets...)
	k.rolled()
	k.t.Logf("all pods Ready: %.1f s", time.Since(k.started).Seconds())
	if err := allNormal(k.ctx, k.client, k.count()); err != nil {
		k.t.Fatal(err)
	}
	k.t.Logf("from helm install to a map of three NORMAL nodes: %.1f s", time.Since(begun).Seconds())
	now, err := k.client.ListEvents(k.ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		k.t.Fatal(err)
	}
	k.since = now.GetRevision()
}

// person fetches a person's certificate, as the notes of the installation tell.
func (k *kubernetes) person(role string) {
	k.t.Helper()
	dir := filepath.Join(k.hall, "operators")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	secret := k.get("v1", "Secret", "lofamo-"+role)
	for _, name := range []string{"ca.pem", role + ".pem", role + ".key"} {
		b, err := base64.StdEncoding.DecodeString(secret.text("data", name))
		if err != nil || len(b) == 0 {
			k.t.Fatalf("Secret lofamo-%s: %s: %d bytes, %v", role, name, len(b), err)
		}
		write(k.t, filepath.Join(dir, name), string(b))
	}
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

// rolled waits until all pods of the chart run the present release, and are ready.
func (k *kubernetes) rolled() {
	k.t.Helper()
	version := k.present.tag
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
			"observedGeneration=%v of %[5]v", k.count(), k.count(), k.count(), k.count(), ds.at("metadata", "generation")) &&
			s == fmt.Sprintf("replicas=%d updatedReplicas=%d availableReplicas=%d readyReplicas=%d observedGeneration=%v of %[5]v", supervisors,
				supervisors, supervisors, supervisors, set.at("metadata", "generation")) && len(pods) == k.count()+2*supervisors
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

// upgrade has Helm replace all pods by those of the next release, and waits for that.
func (k *kubernetes) upgrade() {
	k.t.Helper()
	k.present, k.next = k.next[0], k.next[1:]
	if _, err := k.helm("upgrade", "lofamo", k.present.chart, "--reset-then-reuse-values", "--set", "images.tag="+k.present.tag); err != nil {
		k.t.Fatal(err)
	}
	k.rolled()
	k.wellAfter(time.Now())
}

// wellAfter waits until a verdict about anything before this time would be there, and fails if there is one.
func (k *kubernetes) wellAfter(since time.Time) {
	k.t.Helper()
	for _, n := range k.nodes {
		if err := heard(k.ctx, k.client, n.Name, since); err != nil {
			k.t.Fatal(err)
		}
	}
	events, err := k.client.AllEvents(k.ctx, &lofamov1.ListEventsRequest{AfterRevision: k.since})
	if err != nil {
		k.t.Fatal(err)
	}
	say := func(e *lofamov1.Event) string {
		return fmt.Sprintf("%s: %s %s: %s → %s, cause %s (%s)", e.GetTime().AsTime().Format(time.StampMilli), e.GetNode(), e.GetComponent(),
			e.GetFrom(), e.GetTo(), e.GetCause(), e.GetReason())
	}
	failed := map[string]bool{}
	for _, e := range events.GetEvents() {
		if e.GetTo() == lofamov1.State_FAILED {
			failed[e.GetNode()] = true
			k.t.Error(say(e))
		}
	}
	if len(failed) == 0 {
		return
	}
	for _, e := range events.GetEvents() {
		if failed[e.GetNode()] {
			k.t.Log(say(e))
		}
	}
	k.t.FailNow()
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
	k.rolled()
	k.wellAfter(time.Now())
}

// removeNode drains a node and deletes it, as 'kubectl drain --ignore-daemonsets' and 'kubectl delete node' do. The supervisors see that
// Kubernetes does not have it any more, and take it out of the torus while its agent still runs: nothing is FAILED. When its kubelet
// registers again, the node comes back.
func (k *kubernetes) removeNode() {
	k.t.Helper()
	n := k.nodes[k.count()-1]
	do := func(method, path, kind, body string) {
		k.t.Helper()
		if _, err := k.server.c.Do(method, path, kind, []byte(body)); err != nil {
			k.t.Fatal(err)
		}
	}
	do(http.MethodPatch, "/api/v1/nodes/"+n.Name, kubetest.MergePatch, `{"spec":{"unschedulable":true}}`)
	do(http.MethodDelete, "/api/v1/nodes/"+n.Name, "", "")
	if err := allNormal(k.ctx, k.client, k.count()-1); err != nil {
		k.t.Fatal(err)
	}
	k.until("Kubernetes has ended the pods of the deleted node", func() (bool, string) {
		left := k.pods(n.Name)
		return len(left) == 0, fmt.Sprint(left)
	})
	if err := n.RestartKubelet(); err != nil { // only a kubelet that starts registers its node
		k.t.Fatal(err)
	}
	k.ready(n.Name, "True")
	if err := allNormal(k.ctx, k.client, k.count()); err != nil {
		k.t.Fatal(err)
	}
	k.rolled()
	k.wellAfter(time.Now())
}

// confined checks the agents' and supervisors' processes in the kernel: seccomp filters and capabilities, and that the halves of a node
// are in one PID namespace.
func (k *kubernetes) confined() {
	k.t.Helper()
	seen, spaces := 0, map[string]bool{}
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
		if bytes.HasPrefix(b, []byte("Name:\tlofamo-agent")) {
			space, err := os.Readlink(filepath.Join(filepath.Dir(file), "ns/pid"))
			if err != nil {
				continue
			}
			spaces[space] = true
		}
		for _, want := range []string{`(?m)^Seccomp:\t2$`, `(?m)^NoNewPrivs:\t1$`, `(?m)^CapEff:\t0000000000(000000|800000)$`} {
			if !regexp.MustCompile(want).Match(b) {
				k.t.Errorf("want %s of\n%s", want, b)
			}
		}
	}
	if want := 4*k.count() + supervisors; seen < want { // two daemons and two halves on each node
		k.t.Errorf("%d processes of lofamo: want %d", seen, want)
	}
	if len(spaces) != k.count() {
		k.t.Errorf("agents are in %d PID namespaces: want one on each of %d nodes", len(spaces), k.count())
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
