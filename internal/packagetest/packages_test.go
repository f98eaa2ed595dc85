package packagetest

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

// bound is how long a step may take on a busy machine.
const bound = time.Minute

// need skips where a tool is missing, and fails in CI.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("no %s: %v", tool, err)
			}
			t.Skipf("SKIPPED: no %s", tool)
		}
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

// analyzer is the tool.
const analyzer = "systemd-analyze" //nolint:misspell // its name

// exposure is what its security command may say of each unit, in tenths: what is left open is explained in the unit.
var exposure = map[string]int{"lofamo-agent": 25, "lofamo-agent@": 27, "lofamo-supervisor": 15, "lofamo-executor": 20}

// Units are what systemd takes without a word, and as tight as they were.
func TestUnits(t *testing.T) {
	need(t, analyzer)
	units, err := filepath.Glob(filepath.Join(root, "deploy/systemd/*.service"))
	if err != nil || len(units) != len(exposure) {
		t.Fatalf("%q, %v: want %d units", units, err, len(exposure))
	}
	// The programs that they name have to be there.
	dir := t.TempDir()
	for _, u := range units {
		b, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(u), ".service")
		if out := output(t, analyzer, "--offline=true", fmt.Sprintf("--threshold=%d", exposure[name]), "security", u); !strings.Contains(out, "Overall exposure level") {
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

// machine is a copy of this machine's root: what is written is in upper alone.
type machine struct {
	t     *testing.T
	root  string
	upper string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("not root")
		}
		t.Skip("SKIPPED: not root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Skipf("SKIPPED: no file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	m := &machine{t, filepath.Join(dir, "root"), filepath.Join(dir, "upper")}
	for _, d := range []string{m.root, m.upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mount("overlay", m.root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s/work", m.upper, dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(m.root, syscall.MNT_DETACH) })
	for _, d := range []string{"proc", "sys", "dev"} {
		if err := syscall.Mount("/"+d, filepath.Join(m.root, d), "", syscall.MS_BIND|syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(m.root, d), syscall.MNT_DETACH) })
	}
	return m
}

// command is one on the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(m.t.Context()), args[0], args[1:]...) // who cleans up ends it: the halves of a daemon that is killed live on
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// ours lists what is on the machine and not on this one, but for dpkg's own records and caches.
func (m *machine) ours() []string {
	m.t.Helper()
	var out []string
	err := filepath.WalkDir(m.upper, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, m.upper)
		if e.Type()&fs.ModeCharDevice != 0 { // overlayfs: it was there, and is deleted
			return nil
		}
		if strings.HasPrefix(rel, "/var/lib/dpkg") || strings.HasPrefix(rel, "/var/log/dpkg.log") || strings.HasPrefix(rel, "/var/cache") || strings.HasPrefix(rel, "/var/log/alternatives") {
			return nil
		}
		if _, err := os.Lstat(rel); rel == "" || err == nil && !strings.Contains(rel, "lofamo") {
			return nil // it is here too, though perhaps changed: looked at below
		}
		out = append(out, rel)
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// unit is what a service's process gets of its unit file.
func (m *machine) unit(name string) map[string]string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.root, "/usr/lib/systemd/system", name))
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[string]string{}
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(l), "="); ok && !strings.HasPrefix(k, "#") {
			out[k] = v
		}
	}
	return out
}

// service starts what a unit says as whom it says, without any capability and with its limits: what systemd does beyond that hides files that it does not use.
func (m *machine) service(name string) *exec.Cmd {
	m.t.Helper()
	u := m.unit(name)
	if u["CapabilityBoundingSet"] != "" || u["NoNewPrivileges"] != "yes" || u["User"] == "" {
		m.t.Fatalf("unit %s: %v", name, u)
	}
	state := "/var/lib/" + u["StateDirectory"]
	m.run("install", "-d", "-m", u["StateDirectoryMode"], "-o", u["User"], "-g", u["Group"], state)
	// The limits first: whom the unit names may not raise them.
	args := []string{"prlimit"}
	for limit, flag := range map[string]string{"LimitNOFILE": "--nofile=", "LimitRTPRIO": "--rtprio=", "LimitMEMLOCK": "--memlock="} {
		if v := u[limit]; v != "" {
			arg := flag + strings.Replace(v, "64K", "65536", 1)
			if err := m.command("/usr/bin/prlimit", arg, "--", "/bin/true").Run(); err != nil {
				m.t.Logf("this machine does not let even root have %s=%s", limit, v)
				continue
			}
			args = append(args, arg)
		}
	}
	args = append(args, "--", "setpriv", "--reuid", u["User"], "--regid", u["Group"], "--init-groups", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--reset-env", "--")
	cmd := m.command(append(args, strings.Fields(u["ExecStart"])...)...)
	return cmd
}

func bin(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LOFAMO_BIN_DIR")
	if dir == "" {
		t.Skip("SKIPPED: LOFAMO_BIN_DIR is not set: make build, and set it to bin")
	}
	return dir
}

// A node's package is installed, gets its bundle, runs under its unit's settings, is installed again over that and purged: nothing is left.
func TestPackage(t *testing.T) {
	programs := bin(t)
	nfpm, err := filepath.Glob(filepath.Join(root, ".tools/bin/nfpm-*")) // one of each version that was ever wanted
	if err != nil || len(nfpm) == 0 {
		if os.Getenv("CI") != "" {
			t.Fatalf("no nfpm in .tools: %q, %v", nfpm, err)
		}
		t.Skip("SKIPPED: no nfpm in .tools: make packages builds it")
	}
	need(t, "dpkg", "setpriv", "prlimit", "useradd")
	m := newMachine(t)
	packages := filepath.Join(filepath.Dir(m.root), "packages")
	output(t, filepath.Join(root, "deploy/packages/build"), abs(t, nfpm[len(nfpm)-1]), programs, packages, "v1.2.3", "deb", "lofamo-agent")
	if err := os.Rename(packages, filepath.Join(m.root, "packages")); err != nil {
		output(t, "cp", "-r", packages, filepath.Join(m.root, "packages"))
	}
	before, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	deb := "/packages/lofamo-agent_1.2.3_" + runtime.GOARCH + ".deb"
	m.run("dpkg", "-i", deb)
	for _, f := range []string{"/usr/bin/lofamo-agent", "/usr/share/man/man1/lofamo-agent.1.gz", "/usr/share/doc/lofamo-agent/agent.yaml"} {
		if _, err := os.Stat(filepath.Join(m.root, f)); err != nil {
			t.Errorf("installed: %v", err)
		}
	}
	// Before it has its bundle the unit's condition does not hold.
	if _, err := os.Stat(filepath.Join(m.root, m.unit("lofamo-agent.service")["ConditionPathExists"])); err == nil {
		t.Error("the package brings a configuration that is half of one")
	}
	join(t, m, programs)

	p := m.service("lofamo-agent.service")
	var log bytes.Buffer
	p.Stderr, p.Stdout = &log, &log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	})
	eventually(t, &log, "both halves serve", func() bool {
		return m.command("/usr/bin/lofamo-agent", "status", "--config", "/etc/lofamo/agent.yaml", "--live", "--ready").Run() == nil
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil || !strings.Contains(string(status), "CapBnd:\t0000000000000000") || !strings.Contains(string(status), "NoNewPrivs:\t1") || strings.Contains(string(status), "Uid:\t0") {
		t.Errorf("the daemon runs with more than its unit gives it: %v\n%s", err, status)
	}
	// Installed over what runs: the configuration stays, and the halves become processes of what is installed now.
	conf, err := os.ReadFile(filepath.Join(m.root, "/etc/lofamo/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m.run("dpkg", "-i", deb)
	if now, err := os.ReadFile(filepath.Join(m.root, "/etc/lofamo/agent.yaml")); err != nil || !bytes.Equal(conf, now) {
		t.Errorf("the upgrade changed the configuration: %v", err)
	}
	if out := m.run("/usr/bin/lofamo-agent", "restart", "--config", "/etc/lofamo/agent.yaml"); strings.Count(out, "has passed its self-test") != 2 {
		t.Errorf("restart: %s", out)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the daemon ends with %v\n%s", err, log.String())
	}
	// Removed, it keeps what is the operator's; purged, it keeps nothing.
	m.run("dpkg", "-r", "lofamo-agent")
	if _, err := os.Stat(filepath.Join(m.root, "/etc/lofamo/pki/host.key")); err != nil {
		t.Errorf("removed, and the keys are gone: %v", err)
	}
	m.run("dpkg", "-P", "lofamo-agent")
	left := slices.DeleteFunc(m.ours(), func(p string) bool { return strings.HasPrefix(p, "/packages") || strings.HasPrefix(p, "/tmp") })
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if after, err := os.ReadFile(filepath.Join(m.root, "/etc/passwd")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("users are left behind: %v\n%s", err, after)
	}
}

func abs(t *testing.T, p string) string {
	t.Helper()
	a, err := filepath.Abs(p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// join gives the machine the bundle of the example's first node, on addresses that every machine has.
func join(t *testing.T, m *machine, programs string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "deploy/examples/inventory.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(m.root), "operator")
	inv := filepath.Join(filepath.Dir(m.root), "inventory.yaml")
	if err := os.WriteFile(inv, bytes.ReplaceAll(b, []byte("10.0.0."), []byte("127.7.0.")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctl := filepath.Join(programs, "lofamoctl")
	output(t, ctl, "cluster", "init", inv, "--out", dir)
	output(t, "cp", "-r", filepath.Join(dir, "nodes/n0-0-0"), ctl, filepath.Join(m.root, "packages"))
	m.run("/packages/lofamoctl", "cluster", "join", "/packages/n0-0-0")
	if out := m.run("stat", "-c", "%U %a", "/etc/lofamo/pki/host.key", "/etc/lofamo/gossip.key"); out != "lofamo 600\nlofamo 600\n" {
		t.Errorf("keys are %s", out)
	}
}

func eventually(t *testing.T, log fmt.Stringer, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !holds(); time.Sleep(100 * time.Millisecond) { // each look starts a program
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s\n%s", bound, what, log)
		}
	}
}
