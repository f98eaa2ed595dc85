package packagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const root = "../../.."

// bound is the timeout of a step on a busy machine.
const bound = 4 * time.Minute

// need skips the test if a tool is missing, or fails it in CI.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		requirements.Program(t, "see hack/setup-tests", tool)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// analyzer is the program's name.
const analyzer = "systemd-analyze" //nolint:misspell // its name

// exposure is the maximum that its security command may report for each unit, in tenths. The unit explains the
// exceptions.
var exposure = map[string]int{"lofamo-agent": 25, "lofamo-agent@": 27, "lofamo-supervisor": 15, "lofamo-executor": 20}

// TestUnitsStayDownAfterRefusedConfiguration: each unit names the exit codes of its program that a restart does not mend.
func TestUnitsStayDownAfterRefusedConfiguration(t *testing.T) {
	for unit, codes := range map[string]string{"lofamo-agent": fmt.Sprint(half.ExitRefused), "lofamo-agent@": fmt.Sprint(half.ExitRefused),
		"lofamo-supervisor": fmt.Sprint(program.ExitUsage, embedded.ExitDamaged), "lofamo-executor": fmt.Sprint(program.ExitUsage)} {
		b, err := os.ReadFile(filepath.Join(root, "deploy/systemd", unit+".service"))
		if want := fmt.Sprintf("\nRestartPreventExitStatus=%s\n", codes); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s, %v: has no line %q", unit, err, want)
		}
	}
}

// TestSystemdAcceptsUnits: systemd accepts the units without a warning, and they are as restricted as before.
func TestSystemdAcceptsUnits(t *testing.T) {
	need(t, analyzer)
	units, err := filepath.Glob(filepath.Join(root, "deploy/systemd/*.service"))
	if err != nil || len(units) != len(exposure) {
		t.Fatalf("%q, %v: want %d units", units, err, len(exposure))
	}
	// The programs that the units name must exist.
	dir := t.TempDir()
	for _, u := range units {
		b, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(u), ".service")
		if out := output(t, analyzer, "--offline=true", fmt.Sprintf("--threshold=%d", exposure[name]), "security",
			u); !strings.Contains(out, "Overall exposure level") {
			t.Errorf("%s: %s", u, out)
		}
		here := regexp.MustCompile(`/usr/bin/lofamo-\w+`).ReplaceAll(b, []byte("/bin/true"))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(u)), here, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name := range exposure {
		file := name + ".service"
		if strings.HasSuffix(name, "@") {
			file = name + "host.service"
			if err := os.Symlink(name+".service", filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		if out := output(t, analyzer, "--man=no", "verify", filepath.Join(dir, file)); strings.Contains(out, dir) || strings.Contains(out, name) {
			t.Errorf("%s: %s", file, out)
		}
	}
}

// TestUnitsPermitCallsOfAgent: the units' filter permits system calls without which the agent works worse, and says nothing. It starts
// halves traced, makes them real-time, and takes over sockets of the torus links from halves that it adopts.
func TestUnitsPermitCallsOfAgent(t *testing.T) {
	need(t, analyzer)
	for _, unit := range []string{"lofamo-agent", "lofamo-agent@"} {
		b, err := os.ReadFile(filepath.Join(root, "deploy/systemd", unit+".service"))
		_, filter, found := strings.Cut(string(b), "\nSystemCallFilter=")
		filter, _, _ = strings.Cut(filter, "\n")
		if err != nil || !found || strings.Contains(string(b), "\nSystemCallFilter=~") {
			t.Fatalf("%s, %v: want one list of permitted calls", unit, err)
		}
		permitted := calls(t, strings.Fields(filter))
		for _, call := range []string{"ptrace", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "sched_setattr", "prlimit64", "mlock"} {
			if !permitted[call] {
				t.Errorf("%s: the filter %q forbids %s", unit, filter, call)
			}
		}
	}
}

// calls returns the system calls of a filter's words: calls and sets of calls.
func calls(t *testing.T, words []string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if out[word] {
			continue
		}
		out[word] = true
		if strings.HasPrefix(word, "@") {
			for line := range strings.Lines(output(t, analyzer, "--no-pager", "syscall-filter", word)) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					words = append(words, line)
				}
			}
		}
	}
	return out
}

func bin(t *testing.T) string {
	t.Helper()
	return requirements.Set(t, "make build, and set it to bin", cluster.EnvBinDir)
}

// manager installs and removes packages.
type manager struct {
	command func(version string, names ...string) []string // installs these packages over a lower or a higher version
	mend    []string                                       // completes an installation after a failed script; nil: the command is repeated
	remove  func(m *machine, names ...string)
	purge   func(m *machine, names ...string)
	parts   bool     // purge purges the named packages by their scripts, instead of everything by hand
	units   []string // units of the node: on one machine, units run one half each
}

func (h manager) install(m *machine, version string, names ...string) {
	m.t.Helper()
	m.run(h.command(version, names...)...)
}

var managers = map[string]manager{
	// Without triggers, because the index of manual pages belongs to other packages.
	"deb": {
		command: func(version string, names ...string) []string {
			return append([]string{"dpkg", "--no-triggers", "-i"}, files(names, "/packages/%s_"+version+"_"+runtime.GOARCH+".deb")...)
		},
		mend:   []string{"dpkg", "--no-triggers", "--configure", "-a"},
		remove: func(m *machine, names ...string) { m.run(append([]string{"dpkg", "--no-triggers", "-r"}, names...)...) },
		purge:  func(m *machine, names ...string) { m.run(append([]string{"dpkg", "--no-triggers", "-P"}, names...)...) },
		parts:  true,
		units:  []string{"lofamo-agent"},
	},
	// Here rpm is not this machine's own package manager: it does not check dependencies, which must exist as in
	// install's list of tools.
	"rpm": {
		command: func(version string, names ...string) []string {
			arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
			return append([]string{"rpm", "--dbpath", "/var/lib/rpm", "--nodeps", "--replacepkgs", "--oldpackage", "-U"},
				files(names, "/packages/%s-"+version+"-1."+arch+".rpm")...)
		},
		remove: func(m *machine, names ...string) {
			m.run(append([]string{"rpm", "--dbpath", "/var/lib/rpm", "--nodeps", "-e"}, names...)...)
		},
		// According to docs/install.md: rpm knows no purge.
		purge: func(m *machine, _ ...string) {
			m.run("sh", "-c", "rm -r /etc/lofamo /var/lib/lofamo /etc/systemd/system/lofamo-*.service.d")
			m.run("userdel", "lofamo")
			m.run("userdel", "lofamo-executor")
		},
		units: []string{"lofamo-agent@host", "lofamo-agent@dnp"},
	},
}

func files(names []string, format string) []string {
	var out []string
	for _, n := range names {
		out = append(out, fmt.Sprintf(format, n))
	}
	return out
}

// Versions of the packages. The programs of next differ only in their version.
const (
	this = "1.2.3"
	next = "1.2.4"
)

// TestPackagesInstallAndUpgrade installs all packages on a machine booted by systemd. A replica, a node and an executor process get
// their configuration and run as their units say. The next version is installed while they run, and then the first one
// again; daemons are killed, hang, and get a configuration that they refuse. In the end everything is purged: no file remains, and nothing
// was FAILED.
func TestPackagesInstallAndUpgrade(t *testing.T) {
	programs := bin(t)
	// Directories in .tools may contain other versions.
	nfpm := requirements.Set(t, "make packages builds it into .tools/bin, and make test sets it", "LOFAMO_NFPM")
	need(t, "dpkg", "rpm", "useradd", "curl")
	for format, how := range managers {
		t.Run(format, func(t *testing.T) {
			t.Parallel() // each on its own machine; they mostly wait
			m := boot(t)
			build := abs(t, filepath.Join(root, "deploy/packages/build"))
			output(t, build, abs(t, nfpm), programs, filepath.Join(m.root, "packages"), "v"+this, format)
			output(t, build, abs(t, nfpm), successor(t, programs), filepath.Join(m.root, "packages"), "v"+next, format, "lofamo-agent")
			installed(m, how)
		})
	}
}

// successor returns a directory with the programs, whose agent reports another version.
func successor(t *testing.T, programs string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{"lofamo-executor", "lofamoctl", "lofamo-supervisor"} {
		if err := os.Symlink(abs(t, filepath.Join(programs, p)), filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	agent := filepath.Join(programs, "lofamo-agent")
	b, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	old := []byte(strings.Fields(output(t, agent, "version"))[1])
	other := bytes.Clone(old) // same length: the linker has fixed its place
	other[len(other)-1] ^= 1
	if b = bytes.ReplaceAll(b, old, other); len(old) < 5 || !bytes.ContainsAny(old, "0123456789") {
		t.Fatalf("%q may stand for something else too", old)
	}
	if err := os.WriteFile(filepath.Join(dir, "lofamo-agent"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

var all = []string{"lofamo-agent", "lofamo-supervisor", "lofamo-executor", "lofamoctl"}

func installed(m *machine, how manager) {
	t := m.t
	before := m.tree()
	how.install(m, this, all...)
	for _, f := range []string{"/usr/bin/lofamo-agent", "/usr/share/man/man1/lofamo-agent.1.gz",
		"/usr/share/doc/lofamo-agent/agent.yaml", "/usr/share/doc/lofamoctl/prometheus/lofamo-alerts.yaml",
		"/usr/share/lofamo/proto/lofamo/v1/fault_supervisor.proto"} {
		if _, err := os.Stat(filepath.Join(m.root, f)); err != nil {
			t.Errorf("installed: %v", err)
		}
	}
	for _, p := range all {
		documented(t, filepath.Join(m.root, "usr/share/doc", p))
	}
	// Without a bundle the unit's condition does not hold.
	m.run("systemctl", "start", "lofamo-agent", "lofamo-supervisor", "lofamo-executor")
	if out, err := m.try("systemctl", "is-active", "lofamo-agent", "lofamo-supervisor", "lofamo-executor"); err == nil ||
		strings.Contains(out, "\nactive") {
		t.Errorf("a machine without configuration runs %s", out)
	}
	joined(m, how)
	executing(m)
	m.eventually("the node is NORMAL", m.normal, m.why)
	for _, unit := range append([]string{"lofamo-supervisor", "lofamo-executor"}, how.units...) {
		status := m.run("cat", "/proc/"+m.main(unit)+"/status")
		if !strings.Contains(status, "CapBnd:\t0000000000000000") || !strings.Contains(status, "NoNewPrivs:\t1") ||
			!strings.Contains(status, "Seccomp:\t2") || strings.Contains(status, "Uid:\t0") {
			t.Errorf("%s runs with more than its unit gives it:\n%s", unit, status)
		}
	}
	looked(m)
	restored(m)
	upgraded(m, how)
	supervised(m, how)
	refused(m, how)
	events := m.ctl("get", "events", "-o", "wide")
	if !strings.Contains(events, "RECOVERY") && !strings.Contains(events, "recovered") {
		t.Errorf("the upgrade restarted nothing that anybody heard of:\n%s", events)
	}
	if strings.Contains(events, "FAILED") {
		t.Errorf("called FAILED:\n%s", events)
	}
	removed(m, how)
	after := m.tree()
	for _, l := range after {
		if !slices.Contains(before, l) {
			t.Errorf("left behind: %s", l)
		}
	}
	for _, l := range before {
		if !slices.Contains(after, l) {
			t.Errorf("gone with the packages: %s", l)
		}
	}
}

// removed removes and purges the packages. After the removal the operator's files stay, and those that pods of the
// chart use in the same place. After the purge only a user that existed before stays.
func removed(m *machine, how manager) {
	m.run("mkdir", "-p", "/run/lofamo/agent")
	how.remove(m, all...)
	m.has("removed", "/etc/lofamo/pki/host.key", "/run/lofamo/agent")
	if how.parts {
		m.run("sh", "/var/lib/dpkg/info/lofamo-agent.postrm", "purge")
		m.has("purged where pods run", "/etc/lofamo/agent.yaml", "/etc/lofamo/gossip.key", "/etc/lofamo/pki/host.key",
			"/etc/lofamo/pki/dnp.key", "/etc/lofamo/pki/ca.pem", "/run/lofamo/agent")
	}
	m.run("rm", "-r", "/run/lofamo")
	m.run("rm", "-r", "/operator")
	if !how.parts {
		how.purge(m, all...)
		return
	}
	how.purge(m, "lofamo-agent", "lofamo-supervisor")
	m.has("purged beside an executor", "/etc/lofamo/pki/ca.pem")
	how.purge(m, "lofamo-executor", "lofamoctl")
	m.run("useradd", "--system", "--user-group", "lofamo-executor")
	how.install(m, this, "lofamo-executor")
	how.purge(m, "lofamo-executor")
	if _, err := m.try("getent", "passwd", "lofamo-executor"); err != nil {
		m.t.Error("a user who was there before the package is gone with it")
	}
	m.run("userdel", "lofamo-executor")
}

// has reports missing files.
func (m *machine) has(when string, files ...string) {
	for _, f := range files {
		if _, err := m.try("test", "-e", f); err != nil {
			m.t.Errorf("%s: %s is gone", when, f)
		}
	}
}

// restored restores the replica from its own snapshot, by the commands of docs/operations.md.
func restored(m *machine) {
	t := m.t
	if out := m.ctl("supervisor", "snapshot", "/operator/store.db"); !strings.Contains(out, "store.db") {
		t.Errorf("snapshot: %s", out)
	}
	if out := m.run("lofamo-supervisor", "check", "--snapshot", "/operator/store.db"); !strings.Contains(out, "good") {
		t.Errorf("check: %s", out)
	}
	m.run("install", "-m", "0644", "/operator/store.db", "/tmp/store.db")
	m.run("systemctl", "stop", "lofamo-supervisor")
	m.run("mv", "/var/lib/lofamo/supervisor", "/var/lib/lofamo/supervisor.lost")
	m.run("install", "-d", "-m", "0700", "-o", "lofamo", "-g", "lofamo", "/var/lib/lofamo/supervisor")
	m.run("setpriv", "--reuid=lofamo", "--regid=lofamo", "--init-groups", "lofamo-supervisor", "restore", "--snapshot",
		"/tmp/store.db", "--config", "/etc/lofamo/supervisor.yaml")
	m.run("rm", "-r", "/var/lib/lofamo/supervisor.lost", "/tmp/store.db")
	began := time.Now()
	m.run("systemctl", "start", "lofamo-supervisor", "--no-block")
	// In the snapshot the node is NORMAL already, so only newer reports count.
	m.eventually("the restored replica has heard the node", func() bool { return m.heard(began) }, m.why)
}

// heard reports whether the node is NORMAL according to a report after the given time.
func (m *machine) heard(after time.Time) bool {
	now := time.Now()
	var list struct{ Nodes []struct{ State, Age string } }
	if json.Unmarshal([]byte(m.ctl("get", "nodes", "-o", "json")), &list) != nil || len(list.Nodes) != 1 || list.Nodes[0].State != "NORMAL" {
		return false
	}
	age, err := time.ParseDuration(list.Nodes[0].Age)
	return err == nil && now.Add(-age).After(after)
}

func abs(t *testing.T, p string) string {
	t.Helper()
	a, err := filepath.Abs(p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// ctl returns the output of lofamoctl on the machine, even for an error.
func (m *machine) ctl(args ...string) string {
	out, _ := m.try(append([]string{"lofamoctl", "--server", "10.0.0.101:7946", "--ca", "/operator/operators/ca.pem", "--cert",
		"/operator/operators/operator.pem", "--key", "/operator/operators/operator.key"}, args...)...)
	return out
}

// one is a cluster of one node and one replica. Relaxed: on a busy machine the start of a process can take longer than
// the default periods allow.
const one = `cluster: one
dims: 1x1x1
preset: relaxed
supervisors: [{id: s1, address: 10.0.0.101}]
nodes: [{coord: "0,0,0", service: 10.0.0.1}]
`

// settings are the node's settings: each restart of a half waits for its self-test.
const settings = "selfTest: {interval: 500ms}\n"

// joined gives the machine the bundles of a replica and of a node.
func joined(m *machine, how manager) {
	if err := os.WriteFile(filepath.Join(m.root, "packages/one.yaml"), []byte(one), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.run("env", "XDG_CONFIG_HOME=/operator", "lofamoctl", "cluster", "init", "/packages/one.yaml", "--out", "/operator")
	m.run("mkdir", "/operator/settings")
	if err := os.WriteFile(filepath.Join(m.root, "operator/settings/agent.yaml"), []byte(settings), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.run("lofamoctl", "cluster", "add-node", "/packages/one.yaml", "--out", "/operator")
	m.run("lofamoctl", "cluster", "join", "--check", "/operator/supervisors/s1")
	m.run("lofamoctl", "cluster", "join", "/operator/supervisors/s1", "--enable")
	if len(how.units) == 1 {
		m.run("lofamoctl", "cluster", "join", "/operator/nodes/n0-0-0", "--enable")
	} else {
		m.run("lofamoctl", "cluster", "join", "/operator/nodes/n0-0-0")
		m.run(append([]string{"systemctl", "enable", "--now"}, how.units...)...)
	}
	if out := m.run("stat", "-c", "%U %a", "/etc/lofamo/pki/host.key", "/etc/lofamo/gossip.key"); out != "lofamo 600\nlofamo 600\n" {
		m.t.Errorf("keys are %s", out)
	}
}
