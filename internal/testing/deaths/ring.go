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

	"sigs.k8s.io/yaml"

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
	nodes      []*guest // the hosts, if the nodes have two kernels
	cards      []*guest // of the nodes, with their DNP halves and links; nil: the nodes have one kernel
	supervisor *guest
	server     netip.AddrPort // of the supervisor, on this machine
	client     *client.Client
	reports    *reports
}

func nodeID(i int) string  { return fmt.Sprintf("n%d-0-0", i) }
func address(i int) string { return fmt.Sprintf("10.7.0.%d", i+1) }

// cardAddress is the address of a card in the network of the torus links.
func cardAddress(i int) string { return fmt.Sprintf("10.8.0.%d", i+1) }

func (r *ring) machines() []*guest { return append(slices.Concat(r.nodes, r.cards), r.supervisor) }

// of returns the machines of a node: its host and, with two kernels, its card.
func (r *ring) of(node int, which on) (out []*guest) {
	if which != onCard {
		out = append(out, r.nodes[node])
	}
	if which != onHost && r.cards != nil {
		out = append(out, r.cards[node])
	}
	return out
}

// describe writes the inventory of the cluster for lofamoctl.
func describe(nodes int, cards bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster: vm\ndims: %dx1x1\npreset: %s\nsupervisors:\n- {id: s1, address: 10.7.0.100}\nnodes:\n", nodes, preset)
	for i := range nodes {
		links := ""
		if cards {
			links = fmt.Sprintf(", links: {X+: {address: %s}, X-: {address: %[1]s}}", cardAddress(i))
		}
		fmt.Fprintf(&b, "- {coord: \"%d,0,0\", service: %s%s}\n", i, address(i), links)
	}
	return b.String()
}

// agentStart is the end of a start script of a machine with an agent. The script runs each line of its input as a command.
const agentStart = `echo 7 >/proc/sys/kernel/printk; echo 1 >/proc/sys/kernel/panic; echo 1 >/proc/sys/kernel/panic_on_oops
echo 1 >/proc/sys/kernel/unknown_nmi_panic
mkdir -p /etc /var/lib /m/state; ln -s /m/lofamo /etc/lofamo; ln -s /m/state /var/lib/lofamo
stty -F /dev/ttyS1 raw -echo
start() { lofamo-agent run --config /etc/lofamo/agent.yaml $half >/dev/ttyS1 2>&1 & agent=$!; say agent started; }
down() { touch /run/nologin; kill $agent; wait $agent; sync; umount /m; $1 -f; }
start
while read -r line; do eval "$line"; done
`

// nodeStart is the start script of a node's machine, or of its host. Each node sends its kernel's words to the next node of the ring.
func nodeStart(i, nodes int, cards bool) string {
	own := "modprobe i6300esb"
	if cards {
		own = windowStart(hostHalf)
	}
	next := (i + 1) % nodes
	return fmt.Sprintf("net %s/24; keep; %s\nmodprobe netconsole netconsole=@%s/eth0,6666@%s/%s\n", address(i), own, address(i), address(next),
		hardware(next)) + agentStart
}

// cardStart is the start script of a node's card.
func cardStart(i int) string {
	return fmt.Sprintf("net %s/24; %s\n", cardAddress(i), windowStart(dnpHalf)) + agentStart
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
	work, cluster := filepath.Join(o.Dir, "disks"), filepath.Join(o.Dir, "cluster")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.WriteFile(filepath.Join(work, "inventory.yaml"), []byte(describe(o.Nodes, o.Cards)), 0o600); err != nil {
		return nil, err
	}
	if err := command(ctx, work, filepath.Join(o.Bin, "lofamoctl"), "cluster", "init", "inventory.yaml", "--out", cluster); err != nil {
		return nil, err
	}
	r := &ring{}
	at := freeport.IP()
	if o.local {
		at = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if r.server, err = freeport.FindAt(at); err != nil {
		return nil, err
	}
	network := 20000 + rand.N(9000)
	for i := range o.Nodes {
		if err := r.addNode(ctx, o, i, network); err != nil {
			return nil, err
		}
	}
	if err := makeDisk(ctx, o, disk{name: "s1", from: filepath.Join(cluster, "supervisors", "s1"), file: "supervisor.yaml",
		start: supervisorStart, program: "lofamo-supervisor"}); err != nil {
		return nil, err
	}
	r.supervisor = newMachine(o, "s1", network, "52:54:00:00:07:00", "-netdev",
		fmt.Sprintf("user,id=out,net=10.9.0.0/24,restrict=on,hostfwd=tcp:%s:%d-10.7.0.100:7946", r.server.Addr(), r.server.Port()),
		"-device", "virtio-net-pci,netdev=out")
	r.report(o.Dir)
	tls, err := r.operator(o, "viewer").Config()
	if err != nil {
		return nil, err
	}
	if r.client, err = client.New(client.Config{Targets: []string{r.server.String()}, TLS: tls, TryTimeout: 10 * time.Second}); err != nil {
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

// addNode makes the machines of a node.
func (r *ring) addNode(ctx context.Context, o Options, i, network int) error {
	host := disk{name: fmt.Sprintf("n%d", i), from: filepath.Join(o.Dir, "cluster", "nodes", nodeID(i)), file: "agent.yaml",
		start: nodeStart(i, o.Nodes, o.Cards), program: "lofamo-agent", change: func(root string, cfg map[string]any) error {
			netconsole := map[string]any{"listen": address(i) + ":6666"}
			cfg["netconsole"] = netconsole
			if !o.Cards {
				cfg["hardwareWatchdog"] = map[string]any{"device": "/dev/watchdog0", "timeout": watchdogTimeout.String()}
				return nil
			}
			before := (i + o.Nodes - 1) % o.Nodes // the links lead to cards, so the host is not a known sender
			netconsole["senders"] = map[string]any{address(before): nodeID(before)}
			return divide(root, cfg, hostHalf)
		}}
	if err := makeDisk(ctx, o, host); err != nil {
		return err
	}
	devices := []string{"-device", "i6300esb", "-watchdog-action", "reset"}
	if o.Cards {
		devices = windowDevice(network, i, hostHalf)
		card := host
		card.name, card.start = fmt.Sprintf("c%d", i), cardStart(i)
		card.change = func(root string, cfg map[string]any) error { return divide(root, cfg, dnpHalf) }
		if err := makeDisk(ctx, o, card); err != nil {
			return err
		}
		r.cards = append(r.cards, newMachine(o, card.name, torusNetwork(network), fmt.Sprintf("52:54:00:00:08:%02d", i+1),
			windowDevice(network, i, dnpHalf)...))
	}
	r.nodes = append(r.nodes, newMachine(o, host.name, network, hardware(i), devices...))
	return nil
}

// report collects the reports of all machines from their logs.
func (r *ring) report(dir string) {
	var names []string
	agents := slices.Concat(r.nodes, r.cards)
	for _, m := range agents {
		names = append(names, m.name)
	}
	r.reports = newReports(dir, names...)
	for _, m := range agents {
		m.agent = func(line []byte) { r.reports.agent(m.name, line) }
	}
	r.supervisor.agent = r.reports.supervisor
}

// operator returns the files of a person's certificate for the cluster.
func (r *ring) operator(o Options, role string) client.TLSFiles {
	dir := filepath.Join(o.Dir, "cluster", "operators")
	return client.TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, role+".pem"), Key: filepath.Join(dir, role+".key")}
}

// newMachine describes a machine with this disk.
func newMachine(o Options, name string, network int, mac string, args ...string) *guest {
	return &guest{name: name, dir: o.Dir, limit: o.Limit, command: append([]string{filepath.Join(o.Kit, "machine"), o.Image,
		filepath.Join(o.Dir, name+".img"), fmt.Sprint(network), mac}, args...)}
}

// disk describes the disk of a machine.
type disk struct {
	name, start, program string
	from, file           string // folder of the configuration, and its file
	// change changes the configuration, and its folder; nil: not at all.
	change func(root string, cfg map[string]any) error
}

// makeDisk makes a disk with a configuration, whose log becomes detailed, a start script and a program.
func makeDisk(ctx context.Context, o Options, d disk) error {
	root := filepath.Join(o.Dir, "disks", d.name)
	etc := filepath.Join(root, "lofamo")
	if err := errors.Join(os.CopyFS(etc, os.DirFS(d.from)), os.MkdirAll(filepath.Join(root, "bin"), 0o700)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(etc, d.file))
	if err != nil {
		return err
	}
	var cfg map[string]any
	if err := yaml.Unmarshal(text, &cfg); err != nil {
		return err
	}
	cfg["log"] = map[string]any{"format": "json", "level": "debug"}
	if d.change != nil {
		if err := d.change(etc, cfg); err != nil {
			return err
		}
	}
	if text, err = yaml.Marshal(cfg); err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(o.Bin, d.program))
	if err != nil {
		return err
	}
	image := filepath.Join(o.Dir, d.name+".img")
	for path, text := range map[string][]byte{filepath.Join(etc, d.file): text, filepath.Join(root, "start"): []byte(d.start), image: nil} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(root, "bin", d.program), program, 0o700), //nolint:gosec // a program
		os.Truncate(image, 512<<20)); err != nil {
		return err
	}
	return command(ctx, root, "mke2fs", "-q", "-F", "-t", "ext4", "-d", root, image)
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
