package packagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/pdeathsig"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// boots turns a copy of this machine's root into a machine that systemd boots as its first process. It has its own
// processes, mounts, cgroups, IPC, name and network. The network has only the loopback interface and the two addresses
// of the tests' inventory. Of this machine's own units it keeps only targets, slices and the journal.
const boots = `set -e
root=$1
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
ip link set lo up
ip address add 10.0.0.1/32 dev lo
ip address add 10.0.0.101/32 dev lo
units=$root/usr/lib/systemd/system
cp -r "$units" "$root/tmp/units"
rm -rf "$units" "$root"/usr/lib/systemd/system-generators "$root"/etc/systemd/system
mkdir "$units" "$root/etc/systemd/system"
cp "$root"/tmp/units/*.target "$root"/tmp/units/*.slice "$root"/tmp/units/systemd-journald.service \
  "$root"/tmp/units/systemd-journald.socket "$root"/tmp/units/systemd-journald-dev-log.socket "$units/"
mkdir "$units/sockets.target.wants"
ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket "$units/sockets.target.wants/"
printf '[Service]\nType=oneshot\nExecStart=/bin/true\nProtectSystem=yes\nPrivateTmp=yes\n' >"$units/first.service"
rm -r "$root/tmp/units"
cd "$root"
mkdir old
pivot_root . old
export container=lofamo
exec chroot . /bin/sh -c 'umount -l /old && rmdir /old && exec /usr/lib/systemd/systemd --system --unit=basic.target --show-status=0'
`

// machine is a booted machine.
type machine struct {
	t     *testing.T
	root  string // seen from outside, without the machine's own mounts
	upper string // upper directory of its root, with the written files
	pid   int    // its first process
}

// boot boots a machine. It skips the test if that is not possible here.
func boot(t *testing.T) *machine {
	t.Helper()
	need(t, "unshare", "nsenter", "ip", "/usr/lib/systemd/systemd", "systemctl", "ps", "pgrep", "setpriv")
	if os.Geteuid() != 0 {
		requirements.Missing(t, "not root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		requirements.Missing(t, "no file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	m := &machine{t: t, root: filepath.Join(dir, "root"), upper: filepath.Join(dir, "upper")}
	for _, d := range []string{m.root, m.upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mount("overlay", m.root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s/work", m.upper, dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(m.root, syscall.MNT_DETACH) })
	cgroup := newCgroup(t)
	var log bytes.Buffer
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc", "--net", "sh", "-c",
		boots, "sh", m.root) //nolint:noctx // who cleans up ends it
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if err := pdeathsig.Start(cmd, syscall.SIGKILL); err != nil { // the machine ends with it, including all its mounts
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	first := func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err == nil {
			m.pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err == nil && m.pid > 0
	}
	m.eventually("systemd is booted", func() bool {
		if !first() {
			return false
		}
		out, _ := m.try("systemctl", "is-system-running")
		return out == "running\n"
	}, log.String)
	m.run("systemctl", "start", "first") // creates the files that systemd keeps after its first service
	return m
}

// newCgroup creates a cgroup of the unified hierarchy, which becomes the root of the machine's own.
func newCgroup(t *testing.T) *os.File {
	t.Helper()
	base := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(base, "cgroup.procs")); err != nil {
		base = filepath.Join(base, "unified") // beside those of version 1
	}
	dir, err := os.MkdirTemp(base, "lofamo-test-")
	if err != nil {
		requirements.Missing(t, "no cgroup of its own: %v", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.Close()
		// The kernel ends its processes after their parent; a cgroup with processes cannot be removed.
		for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
			err := removeCgroup(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("the machine's cgroups stay: %v", err)
				return
			}
		}
	})
	return f
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// try runs a command on the machine.
func (m *machine) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), bound)
	defer cancel()
	in := []string{"-t", strconv.Itoa(m.pid), "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(in, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	began := time.Now()
	out, err := m.try(args...)
	if took := time.Since(began); took > time.Second {
		m.t.Logf("%q took %.1f s", args, took.Seconds())
	}
	if err != nil {
		journal, _ := m.try("journalctl", "--no-pager", "-n", "60")
		m.t.Fatalf("%q: %v\n%s\n%s", args, err, out, journal)
	}
	return out
}

// eventually waits for a condition. On a timeout it reports why.
func (m *machine) eventually(what string, holds func() bool, why func() string) {
	m.t.Helper()
	began := time.Now()
	defer func() { m.t.Logf("%s: after %.1f s", what, time.Since(began).Seconds()) }()
	for end := began.Add(bound); !holds(); time.Sleep(50 * time.Millisecond) { // each check starts a program
		if time.Now().After(end) {
			m.t.Fatalf("not within %s: %s\n%s", bound, what, why())
		}
	}
}

// records are the databases of package managers, and caches: they mention removed packages.
var records = []string{"/var/lib/dpkg", "/var/lib/rpm", "/var/log/dpkg.log", "/var/log/alternatives", "/var/cache", "/var/log/journal",
	"/var/lib/systemd", "/packages", "/root/.gnupg"}

// users are the files that name users and groups.
var users = []string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}

// tree returns everything that a removal may leave behind: written files, the contents of /run, /tmp and /dev/shm,
// cgroups, processes, links to units, users and groups.
func (m *machine) tree() []string {
	m.t.Helper()
	var out []string
	err := filepath.WalkDir(m.upper, func(p string, e fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(p, m.upper)
		if slices.ContainsFunc(records, func(r string) bool { return strings.HasPrefix(rel, r) }) {
			if e != nil && e.IsDir() {
				return fs.SkipDir // its contents change during the walk
			}
			return nil
		}
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeCharDevice != 0 {
			out = append(out, rel+" is deleted") // overlayfs: an existing file was deleted
			return nil
		}
		// Changed files are here too. /etc/passwd and similar files are compared below, and useradd makes its own
		// copies of those.
		if _, err := os.Lstat(rel); err != nil || strings.Contains(rel, "lofamo") {
			out = append(out, rel)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	for l := range strings.SplitSeq(m.run("find", "/run", "/tmp", "/dev/shm", "/sys/fs/cgroup", "-ignore_readdir_race", "-path",
		"/run/log/journal", "-prune", "-o", "-path", "/run/systemd/units", "-prune", "-o", "-name", "show-status", "-o",
		"(", "-type", "d", "-o", "-not", "-path", "/sys/*", ")", "-print"), "\n") {
		out = append(out, strings.TrimSpace(l))
	}
	for _, f := range users {
		b, err := os.ReadFile(filepath.Join(m.root, f))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.t.Fatal(err)
		}
		for l := range strings.Lines(string(b)) {
			out = append(out, f+" has "+strings.TrimSpace(l))
		}
	}
	for l := range strings.SplitSeq(m.run("ps", "-eo", "comm="), "\n") {
		if strings.Contains(l, "lofamo") {
			out = append(out, "process "+l)
		}
	}
	for l := range strings.SplitSeq(m.run("systemctl", "list-units", "--all", "--plain", "--no-legend"), "\n") {
		if strings.Contains(l, "lofamo") {
			out = append(out, "unit "+l)
		}
	}
	return out
}
