package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	// memoryWindow and interfaceWindow limit the time for which a healed sensor still counts as SICK.
	memoryWindow    = sensor.Duration(10 * time.Second)
	interfaceWindow = sensor.Duration(5 * time.Second)

	// MaxNodes bounds a local cluster: each node is three processes.
	MaxNodes = 1000

	// spoolBytes holds a full log of reports twice over; every node has two such files.
	spoolBytes = 512 << 10

	// MaxServiceInterfaces of a node.
	MaxServiceInterfaces = 2

	clusterName = "local"
	// maxStateDir is the room for the state directory in a Unix socket's name (107 bytes).
	maxStateDir = 90
)

// Options describe the cluster to create.
type Options struct {
	Dir         string    // where; made if need be. Empty, absent, or a stopped cluster's with Force.
	Dims        grid.Dims // required
	Supervisors int       // 1, 3 or 5; 3 when zero
	// Regions is the number of regions of the torus, across its largest dimension, each with the same number of
	// supervisors, which their parent has too. 0: no regions.
	Regions int
	// Spares is the number of additional nodes without coordinates, at most MaxNodes. None with regions.
	Spares int
	Preset string // of the periods; "default" when empty
	// ServiceInterfaces of every node: 1 or 2; 1 when zero. Number 0 is on 127.0.0.1, 1 on 127.0.0.2.
	ServiceInterfaces int
	BinDir            string // see FindBinaries
	// Periods sets single values of the preset. For tests and measurements.
	Periods *config.PeriodsOverride
	// LogLevel of agents and supervisors: debug, info, warn or error; info when empty.
	LogLevel string
	// Supervisor changes the configuration of each replica before it is written; nil: not. For tests.
	Supervisor func(*config.Supervisor)
	// Agent changes the configuration of each node before it is written; nil: not. For tests.
	Agent func(*config.Agent)
	// NodeLifetime is the validity of node certificates, including renewed ones; 0: a year, and the supervisors'
	// default for renewed ones. For tests.
	NodeLifetime time.Duration
	// NoIssuer makes a cluster like those of earlier versions, without renewal of certificates. For tests.
	NoIssuer bool
	// Restart is the nodes' daemons' policy for a half that ends: "never" when empty, so that faults stay until they
	// are healed, or "always".
	Restart string
	// Force replaces a stopped cluster in Dir by a new one.
	Force bool
	// Addresses are all listen addresses; nil: free ports of 127.0.0.1. The caller ensures that its addresses exist and
	// are free.
	Addresses *Addresses
	// Command returns the command line that starts a member (a supervisor's or a node's id) in place of argv; nil: argv
	// itself. It must become argv by exec, so that the started process remains the same. It is not stored on disk.
	Command func(member string, argv []string) []string
}

func (o *Options) complete() error {
	if o.Supervisors == 0 {
		o.Supervisors = 3
	}
	if o.ServiceInterfaces == 0 {
		o.ServiceInterfaces = 1
	}
	if o.Preset == "" {
		o.Preset = config.PresetDefault
	}
	if o.LogLevel == "" {
		o.LogLevel = "info"
	}
	o.Periods = withLinkGrace(o.Periods, o.Dims.Nodes(), runtime.NumCPU())
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("dir: none given"))
	}
	if err := cmp.Or(o.Dims.Validate(), o.Dims.CheckConnected()); err != nil {
		errs = append(errs, err)
	} else if n := o.Dims.Nodes(); n < 2 || n > MaxNodes {
		errs = append(errs, fmt.Errorf("dims %s: %s: want 2 to %d on one machine", o.Dims, fault.Plural(n, "node"), MaxNodes))
	}
	if !slices.Contains([]int{1, 3, 5}, o.Supervisors) {
		errs = append(errs,
			fmt.Errorf("supervisors: given %d: want 1, 3 or 5 (a majority must remain when one dies, and an even number adds none)", o.Supervisors))
	}
	if _, size := largest(o.Dims); o.Regions == 1 || o.Regions < 0 || o.Regions > size {
		errs = append(errs, fmt.Errorf("regions: given %d: want 0 (not divided) or 2 to %d, the largest size of the torus", o.Regions, size))
	}
	if o.Spares < 0 || o.Spares > MaxNodes || o.Spares > 0 && o.Regions > 0 {
		errs = append(errs, fmt.Errorf("spares: given %d: want 0 to %d, and none where the torus is divided into regions", o.Spares, MaxNodes))
	}
	if o.ServiceInterfaces < 1 || o.ServiceInterfaces > MaxServiceInterfaces {
		errs = append(errs, fmt.Errorf("service interfaces: given %d: want 1 to %d", o.ServiceInterfaces, MaxServiceInterfaces))
	}
	if o.Addresses != nil {
		errs = append(errs, o.Addresses.check(o.Dims, o.Spares, o.Supervisors+o.Regions*o.Supervisors, o.ServiceInterfaces))
	}
	if !slices.Contains([]string{"", "never", "always"}, o.Restart) {
		errs = append(errs, fmt.Errorf("restart: given %q: want never or always", o.Restart))
	}
	if p, err := config.Preset(o.Preset); err != nil {
		errs = append(errs, err)
	} else if err := o.Periods.Apply(p).Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Create writes all files of a cluster into a directory. It starts no process.
func Create(o Options) (*Cluster, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("make a local cluster: %w", err)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("make a local cluster in %s: %w", o.Dir, err)
	}
	c := &Cluster{dir: dir, dims: o.Dims, binDir: o.BinDir, command: o.Command}
	c.plan(o)
	if err := c.checkPaths(); err != nil {
		return nil, err
	}
	if err := checkOwner(dir); err != nil {
		return nil, fmt.Errorf("make a local cluster in %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a local cluster: %w", err)
	}
	unlock, err := lockDir(dir, 0)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := makeRoom(dir, o.Force); err != nil {
		return nil, err
	}
	if err := c.write(o); err != nil {
		return nil, errors.Join(fmt.Errorf("make a local cluster in %s: %w", dir, err), removeOwn(dir))
	}
	return c, nil
}

// makeRoom refuses directories that hold something else, and clears away an unfinished or, when
// forced, a stopped cluster.
func makeRoom(dir string, force bool) error {
	old, err := Load(dir)
	switch {
	case err == nil && len(old.Running()) > 0:
		return fmt.Errorf("make a local cluster in %s: one is running there: `lofamoctl down --dir %s` stops it, or take another directory", dir,
			dir)
	case err == nil && old.info.Complete && !force:
		return fmt.Errorf("make a local cluster in %s: a stopped %s one is there: start that, or replace it with --force-new", dir, old.dims)
	case err == nil, force && !errors.Is(err, ErrNoCluster):
		return removeOwn(dir)
	case errors.Is(err, ErrUnusable):
		return fmt.Errorf("%w (--force-new replaces it)", err)
	case !errors.Is(err, ErrNoCluster):
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("make a local cluster: %w", err)
	}
	for _, e := range entries {
		// Other clusters below this directory are no harm.
		_, err := os.Stat(filepath.Join(dir, e.Name(), "cluster.json"))
		if e.Name() != lockFile && err != nil {
			return fmt.Errorf("make a local cluster in %s: the directory holds something else (%s): take an empty or a new one", dir, e.Name())
		}
	}
	return nil
}

// removeOwn removes only files that Create and Start make, and the directory if it is empty then.
func removeOwn(dir string) error {
	var errs []error
	// Remove cluster.json last: while it exists, the directory is recognised as a cluster's.
	for _, name := range []string{"nodes", "supervisors", "pki", "gossip.key", inventory.TargetsFile + ".new", inventory.TargetsFile,
		"cluster.json.new", "cluster.json"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("remove the cluster's files: %w", err))
		}
	}
	return errors.Join(errs...)
}

// SupervisorID returns the name of the replica of that number.
func SupervisorID(i int) string { return fmt.Sprintf("sup-%d", i) }

// plan sets the cluster's properties, except for its addresses.
func (c *Cluster) plan(o Options) {
	c.info = Info{
		Version: infoVersion, Cluster: clusterName, Dims: c.dims.String(), Preset: o.Preset, ServiceInterfaces: o.ServiceInterfaces,
		Restart: o.Restart, Regions: o.Regions, Created: time.Now().UTC().Truncate(time.Second),
	}
	c.planSupervisors(o.Supervisors)
	for at := range c.dims.All() {
		id := fault.DefaultNodeID(at)
		c.info.Nodes = append(c.info.Nodes, NodeInfo{ID: id, Coord: at.String(), StateDir: filepath.Join(c.nodeDir(id), "state")})
	}
	for i := range o.Spares {
		id := SpareID(i)
		c.info.Spares = append(c.info.Spares, NodeInfo{ID: id, StateDir: filepath.Join(c.nodeDir(id), "state")})
	}
}

// SpareID returns the name of the spare of that number.
func SpareID(i int) fault.NodeID { return fault.NodeID(fmt.Sprintf("spare-%d", i)) }

func (c *Cluster) checkPaths() error {
	longest := 0
	for _, n := range c.info.All() {
		longest = max(longest, len(n.StateDir))
	}
	if over := longest - maxStateDir; over > 0 {
		return fmt.Errorf("%w: make a local cluster in %s: given %d bytes: want at most %d, for the names of Unix sockets in it are bounded",
			ErrLongPath, c.dir, len(c.dir), len(c.dir)-over)
	}
	return nil
}

func (c *Cluster) write(o Options) error {
	if err := c.save(); err != nil { // marks the directory as ours
		return err
	}
	a, err := c.addresses(o)
	if err != nil {
		return err
	}
	c.note(a)
	if err := c.writeKeys(a, o); err != nil {
		return err
	}
	l := c.layout(a)
	for i := range c.info.Supervisors {
		if err := c.writeSupervisor(i, l, o); err != nil {
			return err
		}
	}
	for r := range c.info.All() {
		if err := c.writeNode(r, l, o); err != nil {
			return err
		}
	}
	c.info.Complete = true
	return c.save()
}

// note stores the addresses that are needed later in cluster.json.
func (c *Cluster) note(a Addresses) {
	for i := range c.info.Supervisors {
		s := &c.info.Supervisors[i]
		s.GRPC, s.HTTP, s.Web, s.Report = a.Supervisors[i].GRPC, a.Supervisors[i].HTTP, a.Supervisors[i].Web, a.Supervisors[i].Report[0]
	}
	for r := range c.info.All() {
		n := c.info.at(r)
		n.Interface, n.HTTP = a.Nodes[r].Service[0].Interface, a.Nodes[r].HTTP
	}
}

// issuerCert and issuerKey are the files of the issuer of node certificates.
const issuerCert, issuerKey = "issuer.pem", "issuer.key"

// writeAuthority makes the authority, and an issuer that is trusted beside it.
func (c *Cluster) writeAuthority(o Options) (*pki.CA, error) {
	ca, err := pki.NewCA(clusterName)
	if err != nil {
		return nil, err
	}
	if o.NodeLifetime != 0 {
		ca.SetNodeLifetime(o.NodeLifetime)
	}
	if err := ca.Save(c.PKI("ca.pem"), c.PKI("ca.key")); err != nil || o.NoIssuer {
		return ca, err
	}
	i, err := pki.NewIssuer(clusterName)
	if err != nil {
		return nil, err
	}
	if err := i.Save(c.PKI(issuerCert), c.PKI(issuerKey)); err != nil {
		return nil, err
	}
	return ca, os.WriteFile(c.PKI("ca.pem"), slices.Concat(ca.CertPEM(), i.CertPEM()), 0o644) //nolint:gosec // certificates are public
}

func (c *Cluster) writeKeys(a Addresses, o Options) error {
	if err := os.MkdirAll(c.path("pki"), 0o700); err != nil {
		return err
	}
	if err := pki.NewGossipKey(c.path("gossip.key")); err != nil {
		return err
	}
	ca, err := c.writeAuthority(o)
	if err != nil {
		return err
	}
	for _, role := range []pki.Role{pki.RoleViewer, pki.RoleOperator, pki.RoleApprover} {
		id := pki.Identity{Cluster: clusterName, Role: role, Name: "local-" + string(role)}
		if err := c.issue(ca, id, string(role), nil, nil); err != nil {
			return err
		}
	}
	for i, s := range c.info.Supervisors {
		ips, err := a.Supervisors[i].layout(s.ID, "").IPs()
		if err != nil {
			return err
		}
		if err := c.issueReplica(ca, s.ID, ips); err != nil {
			return err
		}
	}
	for _, n := range c.info.All() {
		if err := c.issueNode(ca, n.ID); err != nil {
			return err
		}
	}
	return nil
}

// issueNode writes the pairs of both halves of a node.
func (c *Cluster) issueNode(ca *pki.CA, id fault.NodeID) error {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := c.issue(ca, pki.NodeIdentity(clusterName, id, h), certName(id, h), nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// agentTLS names the files that issueNode writes.
func (c *Cluster) agentTLS(id fault.NodeID) config.AgentTLS {
	host, dnp := certName(id, fault.HalfHost), certName(id, fault.HalfDNP)
	return config.AgentTLS{CA: c.PKI("ca.pem"), HostCert: c.PKI(host + ".pem"), HostKey: c.PKI(host + ".key"),
		DNPCert: c.PKI(dnp + ".pem"), DNPKey: c.PKI(dnp + ".key")}
}

// issue writes a certificate and its key. Unlike pki.WritePair it does not wait for the disk: a
// cluster that was not made to its end is made again.
func (c *Cluster) issue(ca *pki.CA, id pki.Identity, file string, ips []net.IP, dns []string, options ...pki.IssueOption) error {
	cert, key, err := ca.Issue(id, ips, dns, options...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.PKI(file+".pem"), cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(c.PKI(file+".key"), key, 0o600)
}

// issueReplica writes both pairs of a replica.
func (c *Cluster) issueReplica(ca *pki.CA, id string, ips []net.IP) error {
	identity, names := pki.SupervisorIdentity(clusterName, id), []string{"localhost"}
	return errors.Join(c.issue(ca, identity, id, ips, names), c.issue(ca, identity, id+"-ecdsa", ips, names, pki.WithKey(pki.KeyECDSA)))
}

// ecdsa returns the second pair of a replica.
func (c *Cluster) ecdsa(id string) config.KeyPair {
	return config.KeyPair{Cert: c.PKI(id + "-ecdsa.pem"), Key: c.PKI(id + "-ecdsa.key")}
}

func certName(id fault.NodeID, h fault.Half) string { return string(id) + "-" + h.String() }

// labels assign a rack to each plane of the torus, as sample data: to those of Z, or of Y if Z has only one.
func (c *Cluster) labels(node int) map[string]string {
	at := c.dims.Node(node)
	switch {
	case c.dims.Z > 1:
		return map[string]string{"rack": fmt.Sprintf("r%d", at.Z)}
	case c.dims.Y > 1:
		return map[string]string{"rack": fmt.Sprintf("r%d", at.Y)}
	}
	return nil
}

// layout is where the members are, from their addresses.
func (c *Cluster) layout(a Addresses) inventory.Layout {
	l := inventory.Layout{Cluster: clusterName, Dims: c.dims}
	for i, s := range c.info.Supervisors {
		l.Supervisors = append(l.Supervisors, a.Supervisors[i].layout(s.ID, s.Region))
	}
	for r, n := range c.info.All() {
		node := inventory.PlacedNode{ID: n.ID, Service: a.Nodes[r].Service, Gossip: a.Nodes[r].Gossip, HTTP: a.Nodes[r].HTTP,
			Links: a.Nodes[r].Links}
		if r < len(c.info.Nodes) {
			node.Region, node.Labels = c.regionOf(r), c.labels(r)
		}
		l.Nodes = append(l.Nodes, node)
	}
	return l
}

func (c *Cluster) writeSupervisor(i int, l inventory.Layout, o Options) error {
	s := c.info.Supervisors[i]
	dir := c.path("supervisors", s.ID)
	cfg := l.Supervisor(i)
	cfg.Web, cfg.GossipKeyFile = webConfig(s.Web), c.path("gossip.key")
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.TLS = config.SupervisorTLS{CA: c.PKI("ca.pem"), Cert: c.PKI(s.ID + ".pem"), Key: c.PKI(s.ID + ".key")}
	cfg.ECDSA = c.ecdsa(s.ID)
	if !o.NoIssuer {
		cfg.Renewal = config.RenewalConfig{Cert: c.PKI(issuerCert), Key: c.PKI(issuerKey), Lifetime: config.Duration(o.NodeLifetime)}
	}
	cfg.Preset, cfg.Periods, cfg.LocalPID = o.Preset, o.Periods, true
	cfg.Log.Level = o.LogLevel
	// All supervisors share this machine: no response needs to protect their quorum.
	cfg.Responses.SupervisorNodes = map[string]string{"*": config.NoNode}
	c.divide(&cfg, s)
	if o.Supervisor != nil {
		o.Supervisor(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configuration of supervisor %s: %w", s.ID, err)
	}
	return writeYAML(filepath.Join(dir, "supervisor.yaml"), cfg)
}

func (c *Cluster) writeNode(rank int, l inventory.Layout, o Options) error {
	n := *c.info.at(rank)
	cfg := l.Agent(rank)
	cfg.StateDir, cfg.Preset, cfg.Periods = n.StateDir, o.Preset, o.Periods
	cfg.TLS = c.agentTLS(n.ID)
	cfg.Service.GossipKeyFile, cfg.Service.SpoolBytes = c.path("gossip.key"), spoolBytes
	cfg.Sensors = c.sensorConfig(n, checkInterval(o.Preset))
	cfg.Processor.Budget = halfBudget(o.Preset, len(c.info.All()), runtime.NumCPU())
	cfg.Injection = true
	cfg.Log.Level = o.LogLevel
	if o.Agent != nil {
		o.Agent(&cfg)
	}
	return c.writeAgent(n, cfg)
}

// writeAgent writes a node's configuration, and the files of its sensors and checks.
func (c *Cluster) writeAgent(n NodeInfo, cfg config.Agent) error {
	dir := c.nodeDir(n.ID)
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configuration of node %s: %w", n.ID, err)
	}
	if err := os.MkdirAll(n.StateDir, 0o700); err != nil {
		return err
	}
	if err := writeSensors(dir, n); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "check-peripheral"), []byte(checkScript), 0o755); err != nil {
		return err
	}
	return writeYAML(filepath.Join(dir, "agent.yaml"), cfg)
}

// checkInterval is the time between two runs of a peripheral's check script. Each starts a
// process, so they come more rarely than sensors are read.
func checkInterval(preset string) sensor.Duration {
	switch preset {
	case config.PresetFast:
		return sensor.Duration(time.Second)
	case config.PresetRelaxed:
		return sensor.Duration(10 * time.Second)
	default:
		return sensor.Duration(2 * time.Second)
	}
}

func writeYAML(path string, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// Purge removes a stopped cluster's files, and the directory if that leaves it empty. It fails with ErrBusy while another
// program makes or starts a cluster there.
func (c *Cluster) Purge() error {
	unlock, err := lockDir(c.dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if running := c.Running(); len(running) > 0 {
		return fmt.Errorf("remove the cluster in %s: it is running (%s …)", c.dir, running[0])
	}
	if err := removeOwn(c.dir); err != nil {
		return err
	}
	if err := os.Remove(c.path(lockFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(c.dir) // stays when it holds something else
	return nil
}

// Abandon marks a cluster that never came up: its logs stay to be read, and the next Create in the
// directory replaces it.
func (c *Cluster) Abandon() error {
	if _, err := Load(c.dir); errors.Is(err, ErrNoCluster) {
		return nil // somebody has removed it meanwhile
	}
	c.info.Complete = false
	return c.save()
}

// webConfig configures the page for browsers: for this machine only, and without TLS, because browsers would warn about
// the certificate.
func webConfig(listen string) config.WebConfig {
	if listen == "" {
		return config.WebConfig{}
	}
	return config.WebConfig{Listen: listen, Plain: true}
}

// webURL is where browsers find the page; empty: nowhere.
func webURL(listen string) string {
	if listen == "" {
		return ""
	}
	return "http://" + listen
}
