package charttest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestExecutorRunsAsInChart: the executor process runs as in the chart. It never runs without a ledger, which the Job creates once
// and never again. It then accepts attempts from supervisors, which know its address, and keeps its ledger when its pod
// is replaced.
func TestExecutorRunsAsInChart(t *testing.T) {
	wantContainers(t)
	bin := requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir)
	top, err := os.MkdirTemp("", "lofamo-chart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	addr := freeport.Addr(t)
	file := filepath.Join(top, "inventory.yaml")
	text := fmt.Sprintf("cluster: hall7\ndims: 1x1x1\nsupervisors: [{id: s1, address: %[1]s}]\nnodes: [{coord: \"0,0,0\", service: %[1]s}]\n",
		addr.Addr())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	hall := filepath.Join(top, "hall")
	if err := inventory.Open(hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	if _, err := inventory.Open(hall).Issue(pki.RoleExecutor, "x1"); err != nil {
		t.Fatal(err)
	}
	secrets := filepath.Join(hall, "secrets")
	if err := os.CopyFS(filepath.Join(secrets, "lofamo-executor"), os.DirFS(filepath.Join(hall, "executors", "x1", "pki"))); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, top, hall, "control-1", addr.Addr())
	m.write(filepath.Join(secrets, "bmc", "n0-0-0"), "secret\n")
	values := []string{"--set-file", "inventory=" + file, "--set",
		fmt.Sprintf("images.registry=registry.example.org/lofamo,supervisors.nodes.s1=control-1,executor.enabled=true,"+
			"executor.address=%s,executor.node=control-1,executor.httpPort=%d,executor.passwords=bmc",
			addr, freeport.Addr(t).Port()), "--set",
		"executor.config.power.enabled=true,executor.config.power.nodes.n0-0-0.method=ipmi," +
			"executor.config.power.nodes.n0-0-0.address=10.2.0.10:623,executor.config.power.nodes.n0-0-0.username=lofamo," +
			"executor.config.power.nodes.n0-0-0.passwordFile=/passwords/n0-0-0"}
	rendered := func(kind, name string, more ...string) (object, map[string]object) {
		all := render(t, append(values, more...)...)
		if kind == "Job" { // its name depends on the version
			name = all[slices.IndexFunc(all, func(o object) bool { return o.text("kind") == "Job" })].text("metadata", "name")
		}
		return find(t, all, kind, name), map[string]object{"lofamo-executor": find(t, all, "ConfigMap", "lofamo-executor"),
			"lofamo": find(t, all, "ConfigMap", "lofamo")}
	}
	deployment, configs := rendered("Deployment", "lofamo-executor")
	job, jobConfigs := rendered("Job", "", "--set", "executor.init=true")
	// ends runs a pod to its end.
	ends := func(name string, template object, configs map[string]object) (string, error) {
		p := m.lay(name, bin, template, configs, "")
		out, err := p.container(list(p.spec, "containers")[0]).CombinedOutput()
		return string(out), err
	}
	if out, err := ends("early", deployment, configs); err == nil || !strings.Contains(out, "ledger") {
		t.Errorf("without a ledger: %v: %s", err, out)
	}
	if out, err := ends("init", job, jobConfigs); err != nil {
		t.Errorf("the first ledger: %v: %s", err, out)
	}
	if out, err := ends("again", job, jobConfigs); err == nil || !strings.Contains(out, "it exists") {
		t.Errorf("a second ledger: %v: %s", err, out)
	}
	pair := filepath.Join(hall, "supervisors", "s1", "pki")
	supervisor, err := pki.ClientTLS(filepath.Join(pair, "supervisor.pem"), filepath.Join(pair, "supervisor.key"),
		filepath.Join(pair, "ca.pem"), pki.AllowRoles(pki.RoleExecutor))
	if err != nil {
		t.Fatal(err)
	}
	supervisor.ServerName = pki.ExecutorName("hall7")
	supervisor.NextProtos = []string{"h2"}
	for _, name := range []string{"first", "second"} {
		p := m.start(name, bin, deployment, configs, "")
		p.probe("readinessProbe")
		p.probe("livenessProbe")
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := tls.Client(c, supervisor).HandshakeContext(ctx); err != nil {
			t.Errorf("a supervisor: %v", err)
		}
		_ = c.Close()
		cancel()
		p.stop()
	}
	// A supervisor's configuration with the address is valid.
	settings := filepath.Join(top, "supervisor.yaml")
	m.write(settings, configs["lofamo"].text("data", "supervisor.yaml"))
	if _, err := inv.PlaceSupervisor(0, inventory.Placement{Keys: filepath.Join(hall, "supervisors"), Settings: settings,
		Etc: t.TempDir()}); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(settings)
	if err != nil || !strings.Contains(string(b), "address: "+addr.String()) {
		t.Errorf("%v: the supervisors are told %s: want %s", err, b, addr)
	}
}
