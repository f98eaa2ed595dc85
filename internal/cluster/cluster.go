// Package cluster creates, starts, stops and harms a whole cluster on this machine: real supervisors, real agents with
// both halves, real keys, in one directory. It is the library behind `lofamoctl up`, `down` and `inject`, the
// end-to-end tests and the measurements.
//
// It is no deployment tool: everything listens on 127.0.0.1 (a second service interface on 127.0.0.2) or in a test's
// own network namespaces (see Addresses), the certificate authority's key lies beside the certificates, and the agents
// accept injected faults.
//
// A cluster's directory:
//
//	cluster.json                     properties of the cluster, and its processes
//	prometheus-targets.json          where its metrics are
//	pki/ca.pem ca.key viewer.pem …   authority and users' certificates
//	gossip.key
//	nodes/ID/agent.yaml run.log host.log dnp.log     of spares too
//	nodes/ID/state/                  registers, mailboxes, epochs, control sockets
//	nodes/ID/sys/ proc/ peripheral0  inputs of the node's sensors
//	supervisors/ID/supervisor.yaml data/ log
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/trusted"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// EnvDir names the environment variable that holds the directory of the cluster in use.
const EnvDir = "LOFAMO_DIR"

// EnvBinDir names the environment variable that holds the directory of the programs to start.
const EnvBinDir = "LOFAMO_BIN_DIR"

// DefaultDir is the directory used when neither a flag nor the environment names one.
const DefaultDir = ".lofamo"

// hold keeps other programs from starting, stopping and changing the cluster until unlock is called. It reads cluster.json again, because
// another program may have changed the file. It waits for another program up to 3*stopGrace. If the file is unchanged, so is c.info,
// because other goroutines may be reading it.
func (c *Cluster) hold() (unlock func(), err error) {
	unlock, err = lockDir(c.dir, 3*stopGrace)
	if err != nil {
		return nil, err
	}
	now, err := Load(c.dir)
	if err != nil {
		unlock()
		return nil, err
	}
	is, err := json.Marshal(now.info)
	if err != nil {
		unlock()
		return nil, err
	}
	if had, err := json.Marshal(c.info); err != nil || !bytes.Equal(is, had) {
		c.info = now.info
	}
	return unlock, nil
}

// change lets do change c.info, and saves it unless do fails, while no other program changes it. do finds nodes and replicas by their
// names: hold replaces the lists.
func (c *Cluster) change(do func() error) error {
	unlock, err := c.hold()
	if err != nil {
		return err
	}
	defer unlock()
	if err := do(); err != nil {
		return err
	}
	return c.save()
}

// lockFile is a file in the cluster's directory. A program locks it while it starts, stops, changes or removes the cluster.
const lockFile = ".lock"

// infoVersion is the version of cluster.json's form.
const infoVersion = 1

// Info is the content of cluster.json.
type Info struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"` // the cluster's name in certificates
	Dims    string `json:"dims"`
	Preset  string `json:"preset"`
	// ServiceInterfaces of every node; 0, in clusters made before there were several: 1.
	ServiceInterfaces int `json:"serviceInterfaces,omitempty"`
	// Restart is the daemons' policy for a half that ends: "always" restart, or "never" when empty.
	Restart  string    `json:"restart,omitempty"`
	Created  time.Time `json:"created"`
	Complete bool      `json:"complete"` // false while it is being made
	// Boot is the machine's boot id at the last save. It is empty if the machine tells none.
	Boot string `json:"boot,omitempty"`
	// Number of regions of the torus; 0: no regions. Their parent's replicas come first in Supervisors.
	Regions     int              `json:"regions,omitempty"`
	Supervisors []SupervisorInfo `json:"supervisors"`
	Nodes       []NodeInfo       `json:"nodes"` // by the ranks of their places, as the cluster was made
	// Spares are nodes made without coordinates, as replacements.
	Spares []NodeInfo `json:"spares,omitempty"`
}

// All returns the nodes and the spares.
func (i Info) All() []NodeInfo { return slices.Concat(i.Nodes, i.Spares) }

// Placed returns the nodes that have a place now.
func (i Info) Placed() []NodeInfo {
	return slices.DeleteFunc(i.All(), func(n NodeInfo) bool { return n.Left || n.Coord == "" && !n.Joined })
}

// placed returns the number of nodes that have a place now.
func (i Info) placed() int { return len(i.Placed()) }

// at returns a node by its number: its rank, or behind the nodes the number of a spare.
func (i *Info) at(n int) *NodeInfo {
	if n < len(i.Nodes) {
		return &i.Nodes[n]
	}
	return &i.Spares[n-len(i.Nodes)]
}

func (i Info) interfaces() int { return max(1, i.ServiceInterfaces) }

// SupervisorInfo is one replica.
type SupervisorInfo struct {
	ID     string `json:"id"`
	Region string `json:"region,omitempty"` // that it serves; empty: all
	GRPC   string `json:"grpc"`             // host:port
	HTTP   string `json:"http"`             // host:port: metrics and health
	Web    string `json:"web,omitempty"`    // host:port: the page for browsers, without TLS; empty: none, as of clusters that are older
	Report string `json:"report"`           // host:port, UDP
	PID    int    `json:"pid,omitempty"`
	// Started is the process's start time in clock ticks since boot: it tells the process from another one that got the
	// same pid later.
	Started uint64 `json:"started,omitempty"`
	Group   string `json:"group,omitempty"` // directory of its cgroup; empty: it has none of its own
}

// NodeInfo is one node.
type NodeInfo struct {
	ID       fault.NodeID `json:"id"`
	Coord    string       `json:"coord,omitempty"` // as it was made; empty: a spare
	StateDir string       `json:"stateDir"`
	// Interface is the real network interface of its service network; empty when that is pretended.
	Interface string `json:"interface,omitempty"`
	HTTP      string `json:"http,omitempty"` // host:port: metrics and health of its host half; empty: none, as of clusters that are older
	// Left says that a node made with coordinates was taken out of the torus, and Joined that one made without them was put
	// into it, by Scale.
	Left    bool   `json:"left,omitempty"`
	Joined  bool   `json:"joined,omitempty"`
	RunPID  int    `json:"run_pid,omitempty"` // of `lofamo-agent run`
	Started uint64 `json:"started,omitempty"`
}

// Cluster is a local cluster. Only the methods in inject.go are safe for concurrent use.
type Cluster struct {
	dir    string // absolute
	info   Info
	dims   grid.Dims
	binDir string
	// ports are reserved from Create until the programs bind them; nil afterwards, and in a loaded cluster.
	ports *portBlock
	// planned: the caller chose the addresses, and this package does not know whether they are free.
	planned bool
	// command wraps the programs' command lines; nil: unchanged.
	command func(member string, argv []string) []string
	// exited gets the name of every process that this Cluster started and that ended, for
	// Exited; nil when loaded from disk.
	exited chan Exit
	// unweighted is the error of raising a supervisor's priority (nice), ungrouped that of giving it a weighted cgroup.
	unweighted, ungrouped error
}

// ErrNoCluster is the error for a directory without a cluster.
var ErrNoCluster = errors.New("no local cluster here")

// ErrBusy means that another program has started the cluster, or is starting, stopping or changing it.
var ErrBusy = errors.New("the cluster is in use")

// ErrLongPath is the error for a directory whose path leaves no room for the names of a cluster's files.
var ErrLongPath = errors.New("path too long")

// ErrUnusable is the error for a directory whose cluster.json is readable, but describes no cluster that this program can use.
var ErrUnusable = errors.New("the file describes no usable cluster")

// ErrForeign is the error for a directory in which somebody else can write. Its content decides which processes are ended, which programs
// start, and whom keys are shown to.
var ErrForeign = errors.New("another user can change this cluster")

// ownDepth is the depth of the files below the directory that checkOwner checks: the configurations of members and the keys.
const ownDepth = 3

// checkOwner refuses a directory with ErrForeign if a user other than the caller and root can change it, its path, or a file in it. A
// missing directory is accepted if no other user can make it.
func checkOwner(dir string) error {
	group := trusted.OwnGroup()
	foreign := func(err error) error {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("%w: %w: take another directory, or run the command as the user who owns this one", ErrForeign, err)
	}
	real, err := trusted.Path(dir, group)
	if err != nil {
		return foreign(err)
	}
	return foreign(filepath.WalkDir(real, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = trusted.Entry(path, group)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // removed since, or root's
			return nil
		}
		rel := strings.TrimPrefix(path, real)
		if err == nil && e.IsDir() && strings.Count(rel, string(filepath.Separator)) == ownDepth {
			return fs.SkipDir
		}
		return err
	}))
}

// Load reads the cluster in dir. The error is ErrNoCluster if there is none, and ErrForeign if somebody else can change it.
func Load(dir string) (*Cluster, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	if err := checkOwner(abs); err != nil {
		return nil, err
	}
	path := filepath.Join(abs, "cluster.json")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrNoCluster, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read local cluster: %w", err)
	}
	c := &Cluster{dir: abs}
	if err := c.decode(b); err != nil {
		return nil, fmt.Errorf("read local cluster %s: %w: %w", path, ErrUnusable, err)
	}
	if c.info.Boot != bootID() {
		c.info.forgetProcesses()
	}
	return c, nil
}

// decode reads the content of cluster.json.
func (c *Cluster) decode(b []byte) (err error) {
	if err := json.Unmarshal(b, &c.info); err != nil {
		return err
	}
	if c.info.Version != infoVersion {
		return fmt.Errorf("version %d: this program knows version %d; make a new cluster", c.info.Version, infoVersion)
	}
	if c.dims, err = grid.ParseDims(c.info.Dims); err != nil {
		return err
	}
	return c.info.check(c.dims)
}

// check refuses content that Create does not write: the methods of Cluster index nodes by their places, and make paths of names.
func (i Info) check(d grid.Dims) error {
	var errs []error
	if n := len(i.Nodes); n != d.Nodes() {
		errs = append(errs, fmt.Errorf("nodes: given %d: want %d for a %s torus", n, d.Nodes(), d))
	}
	if len(i.Supervisors) == 0 {
		errs = append(errs, errors.New("supervisors: given 0: want at least 1"))
	}
	if size := max(d.X, d.Y, d.Z); i.Regions < 0 || i.Regions > size {
		errs = append(errs, fmt.Errorf("regions: given %d: want 0 to %d", i.Regions, size))
	}
	name := func(field, id string) {
		if !fault.IsName(id) {
			errs = append(errs, fmt.Errorf("%s: id %q: want 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit",
				field, id))
		}
	}
	for _, n := range i.Nodes {
		name("nodes", string(n.ID))
	}
	for _, n := range i.Spares {
		name("spares", string(n.ID))
	}
	for _, s := range i.Supervisors {
		name("supervisors", s.ID)
	}
	return errors.Join(errs...)
}

// Dir returns the absolute path of the cluster's directory.
func (c *Cluster) Dir() string { return c.dir }

// Info returns the content of cluster.json.
func (c *Cluster) Info() Info { return c.info }

// Dims returns the sizes of the torus.
func (c *Cluster) Dims() grid.Dims { return c.dims }

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *Cluster) nodeDir(id fault.NodeID) string { return c.path("nodes", string(id)) }

// RegisterFile returns the path of a node's register file.
func (c *Cluster) RegisterFile(n NodeInfo) string { return filepath.Join(n.StateDir, "registers") }

// PKI returns the path of a file of the cluster's keys and certificates.
func (c *Cluster) PKI(name string) string { return c.path("pki", name) }

// Node finds a node by id or by its original coordinates ("1,0,1").
func (c *Cluster) Node(name string) (NodeInfo, error) {
	for _, n := range c.info.All() {
		if string(n.ID) == name {
			return n, nil
		}
	}
	at, err := grid.ParseCoord(name)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("node %q: neither the id of a node of this %s cluster (such as %s) nor coordinates x,y,z", name, c.dims,
			c.info.Nodes[0].ID)
	}
	if err := c.dims.Check(at); err != nil {
		return NodeInfo{}, fmt.Errorf("node %q: %w", name, err)
	}
	return c.info.Nodes[c.dims.Index(at)], nil
}

// save writes cluster.json and the list of scrape targets; readers see the old or the new version, never half.
func (c *Cluster) save() error {
	if boot := bootID(); c.info.Boot != boot { // only then: other goroutines may be reading it
		c.info.Boot = boot
	}
	b, err := json.MarshalIndent(c.info, "", "  ")
	if err != nil {
		return fmt.Errorf("save local cluster: %w", err)
	}
	if err := errors.Join(durable.WriteFile(c.path("cluster.json"), append(b, '\n'), 0o644), c.saveTargets()); err != nil {
		return fmt.Errorf("save local cluster: %w", err)
	}
	return nil
}

// lockDir locks the directory against other programs. It waits up to wait for another holder. The lock ends with the process. Purge removes
// the file, and a lock on a removed file keeps nobody out.
func lockDir(dir string, wait time.Duration) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock directory %s: %w", dir, err)
		}
		err = durable.Lock(ctx, f, 20*time.Millisecond)
		if err == nil && names(path, f) {
			return func() {
				// A process that is just being started inherits the file until it executes: closing it here would not
				// end the lock.
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
		switch {
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("lock directory %s: %w: another program is starting, stopping or changing the cluster", dir, ErrBusy)
		}
	}
}

// names reports whether a path is still that of an open file.
func names(path string, f *os.File) bool {
	is, err := os.Stat(path)
	has, err2 := f.Stat()
	return err == nil && err2 == nil && os.SameFile(is, has)
}
