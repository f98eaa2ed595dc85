package deaths

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// Bounds of the ring's size. From three nodes on, every node has two neighbours.
const (
	LeastNodes = 3
	MostNodes  = 12
)

// preset has periods that emulated kernels keep.
const preset = config.PresetRelaxed

// watchdogTimeout is the time after which an unfed watchdog resets a machine.
const watchdogTimeout = 15 * time.Second

// ring is the cluster: machines of nodes, and one of the supervisor.
type ring struct {
	nodes      []*guest
	supervisor *guest
	client     *client.Client
	reports    *reports
}

func nodeID(i int) string  { return fmt.Sprintf("n%d-0-0", i) }
func address(i int) string { return fmt.Sprintf("10.7.0.%d", i+1) }

func (r *ring) machines() []*guest { return append(slices.Clone(r.nodes), r.supervisor) }

// inventory describes the cluster for lofamoctl.
func inventory(nodes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster: vm\ndims: %dx1x1\npreset: %s\nsupervisors:\n- {id: s1, address: 10.7.0.100}\nnodes:\n", nodes, preset)
	for i := range nodes {
		fmt.Fprintf(&b, "- {coord: \"%d,0,0\", service: %s}\n", i, address(i))
	}
	return b.String()
}

// nodeStart is the start script of a node's machine. It runs each line of its input as a command. Each node sends its kernel's words to the
// next node of the ring.
func nodeStart(i, nodes int) string {
	next := (i + 1) % nodes
	return fmt.Sprintf(`net %s/24; keep; modprobe i6300esb
modprobe netconsole netconsole=@%s/eth0,6666@%s/%s
echo 7 >/proc/sys/kernel/printk; echo 1 >/proc/sys/kernel/panic; echo 1 >/proc/sys/kernel/panic_on_oops
echo 1 >/proc/sys/kernel/unknown_nmi_panic
mkdir -p /etc /var/lib /m/state; ln -s /m/lofamo /etc/lofamo; ln -s /m/state /var/lib/lofamo
stty -F /dev/ttyS1 raw -echo
start() { lofamo-agent run --config /etc/lofamo/agent.yaml >/dev/ttyS1 2>&1 & agent=$!; say agent started; }
down() { touch /run/nologin; kill $agent; wait $agent; sync; umount /m; $1 -f; }
start
while read -r line; do eval "$line"; done
`, address(i), address(i), address(next), hardware(next))
}

// hardware is the address of a node's network card.
func hardware(i int) string { return fmt.Sprintf("52:54:00:00:07:%02d", i+1) }

// supervisorStart is the start script of the supervisor's machine. Its second network card leads to this machine.
const supervisorStart = `net 10.7.0.100/24
ip addr add 10.9.0.15/24 dev eth1; ip link set eth1 up
mkdir -p /etc /var/lib /m/state; ln -s /m/lofamo /etc/lofamo; ln -s /m/state /var/lib/lofamo
stty -F /dev/ttyS1 raw -echo
lofamo-supervisor run --config /etc/lofamo/supervisor.yaml >/dev/ttyS1 2>&1 &
say supervisor started
while read -r line; do eval "$line"; done
`

// newRing makes the disks of all machines and starts them.
func newRing(ctx context.Context, o Options) (_ *ring, err error) {
	work := filepath.Join(o.Dir, "disks")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.WriteFile(filepath.Join(work, "inventory.yaml"), []byte(inventory(o.Nodes)), 0o600); err != nil {
		return nil, err
	}
	cluster := filepath.Join(o.Dir, "cluster")
	if err := command(ctx, work, filepath.Join(o.Bin, "lofamoctl"), "cluster", "init", "inventory.yaml", "--out", cluster); err != nil {
		return nil, err
	}
	at, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	r := &ring{nodes: make([]*guest, o.Nodes), reports: newReports(o.Dir, o.Nodes)}
	network := 20000 + rand.N(9000)
	for i := range o.Nodes {
		disk := fmt.Sprintf("n%d", i)
		extra := fmt.Sprintf("hardwareWatchdog: {device: /dev/watchdog0, timeout: %s}\nnetconsole: {listen: \"%s:6666\"}\n", watchdogTimeout,
			address(i))
		err := makeDisk(ctx, o, disk, filepath.Join(cluster, "nodes", nodeID(i)), "agent.yaml", extra, nodeStart(i, o.Nodes), "lofamo-agent")
		if err != nil {
			return nil, err
		}
		r.nodes[i] = newMachine(o, disk, network, hardware(i), "-device", "i6300esb", "-watchdog-action", "reset")
		r.nodes[i].agent = func(line []byte) { r.reports.agent(i, line) }
	}
	if err := makeDisk(ctx, o, "s1", filepath.Join(cluster, "supervisors", "s1"), "supervisor.yaml", "", supervisorStart,
		"lofamo-supervisor"); err != nil {
		return nil, err
	}
	r.supervisor = newMachine(o, "s1", network, "52:54:00:00:07:00", "-netdev",
		fmt.Sprintf("user,id=out,net=10.9.0.0/24,restrict=on,hostfwd=tcp:%s:%d-10.7.0.100:7946", at.Addr(), at.Port()),
		"-device", "virtio-net-pci,netdev=out")
	r.supervisor.agent = r.reports.supervisor
	operators := filepath.Join(cluster, "operators")
	tls, err := client.TLSFiles{CA: filepath.Join(operators, "ca.pem"), Cert: filepath.Join(operators, "viewer.pem"),
		Key: filepath.Join(operators, "viewer.key")}.Config()
	if err != nil {
		return nil, err
	}
	if r.client, err = client.New(client.Config{Targets: []string{netip.AddrPortFrom(at.Addr(), at.Port()).String()}, TLS: tls,
		TryTimeout: 10 * time.Second}); err != nil {
		return nil, err
	}
	for _, m := range r.machines() {
		if err := m.start(ctx); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

// newMachine describes a machine with this disk.
func newMachine(o Options, name string, network int, mac string, args ...string) *guest {
	return &guest{name: name, dir: o.Dir, limit: o.Limit, command: append([]string{filepath.Join(o.Kit, "machine"), o.Image,
		filepath.Join(o.Dir, name+".img"), fmt.Sprint(network), mac}, args...)}
}

// makeDisk makes a disk with a configuration, whose log becomes detailed, a start script and programs.
func makeDisk(ctx context.Context, o Options, name, of, file, extra, start string, programs ...string) error {
	root := filepath.Join(o.Dir, "disks", name)
	if err := os.CopyFS(filepath.Join(root, "lofamo"), os.DirFS(of)); err != nil {
		return err
	}
	path := filepath.Join(root, "lofamo", file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	detailed := bytes.Replace(text, []byte("log:\n  format: text\n  level: info\n"), []byte("log:\n  format: json\n  level: debug\n"), 1)
	if bytes.Equal(detailed, text) {
		return fmt.Errorf("%s has no log section as expected", path)
	}
	for _, program := range programs {
		if err := os.MkdirAll(filepath.Join(root, "bin"), 0o700); err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(o.Bin, program))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "bin", program), b, 0o700) //nolint:gosec // a program
		}
		if err != nil {
			return err
		}
	}
	disk := filepath.Join(o.Dir, name+".img")
	for path, text := range map[string]string{path: string(detailed) + extra, filepath.Join(root, "start"): start, disk: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := os.Truncate(disk, 512<<20); err != nil {
		return err
	}
	return command(ctx, root, "mke2fs", "-q", "-F", "-t", "ext4", "-d", root, disk)
}

// command runs a program in a folder, which is its home as well.
func command(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// close ends all machines.
func (r *ring) close() {
	for _, m := range r.machines() {
		if m != nil {
			m.cut()
		}
	}
	if r.client != nil {
		_ = r.client.Close()
	}
}

// time returns the sum of the machines' running times.
func (r *ring) time() (t time.Duration) {
	for _, m := range r.machines() {
		t += m.time()
	}
	return t
}
