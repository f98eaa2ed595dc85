package charttest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const (
	root  = "../../.."
	chart = root + "/helm/lofamo"
	// bound is the timeout of a step on a busy machine.
	bound = time.Minute
)

// helm returns the Helm version that make has built. Directories in .tools may contain other versions.
func helm(t *testing.T) string {
	t.Helper()
	return requirements.Set(t, "make test builds it into .tools/bin, once, and sets it", "LOFAMO_HELM")
}

// run runs Helm without the user's environment.
func run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, helm(t), args...)
	cmd.Env = append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, errs.String())
	}
	return out.String(), nil
}

// given returns the arguments common to all installations.
func given(t *testing.T, values ...string) []string {
	t.Helper()
	args := []string{"--set-file", "inventory=" + root + "/deploy/examples/inventory.yaml", "--set",
		"images.registry=registry.example.org/lofamo",
		"--set", "supervisors.nodes.s1=control-1,supervisors.nodes.s2=control-2,supervisors.nodes.s3=control-3"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// enrolling is given with another inventory, on a Kubernetes whose nodes can enrol.
func enrolling(t *testing.T, inventory string, values ...string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte(inventory), 0o600); err != nil {
		t.Fatal(err)
	}
	return append(given(t, values...), "--set-file", "inventory="+file, "--kube-version", "1.33.0")
}

// admitting returns the text of an inventory with nodes whose supervisors admit further ones.
func admitting(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(root + "/deploy/examples/inventory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\nenrolment: true\n"
}

// matrix holds sets of values; each value that changes the output occurs at least once.
var matrix = map[string][]string{
	"defaults": nil,
	"everything": {"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.nodeLabel=example.org/lofamo",
		"supervisors.kubernetes.faults=true", "supervisors.kubernetes.policies=true",
		"networkPolicy.enabled=true", "networkPolicy.clients[0].ipBlock.cidr=10.0.0.0/8", "networkPolicy.metrics[0].ipBlock.cidr=10.0.0.0/8",
		"monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true",
		"monitoring.prometheusRule.runbooks=https://map.example.org:9443/runbooks/", "monitoring.dashboards.enabled=true",
		"images.pullSecrets[0]=pull", "services.web.type=NodePort"},
	"managed": {"supervisors.keys.from=cert-manager", "supervisors.keys.issuerRef.name=lofamo", "agents.keys.from=secrets",
		"agents.config.jobs.socket=/run/lofamo-jobs/local.sock", "agents.user=990", "agents.group=991", "agents.stateDir=/var/lib/lofamo/agent"},
	"executor": {"executor.enabled=true", "executor.address=10.0.0.101:7950", "executor.node=control-1", "executor.passwords=bmc",
		"executor.config.atOnce=4", "executor.config.stopTimeout=1m30s", "supervisors.kubernetes.enabled=true",
		"monitoring.podMonitor.enabled=true", "networkPolicy.enabled=true", "agents.seLinuxOptions.type=spc_t"},
	"ledger": {"executor.enabled=true", "executor.address=10.0.0.101:7950", "executor.persistence.create=false",
		"executor.init=true", "agents.enabled=false"},
	"outside": {"supervisors.etcd.endpoints[0]=https://10.0.0.200:2379", "supervisors.persistence.create=false",
		"supervisors.persistence.storageClassName=local", "services.web.enabled=false", "podDisruptionBudget.enabled=false"},
	"systemd": {"agents.dnpHalf=systemd", "agents.stateDir=/var/lib/lofamo/agent", "agents.user=990", "agents.group=990",
		"agents.update.takeOver=false", "agents.update.maxNodes=10%"},
	"agents": {"supervisors.enabled=false", "agents.realtime=false", "agents.update.type=OnDelete",
		"agents.config.sensors.memory.sickCorrected=3"},
	"conventions": {"images.repositories.lofamo-agent=mirror.example.org/agent", "agents.podLabels.team=hpc",
		"agents.serviceAccount.create=false", "agents.serviceAccount.name=ours", "supervisors.podLabels.team=hpc",
		"supervisors.kubernetes.enabled=true", "supervisors.serviceAccount.name=theirs",
		`supervisors.serviceAccount.annotations.example\.org/role=act`, "executor.enabled=true", "executor.address=10.0.0.101:7950",
		"executor.node=control-1", "executor.podLabels.team=hpc", "executor.serviceAccount.create=false",
		"extraObjects[0].apiVersion=v1", "extraObjects[0].kind=ConfigMap", "extraObjects[0].metadata.name=extra",
		"extraObjects[0].metadata.namespace=lofamo", "extraObjects[0].data.release=of {{ .Release.Name }}"},
	"replicas": {"agents.enabled=false", "test.enabled=false", "supervisors.config.etcd.quotaBytes=2147483648"},
}

func names() []string {
	var out []string
	for name := range matrix {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// object is a Kubernetes object.
type object map[string]any

// at returns the value at a path of keys, or nil.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func (o object) text(path ...string) string { s, _ := o.at(path...).(string); return s }

func (o object) String() string { return o.text("kind") + " " + o.text("metadata", "name") }

// objects parses manifests. Like the API server, it rejects duplicate keys.
func objects(t *testing.T, manifests string) []object {
	t.Helper()
	var out []object
	for doc := range strings.SplitSeq("\n"+manifests, "\n---\n") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		if len(o) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// texts caches the rendered output by arguments, because Helm takes most of a second for each.
var texts sync.Map

func template(t *testing.T, args ...string) string {
	t.Helper()
	helm(t) // before LoadOrStore: a skip inside the shared function would end the tests that wait for it
	once, _ := texts.LoadOrStore(strings.Join(args, "\n"), sync.OnceValues(func() (string, error) { return rendering(t, args...) }))
	out, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func rendering(t *testing.T, args ...string) (string, error) {
	return run(t, nil, append([]string{"template", "lofamo", chart, "--namespace", "lofamo"}, args...)...)
}

func render(t *testing.T, args ...string) []object {
	t.Helper()
	return objects(t, strings.ReplaceAll(template(t, args...), "---\n#", "\n---\n#"))
}

func find(t *testing.T, all []object, kind, name string) object {
	t.Helper()
	i := slices.IndexFunc(all, func(o object) bool { return o.text("kind") == kind && o.text("metadata", "name") == name })
	if i < 0 {
		t.Fatalf("no %s %s among %v", kind, name, all)
	}
	return all[i]
}

func TestHelmLintAcceptsEveryValueSet(t *testing.T) {
	for _, name := range names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := run(t, nil, append([]string{"lint", "--strict", chart}, given(t, matrix[name]...)...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestLintWithoutInventory: lint names every missing value, and does not stop at the first.
func TestLintWithoutInventory(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), helm(t), "lint", chart)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"inventory: given nothing: want the inventory's file", "images.registry: given nothing"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nwant %q", out, want)
		}
	}
}

// TestTemplateWithDefaultValues: one error names every missing value.
func TestTemplateWithDefaultValues(t *testing.T) {
	t.Parallel()
	_, err := rendering(t)
	for _, want := range []string{"inventory: given nothing: want the inventory's file: --set-file inventory=inventory.yaml",
		"images.registry: given nothing: want where 'make images' has put the images"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want one that has %q", err, want)
		}
	}
}

// TestRefused: invalid values are rejected, and the error names the value.
func TestRefused(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(bad, []byte("cluster: x\ndims: 1x1x1\nsupervisors: [{id: s1, address: 10.0.0.1, ports: {grpc: 1}}]\n"+
		"nodes: [{coord: \"0,0,0\", service: 10.0.0.2}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{given(t, "agents.dnpHalf=pod"), "'/agents/dnpHalf': value must be one of 'container', 'systemd'"},
		{given(t, "images.tagg=v1"), "'/images': additional properties 'tagg' not allowed"},
		{given(t, "agent.enabled=false"), "additional properties 'agent' not allowed"},
		{given(t, "agents.update.maxNodes=0"), "'/agents/update/maxNodes'"},
		{given(t, "agents.update.type=Recreate"), "'/agents/update/type': value must be one of 'RollingUpdate', 'OnDelete'"},
		{given(t, "agents.update.maxNodes=120%"), "'/agents/update/maxNodes'"},
		{given(t, "agents.stateDir=run"), "'/agents/stateDir'"},
		{given(t, "agents.keys.from=vault"), "'/agents/keys/from': value must be one of 'host', 'secrets'"},
		{given(t, "supervisors.etcd.endpoints[0]=10.0.0.1:2379"), "'/supervisors/etcd/endpoints/0'"},
		{given(t, "supervisors.persistence.size=much"), "'/supervisors/persistence/size'"},
		{given(t, "images.digests.lofamoctl=sha256:1"), "'/images/digests/lofamoctl'"},
		{given(t, "supervisors.secrets[0]=A b"), "'/supervisors/secrets/0'"},
		{given(t, "ingress.enabled=true"), "ingress.host: given nothing: want the name of the page"},
		{given(t, "ingress.enabled=true", "ingress.host=map.example.org", "services.web.enabled=false"), "ingress.enabled: given true"},
		{given(t, "images.registry="), "images.registry: given nothing: want where 'make images' has put the images"},
		{append(given(t), "--set-file", "inventory=/dev/null"), "inventory: given nothing: want the inventory's file"},
		{given(t, "supervisors.nodes=null"), "supervisors.nodes: s1 is missing: want the node of Kubernetes that has its address, 10.0.0.101"},
		{given(t, "supervisors.keys.from=cert-manager"), "supervisors.keys.issuerRef.name: given nothing with keys.from cert-manager"},
		{given(t, "agents.dnpHalf=systemd", "agents.keys.from=secrets"), "agents.keys.from: given secrets with dnpHalf systemd"},
		{given(t, "agents.dnpHalf=systemd", "agents.stateDir=/var/lib/lofamo/agent"), "agents.user: given 0 with dnpHalf systemd"},
		{given(t, "agents.dnpHalf=systemd", "agents.user=990"), "agents.stateDir: given /run/lofamo/agent with dnpHalf systemd"},
		{given(t, "agents.user=990"), "agents.stateDir: given /run/lofamo/agent for user 990"},
		{given(t, "agents.config.jobs.socket=/run/lofamo/local.sock"),
			"agents.config.jobs.socket: given /run/lofamo/local.sock: want it in a directory of its own"},
		{given(t, "agents.config.jobs.socket=/run/lofamo/agent/local.sock"),
			"agents.config.jobs.socket: given /run/lofamo/agent/local.sock: want"},
		{given(t, "monitoring.prometheusRule.runbooks=map.example.org"), "'/monitoring/prometheusRule/runbooks'"},
		{given(t, "executor.enabled=true"), "executor.address: given nothing: want ip:port"},
		{given(t, "executor.enabled=true", "executor.address=10.0.0.1:7950"),
			"executor.node: given nothing: want the node of Kubernetes that has 10.0.0.1:7950"},
		{given(t, "executor.enabled=true", "executor.address=control-1"), "'/executor/address'"},
		{given(t, "executor.enabled=true", "executor.address=10.0.0.1:7950", "executor.node=a", "executor.config.stateDir=/tmp"),
			"executor.config.stateDir: given: want none"},
		{given(t, "images.registry=", "images.repositories.lofamo-agent=a/b"),
			"images.repositories.lofamoctl: given nothing without images.registry"},
		{given(t, "nameOverride=Watch"), "'/nameOverride'"},
		{given(t, "topology.from=labels"), "topology.from: given labels: the inventory has nodes"},
		{append(given(t), "--set-file", "inventory="+bad), "supervisors[0].ports: given: want none"},
		{enrolling(t, "cluster: x\nenrolment: false\nsupervisors: [{id: s1, address: 10.0.0.1}]\n"),
			"inventory: enrolment: given false without nodes: want true, or nodes"},
		{enrolling(t, admitting(t), "supervisors.keys.from=cert-manager", "supervisors.keys.issuerRef.name=lofamo"),
			"supervisors.keys.from: given cert-manager, and the inventory has enrolment: true: want secrets"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			t.Parallel()
			if _, err := rendering(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q: error %v: want one that has %q", tc.args[6:], err, tc.want)
			}
		})
	}
}

// TestNamesAccountsAndLabelsFollowValues: overrides reach every object that depends on them.
func TestNamesAccountsAndLabelsFollowValues(t *testing.T) {
	t.Parallel()
	all := render(t, given(t, append(matrix["conventions"], "nameOverride=watch")...)...)
	for kind, want := range map[string]struct{ name, account string }{
		"DaemonSet": {"lofamo-watch-agent", "ours"}, "StatefulSet": {"lofamo-watch-supervisor", "theirs"},
		"Deployment": {"lofamo-watch-executor", "default"},
	} {
		o := find(t, all, kind, want.name)
		if got := o.text("spec", "template", "spec", "serviceAccountName"); got != want.account {
			t.Errorf("%s has the service account %q: want %q", o, got, want.account)
		}
		if got := o.text("spec", "template", "metadata", "labels", "team"); got != "hpc" {
			t.Errorf("%s: label team is %q: want hpc", o, got)
		}
		if got := o.text("spec", "selector", "matchLabels", "app.kubernetes.io/name"); got != "watch" {
			t.Errorf("%s selects the name %q: want watch", o, got)
		}
	}
	var accounts []string
	for _, o := range all {
		if o.text("kind") == "ServiceAccount" {
			accounts = append(accounts, o.text("metadata", "name")+" "+o.text("metadata", "annotations", "example.org/role"))
		}
		for _, s := range list(o, "subjects") {
			if s.text("name") != "theirs" {
				t.Errorf("%s: subject %v: want theirs", o, s)
			}
		}
	}
	if want := []string{"theirs act"}; !slices.Equal(accounts, want) {
		t.Errorf("service accounts %q: want %q", accounts, want)
	}
	agent := list(find(t, all, "DaemonSet", "lofamo-watch-agent"), "spec", "template", "spec", "containers")[0].text("image")
	if !strings.HasPrefix(agent, "mirror.example.org/agent:") {
		t.Errorf("the agent's image is %s", agent)
	}
	if got := find(t, all, "ConfigMap", "extra").text("data", "release"); got != "of lofamo" {
		t.Errorf("a template in an extra object gave %q: want of lofamo", got)
	}
	find(t, render(t, given(t, "fullnameOverride=eye")...), "DaemonSet", "eye-agent")
}

// TestChartCopiesEqualOriginals: the copies in the chart equal their originals. Helm cannot read files outside the chart.
func TestChartCopiesEqualOriginals(t *testing.T) {
	for from, to := range map[string]string{"deploy/kubernetes/*.yaml": "kubernetes", "deploy/prometheus/*.yaml": "prometheus",
		"deploy/grafana/*.json": "grafana"} {
		want, got := contents(t, filepath.Join(root, from)), contents(t, filepath.Join(chart, "files", to, "*"))
		delete(want, "lofamo-tests.yaml")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("helm/lofamo/files/%s is not %s: run make generate:\n%s", to, from, diff)
		}
	}
}

// TestRunbookLinks: alerts link to their pages at the configured address. Without one they name the path in the
// repository.
func TestRunbookLinks(t *testing.T) {
	t.Parallel()
	const base = "https://map.example.org:9443/runbooks/"
	for begin, values := range map[string][]string{base: matrix["everything"], "docs/runbooks/": {"monitoring.prometheusRule.enabled=true"}} {
		out := template(t, given(t, values...)...)
		alerts, links := strings.Count(out, "alert: Lofamo"),
			regexp.MustCompile(`runbook_url: `+begin+`Lofamo[A-Za-z]+\.md\n`).FindAllString(out, -1)
		if alerts < 30 || len(links) != alerts || strings.Count(out, "runbook_url:") != alerts {
			t.Errorf("%d alerts, %d links that begin with %s", alerts, len(links), begin)
		}
	}
}

// TestPodMonitorsSelectExistingPorts: a PodMonitor selects existing pods and a port that they have. Each kind of process with metrics has
// one.
func TestPodMonitorsSelectExistingPorts(t *testing.T) {
	t.Parallel()
	all := objects(t, template(t, given(t, matrix["executor"]...)...))
	served := map[string][]string{} // names of a component's ports
	for _, o := range all {
		component, _ := o.at("spec", "template", "metadata", "labels", "app.kubernetes.io/component").(string)
		containers, _ := o.at("spec", "template", "spec", "containers").([]any)
		for _, c := range containers {
			ports, _ := object(c.(map[string]any)).at("ports").([]any)
			for _, p := range ports {
				served[component] = append(served[component], object(p.(map[string]any)).text("name"))
			}
		}
	}
	var watched []string
	for _, o := range all {
		if o.text("kind") != "PodMonitor" {
			continue
		}
		component := o.text("spec", "selector", "matchLabels", "app.kubernetes.io/component")
		watched = append(watched, component)
		endpoints, _ := o.at("spec", "podMetricsEndpoints").([]any)
		if len(endpoints) != 1 || !slices.Contains(served[component], object(endpoints[0].(map[string]any)).text("port")) {
			t.Errorf("%s: endpoints %v, and its pods have the ports %q", o, endpoints, served[component])
		}
	}
	slices.Sort(watched)
	if want := []string{"executor", "supervisor"}; !slices.Equal(watched, want) { // agents have none without agentHTTP
		t.Errorf("watched are %q: want %q", watched, want)
	}
}

// TestEnrollingAgentsServeMonitoredPort: the port of the agents' metrics also applies to nodes that the inventory does not list.
func TestEnrollingAgentsServeMonitoredPort(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"10.0.0.101": "0.0.0.0:7102", "fd00::101": "[::]:7102"} {
		file := filepath.Join(t.TempDir(), "inventory.yaml")
		text := "cluster: hall7\nsupervisors:\n- {id: s1, address: \"" + address + "\"}\nports: {agentHTTP: 7102}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"--kube-version", "1.33.0", "--set-file", "inventory=" + file, "--set", "images.registry=example.org/lofamo," +
			"supervisors.keys.from=job,supervisors.nodes.s1=control-1,monitoring.podMonitor.enabled=true"}
		all := render(t, args...)
		endpoints, _ := find(t, all, "PodMonitor", "lofamo-agent").at("spec", "podMetricsEndpoints").([]any)
		if len(endpoints) != 1 || object(endpoints[0].(map[string]any)).at("portNumber") != 7102.0 {
			t.Errorf("Prometheus scrapes %v: want port 7102", endpoints)
		}
		var agent map[string]any
		if err := yaml.Unmarshal([]byte(find(t, all, "ConfigMap", "lofamo").text("data", "agent.yaml")), &agent); err != nil {
			t.Fatal(err)
		}
		if agent["http"] != want {
			t.Errorf("agents serve metrics at %v: want %s", agent["http"], want)
		}
		all = render(t, append(args, "--set", "agents.config.http=127.0.0.1:7102")...)
		if got := find(t, all, "ConfigMap", "lofamo").text("data", "agent.yaml"); !strings.Contains(got, "http: 127.0.0.1:7102") {
			t.Errorf("a value of agents.config does not take precedence:\n%s", got)
		}
	}
}

func contents(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = string(b)
	}
	return out
}

// TestChartGrantsNeededRightsOnly: the supervisors have the rights under which the executor's tests run, bound to the chart's own account.
// Agents have no rights and no token.
func TestChartGrantsNeededRightsOnly(t *testing.T) {
	t.Parallel()
	rules := func(all []object) map[string][]any {
		out := map[string][]any{}
		for _, o := range all {
			if strings.HasSuffix(o.text("kind"), "Role") {
				key := o.text("kind") + " in " + o.text("metadata", "namespace")
				r, _ := o.at("rules").([]any)
				out[key] = append(out[key], r...)
			}
		}
		return out
	}
	for _, tc := range []struct {
		values []string
		files  []string
	}{
		{nil, nil},
		{[]string{"supervisors.kubernetes.enabled=true"}, []string{"rbac.yaml"}},
		{[]string{"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.nodeLabel=a/b"}, []string{"rbac.yaml", "rbac-node-label.yaml"}},
		{
			[]string{"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.conditions=keep"},
			[]string{"rbac.yaml", "rbac-conditions.yaml"},
		},
		{[]string{"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.conditions=remove"}, []string{"rbac.yaml"}},
		{
			[]string{"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.remediation=true"},
			[]string{"rbac.yaml", "rbac-remediation.yaml"},
		},
		{
			[]string{"supervisors.kubernetes.enabled=true", "supervisors.kubernetes.evidence=true"},
			[]string{"rbac.yaml", "rbac-conditions.yaml"},
		},
		{[]string{"supervisors.kubernetes.faults=true"}, []string{"rbac-objects.yaml"}},
		{[]string{"supervisors.kubernetes.policies=true"}, []string{"rbac-policies.yaml"}},
	} {
		var want []object
		for _, f := range tc.files {
			want = append(want, objects(t, contents(t, filepath.Join(root, "deploy/kubernetes", f))[f])...)
		}
		got := render(t, given(t, tc.values...)...)
		if diff := cmp.Diff(rules(want), rules(got)); diff != "" {
			t.Errorf("%q: rights are not those of deploy/kubernetes:\n%s", tc.values, diff)
		}
		for _, o := range got {
			if !strings.HasSuffix(o.text("kind"), "RoleBinding") {
				continue
			}
			subjects, _ := o.at("subjects").([]any)
			if diff := cmp.Diff([]any{map[string]any{"kind": "ServiceAccount", "name": "lofamo-supervisor", "namespace": "lofamo"}},
				subjects); diff != "" {
				t.Errorf("%s: %s", o, diff)
			}
			find(t, got, o.text("roleRef", "kind"), o.text("roleRef", "name"))
		}
		for kind, name := range map[string]string{"DaemonSet": "lofamo-agent", "StatefulSet": "lofamo-supervisor"} {
			o := find(t, got, kind, name)
			if token := o.at("spec", "template", "spec", "automountServiceAccountToken"); token != false {
				t.Errorf("%q: all containers of %s have a token: %v: want false", tc.values, name, token)
			}
			spec := pods(t, o)
			for _, c := range append(list(spec, "initContainers"), list(spec, "containers")...) {
				token := slices.ContainsFunc(list(c, "volumeMounts"), func(m object) bool {
					return m.text("mountPath") == "/var/run/secrets/kubernetes.io/serviceaccount"
				})
				if want := c.text("name") == "supervisor" && tc.files != nil; token != want {
					t.Errorf("%q: %s of %s has a token: %v: want %v", tc.values, c.text("name"), name, token, want)
				}
			}
		}
	}
}

// TestSupervisorPodHoldsItsOwnKeysOnly: no pod, and so no node, has the keys of two supervisors. The pod that brings a
// replica's keys writes them, as the same user, into the volume of that replica.
func TestSupervisorPodHoldsItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		all := render(t, given(t, matrix[name]...)...)
		got, want := map[string][]string{}, map[string][]string{}
		for _, o := range all {
			spec, ok := o.at("spec", "template", "spec").(map[string]any)
			if !ok {
				continue
			}
			for _, v := range list(spec, "volumes") {
				mounted := []string{v.text("secret", "secretName")}
				for _, s := range list(v, "projected", "sources") {
					mounted = append(mounted, s.text("secret", "name"))
				}
				for _, m := range mounted {
					m = strings.TrimSuffix(m, "-ecdsa") // both pairs of a supervisor count as its keys
					if strings.HasPrefix(m, "lofamo-supervisor-") && !slices.Contains(got[o.String()], m) {
						got[o.String()] = append(got[o.String()], m)
					}
				}
			}
		}
		if name != "agents" { // which has no supervisors
			replicas := pods(t, find(t, all, "StatefulSet", "lofamo-supervisor"))
			for i, id := range []string{"s1", "s2", "s3"} {
				o := find(t, all, "Deployment", "lofamo-supervisor-keys-"+id)
				want[o.String()] = []string{"lofamo-supervisor-" + id}
				spec := pods(t, o)
				data := list(spec, "volumes")[slices.IndexFunc(list(spec, "volumes"), func(v object) bool { return v.text("name") == "data" })]
				if claim, want := data.text("persistentVolumeClaim", "claimName"), fmt.Sprintf("data-lofamo-supervisor-%d", i); claim != want {
					t.Errorf("%s %s: claim %q, want %q", name, o, claim, want)
				}
				if diff := cmp.Diff(replicas.at("securityContext"), spec.at("securityContext")); diff != "" {
					t.Errorf("%s %s: not the user of the replica:\n%s", name, o, diff)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: Secrets of supervisors by pod:\n%s", name, diff)
		}
	}
}

// TestSupervisorPortsMustMatchInventory: probes, Services and other members use the ports of the inventory. So a supervisor must not have
// other ones.
func TestSupervisorPortsMustMatchInventory(t *testing.T) {
	t.Parallel()
	ports := strings.Replace(admitting(t), "\nports:\n", "\nports:\n  http: 8080\n", 1)
	if !strings.Contains(ports, "http: 8080") {
		t.Fatal("the example has no ports")
	}
	for _, tc := range []struct{ inventory, value, want string }{
		{"", "http=0.0.0.0:7947", ""},
		{"", "http=0.0.0.0:8080", "supervisors.config.http: given 0.0.0.0:8080: want port 7947, which ports.http of the inventory"},
		{"", "http=", "supervisors.config.http: given nothing: want port 7947"},
		{ports, "http=0.0.0.0:8080", ""},
		{ports, "http=0.0.0.0:7947", "supervisors.config.http: given 0.0.0.0:7947: want port 8080"},
		{"", "grpc=[::]:7946", ""},
		{"", "grpc=[::]:7947", "supervisors.config.grpc: given [::]:7947: want port 7946"},
		{"", "report=10.0.0.101:1", "supervisors.config.report: given 10.0.0.101:1: want port 7945"},
		{"", "gossipListen=10.0.0.101:1", "supervisors.config.gossipListen: given 10.0.0.101:1: want port 7948"},
		{"", "gossipListen=", ""},
		{"", "web.listen=0.0.0.0:443", ""}, // only people's browsers use it
		{"", "web.listen=", ""},
		{"", "enrolment.listen=", ""},
		{ports, "enrolment.forgetAfter=24h", ""},
		{ports, "enrolment.listen=0.0.0.0:7944", ""},
		{ports, "enrolment.listen=0.0.0.0:1", "supervisors.config.enrolment.listen: given 0.0.0.0:1: want port 7944"},
		{ports, "enrolment.listen=", "supervisors.config.enrolment.listen: given nothing: want port 7944"},
	} {
		args := given(t)
		if tc.inventory != "" {
			args = enrolling(t, tc.inventory)
		}
		_, err := rendering(t, append(args, "--set-string", "supervisors.config."+tc.value)...)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v: want %q", tc.value, err, tc.want)
		}
	}
}

// TestSupervisorsThatAdmitNodesHaveIssuer: without an issuer a supervisor that listens for enrolments refuses its configuration.
// Supervisors that admit none get no issuer.
func TestSupervisorsThatAdmitNodesHaveIssuer(t *testing.T) {
	t.Parallel()
	empty := "cluster: hall7\nsupervisors:\n- {id: s1, address: 10.0.0.101}\n"
	for _, tc := range []struct {
		name, inventory string
		values          []string
		admit           bool
	}{
		{"nodes", strings.Replace(admitting(t), "enrolment: true", "enrolment: false", 1), nil, false},
		{"nodes and enrolment", admitting(t), nil, true},
		{"no nodes", empty, nil, true},
		{"no nodes and enrolment", empty + "enrolment: true\n", nil, true},
		{"no nodes, keys from the job", empty, []string{"supervisors.keys.from=job"}, true},
	} {
		all := render(t, enrolling(t, tc.inventory, append(tc.values, "networkPolicy.enabled=true")...)...)
		var keys []string
		for _, v := range list(pods(t, find(t, all, "Deployment", "lofamo-supervisor-keys-s1")), "volumes") {
			for _, s := range list(v, "projected", "sources") {
				for _, item := range list(s, "secret", "items") {
					keys = append(keys, item.text("path"))
				}
			}
		}
		for _, name := range []string{"pki/issuer.pem", "pki/issuer.key"} {
			if slices.Contains(keys, name) != tc.admit {
				t.Errorf("%s: the supervisor's keys are %q: want %s: %t", tc.name, keys, name, tc.admit)
			}
		}
		var ports []any
		for _, p := range list(list(pods(t, find(t, all, "StatefulSet", "lofamo-supervisor")), "containers")[0], "ports") {
			ports = append(ports, p.at("containerPort"))
		}
		if slices.Contains(ports, any(7944.0)) != tc.admit {
			t.Errorf("%s: the pod's ports are %v: want 7944: %t", tc.name, ports, tc.admit)
		}
		policy := fmt.Sprint(find(t, all, "NetworkPolicy", "lofamo-supervisor").at("spec", "ingress"))
		if strings.Contains(policy, "7944") != tc.admit {
			t.Errorf("%s: the policy admits %s: want 7944: %t", tc.name, policy, tc.admit)
		}
	}
}

// TestReached: clients reach a replica without a quorum. Job pods get a directory with only the socket, from the half
// that serves it. A user other than root can read its keys.
func TestReached(t *testing.T) {
	t.Parallel()
	all := render(t, given(t, matrix["defaults"]...)...)
	for _, name := range []string{"lofamo-supervisor", "lofamo-api", "lofamo-web"} {
		if got := find(t, all, "Service", name).at("spec", "publishNotReadyAddresses"); got != true {
			t.Errorf("Service %s: replicas without a quorum are in it: %v: want true", name, got)
		}
	}
	agents := find(t, render(t, given(t, matrix["managed"]...)...), "DaemonSet", "lofamo-agent")
	spec := object(agents.at("spec", "template", "spec").(map[string]any))
	if got := spec.at("securityContext", "fsGroup"); got != 991.0 {
		t.Errorf("secrets are of group %v: want 991", got)
	}
	volumes := map[string]string{}
	for _, v := range list(spec, "volumes") {
		volumes[v.text("name")] = v.text("hostPath", "path")
	}
	for _, c := range list(spec, "containers") {
		mounts := map[string]string{}
		for _, m := range list(c, "volumeMounts") {
			if path := volumes[m.text("name")]; path != "" {
				mounts[m.text("mountPath")] = path
			}
		}
		want := map[string]string{"/var/lib/lofamo": "/var/lib/lofamo"}
		if c.text("name") == "host" {
			want["/run/lofamo-jobs"] = "/run/lofamo-jobs"
		}
		if diff := cmp.Diff(want, mounts); diff != "" {
			t.Errorf("directories of the node in %s:\n%s", c.text("name"), diff)
		}
	}
}

// TestContainersAreRestricted: every container is as restricted as possible. The exceptions are listed here and explained in the
// chart.
func TestContainersAreRestricted(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		for _, o := range render(t, given(t, matrix[name]...)...) {
			var spec object
			switch o.text("kind") {
			case "DaemonSet", "StatefulSet", "Deployment", "Job":
				spec, _ = o.at("spec", "template", "spec").(map[string]any)
			case "Pod":
				spec, _ = o.at("spec").(map[string]any)
			default:
				continue
			}
			agent := o.text("kind") == "DaemonSet"
			if spec.text("securityContext", "seccompProfile", "type") != "RuntimeDefault" || spec.at("hostPID") == true ||
				spec.at("hostIPC") == true {
				t.Errorf("%s %s: %v", name, o, spec.at("securityContext"))
			}
			if !agent && spec.at("securityContext", "runAsNonRoot") != true {
				t.Errorf("%s %s: may run as root", name, o)
			}
			for _, list := range []string{"initContainers", "containers"} {
				containers, _ := spec.at(list).([]any)
				for _, v := range containers {
					c := object(v.(map[string]any))
					s := object(c.at("securityContext").(map[string]any))
					add, _ := s.at("capabilities", "add").([]any)
					var want []any
					if agent && name != "systemd" && name != "managed" {
						switch {
						case list == "initContainers":
							want = []any{"DAC_READ_SEARCH"}
						case name != "agents":
							want = []any{"SYS_NICE"}
						}
					}
					if !cmp.Equal(add, want) || !cmp.Equal(s.at("capabilities", "drop"), any([]any{"ALL"})) ||
						s.at("allowPrivilegeEscalation") != false || s.at("readOnlyRootFilesystem") != true || s.at("privileged") == true {
						t.Errorf("%s %s, %s: %v", name, o, c.text("name"), s)
					}
				}
			}
		}
	}
}

func TestImagesByDigest(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0a", 32)
	out := template(t, given(t, "images.digests.lofamo-supervisor="+digest, "images.tag=v9")...)
	for _, want := range []string{"image: registry.example.org/lofamo/lofamo-supervisor@" + digest + "\n",
		"image: registry.example.org/lofamo/lofamo-agent:v9\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(out, "lofamo-supervisor:v9") {
		t.Error("an image with a digest has its tag somewhere")
	}
}

func TestSupervisorsMountSecretsOfWebhooks(t *testing.T) {
	t.Parallel()
	set := find(t, render(t, given(t, "supervisors.secrets={pager,chat}")...), "StatefulSet", "lofamo-supervisor")
	volumes, _ := set.at("spec", "template", "spec", "volumes").([]any)
	containers, _ := set.at("spec", "template", "spec", "containers").([]any)
	mounts, _ := object(containers[0].(map[string]any)).at("volumeMounts").([]any)
	for _, name := range []string{"pager", "chat"} {
		mounted := slices.ContainsFunc(mounts, func(v any) bool {
			m := object(v.(map[string]any))
			return m.text("name") == "secret-"+name && m.text("mountPath") == "/run/secrets/lofamo/"+name && m.at("readOnly") == true
		})
		given := slices.ContainsFunc(volumes, func(v any) bool {
			o := object(v.(map[string]any))
			return o.text("name") == "secret-"+name && o.text("secret", "secretName") == name
		})
		if !mounted || !given {
			t.Errorf("secret %s: mounted %v, volume %v", name, mounted, given)
		}
	}
}

func TestIngressLeadsToPage(t *testing.T) {
	t.Parallel()
	for _, o := range render(t, given(t)...) {
		if o.text("kind") == "Ingress" {
			t.Error("an ingress by default")
		}
	}
	all := render(t, given(t, "ingress.enabled=true", "ingress.host=map.example.org", "ingress.className=nginx", "ingress.tlsSecret=map")...)
	in := find(t, all, "Ingress", "lofamo-web")
	rules, _ := in.at("spec", "rules").([]any)
	rule := object(rules[0].(map[string]any))
	paths, _ := rule.at("http", "paths").([]any)
	to := object(paths[0].(map[string]any))
	service := find(t, all, "Service", to.text("backend", "service", "name"))
	ports, _ := service.at("spec", "ports").([]any)
	port := object(ports[0].(map[string]any)).text("name")
	if rule.text("host") != "map.example.org" || to.text("backend", "service", "port", "name") != port ||
		in.text("spec", "ingressClassName") != "nginx" {
		t.Errorf("%v", in)
	}
	tls, _ := in.at("spec", "tls").([]any)
	if object(tls[0].(map[string]any)).text("secretName") != "map" {
		t.Errorf("tls: %v", tls)
	}
}

func TestNotesNameThePage(t *testing.T) {
	t.Parallel()
	out, err := run(t, nil, append([]string{"install", "lofamo", chart, "--namespace", "lofamo", "--dry-run=client"},
		given(t, "ingress.enabled=true", "ingress.host=map.example.org")...)...)
	if err != nil {
		t.Fatal(err)
	}
	_, notes, _ := strings.Cut(out, "NOTES:")
	if !strings.Contains(notes, "The page for browsers") || !strings.Contains(notes, "https://map.example.org/") {
		t.Errorf("notes:\n%s", notes)
	}
}
