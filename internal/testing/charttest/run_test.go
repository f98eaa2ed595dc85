package charttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// unitUser is the package's user on the machines of these tests.
const unitUser = 990

// installation is the chart installed on three machines: supervisors on all, and agents on two. The second agent's DNP
// half runs under systemd.
type installation struct {
	t           *testing.T
	hall        string
	now, next   string // directories with the programs of two versions
	machines    []*machine
	keys        [3]*pod // they bring the supervisors' keys
	supervisors []*pod
	agents      []*pod
	dnp         *pod // the second node's DNP half, as the package's unit runs it
	values      []string
	client      *client.Client
	ctx         context.Context
	since       uint64 // nothing may be FAILED after this event
}

// systemd holds the values for a node whose DNP half comes from the package.
var systemd = []string{"--set", "agents.dnpHalf=systemd,agents.stateDir=/var/lib/lofamo/agent,agents.user=" + strconv.Itoa(unitUser) +
	",agents.group=" + strconv.Itoa(unitUser)}

func install(t *testing.T) *installation {
	t.Helper()
	wantContainers(t)
	in := &installation{t: t, now: requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir)}
	top, err := os.MkdirTemp("", "lofamo-chart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	in.next = filepath.Join(top, "next")
	build := exec.Command("go", "build", "-trimpath", "-ldflags",
		"-s -w -X github.com/lofamo/lofamo/internal/program.version="+nextVersion, "-o", in.next+"/",
		"./cmd/lofamo-agent", "./cmd/lofamo-supervisor")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copyProgram(t, filepath.Join(in.now, "lofamoctl"), in.next)
	// Timeout of all steps together, without the build, which takes minutes on a cold cache.
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	t.Cleanup(cancel)
	in.ctx = ctx
	// Three addresses for this process only, so that ports can be the default ones.
	base := freeport.IP().As4()
	ips := make([]netip.Addr, 3)
	for i := range ips {
		a := base
		a[1] += byte(64 * i)
		ips[i] = netip.AddrFrom4(a)
	}
	file := filepath.Join(top, "inventory.yaml")
	// Relaxed: on a busy machine the start of a process takes longer than a half may be silent with the default
	// periods.
	text := fmt.Sprintf("cluster: hall7\ndims: 2x1x1\npreset: relaxed\nsupervisors: [{id: s1, address: %s}, {id: s2, address: %s}, {id: s3, "+
		"address: %s}]\nnodes:\n- {coord: \"0,0,0\", service: %s}\n- {coord: \"1,0,0\", id: worker-2, service: %s}\n", ips[0], ips[1], ips[2],
		ips[0], ips[1])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	in.values = []string{"--set-file", "inventory=" + file, "--set",
		"images.registry=registry.example.org/lofamo,supervisors.nodes.s1=worker-1,supervisors.nodes.s2=worker-2,supervisors.nodes.s3=worker-3"}
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	in.hall = filepath.Join(top, "hall")
	if err := inventory.Open(in.hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	for i, ip := range ips {
		in.machines = append(in.machines, newMachine(t, top, in.hall, fmt.Sprintf("worker-%d", i+1), ip))
	}
	// The files of 'lofamoctl cluster join' on the nodes. The package's user owns them: root needs its capability to
	// read the keys.
	for i, id := range []string{"n0-0-0", "worker-2"} {
		in.machines[i].mkdir(filepath.Join(in.machines[i].dir, "etc"))
		in.machines[i].chown(filepath.Join(in.hall, "nodes", id), unitUser, unitUser)
		if err := os.Symlink(filepath.Join(in.hall, "nodes", id), filepath.Join(in.machines[i].dir, "etc", "lofamo")); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// long is the variable that enables tests too long for every run.
const long = "LOFAMO_CHART_LONG"

const nextVersion = "v9.9.9-next"

// template renders a template of the chart, with the ConfigMaps.
func (in *installation) template(kind, name string, more ...string) (object, map[string]object) {
	in.t.Helper()
	all := render(in.t, slices.Concat(in.values, more)...)
	configs := map[string]object{}
	for _, o := range all {
		if o.text("kind") == "ConfigMap" {
			configs[o.text("metadata", "name")] = o
		}
	}
	return find(in.t, all, kind, name), configs
}

// supervisor replaces the pod that brings the keys of a supervisor, and starts the supervisor pod with that number.
func (in *installation) supervisor(name, bin string, number int) *pod {
	in.t.Helper()
	if p := in.keys[number]; p != nil {
		p.stop()
	}
	template, configs := in.template("Deployment", fmt.Sprintf("lofamo-supervisor-keys-s%d", number+1))
	in.keys[number] = in.machines[number].start("keys-"+name, bin, template, configs, "")
	template, configs = in.template("StatefulSet", "lofamo-supervisor")
	return in.machines[number].start("supervisor-"+name, bin, template, configs, strconv.Itoa(number))
}

// agent starts the agent pod of a node.
func (in *installation) agent(name, bin string, node int) *pod {
	in.t.Helper()
	var more []string
	if node == 1 {
		more = systemd
	}
	template, configs := in.template("DaemonSet", "lofamo-agent", more...)
	return in.machines[node].start("agent-"+name, bin, template, configs, "")
}

// unit starts a half as lofamo-agent@.service does: with its user, directories and limit, in the machine's process
// namespace.
func (m *machine) unit(name, bin, half string) *pod {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "lofamo-agent@.service"))
	if err != nil {
		m.t.Fatal(err)
	}
	set := map[string]string{}
	for line := range strings.SplitSeq(string(b), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			set[key] = strings.ReplaceAll(value, "%i", half)
		}
	}
	line := strings.Fields(set["ExecStart"])
	if len(line) == 0 || filepath.Base(line[0]) != "lofamo-agent" || set["User"] != "lofamo" || set["CapabilityBoundingSet"] != "" ||
		set["NoNewPrivileges"] != "yes" {
		m.t.Fatalf("a unit that this test does not know: %v", set)
	}
	var mounts []mount
	for _, dir := range []string{"/var/lib/" + set["StateDirectory"], "/run/" + set["RuntimeDirectory"]} {
		at := filepath.Join(m.dir, dir)
		m.mkdir(at)
		m.chown(at, unitUser, unitUser)
		mounts = append(mounts, mount{at, dir, false})
	}
	mounts = append(mounts, mount{filepath.Join(m.dir, "etc", "lofamo"), "/etc/lofamo", true})
	user := strconv.Itoa(unitUser)
	p := &pod{m: m, name: name, bin: bin, running: map[string]*exec.Cmd{}}
	var limit []string
	if mayLimit() {
		limit = []string{"/usr/bin/prlimit", "--rtprio=" + set["LimitRTPRIO"]}
	}
	args := slices.Concat(limit, []string{"/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all",
		"--reuid=" + user, "--regid=" + user, "--clear-groups",
		"--pdeathsig=TERM", "--", "/usr/bin/env", "-i", "PATH=/usr/bin", "/image/lofamo-agent"}, line[1:])
	p.launch(half, m.root(name, bin, mounts, true, args))
	m.t.Cleanup(p.stop)
	return p
}

// mayLimit reports whether this process may set systemd's LimitRTPRIO.
func mayLimit() bool { return exec.Command("/usr/bin/prlimit", "--rtprio=1", "true").Run() == nil }

// begin starts everything and waits until all nodes are NORMAL.
func (in *installation) begin() {
	in.t.Helper()
	var targets []string
	for i, m := range in.machines {
		in.supervisors = append(in.supervisors, in.supervisor("old", in.now, i))
		targets = append(targets, netip.AddrPortFrom(m.ip, 7946).String())
	}
	in.dnp = in.machines[1].unit("unit", in.now, "dnp")
	for node := range 2 {
		in.agents = append(in.agents, in.agent("old", in.now, node))
	}
	for _, p := range in.supervisors {
		for _, kind := range []string{"startupProbe", "livenessProbe", "readinessProbe"} { // it has a quorum and knows the leader
			p.probe(kind)
		}
	}
	for _, p := range in.agents {
		p.probe("readinessProbe")
		p.probe("livenessProbe")
	}
	in.client = viewer(in.t, in.hall, targets...)
	in.normal()
	in.mark()
}

// mark sets the beginning of the interval for failed.
func (in *installation) mark() {
	in.t.Helper()
	now, err := in.client.ListEvents(in.ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		in.t.Fatal(err)
	}
	in.since = now.GetRevision()
}

// spared checks that nothing was FAILED since mark.
func (in *installation) spared(by string) {
	in.t.Helper()
	for _, e := range in.failed() {
		in.t.Errorf("a fault by %s: %s", by, e)
	}
}

// failed lists the changes to FAILED since mark.
func (in *installation) failed() []string {
	in.t.Helper()
	events, err := in.client.AllEvents(in.ctx, &lofamov1.ListEventsRequest{AfterRevision: in.since})
	if err != nil {
		in.t.Fatal(err)
	}
	var out []string
	for _, e := range events.GetEvents() {
		if e.GetTo() == lofamov1.State_FAILED {
			out = append(out, fmt.Sprintf("%s %s: %s → %s, cause %s (%s)", e.GetNode(), e.GetComponent(), e.GetFrom(), e.GetTo(),
				e.GetCause(), e.GetReason()))
		}
	}
	return out
}

func (in *installation) normal() {
	in.t.Helper()
	if err := normal(in.ctx, in.client); err != nil {
		for _, p := range append(slices.Clone(in.supervisors), in.agents...) {
			for name := range p.running {
				err = fmt.Errorf("%w\n%s %s:\n%s", err, p.m.node, name, p.tail(name))
			}
		}
		in.t.Fatal(err)
	}
}

// roll replaces all supervisors as a StatefulSet does: from the highest number down, each when the one before is ready.
func (in *installation) roll(name, bin string) {
	in.t.Helper()
	for i := len(in.supervisors) - 1; i >= 0; i-- {
		in.supervisors[i].stop()
		in.supervisors[i] = in.supervisor(name, bin, i)
		in.supervisors[i].probe("startupProbe")
		in.supervisors[i].probe("readinessProbe")
	}
}

// surge starts the next pod of a node beside the serving one.
func (in *installation) surge(name, bin string, node int) *pod {
	in.t.Helper()
	p := in.agent(name, bin, node)
	for half := range p.running {
		if err := says(in.ctx, p, half, "this one takes over when it ends"); err != nil {
			in.t.Fatal(err)
		}
	}
	return p
}

// takeOver ends a node's pod as soon as the next one is ready.
func (in *installation) takeOver(node int, next *pod) {
	in.t.Helper()
	next.probe("readinessProbe") // which includes that no neighbour is gone
	old := in.agents[node]
	old.stop()
	in.agents[node] = next
	if node == 0 {
		if log := old.log("dnp"); !strings.Contains(log, "another daemon takes over") || strings.Contains(log, "not announced") {
			in.t.Errorf("the neighbours are not told:\n%s", old.tail("dnp"))
		}
	}
}

// tookOver waits until a node continues under its new pod and stays NORMAL beyond the detection time.
func (in *installation) tookOver(node int, since time.Time) {
	in.t.Helper()
	p := in.agents[node]
	for half := range p.running {
		if err := says(in.ctx, p, half, "continuing from the copy of an earlier process"); err != nil {
			in.t.Fatal(err)
		}
	}
	p.probe("readinessProbe")
	p.probe("livenessProbe")
	if err := heard(in.ctx, in.client, []string{"n0-0-0", "worker-2"}[node], since); err != nil {
		in.t.Fatal(err)
	}
}

// versions reports for each supervisor whether it runs the next version.
func (in *installation) versions() []string {
	in.t.Helper()
	var out []string
	for _, m := range in.machines {
		resp, err := http.Get("http://" + netip.AddrPortFrom(m.ip, 7947).String() + "/metrics")
		if err != nil {
			in.t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			in.t.Fatal(err)
		}
		out = append(out, strconv.FormatBool(strings.Contains(string(b), nextVersion)))
	}
	return out
}

// TestRun: programs run exactly as the chart's pods specify, with their configuration, keys, users and rights, each
// container or pod in its own namespaces. There are three supervisors and two nodes, one with a container for each half, one
// with a container and systemd. All nodes become NORMAL, and an upgrade causes no fault. A broken version reaches one
// node but not its neighbour, and a rollback repairs that node. A complete rollback takes half a minute more and runs
// only on request.
func TestRun(t *testing.T) {
	in := install(t)
	in.begin()
	in.rights()
	in.together()
	check := in.upgrade()
	if os.Getenv(long) != "" {
		check()
		in.back()
		check = func() {}
	}
	bad := in.bad() // its pods wait during the check of the upgrade
	check()
	in.broken(bad)
}

// rights checks the scheduling rights of the halves.
func (in *installation) rights() {
	in.t.Helper()
	may := exec.Command("chrt", "-f", "1", "true").Run() == nil // on this machine
	for _, tc := range []struct {
		p    *pod
		half string
		want bool
	}{{in.agents[0], "host", may}, {in.agents[0], "dnp", may}, {in.agents[1], "host", false}, {in.dnp, "dnp", may && mayLimit()}} {
		if is, err := tc.p.realtime(tc.half); err != nil || is != tc.want {
			in.t.Errorf("the %s half of %s is in real time: %v, %v: want %v", tc.half, tc.p.m.node, is, err, tc.want)
		}
	}
}

// together checks that the halves of a pod run in the pod's own PID namespace.
func (in *installation) together() {
	in.t.Helper()
	var spaces []string
	for _, half := range []string{"host", "dnp"} {
		pid, err := in.agents[0].half(half)
		if err != nil {
			in.t.Fatal(err)
		}
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if err != nil {
			in.t.Fatal(err)
		}
		spaces = append(spaces, space)
	}
	machine, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		in.t.Fatal(err)
	}
	if spaces[0] != spaces[1] || spaces[0] == machine {
		in.t.Errorf("the halves are in PID namespaces %v, and the machine is %s: want both in one of their pod", spaces, machine)
	}
}

// upgrade replaces everything except the half under systemd by the next version, with new keys, as after a step of a
// key rotation: running processes continue with their copies. check verifies that they do.
func (in *installation) upgrade() (check func()) {
	in.t.Helper()
	if _, err := inventory.Open(in.hall).Rotate(inventory.StepAdd, true); err != nil {
		in.t.Fatal(err)
	}
	in.machines[0].chown(filepath.Join(in.hall, "nodes"), unitUser, unitUser)
	dnp, err := in.dnp.half("dnp")
	if err != nil {
		in.t.Fatal(err)
	}
	before, err := in.agents[0].half("host")
	if err != nil {
		in.t.Fatal(err)
	}
	was := authority(in.t, in.agents[0].volumes["etc"])
	was0 := seen(in.t, before)
	fresh := []*pod{in.surge("new", in.next, 0), in.surge("new", in.next, 1)}
	in.roll("new", in.next)
	if got, want := in.versions(), []string{"true", "true", "true"}; !slices.Equal(got, want) {
		in.t.Errorf("supervisors are of the next version: %v: want %v", got, want)
	}
	if is, want := authority(in.t, fresh[0].volumes["etc"]), authority(in.t, filepath.Join(in.hall, "nodes", "n0-0-0")); is != want ||
		was == want {
		in.t.Errorf("authorities before\n%s\nafter\n%s\nwant\n%s", was, is, want)
	}
	in.takeOver(0, fresh[0])
	in.takeOver(1, fresh[1])
	since := time.Now()
	return func() {
		in.t.Helper()
		in.tookOver(0, since)
		in.tookOver(1, since)
		in.normal()
		in.spared("an upgrade")
		after, err := in.agents[0].half("host")
		if err != nil {
			in.t.Fatal(err)
		}
		in.t.Logf("in its own namespace the host half was process %s, and is %s", was0, seen(in.t, after))
		if now, err := in.dnp.half("dnp"); err != nil || now != dnp {
			in.t.Errorf("the half under systemd was process %d and is %d, %v: want it left alone", dnp, now, err)
		}
	}
}

// back replaces everything by the previous version, as a rollback does.
func (in *installation) back() {
	in.t.Helper()
	in.mark()
	before := []*pod{in.surge("back", in.now, 0), in.surge("back", in.now, 1)}
	in.roll("back", in.now)
	if got, want := in.versions(), []string{"false", "false", "false"}; !slices.Equal(got, want) {
		in.t.Errorf("supervisors are of the next version: %v: want %v", got, want)
	}
	in.takeOver(0, before[0])
	in.takeOver(1, before[1])
	since := time.Now()
	in.tookOver(0, since)
	in.tookOver(1, since)
	in.normal()
	in.spared("a rollback")
}

// bad starts the pods of a broken version beside the serving ones, on two nodes at once. So the second one has waited
// long enough when the first one fails.
func (in *installation) bad() []*pod {
	in.t.Helper()
	bin := filepath.Join(filepath.Dir(in.next), "bad")
	for _, name := range []string{"lofamo-agent", "lofamoctl"} {
		copyProgram(in.t, filepath.Join(in.next, name), bin)
	}
	return []*pod{in.surge("bad", bin, 0), in.surge("bad", in.next, 1)}
}

// broken is an upgrade to a version whose halves exit at once.
func (in *installation) broken(bad []*pod) {
	in.t.Helper()
	in.mark()
	first, second := bad[0], bad[1]
	first.probe("readinessProbe")
	// From now on the daemon starts a program other than the one whose readiness was probed.
	program := filepath.Join(first.bin, "lofamo-agent")
	if err := os.Remove(program); err != nil {
		in.t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil { //nolint:gosec // a program
		in.t.Fatal(err)
	}
	in.agents[0].stop()
	in.until("the node is FAILED", func() bool {
		return slices.ContainsFunc(in.failed(), func(e string) bool { return strings.HasPrefix(e, "n0-0-0 ") })
	})
	// The pod of the other node stays, whatever version is due there.
	second.refused("host", "no takeover beside a node that is gone")
	second.stop()
	// The rollback: the previous version finds no running daemon, and no neighbour is gone.
	first.stop()
	in.agents[0] = in.agent("mended", in.next, 0)
	in.normal()
	for _, e := range in.failed() {
		in.t.Log(e)
		if !strings.HasPrefix(e, "n0-0-0 ") && !strings.HasPrefix(e, "worker-2 link/") {
			in.t.Errorf("a fault by a version that does not work, elsewhere: %s", e)
		}
	}
}

// copyProgram copies a program into a directory, which it creates.
func copyProgram(t *testing.T, from, dir string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, filepath.Base(from)), b, 0o755) //nolint:gosec // a program
	}
	if err != nil {
		t.Fatal(err)
	}
}

// authority returns the trusted authorities of a bundle.
func authority(t *testing.T, bundle string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(bundle, "pki", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func viewer(t *testing.T, hall string, targets ...string) *client.Client {
	t.Helper()
	in := func(name string) string { return filepath.Join(hall, "operators", name) }
	conf, err := pki.ClientTLS(in("viewer.pem"), in("viewer.key"), in("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Targets: targets, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// until waits for a condition that is visible from outside.
func (in *installation) until(what string, is func() bool) {
	in.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-in.ctx.Done():
			in.t.Fatalf("not in time: %s", what)
		}
	}
}

// normal waits until all nodes are NORMAL.
func normal(ctx context.Context, c *client.Client) error { return allNormal(ctx, c, 2) }

// allNormal waits until the map has this many nodes, all NORMAL.
func allNormal(ctx context.Context, c *client.Client, count int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{})
		if err == nil && len(resp.GetNodes()) == count && !slices.ContainsFunc(resp.GetNodes(),
			func(n *lofamov1.Node) bool { return n.GetState() != lofamov1.State_NORMAL || n.GetAge() == nil }) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not all NORMAL: %v: %w", resp.GetNodes(), errors.Join(err, ctx.Err()))
		}
	}
}

// says waits until a container's log contains a text.
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

// detection exceeds the time after which a missing node is FAILED: 3.04 s with preset relaxed.
const detection = 3200 * time.Millisecond

// heard waits until the node's last report is well after the upgrade and the node is NORMAL.
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
