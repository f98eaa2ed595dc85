// Package fleet loads real supervisors with the traffic of many emulated agents. They share a few sockets and one
// process, but every message is as an agent's host half would send it, signed or under the MAC of a session that was
// exchanged as usual, and every challenge is answered while the node lives.
//
// Nodes have their places from the beginning, or enrol, join, leave and die while the fleet runs: see Agent.
//
// Emulated agents have no registers, links, gossip or torus rail. They do not verify the supervisors' answers, which
// would only burn the processor that the supervisors need. Reports are sent again, to the next replica, until they
// are RECEIVED.
package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config of a fleet.
type Config struct {
	Dims     grid.Dims
	Replicas int // 1, 3 or 5; of the whole, or of each region and of their parent
	Regions  int // into which the torus is divided along X; 0: it is not
	Preset   string
	Periods  *config.PeriodsOverride
	Seed     uint64
	// Enrol begins without nodes: see Fleet.Join. Dims are empty then.
	Enrol bool
	// Adjust may change a supervisor's configuration before it is written; nil: nothing is changed.
	Adjust func(*config.Supervisor)
}

const clusterName = "bench"

// Fleet is the supervisors, as processes, and the emulated agents.
type Fleet struct {
	cfg     Config
	dir     string
	periods config.Periods
	ca      *pki.CA
	nodes   []*Node // by rank
	byID    map[string]*Node
	configs []config.Supervisor
	targets []netip.AddrPort // report addresses, by replica
	bin     string           // folder of the programs
	procs   []*exec.Cmd
	wire    *wire
	stop    func() error // of the wire
	client  *client.Client

	mu     sync.Mutex // of byID and stalls
	stalls []stall
	air    sync.Mutex // of all agents and the links between them
	agents map[fault.NodeID]*Agent
	cut    map[[2]fault.NodeID]bool // pairs of agents whose cables are cut
	ranks  int                      // addresses given to agents so far
}

// Start makes keys and configurations, starts the supervisors and opens a path for every node. It waits
// until one leads. The caller closes the fleet.
func Start(ctx context.Context, cfg Config) (_ *Fleet, err error) {
	f := &Fleet{cfg: cfg, byID: make(map[string]*Node), agents: make(map[fault.NodeID]*Agent), cut: make(map[[2]fault.NodeID]bool)}
	preset, err := config.Preset(cfg.Preset)
	if err != nil {
		return nil, err
	}
	f.periods = cfg.Periods.Apply(preset)
	if f.dir, err = os.MkdirTemp("", "lofamo-fleet-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.wire, err = newWire(f); err != nil {
		return nil, err
	}
	f.stop = f.wire.start()
	for _, step := range []func(context.Context) error{f.issue, f.configure, f.launch, f.leads, f.Connect} {
		if err = step(ctx); err != nil {
			return nil, fmt.Errorf("start a fleet of %s: %w", cfg.Dims, err)
		}
	}
	return f, nil
}

// Close stops the supervisors and removes their files.
func (f *Fleet) Close() error {
	var errs []error
	if f.client != nil {
		errs = append(errs, f.client.Close())
	}
	f.procs = slices.DeleteFunc(f.procs, func(p *exec.Cmd) bool { return p == nil || p.ProcessState != nil })
	for _, p := range f.procs {
		_ = p.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range f.procs {
		kill := time.AfterFunc(20*time.Second, func() { _ = p.Process.Kill() })
		_ = p.Wait()
		kill.Stop()
	}
	if f.stop != nil {
		errs = append(errs, f.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

// Nodes returns the emulated nodes by rank.
func (f *Fleet) Nodes() []*Node { return f.nodes }

// Dims returns the torus' sizes.
func (f *Fleet) Dims() grid.Dims { return f.cfg.Dims }

// Periods returns the supervisors' periods.
func (f *Fleet) Periods() config.Periods { return f.periods }

// Client asks the supervisors.
func (f *Fleet) Client() *client.Client { return f.client }

// Wire returns counters of the traffic sent and received.
func (f *Fleet) Wire() Counters { return f.wire.counters() }

func (f *Fleet) path(name string) string { return filepath.Join(f.dir, name) }

// issue makes the authority, the operator's certificate, and a key for every host half.
func (f *Fleet) issue(context.Context) (err error) {
	if f.ca, err = pki.NewCA(clusterName); err != nil {
		return err
	}
	if err := f.ca.Save(f.path("ca.pem"), f.path("ca.key")); err != nil {
		return err
	}
	if err := f.person("bench", pki.RoleOperator); err != nil {
		return err
	}
	if f.cfg.Enrol {
		return f.issuer()
	}
	for rank := range f.cfg.Dims.Nodes() {
		n, err := newNode(f, rank)
		if err != nil {
			return err
		}
		f.nodes, f.byID[string(n.id)] = append(f.nodes, n), n
	}
	return nil
}

// person issues a certificate for a client of the supervisors.
func (f *Fleet) person(name string, role pki.Role) error {
	return f.ca.IssueTo(f.path(name+".pem"), f.path(name+".key"), pki.Identity{Cluster: clusterName, Role: role, Name: name}, nil, nil)
}

// service is the address of a node: one of 127.0.0.0/8, all of which come to the one socket.
func (f *Fleet) service(rank int) string {
	return netip.AddrPortFrom(address(rank), f.wire.port()).String()
}

func address(rank int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rank/62500), byte(rank / 250 % 250), byte(1 + rank%250)})
}

// unit is a set of supervisors with one etcd: the whole, the parent of regions (both without a name), or a
// region. first is its first replica's number among all.
type unit struct {
	name  string
	first int
}

// units returns the fleet's units, the one that serves the whole first.
func (f *Fleet) units() []unit {
	out := []unit{{}}
	for k := range f.cfg.Regions {
		out = append(out, unit{cluster.RegionName(k), (k + 1) * f.cfg.Replicas})
	}
	return out
}

// unitOf is the unit that a node reports to.
func (f *Fleet) unitOf(n *Node) unit {
	if f.cfg.Regions == 0 {
		return unit{}
	}
	return f.units()[1+n.coord.X*f.cfg.Regions/f.cfg.Dims.X]
}

// configure writes the supervisors' configurations.
func (f *Fleet) configure(context.Context) error {
	units := f.units()
	for _, u := range units {
		if err := f.plan(u); err != nil {
			return err
		}
	}
	var nodes []config.NodeEntry
	for rank, n := range f.nodes {
		u := f.unitOf(n)
		n.first, n.count = u.first, f.cfg.Replicas
		n.target.Store(int32(u.first + rank%f.cfg.Replicas))
		nodes = append(nodes, config.NodeEntry{ID: n.id, Coord: n.coord.String(), Service: f.service(rank), Region: u.name})
	}
	entries := func(u unit) (out []config.UpstreamEntry) {
		for _, c := range f.configs[u.first : u.first+f.cfg.Replicas] {
			out = append(out, config.UpstreamEntry{ID: c.ID, GRPC: c.GRPC})
		}
		return out
	}
	for i := range f.configs {
		c := &f.configs[i]
		c.Nodes = nodes
		for _, u := range units[1:] {
			c.Regions = append(c.Regions, config.RegionEntry{Name: u.name, Supervisors: entries(u)})
		}
		if c.Region != "" {
			c.Upstream = entries(units[0])
		}
		if c.Parent() { // no agent talks to it
			c.Report = ""
			for k := range c.Replicas {
				c.Replicas[k].Report = ""
			}
		}
		if f.cfg.Adjust != nil {
			f.cfg.Adjust(c)
		}
		b, err := config.MarshalSupervisor(*c)
		if err != nil {
			return err
		}
		if err := os.WriteFile(f.path(c.ID+".yaml"), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// plan gives the replicas of a unit their addresses and certificates.
func (f *Fleet) plan(u unit) error {
	addresses, err := freeAddresses(6 * f.cfg.Replicas)
	if err != nil {
		return err
	}
	next := func() string {
		a := addresses[0]
		addresses = addresses[1:]
		return a
	}
	var members []string
	var replicas []config.ReplicaEntry
	for i := range f.cfg.Replicas {
		id := cluster.SupervisorID(i)
		if u.name != "" {
			id = cluster.RegionSupervisorID(u.name, i)
		}
		c := config.DefaultSupervisor()
		c.Cluster, c.ID, c.Dims, c.Region, c.Preset, c.Periods = clusterName, id, f.cfg.Dims.String(), u.name, f.cfg.Preset, f.cfg.Periods
		c.Report, c.GRPC, c.HTTP = next(), next(), next()
		if f.cfg.Enrol {
			c.Renewal = config.RenewalConfig{Cert: f.path("issuer.pem"), Key: f.path("issuer.key")}
			c.Enrolment.Listen = next()
		}
		c.Etcd.PeerURL, c.Etcd.ClientURL = "https://"+next(), "https://"+next()
		c.DataDir = f.path(id)
		c.TLS = config.SupervisorTLS{CA: f.path("ca.pem"), Cert: f.path(id + ".pem"), Key: f.path(id + ".key")}
		c.Log.Level = "warn"
		if err := f.ca.IssueTo(c.TLS.Cert, c.TLS.Key, pki.SupervisorIdentity(clusterName, id),
			[]net.IP{freeport.IP().AsSlice(), net.IPv4(127, 0, 0, 1)}, nil); err != nil {
			return err
		}
		members = append(members, id+"="+c.Etcd.PeerURL)
		replicas = append(replicas, config.ReplicaEntry{ID: id, GRPC: c.GRPC, Report: c.Report, HTTP: c.HTTP})
		f.configs = append(f.configs, c)
		f.targets = append(f.targets, netip.MustParseAddrPort(c.Report))
	}
	for i := range f.configs[u.first:] {
		c := &f.configs[u.first+i]
		c.Etcd.InitialCluster, c.Replicas = strings.Join(members, ","), slices.Clone(replicas)
	}
	return nil
}

// freeAddresses returns n free addresses for the replicas. No other process takes them, because their IP address belongs to this process.
func freeAddresses(n int) (out []string, err error) {
	for range n {
		addr, err := freeport.Find()
		if err != nil {
			return nil, err
		}
		out = append(out, addr.String())
	}
	return out, nil
}

// launch starts the processes.
func (f *Fleet) launch(context.Context) error {
	bin, err := cluster.FindBinaries("")
	if err != nil {
		return err
	}
	f.bin = bin
	f.procs = make([]*exec.Cmd, len(f.configs))
	for i := range f.configs {
		if err := f.StartReplica(i); err != nil {
			return err
		}
	}
	var targets []string
	for _, c := range f.configs[:f.cfg.Replicas] {
		targets = append(targets, c.GRPC)
	}
	conf, err := f.tls("bench")
	if err != nil {
		return err
	}
	f.client, err = client.New(client.Config{Targets: targets, TLS: conf, TryTimeout: 30 * time.Second})
	return err
}

// StartReplica starts a supervisor's process, also again after KillReplica. Its log continues.
func (f *Fleet) StartReplica(i int) error {
	c := f.configs[i]
	log, err := os.OpenFile(f.path(c.ID+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(f.bin, "lofamo-supervisor"), "run", "--config", f.path(c.ID+".yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = log.Close() // the process has its own
	if err != nil {
		return fmt.Errorf("start supervisor %s: %w", c.ID, err)
	}
	f.procs[i] = cmd
	return nil
}

// KillReplica kills a supervisor's process. Its nodes switch to the next replica, and Connect opens their paths.
func (f *Fleet) KillReplica(i int) error {
	if err := f.procs[i].Process.Kill(); err != nil {
		return err
	}
	_ = f.procs[i].Wait() // says that it was killed
	f.leaveReplica(i)
	return nil
}

func (f *Fleet) tls(name string) (*tls.Config, error) {
	return pki.ClientTLS(f.path(name+".pem"), f.path(name+".key"), f.path("ca.pem"), func(got pki.Identity) error {
		if got.Role != pki.RoleSupervisor {
			return fmt.Errorf("%s answers: want a supervisor", got)
		}
		return nil
	})
}

// ClientOf returns a client of one replica only, as a viewer of this name: supervisors limit the concurrent calls of a
// person.
func (f *Fleet) ClientOf(replica int, name string) (*client.Client, error) {
	if err := f.person(name, pki.RoleViewer); err != nil {
		return nil, err
	}
	conf, err := f.tls(name)
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{Targets: []string{f.configs[replica].GRPC}, TLS: conf, TryTimeout: 30 * time.Second})
}

// Etcd returns the address of one replica's store, and the TLS configuration of a supervisor.
func (f *Fleet) Etcd(replica int) (url string, conf *tls.Config, err error) {
	c := f.configs[replica]
	conf, err = pki.ClientTLS(c.TLS.Cert, c.TLS.Key, c.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	return c.Etcd.ClientURL, conf, err
}

// leads waits for a leader.
func (f *Fleet) leads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		r, err := f.client.ListSupervisors(ctx)
		for _, s := range r.GetSupervisors() {
			if s.GetLeader() {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no leader: %w: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Usage returns the supervisors' total consumption: processor time, and memory now.
func (f *Fleet) Usage() (total measure.Usage, each []measure.Usage, err error) {
	for _, p := range f.procs {
		u, err := measure.Process(p.Process.Pid)
		if err != nil {
			return total, nil, err
		}
		total.CPU += u.CPU
		total.Resident += u.Resident
		each = append(each, u)
	}
	return total, each, nil
}

// At returns the node at a place.
func (f *Fleet) At(c grid.Coord) *Node { return f.nodes[f.cfg.Dims.Rank(c)] }

// find returns the node of that id, nil when there is none.
func (f *Fleet) find(id string) *Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byID[id]
}

// leaderWithin bounds the wait for a leader: the asked replica may not have heard of it yet, and a lease may have been lost under load.
const leaderWithin = 30 * time.Second

// Leader returns the number of the replica that leads, as soon as there is one.
func (f *Fleet) Leader(ctx context.Context) (int, error) { return f.Another(ctx, -1) }

// Another waits until a replica other than old leads, and returns its number.
func (f *Fleet) Another(ctx context.Context, old int) (leader int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, leaderWithin, errors.New("no replica leads"))
	defer cancel()
	err = f.supervisors(ctx, func(all []*lofamov1.Supervisor) bool {
		i := slices.IndexFunc(all, (*lofamov1.Supervisor).GetLeader)
		if i < 0 {
			return false
		}
		leader = slices.IndexFunc(f.configs, func(c config.Supervisor) bool { return c.ID == all[i].GetId() })
		return leader >= 0 && leader != old
	})
	return leader, err
}

// Back waits until the supervisors list a replica as NORMAL and with a quorum.
func (f *Fleet) Back(ctx context.Context, replica int) error {
	return f.supervisors(ctx, func(all []*lofamov1.Supervisor) bool {
		return slices.ContainsFunc(all, func(s *lofamov1.Supervisor) bool {
			return s.GetId() == f.configs[replica].ID && s.GetState() == lofamov1.State_NORMAL && s.GetQuorumAge() == nil
		})
	})
}

// supervisors polls the list of supervisors until wanted accepts it.
func (f *Fleet) supervisors(ctx context.Context, wanted func([]*lofamov1.Supervisor) bool) error {
	for {
		r, err := f.client.ListSupervisors(ctx)
		if err != nil {
			return err
		}
		if wanted(r.GetSupervisors()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
