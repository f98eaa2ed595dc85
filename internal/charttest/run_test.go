package charttest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/freeport"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/localcluster"
	"github.com/lofamo/lofamo/internal/localcluster/client"
	"github.com/lofamo/lofamo/internal/needs"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/tether"
)

// machine is a directory in the place of a machine, on which pods run as processes: each path of a pod is one below it.
type machine struct {
	t    *testing.T
	dir  string
	node string
	ip   netip.Addr
	bin  string
}

// pod is what a kubelet makes of a template.
type pod struct {
	m       *machine
	name    string
	spec    object
	configs map[string]object // ConfigMaps by name
	paths   map[string]string // mount paths, and where they are here
	running map[string]*exec.Cmd
	fields  map[string]string
}

// start lays the pod's volumes out, runs its init containers to their end, and starts its containers.
func (m *machine) start(name string, template object, configs map[string]object, index string) *pod {
	m.t.Helper()
	spec, _ := template.at("spec", "template", "spec").(map[string]any)
	p := &pod{
		m: m, name: name, spec: spec, configs: configs, paths: map[string]string{}, running: map[string]*exec.Cmd{},
		fields: map[string]string{"spec.nodeName": m.node, "status.hostIP": m.ip.String(), "metadata.labels['apps.kubernetes.io/pod-index']": index},
	}
	volumes := map[string]string{"data": filepath.Join(m.dir, "data")} // the claim's
	for _, v := range list(p.spec, "volumes") {
		volumes[v.text("name")] = p.volume(v)
	}
	for _, kind := range []string{"initContainers", "containers"} {
		for _, c := range list(p.spec, kind) {
			for _, v := range list(c, "volumeMounts") {
				p.paths[v.text("mountPath")] = volumes[v.text("name")]
				if volumes[v.text("name")] == "" {
					m.t.Fatalf("%s: volume %s is mounted and not there", name, v.text("name"))
				}
			}
		}
	}
	for _, c := range list(p.spec, "initContainers") {
		cmd := p.command(c)
		if out, err := cmd.CombinedOutput(); err != nil {
			m.t.Fatalf("%s: %s: %v\n%s", name, c.text("name"), err, out)
		}
	}
	for _, c := range list(p.spec, "containers") {
		cmd := p.command(c)
		log, err := os.Create(filepath.Join(m.dir, name+"-"+c.text("name")+".log"))
		if err != nil {
			m.t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := tether.Start(cmd, syscall.SIGTERM); err != nil { // upon which it ends its half, too
			m.t.Fatal(err)
		}
		_ = log.Close()
		p.running[c.text("name")] = cmd
	}
	m.t.Cleanup(p.stop)
	return p
}

// stop ends all containers at once, as a kubelet does.
func (p *pod) stop() {
	for _, cmd := range p.running {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for name, cmd := range p.running {
		late := time.AfterFunc(bound, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			p.m.t.Errorf("%s %s: asked to stop: %v\n%s", p.name, name, err, p.tail(name))
		}
		late.Stop()
	}
	p.running = nil
}

// log is all that a container has said.
func (p *pod) log(container string) string {
	b, err := os.ReadFile(filepath.Join(p.m.dir, p.name+"-"+container+".log"))
	if err != nil {
		p.m.t.Fatal(err)
	}
	return string(b)
}

// tail is the end of it, to be printed.
func (p *pod) tail(container string) string {
	log := p.log(container)
	return log[max(0, len(log)-3000):]
}

func list(o object, path ...string) []object {
	var out []object
	all, _ := o.at(path...).([]any)
	for _, v := range all {
		out = append(out, object(v.(map[string]any)))
	}
	return out
}

// volume is where a volume is.
func (p *pod) volume(v object) string {
	if path := v.text("hostPath", "path"); path != "" {
		dir := filepath.Join(p.m.dir, path)
		if v.text("hostPath", "type") == "DirectoryOrCreate" {
			p.m.mkdir(dir)
		}
		return dir
	}
	dir := filepath.Join(p.m.dir, p.name, v.text("name"))
	p.m.mkdir(dir)
	if name := v.text("configMap", "name"); name != "" {
		data, _ := p.configs[name].at("data").(map[string]any)
		for file, text := range data {
			p.m.write(filepath.Join(dir, file), text.(string))
		}
	}
	for _, s := range list(v, "projected", "sources") {
		// Secrets are those of docs/install.md: the files of a bundle.
		id := strings.TrimPrefix(s.text("secret", "name"), "lofamo-supervisor-")
		for _, item := range list(s, "secret", "items") {
			from := filepath.Join(p.m.dir, "hall", "supervisors", id)
			b, err := os.ReadFile(filepath.Join(from, "pki", item.text("key")))
			if err != nil {
				b, err = os.ReadFile(filepath.Join(from, item.text("key")))
			}
			if err != nil {
				p.m.t.Fatal(err)
			}
			p.m.write(filepath.Join(dir, item.text("path")), string(b))
		}
	}
	return dir
}

func (m *machine) mkdir(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(path, text string) {
	m.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

var variable = regexp.MustCompile(`\$\([A-Z_]+\)`)

// command is that of a container, its image's program with the arguments, variables and paths that it would have.
func (p *pod) command(c object) *exec.Cmd {
	image := c.text("image")
	program := strings.Split(image[strings.LastIndex(image, "/")+1:], ":")[0]
	var args []string
	for _, a := range c.at("args").([]any) {
		args = append(args, fmt.Sprint(a))
	}
	cmd := p.exec(c, append([]string{program}, args...))
	if confined(p.spec) {
		cmd.Args = slices.Concat(rights(c), []string{cmd.Path}, cmd.Args[1:])
		cmd.Path = setpriv
	}
	// Only what the container is given.
	cmd.Env = []string{"PATH=" + p.m.bin}
	for name, value := range p.env(c) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// setpriv gives a program no more rights than its container has.
const setpriv = "/usr/bin/setpriv"

// confined says whether the pod's containers can be given their rights here: root's, without most of what root may.
func confined(spec object) bool {
	_, err := os.Stat(setpriv)
	return err == nil && os.Geteuid() == 0 && spec.at("securityContext", "runAsUser") == 0.0
}

func rights(c object) []string {
	var bounding strings.Builder
	bounding.WriteString("--bounding-set=-all")
	added, _ := c.at("securityContext", "capabilities", "add").([]any)
	for _, name := range added {
		bounding.WriteString(",+" + strings.ToLower(name.(string)))
	}
	return []string{setpriv, "--no-new-privs", "--inh-caps=-all", bounding.String(), "--"}
}

var started = regexp.MustCompile(`msg="half started".* pid=(\d+)`)

// realtime says whether the half that a container has started is.
func (p *pod) realtime(container string) (bool, error) {
	m := started.FindStringSubmatch(p.log(container))
	if m == nil {
		return false, fmt.Errorf("%s has started nothing:\n%s", container, p.tail(container))
	}
	pid, err := strconv.Atoi(m[1])
	if err != nil {
		return false, err
	}
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return false, err
	}
	return attr.Policy == unix.SCHED_FIFO, nil
}

func (p *pod) env(c object) map[string]string {
	out := map[string]string{}
	for _, e := range list(c, "env") {
		field := e.text("valueFrom", "fieldRef", "fieldPath")
		value, ok := p.fields[field]
		if !ok {
			p.m.t.Fatalf("%s: a field that this test does not know: %s", p.name, field)
		}
		out[e.text("name")] = value
	}
	return out
}

func (p *pod) exec(c object, args []string) *exec.Cmd {
	var mounts []string
	for path := range p.paths {
		mounts = append(mounts, path)
	}
	slices.SortFunc(mounts, func(a, b string) int { return len(b) - len(a) })
	env := p.env(c)
	for i, a := range args {
		a = variable.ReplaceAllStringFunc(a, func(v string) string { return env[v[2:len(v)-1]] })
		for _, path := range mounts {
			if a == path || strings.HasPrefix(a, path+"/") {
				a = p.paths[path] + strings.TrimPrefix(a, path)
				break
			}
		}
		args[i] = a
	}
	return exec.Command(filepath.Join(p.m.bin, args[0]), args[1:]...)
}

// probe waits until a container's probe is content.
func (p *pod) probe(kind string) {
	p.m.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for _, c := range list(p.spec, "containers") {
		var args []string
		for _, a := range c.at(kind, "exec", "command").([]any) {
			args = append(args, fmt.Sprint(a))
		}
		for end := time.Now().Add(bound); ; <-tick.C {
			out, err := p.exec(c, slices.Clone(args)).CombinedOutput() // it waits some periods itself
			if err == nil {
				break
			}
			if time.Now().After(end) {
				p.m.t.Fatalf("%s %s: %s: %v: %s\n%s", p.name, c.text("name"), kind, err, out, p.tail(c.text("name")))
			}
		}
	}
}

// Programs run exactly as the chart's pods say, with their configuration, keys and arguments: a supervisor, and two nodes, each with a container for each half. All becomes
// NORMAL; and when a node's pod is replaced by that of a new version, as the DaemonSet's strategy does, no fault is seen.
func TestRun(t *testing.T) {
	bin := needs.Set(t, "make build, and set it to bin", localcluster.EnvBinDir)
	// Three addresses of this process alone, so that ports are those of any installation.
	base := freeport.IP().As4()
	ips := make([]netip.Addr, 3)
	for i := range ips {
		a := base
		a[1] += byte(64 * i)
		ips[i] = netip.AddrFrom4(a)
	}
	top, err := os.MkdirTemp("", "lofamo-chart-") // short: sockets' names end at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	file := filepath.Join(top, "inventory.yaml")
	// Relaxed: on a busy machine a process takes longer to start than a half may be silent by the default periods.
	text := fmt.Sprintf("cluster: hall7\ndims: 2x1x1\npreset: relaxed\nsupervisors: [{id: s1, address: %s}]\nnodes:\n- {coord: \"0,0,0\", service: %s}\n- {coord: \"1,0,0\", id: worker-2, service: %s}\n", ips[0], ips[1], ips[2])
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
	machines := make([]*machine, 3)
	for i, name := range []string{"control-1", "worker-1", "worker-2"} {
		machines[i] = &machine{t, filepath.Join(top, name), name, ips[i], bin}
		machines[i].mkdir(machines[i].dir)
	}
	if err := os.Symlink(hall, filepath.Join(machines[0].dir, "hall")); err != nil {
		t.Fatal(err)
	}
	machines[0].mkdir(filepath.Join(machines[0].dir, "data"))
	// What 'lofamoctl cluster join' has put on the nodes.
	for i, id := range []string{"n0-0-0", "worker-2"} {
		machines[i+1].mkdir(filepath.Join(machines[i+1].dir, "etc"))
		if err := os.Symlink(filepath.Join(hall, "nodes", id), filepath.Join(machines[i+1].dir, "etc", "lofamo")); err != nil {
			t.Fatal(err)
		}
	}
	// Keys of nodes are of the package's user: root needs its capability to read them.
	if os.Geteuid() == 0 {
		keys, err := filepath.Glob(filepath.Join(hall, "nodes", "*", "pki", "*.key"))
		if err != nil || len(keys) != 4 {
			t.Fatalf("%q, %v", keys, err)
		}
		for _, k := range keys {
			if err := os.Chown(k, 990, 990); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Directories that configurations name are each machine's own here.
	rendered := func(m *machine) ([]object, map[string]object) {
		all := render(t, "--set-file", "inventory="+file, "--set", "images.registry=registry.example.org/lofamo,supervisors.nodes.s1=control-1",
			"--set", "supervisors.config.dataDir="+filepath.Join(m.dir, "data", "store"), "--set", "agents.config.stateDir="+filepath.Join(m.dir, "run", "lofamo", "agent"))
		return all, map[string]object{"lofamo": find(t, all, "ConfigMap", "lofamo")}
	}
	all, configs := rendered(machines[0])
	s := machines[0].start("supervisor", find(t, all, "StatefulSet", "lofamo-supervisor"), configs, "0")
	agents := make([]*pod, 3)
	for i, m := range machines[1:] {
		all, configs := rendered(m)
		agents[i+1] = m.start("old", find(t, all, "DaemonSet", "lofamo-agent"), configs, "")
	}
	for _, p := range agents[1:] {
		p.probe("readinessProbe")
		p.probe("livenessProbe")
	}
	for _, half := range []string{"host", "dnp"} {
		may := exec.Command("chrt", "-f", "1", "true").Run() == nil // here
		if is, err := agents[1].realtime(half); err != nil || confined(agents[1].spec) && is != may {
			t.Errorf("the %s half is in real time: %v, %v: want %v", half, is, err, may)
		}
	}
	c := viewer(t, hall, netip.AddrPortFrom(ips[0], 7946).String())
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := normal(ctx, c); err != nil {
		t.Fatalf("%v\n%s\n%s\n%s", err, s.tail("supervisor"), agents[1].tail("host"), agents[1].tail("dnp"))
	}
	now, err := c.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	// An upgrade: the new pod is started beside the old one, and is ready as soon as it could take over.
	all, configs = rendered(machines[1])
	// And with other keys, as after a step of a change of them: the pod before goes on with its copies.
	if _, err := inventory.Open(hall).Rotate(inventory.StepAdd, true); err != nil {
		t.Fatal(err)
	}
	fresh := machines[1].start("new", find(t, all, "DaemonSet", "lofamo-agent"), configs, "")
	for _, half := range []string{"host", "dnp"} {
		if err := says(ctx, fresh, half, "this one takes over when it ends"); err != nil {
			t.Fatal(err)
		}
	}
	fresh.probe("readinessProbe") // and no neighbour is gone
	if was, is, want := authority(t, agents[1].paths["/etc/lofamo"]), authority(t, fresh.paths["/etc/lofamo"]), authority(t, filepath.Join(hall, "nodes", "n0-0-0")); is != want || was == want {
		t.Errorf("authorities before\n%s\nafter\n%s\nwant\n%s", was, is, want)
	}
	agents[1].stop()
	if log := agents[1].log("dnp"); !strings.Contains(log, "another daemon takes over") || strings.Contains(log, "not announced") {
		t.Errorf("the neighbours are not told:\n%s", agents[1].tail("dnp"))
	}
	upgraded := time.Now()
	for _, half := range []string{"host", "dnp"} {
		if err := says(ctx, fresh, half, "going on where an earlier life was"); err != nil {
			t.Fatal(err)
		}
	}
	fresh.probe("readinessProbe")
	fresh.probe("livenessProbe")
	if err := heard(ctx, c, "n0-0-0", upgraded); err != nil {
		t.Fatalf("%v\n%s\n%s", err, fresh.tail("host"), fresh.tail("dnp"))
	}
	if err := normal(ctx, c); err != nil {
		t.Fatal(err)
	}
	events, err := c.AllEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: now.GetRevision()})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.GetEvents() {
		t.Logf("%s %s %s: %s → %s (%s)", e.GetKind(), e.GetNode(), e.GetComponent(), e.GetFrom(), e.GetTo(), e.GetReason())
		if e.GetTo() == lofamov1.State_FAILED {
			t.Errorf("a fault by an upgrade: %s %s: %s → %s, cause %s (%s)", e.GetNode(), e.GetComponent(), e.GetFrom(), e.GetTo(), e.GetCause(), e.GetReason())
		}
	}
}

// authority is what a bundle trusts.
func authority(t *testing.T, bundle string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(bundle, "pki", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func viewer(t *testing.T, hall, target string) *client.Client {
	t.Helper()
	in := func(name string) string { return filepath.Join(hall, "operators", name) }
	conf, err := pki.ClientTLS(in("viewer.pem"), in("viewer.key"), in("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Targets: []string{target}, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// normal waits until all nodes are.
func normal(ctx context.Context, c *client.Client) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{})
		if err == nil && len(resp.GetNodes()) == 2 && !slices.ContainsFunc(resp.GetNodes(), func(n *lofamov1.Node) bool { return n.GetState() != lofamov1.State_NORMAL || n.GetAge() == nil }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not all NORMAL: %v: %w", resp.GetNodes(), errors.Join(err, ctx.Err()))
		}
	}
}

// says waits until a container's log has this.
func says(ctx context.Context, p *pod, container, what string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.log(container), what) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s %s does not say %q: %w:\n%s", p.name, container, what, ctx.Err(), p.tail(container))
		}
	}
	return nil
}

// detection is longer than the time after which a node that is missed is called FAILED: 3.04 s at preset relaxed.
const detection = 3200 * time.Millisecond

// heard waits until the node was heard long after the upgrade, and is as well as before.
func heard(ctx context.Context, c *client.Client, node string, upgraded time.Time) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := c.GetNode(ctx, node)
		if err == nil && n.GetAge() != nil && time.Since(upgraded)-n.GetAge().AsDuration() > detection && n.GetState() == lofamov1.State_NORMAL {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the node after the upgrade: %v: %w", n, errors.Join(err, ctx.Err()))
		}
	}
}
