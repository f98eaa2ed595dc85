// Package supervisortest creates the environment for tests of supervisors: keys, configurations with free ports, and
// agents that speak the real protocol on real sockets. The agents are dummies: their test determines what
// they report.
package supervisortest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Name is the name of every cluster made here.
const Name = "test"

// Wait bounds every wait of tests on such clusters. It is a bound against hanging, no measure: on a busy machine a change of the leader
// alone may take 10 s.
const Wait = time.Minute

// Options of a cluster. Zero values mean 2x2x1 and one replica.
type Options struct {
	Dims     string
	Replicas int
	// Preset of periods. Empty means relaxed, and nodes count as silent only after two minutes: in a test that is not about
	// silence, reports stay fresh on a busy machine.
	Preset string
	Gossip bool
	// Sockets is the number of report addresses of each replica; 0 means 1.
	Sockets int
	// Spares is the number of nodes without a place, x1 and so on.
	Spares int
	// Web makes every replica serve the page for browsers, without TLS.
	Web bool
	// Renewed makes replicas renew node certificates with this lifetime; 0: they renew none.
	Renewed time.Duration
	// Configure changes a replica's configuration. May be nil.
	Configure func(*config.Supervisor)
}

// Cluster is the environment of some replicas.
type Cluster struct {
	Dir     string
	Dims    grid.Dims
	Configs []config.Supervisor
	Agents  map[fault.NodeID]*Agent

	ca     *pki.CA
	spares []config.SpareEntry
}

// New creates keys, configurations and agents. It starts no replica.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.Dims == "" {
		o.Dims = "2x2x1"
	}
	o.Replicas = max(1, o.Replicas)
	dims, err := grid.ParseDims(o.Dims)
	must(t, err)
	c := &Cluster{Dir: t.TempDir(), Dims: dims, Agents: make(map[fault.NodeID]*Agent)}
	c.ca, err = pki.NewCA(Name)
	must(t, err)
	must(t, c.ca.Save(c.path("ca.pem"), c.path("ca.key")))
	if o.Renewed != 0 {
		c.makeIssuer(t)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	must(t, os.WriteFile(c.path("gossip.key"), []byte(base64.StdEncoding.EncodeToString(key)), 0o600))
	for _, role := range pki.Roles() {
		if role != pki.RoleNode {
			c.issue(t, pki.Identity{Cluster: Name, Role: role, Name: "someone"}, string(role))
		}
	}
	var nodes []config.NodeEntry
	for r := range dims.Nodes() {
		at := dims.At(r)
		id := fault.DefaultNodeID(at)
		a := c.agent(t, id)
		c.Agents[id] = a
		nodes = append(nodes, config.NodeEntry{ID: id, Coord: at.String(), Service: a.Addr()})
	}
	for i := range o.Spares {
		id := fault.NodeID(fmt.Sprintf("x%d", i+1))
		c.Agents[id] = c.agent(t, id)
		c.spares = append(c.spares, config.SpareEntry{ID: id, Service: c.Agents[id].Addr()})
	}
	c.configure(t, o, nodes)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// makeIssuer writes issuer.pem and issuer.key, and makes all members trust the issuer.
func (c *Cluster) makeIssuer(t testing.TB) {
	t.Helper()
	i, err := pki.NewIssuer(Name)
	must(t, err)
	must(t, i.Save(c.path("issuer.pem"), c.path("issuer.key")))
	must(t, os.WriteFile(c.path("ca.pem"), append(c.ca.CertPEM(), i.CertPEM()...), 0o600))
}

// issue writes NAME.pem and NAME.key.
func (c *Cluster) issue(t testing.TB, id pki.Identity, name string, ips ...net.IP) {
	t.Helper()
	must(t, c.ca.IssueTo(c.path(name+".pem"), c.path(name+".key"), id, ips, nil))
}

// issueReplica writes both pairs of a replica.
func (c *Cluster) issueReplica(t testing.TB, id string) {
	t.Helper()
	// Its connections come from 127.0.0.1, and etcd checks that address too.
	identity, ips := pki.SupervisorIdentity(Name, id), []net.IP{freeport.IP().AsSlice(), net.IPv4(127, 0, 0, 1)}
	c.issue(t, identity, id, ips...)
	must(t, c.ca.IssueTo(c.path(id+"-ecdsa.pem"), c.path(id+"-ecdsa.key"), identity, ips, nil, pki.WithKey(pki.KeyECDSA)))
}

// configure creates the replicas' configurations.
func (c *Cluster) configure(t testing.TB, o Options, nodes []config.NodeEntry) {
	t.Helper()
	var replicas []config.ReplicaEntry
	var members, join []string
	for range o.Replicas {
		cfg := c.replica(t, o, nodes)
		if o.Gossip {
			join = append(join, cfg.GossipListen)
		}
		members = append(members, cfg.ID+"="+cfg.Etcd.PeerURL)
		replicas = append(replicas, entry(cfg))
		c.Configs = append(c.Configs, cfg)
	}
	for i := range c.Configs {
		c.Configs[i].Etcd.InitialCluster = strings.Join(members, ",")
		c.Configs[i].Replicas = replicas
		c.Configs[i].GossipJoin = join
	}
}

// replica creates the configuration of one more replica, without the data about the others.
func (c *Cluster) replica(t testing.TB, o Options, nodes []config.NodeEntry) config.Supervisor {
	t.Helper()
	id := fmt.Sprintf("s%d", len(c.Configs)+1)
	c.issueReplica(t, id)
	cfg, free := config.DefaultSupervisor(), func() string { return freeport.Addr(t).String() }
	cfg.Cluster, cfg.ID, cfg.Dims, cfg.Nodes, cfg.Preset = Name, id, c.Dims.String(), nodes, o.Preset
	if o.Preset == "" {
		misses := 64
		cfg.Preset, cfg.Periods = config.PresetRelaxed, &config.PeriodsOverride{DigestMisses: &misses}
	}
	cfg.Spares = c.spares
	cfg.Report, cfg.GRPC, cfg.HTTP = free(), free(), free()
	for range o.Sockets - 1 {
		cfg.ReportAlternates = append(cfg.ReportAlternates, free())
	}
	if o.Web {
		cfg.Web = config.WebConfig{Listen: free(), Plain: true}
	}
	cfg.DataDir = c.path(id)
	cfg.Etcd.PeerURL, cfg.Etcd.ClientURL = "https://"+free(), "https://"+free()
	cfg.TLS = config.SupervisorTLS{CA: c.path("ca.pem"), Cert: c.path(id + ".pem"), Key: c.path(id + ".key")}
	cfg.ECDSA = config.KeyPair{Cert: c.path(id + "-ecdsa.pem"), Key: c.path(id + "-ecdsa.key")}
	if o.Renewed != 0 {
		cfg.Renewal = config.RenewalConfig{Cert: c.path("issuer.pem"), Key: c.path("issuer.key"), Lifetime: config.Duration(o.Renewed)}
	}
	cfg.Log.Level = "warn"
	cfg.LocalPID = true
	cfg.Responses.SupervisorNodes = map[string]string{"*": config.NoNode}
	if o.Gossip {
		cfg.GossipListen, cfg.GossipKeyFile = free(), c.path("gossip.key")
	}
	if o.Configure != nil {
		o.Configure(&cfg)
	}
	return cfg
}

func entry(cfg config.Supervisor) config.ReplicaEntry {
	return config.ReplicaEntry{ID: cfg.ID, GRPC: cfg.GRPC, Report: cfg.Report, HTTP: cfg.HTTP, Web: webURL(cfg.Web)}
}

// webURL returns the URL of a replica's page; empty: none.
func webURL(c config.WebConfig) string {
	if c.Listen == "" {
		return ""
	}
	return "http://" + c.Listen
}

// Grow creates the configuration of one more replica, which knows the others; they do not know it. The replica must
// be added as a member before it is started.
func (c *Cluster) Grow(t testing.TB) config.Supervisor {
	t.Helper()
	first := c.Configs[0]
	cfg := c.replica(t, Options{Preset: first.Preset}, first.Nodes)
	cfg.Periods = first.Periods
	cfg.Etcd.ClusterState = "existing"
	cfg.Etcd.InitialCluster = first.Etcd.InitialCluster + "," + cfg.ID + "=" + cfg.Etcd.PeerURL
	cfg.Replicas = append(slices.Clone(first.Replicas), entry(cfg))
	c.Configs = append(c.Configs, cfg)
	return cfg
}

// WriteConfig writes a replica's configuration to a file and returns its name.
func (c *Cluster) WriteConfig(t testing.TB, cfg config.Supervisor) string {
	t.Helper()
	b, err := yaml.Marshal(cfg)
	must(t, err)
	path := c.path(cfg.ID + ".yaml")
	must(t, os.WriteFile(path, b, 0o600))
	return path
}

// Conn connects to a replica with a role's certificate.
func (c *Cluster) Conn(t testing.TB, role pki.Role, addr string) *grpc.ClientConn {
	t.Helper()
	name := string(role)
	if role == pki.RoleNode {
		name = "n0-0-0-host"
	}
	return c.conn(t, name, addr)
}

// Person connects to a replica as a person with that name, with a certificate of the role.
func (c *Cluster) Person(t testing.TB, role pki.Role, name, addr string) *grpc.ClientConn {
	t.Helper()
	file := string(role) + "-" + name
	c.issue(t, pki.Identity{Cluster: Name, Role: role, Name: name}, file)
	return c.conn(t, file, addr)
}

// conn connects with the certificate in a file.
func (c *Cluster) conn(t testing.TB, name, addr string) *grpc.ClientConn {
	t.Helper()
	conf, err := pki.ClientTLS(c.path(name+".pem"), c.path(name+".key"), c.path("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	must(t, err)
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Client returns a viewer's client of a replica.
func (c *Cluster) Client(t testing.TB, addr string) lofamov1.FaultSupervisorClient {
	t.Helper()
	return lofamov1.NewFaultSupervisorClient(c.Conn(t, pki.RoleViewer, addr))
}

// Operator returns an operator's client of a replica.
func (c *Cluster) Operator(t testing.TB, addr string) lofamov1.FaultSupervisorClient {
	t.Helper()
	return lofamov1.NewFaultSupervisorClient(c.Conn(t, pki.RoleOperator, addr))
}

// Reconfigure returns an operator's client of a replica's service Reconfigure.
func (c *Cluster) Reconfigure(t testing.TB, addr string) lofamov1.ReconfigureClient {
	t.Helper()
	return lofamov1.NewReconfigureClient(c.Conn(t, pki.RoleOperator, addr))
}

// AwaitLeader waits until one of the replicas knows an active leader, and returns the leader's index.
func (c *Cluster) AwaitLeader(t testing.TB, among ...int) int {
	t.Helper()
	if len(among) == 0 {
		for i := range c.Configs {
			among = append(among, i)
		}
	}
	clients := make(map[int]lofamov1.FaultSupervisorClient)
	for _, i := range among {
		clients[i] = c.Client(t, c.Configs[i].GRPC)
	}
	leader, answers := -1, make(map[int][]any)
	defer func() {
		if leader < 0 {
			t.Logf("await a leader: the last answer of each replica: %v", answers)
		}
	}()
	Eventually(t, "a leader", func() bool {
		leads := -1
		for _, i := range among {
			resp, err := clients[i].ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
			answers[i] = []any{resp.GetCluster(), err}
			if err != nil || resp.GetCluster().GetStale() {
				return false
			}
			leads = slices.IndexFunc(c.Configs, func(cfg config.Supervisor) bool { return cfg.ID == resp.GetCluster().GetLeader() })
			if !slices.Contains(among, leads) {
				return false
			}
		}
		leader = leads
		return true
	})
	return leader
}

// Fresh repeats a read, such as client.ListNodes, until its answer is not stale. A replica on a busy machine may not hear the leader in
// time, and then answers from its copy.
func Fresh[Q any, A interface{ GetCluster() *lofamov1.ClusterInfo }](t testing.TB,
	read func(context.Context, Q, ...grpc.CallOption) (A, error), req Q) (answer A) {
	t.Helper()
	Eventually(t, "an answer that is not stale", func() bool {
		var err error
		answer, err = read(t.Context(), req)
		return err == nil && !answer.GetCluster().GetStale()
	})
	return answer
}

// Eventually polls until the condition holds.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(Wait)
	for !cond() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited %s for %s", Wait, what)
		}
	}
}
