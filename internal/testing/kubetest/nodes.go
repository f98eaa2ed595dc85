package kubetest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// serviceIP is the address of the API server for pods: the first of its service network.
var serviceIP = netip.MustParseAddr("10.0.0.1")

// Network is that of the nodes: the API server has its first address, and node number N the address 10+N.
var Network = netip.MustParsePrefix("10.77.0.0/24")

// Cluster is a whole Kubernetes: API server, controllers, scheduler, and nodes with a kubelet each. Everything runs in the
// caller's network namespace and in namespaces within, so that has to be a namespace of its own.
type Cluster struct {
	*Server
	dir     string
	others  []*process // controllers and scheduler
	nodes   []*Node
	group   string // the nodes' control group
	program string // the kubelet
}

// Node is one machine of a cluster.
type Node struct {
	Name    string
	Address netip.Addr
	Dir     string

	machine *process
}

// HasKubelet returns nil if all programs of a cluster are here.
func HasKubelet() error {
	programs, err := Programs()
	if err != nil {
		return err
	}
	for _, p := range []string{"kubelet", "kube-scheduler", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(programs, p)); err != nil {
			return ErrMissing
		}
	}
	return nil
}

// StartCluster starts a control plane for kubelets, and the bridge to which nodes are connected. group names the control group
// that the nodes' pods are below.
func StartCluster(dir, group string) (*Cluster, error) {
	if err := HasKubelet(); err != nil {
		return nil, err
	}
	programs, err := Programs()
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, group: group, program: filepath.Join(programs, "kubelet")}
	router := Network.Addr().Next()
	for _, line := range []string{
		"link add br0 type bridge", fmt.Sprintf("addr add %s/%d dev br0", router, Network.Bits()), "link set br0 up",
		fmt.Sprintf("addr add %s/32 dev lo", serviceIP),
	} {
		if err := ip(line); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return nil, fmt.Errorf("route between pods: %w", err)
	}
	c.Server, err = startAt(dir, plane{host: router, bind: "0.0.0.0", api: netip.AddrPortFrom(router, 443),
		client: netip.AddrPortFrom(freeport.IP(), 2379), peer: netip.AddrPortFrom(freeport.IP(), 2380),
		without: "TaintNodesByCondition", more: []string{"--allow-privileged", "--kubelet-preferred-address-types=InternalIP"}})
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "kubeconfig")
	if err := c.Kubeconfig(conf, c.Addr, c.Token()); err != nil {
		c.Stop()
		return nil, err
	}
	common := []string{"--kubeconfig", conf, "--authentication-kubeconfig", conf, "--authorization-kubeconfig", conf,
		"--leader-elect=false", "--bind-address", "127.0.0.1"}
	for program, more := range map[string][]string{
		"kube-scheduler": {"--secure-port=10259"},
		"kube-controller-manager": {"--secure-port=10257", "--cert-dir", filepath.Join(dir, "controllers"),
			"--service-account-private-key-file", filepath.Join(dir, "sa.key"), "--root-ca-file", c.CA(),
			"--use-service-account-credentials=false", "--allocate-node-cidrs=false", "--node-monitor-grace-period=20s"},
	} {
		p, err := start(dir, filepath.Join(programs, program), append(common, more...)...)
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.others = append(c.others, p)
	}
	return c, nil
}

// NodeAddress is the address of a cluster's node, which are numbered from 1 on.
func NodeAddress(number int) netip.Addr {
	a := Network.Addr().As4()
	a[3] = byte(10 + number)
	return netip.AddrFrom4(a)
}

// AddNode starts a machine with a kubelet. script is hack/kubelet/node; images are tarballs, which it imports. It does
// not wait until the node is ready.
func (c *Cluster) AddNode(script, name string, images []string, labels map[string]string) (*Node, error) {
	number := len(c.nodes) + 1
	n := &Node{Name: name, Address: NodeAddress(number), Dir: filepath.Join(c.dir, name)}
	if err := os.MkdirAll(filepath.Join(n.Dir, "images"), 0o755); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	for _, image := range images {
		if err := os.Link(image, filepath.Join(n.Dir, "images", filepath.Base(image))); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Join(c.dir, "kubeconfig"), filepath.Join(n.Dir, "kubeconfig")),
		os.MkdirAll(filepath.Join(n.Dir, "disk"), 0o755)); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	var of []string
	for key, value := range labels {
		of = append(of, key+"="+value)
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	env := []string{"KUBELET=" + c.program, "CGROUP=" + c.group, "LABELS=" + strings.Join(of, ",")}
	n.machine, err = startWith(n.Dir, env, unshare, "--net", "--uts", "--mount", "--propagation", "private", "--pid", "--fork",
		"--kill-child", "--mount-proc", script, n.Dir, name, n.Address.String(), strconv.Itoa(number))
	if err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, n)
	if err := n.connect(number); err != nil {
		return nil, err
	}
	return n, nil
}

// connect gives a machine its interface, once it has its network namespace.
func (n *Node) connect(number int) error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	pid := n.machine.cmd.Process.Pid
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		of, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil && of != own {
			break
		}
		select {
		case <-n.machine.ended:
			return n.machine.failed("ended")
		case <-t.C:
		}
	}
	cable := fmt.Sprintf("veth%d", number)
	for _, line := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", cable, pid),
		fmt.Sprintf("link set %s master br0 up", cable),
		fmt.Sprintf("route add 10.78.%d.0/24 via %s", number, n.Address),
	} {
		if err := ip(line); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// KillKubelet kills the kubelet, which does not come back before StartKubelet. The pods run on.
func (n *Node) KillKubelet() error {
	if err := os.WriteFile(filepath.Join(n.Dir, "no-kubelet"), nil, 0o600); err != nil {
		return fmt.Errorf("kill the kubelet of %s: %w", n.Name, err)
	}
	return n.RestartKubelet()
}

// RestartKubelet kills the kubelet, which the node's first process starts again.
func (n *Node) RestartKubelet() error {
	pid := strconv.Itoa(n.machine.cmd.Process.Pid)
	out, err := exec.Command("nsenter", "--pid=/proc/"+pid+"/ns/pid_for_children", "sh", "-c",
		"kill -9 $(cat "+filepath.Join(n.Dir, "kubelet.pid")+")").CombinedOutput()
	if err != nil {
		return fmt.Errorf("kill the kubelet of %s: %w: %s", n.Name, err, out)
	}
	return nil
}

// StartKubelet lets the node's first process start the kubelet again.
func (n *Node) StartKubelet() error { return os.Remove(filepath.Join(n.Dir, "no-kubelet")) }

// Log returns the ends of the logs of the node's first process, containerd and kubelet.
func (n *Node) Log() string {
	var out strings.Builder
	for _, name := range []string{"unshare.log", "import.log", "containerd.log", "kubelet.log"} {
		b, err := os.ReadFile(filepath.Join(n.Dir, name))
		if err != nil {
			b = []byte(err.Error())
		}
		fmt.Fprintf(&out, "%s %s:\n%s\n", n.Name, name, b[max(0, len(b)-2000):])
	}
	return out.String()
}

// Stop ends all machines with everything on them, and then the control plane.
func (c *Cluster) Stop() {
	for _, n := range c.nodes {
		n.machine.stop()
	}
	for _, p := range c.others {
		p.stop()
	}
	if c.Server != nil {
		c.Server.Stop()
	}
}

// groupPrefix begins the names of the nodes' control groups; the number of the process that uses them follows.
const groupPrefix = "lofamo-test-"

// GroupName returns the name of the control group of this process's nodes.
func GroupName() string { return groupPrefix + strconv.Itoa(os.Getpid()) }

// TryGroup returns an error if this machine has no control groups, or this process may make none.
func TryGroup(group string) error {
	dir := filepath.Join("/sys/fs/cgroup/memory", group)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil { // version 2 has one hierarchy
		dir = filepath.Join("/sys/fs/cgroup", group)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a control group: %w", err)
	}
	return RemoveGroup(group)
}

// RemoveStaleGroups removes the control groups of processes that were killed before they could.
func RemoveStaleGroups() error {
	var err error
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, bad := filepath.Glob(pattern + groupPrefix + "*")
		err = errors.Join(err, bad)
		for _, dir := range found {
			group := filepath.Base(dir)
			if _, gone := os.Stat("/proc/" + strings.TrimPrefix(group, groupPrefix)); errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, RemoveGroup(group))
			}
		}
	}
	return err
}

// RemoveGroup removes the remaining control groups of the nodes, as soon as they have no process.
func RemoveGroup(group string) error {
	var last error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		var all []string
		for _, pattern := range []string{"/sys/fs/cgroup/" + group, "/sys/fs/cgroup/*/" + group} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return fmt.Errorf("remove control groups: %w", err)
			}
			all = append(all, found...)
		}
		if len(all) == 0 {
			return nil
		}
		for _, top := range all {
			last = removeGroups(top)
		}
		if time.Now().After(end) {
			return fmt.Errorf("control groups stay: %v: %w", all, last)
		}
	}
}

// removeGroups removes a control group and all below it, the deepest first.
func removeGroups(dir string) error {
	below, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove control group: %w", err)
	}
	for _, e := range below {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, syscall.Rmdir(dir))
}

func ip(line string) error {
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}
