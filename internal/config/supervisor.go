package config

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Supervisor is the configuration of one supervisor replica.
type Supervisor struct {
	// Cluster is the cluster's name, as in the certificates. 1 to 63 of a-z, 0-9, '-' and '.'.
	// Required.
	Cluster string `json:"cluster"`
	// ID is this replica's name, as in its certificate. Letters, digits, '-', '_' and '.'. Required.
	ID string `json:"id"`
	// Dims are the sizes of the torus, "XxYxZ", each 1 to 65536, and its empty places, if any: "3x2x2 without 1,0,0 2,1,1".
	// "0,1,1..2,1,1" is a range of ranks, X fastest. A torus with empty places has at most 1,048,576 places. "0x0x0" if
	// all nodes join later. Required.
	Dims string `json:"dims"`
	// Nodes lists every node of the torus. This list, Dims, Spares and DomainLabels initialise a new cluster. Later the
	// topology is kept in the store, changed by 'lofamoctl apply', and these fields are ignored.
	Nodes []NodeEntry `json:"nodes,omitempty"`
	// Spares are nodes without coordinates in the torus. Default none.
	Spares []SpareEntry `json:"spares,omitempty"`
	// DomainLabels are the keys of labels that are failure domains, at most 16: nodes that share a value do not
	// confirm one another, and may have a common cause. Default rack, switch and power.
	DomainLabels []string `json:"domainLabels,omitempty"`
	// Region is the name of the region that this replica belongs to, of a system with several; Regions must name
	// it, and the region of every node must be given. Default none.
	Region string `json:"region,omitempty"`
	// Regions are the regions of a system that is larger than one gossip pool. A replica without Region then belongs to
	// their parent: it serves one map of all regions, and has no nodes itself. Default none.
	Regions []RegionEntry `json:"regions,omitempty"`
	// Upstream are the supervisors of the parent, to which the region's changes are passed on. Only with Region.
	// Default none.
	Upstream []UpstreamEntry `json:"upstream,omitempty"`
	// Report is the address of the direct rail, UDP, "ip:port". Required, but by a parent of regions, which has none.
	Report string `json:"report"`
	// ReportAlternates are further report addresses, "ip:port" of one host each, at most 7. Service interface k of a
	// node reaches this replica at address k of Report and these, or at the last one if there are fewer. Default none.
	ReportAlternates []string `json:"reportAlternates,omitempty"`
	// Checksums are the end-to-end checksums that agents may choose from: crc32c, crc32, fletcher64, adler32, xxhash64,
	// sum64 or none. An agent that offers none of them uses crc32c. Default all but none.
	Checksums []string `json:"checksums"`
	// GRPC is the address of the API, "ip:port". Required.
	GRPC string `json:"grpc"`
	// HTTP is the address of metrics and health, "ip:port". Default none.
	HTTP string `json:"http,omitempty"`
	// Web is the fault map for browsers. Default none.
	Web WebConfig `json:"web,omitzero"`
	// GossipListen is the address of the gossip rail, UDP and TCP, "ip:port". Default none: no gossip.
	GossipListen string `json:"gossipListen,omitempty"`
	// GossipJoin are members to join by, "ip:port". Default none.
	GossipJoin []string `json:"gossipJoin,omitempty"`
	// GossipKeyFile holds the gossip key: 32 bytes in base64. Up to two more keys, each on its own line, are accepted
	// from other members while the key is changed; the first encrypts. Required with GossipListen.
	GossipKeyFile string `json:"gossipKeyFile,omitempty"`
	// DataDir is a directory of this replica alone. Default /var/lib/lofamo/supervisor.
	DataDir string `json:"dataDir"`
	// DiskWarnBytes is the free space of DataDir's disk, in bytes, below which the replica warns: in its log and by the
	// alarm "disk low". Embedded etcd ends without space. 0 for never, or at most 1 TiB. Default 1 GiB.
	DiskWarnBytes int64 `json:"diskWarnBytes"`
	// Etcd is the store: embedded, unless endpoints are given.
	Etcd EtcdConfig `json:"etcd"`
	// TLS are the files with this replica's certificate and key; the embedded etcd uses them too.
	// Required.
	TLS SupervisorTLS `json:"tls"`
	// ECDSA is a second pair of this replica, which gRPC shows to clients that refuse Ed25519, as most outside Go do.
	// Default none: those clients cannot connect.
	ECDSA KeyPair `json:"ecdsa,omitzero"`
	// Renewal makes this replica renew the certificates of nodes. Default none: no renewal.
	Renewal RenewalConfig `json:"renewal,omitzero"`
	// Enrolment lets new nodes in. Default none.
	Enrolment EnrolmentConfig `json:"enrolment,omitzero"`
	// Replicas lists all the replicas, this one included.
	Replicas []ReplicaEntry `json:"replicas"`
	// Preset of periods: default, fast or relaxed. All nodes and supervisors alike.
	Preset string `json:"preset"`
	// Periods sets single values of the preset. Default none.
	Periods *PeriodsOverride `json:"periods,omitempty"`
	// Log configures the log.
	Log LogConfig `json:"log"`
	// Foresight is the maximum lead time of warnings about a trend towards a threshold (temperature, power, voltage,
	// corrected memory errors, lost frames of a link). 0 for no warnings, or 1m to 168h. Default 1h.
	Foresight Duration `json:"foresight"`
	// StopLimit is how long a node may be away after it announced a stop or reboot before its silence is a fault. 1s to 24h, or 0
	// to switch announced stops off. Default 10m.
	StopLimit *Duration `json:"stopLimit,omitempty"`
	// IncidentQuiet is how long all must be well before an incident is CLOSED. A fault that returns earlier continues the incident,
	// which counts the returns. Four digest periods are the minimum. 0s to 24h. Default 1m.
	IncidentQuiet Duration `json:"incidentQuiet"`
	// Diagnosis lists the automatic diagnoses of the supervisors. Default none.
	Diagnosis DiagnosisConfig `json:"diagnosis,omitzero"`
	// Responses limits the supervisors' responses to faults. Default: policies apply, within cautious limits.
	Responses SupervisorResponses `json:"responses"`
	// Kubernetes has the custom objects that the leader keeps there. Default none.
	Kubernetes KubernetesObjects `json:"kubernetes,omitzero"`
	// LocalPID shows this process' id in the API, for clusters on one machine. Default false.
	LocalPID bool `json:"localPID,omitempty"`
}

// WebConfig configures the fault map for browsers: a page that this replica serves for people who log in with
// 'lofamoctl web'.
type WebConfig struct {
	// Listen is the page's address, "ip:port". Default none: no page.
	Listen string `json:"listen,omitempty"`
	// Cert and Key are PEM files with the certificate for browsers, including intermediate ones. It must be ECDSA or
	// RSA, because browsers do not support Ed25519, which the cluster's own certificates use. Default: the replica
	// creates a self-signed one, which browsers warn about, and keeps it in dataDir.
	Cert string `json:"cert,omitempty"`
	// Key belongs to Cert, and is readable by its owner only.
	Key string `json:"key,omitempty"`
	// Plain serves the page without TLS, to this machine only: Listen must be a loopback address. For clusters on one
	// machine, tunnels, and a proxy that terminates TLS. Default false.
	Plain bool `json:"plain,omitempty"`
	// Session is the duration of a login, 5m to 24h. 0 stands for 8h, the default.
	Session Duration `json:"session,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c WebConfig) Filled() WebConfig {
	if c.Session == 0 {
		c.Session = Duration(8 * time.Hour)
	}
	return c
}

func (c WebConfig) validate(p *problems) {
	if c.Listen == "" {
		if c != (WebConfig{}) {
			p.bad("web.listen", "", "the page's address, for other keys of web are given")
		}
		return
	}
	addr, ok := p.listen("web.listen", c.Listen)
	if (c.Cert == "") != (c.Key == "") {
		p.bad("web.cert, web.key", c.Cert+", "+c.Key, "both or none")
	}
	if c.Plain && c.Cert != "" {
		p.bad("web.plain", true, "false where web.cert is given")
	}
	if c.Plain && ok && !addr.Addr().IsLoopback() {
		p.bad("web.plain", true, "false, for web.listen %s can be reached from other machines", c.Listen)
	}
	if d := c.Session.D(); d != 0 && (d < 5*time.Minute || d > 24*time.Hour) {
		p.bad("web.session", d.String(), "5m to 24h")
	}
}

// DiagnosisConfig selects the diagnoses that the leading supervisor makes automatically.
type DiagnosisConfig struct {
	// Auto is off, or links: a link that is SICK for After is diagnosed. Default off.
	Auto string `json:"auto,omitempty"`
	// After is the time for which a link must be SICK, 1s to 24h. 0 stands for 10s, the default.
	After Duration `json:"after,omitzero"`
	// MinInterval is the minimum time between diagnoses of the same link, 1m to 168h. 0 stands for 10m, the default.
	MinInterval Duration `json:"minInterval,omitzero"`
	// Drain drains the whole torus by the fault management procedure before the tests, instead of a test of one link
	// under load. All links are tested then, and MinInterval is the minimum time between procedures. Default false.
	Drain bool `json:"drain,omitempty"`
	// Pause is the minimum time between fault management procedures, for any requester, 1s to 1h. 0 stands for 30s, the
	// default.
	Pause Duration `json:"pause,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c DiagnosisConfig) Filled() DiagnosisConfig {
	if c.Auto == "" {
		c.Auto = DiagnosisOff
	}
	if c.After == 0 {
		c.After = Duration(10 * time.Second)
	}
	if c.MinInterval == 0 {
		c.MinInterval = Duration(10 * time.Minute)
	}
	if c.Pause == 0 {
		c.Pause = Duration(30 * time.Second)
	}
	return c
}

// Values of DiagnosisConfig.Auto.
const (
	DiagnosisOff   = "off"
	DiagnosisLinks = "links"
)

// NodeEntry is one node of the torus.
type NodeEntry struct {
	// ID is the node's name. Default from the coordinate.
	ID fault.NodeID `json:"id"`
	// Coord is its place, "x,y,z".
	Coord string `json:"coord"`
	// Service is its address on the direct rail, UDP, "ip:port".
	Service string `json:"service"`
	// Alternates are the addresses of its further service interfaces, by their numbers from 1 on, at
	// most 7. Default none.
	Alternates []string `json:"alternates,omitempty"`
	// Labels of the node, such as its rack: keys and values as in Kubernetes, at most 64. Default none.
	Labels map[string]string `json:"labels,omitempty"`
	// Region of the member. Required in a system with regions.
	Region string `json:"region,omitempty"`
}

// RegionEntry is one region.
type RegionEntry struct {
	// Name of 1 to 63 letters, digits, '-', '_' and '.'.
	Name string `json:"name"`
	// Supervisors are the region's replicas: only they may report for the region.
	Supervisors []UpstreamEntry `json:"supervisors"`
}

// UpstreamEntry is a supervisor outside one's own region.
type UpstreamEntry struct {
	ID   string `json:"id"`   // its name, as in its certificate
	GRPC string `json:"grpc"` // API address, "ip:port"
}

// SpareEntry is a node that has no place in the torus until the topology gives it one.
type SpareEntry struct {
	// ID is the node's name. Required.
	ID fault.NodeID `json:"id"`
	// Service is its address on the direct rail, UDP, "ip:port". Default none.
	Service string `json:"service,omitempty"`
	// Alternates are the addresses of its further service interfaces, by their numbers from 1 on, at
	// most 7. Default none.
	Alternates []string `json:"alternates,omitempty"`
	// Labels of the node. Default none.
	Labels map[string]string `json:"labels,omitempty"`
}

// EtcdConfig is the store.
type EtcdConfig struct {
	// Endpoints of an external etcd, "https://host:port". Supervisors do not compact an external etcd, so configure its auto-compaction
	// (--auto-compaction-mode=periodic --auto-compaction-retention=1h). Default none: etcd is embedded. The fields below apply only to
	// an embedded etcd.
	Endpoints []string `json:"endpoints,omitempty"`
	// Name is the embedded member's name. Default the supervisor's id.
	Name string `json:"name,omitempty"`
	// PeerURL is this member's address for the other members, "https://ip:port". It listens with mutual TLS only.
	// Required when embedded.
	PeerURL string `json:"peerURL,omitempty"`
	// ClientURL is where clients reach this member, "https://ip:port". Required when embedded.
	ClientURL string `json:"clientURL,omitempty"`
	// InitialCluster lists all members, "NAME=PEERURL,…", this one included. Required when embedded.
	InitialCluster string `json:"initialCluster,omitempty"`
	// ClusterState is new or existing. Default new.
	ClusterState string `json:"clusterState,omitempty"`
	// CompactionRetention is the retention time of old revisions. After 300000 changed keys, revisions older than a minute
	// are removed earlier. 1m to 168h. Default 1h.
	CompactionRetention Duration `json:"compactionRetention"`
	// QuotaBytes bounds the store's size. 16 MiB to 8 GiB. Default 1 GiB.
	QuotaBytes int64 `json:"quotaBytes"`
	// KeepEvents is the maximum number of kept events of the history, the newest ones; this and the next two fields
	// apply to an external etcd too. 100 to 10000000. Default 100000.
	KeepEvents int64 `json:"keepEvents"`
	// HistoryAge is the retention time of events. 1m to 8760h. Default 168h.
	HistoryAge Duration `json:"historyAge"`
	// HistoryBytes is the maximum size of the kept events. 1 MiB to 4 GiB. Default 128 MiB.
	HistoryBytes int64 `json:"historyBytes"`
	// KeepIncidents is the number of kept CLOSED incidents, the newest ones. 10 to 1000. 0 stands for 1000, the default.
	KeepIncidents int `json:"keepIncidents,omitzero"`
}

// SupervisorTLS names PEM files.
type SupervisorTLS struct {
	CA   string `json:"ca"`   // the cluster's certificate authorities
	Cert string `json:"cert"` // its certificate: lofamo://CLUSTER/supervisor/ID, that of an executor process lofamo://CLUSTER/executor/NAME
	Key  string `json:"key"`  // its key, readable by its owner only
}

// KeyPair names PEM files with a certificate and its key.
type KeyPair struct {
	// Cert is the certificate: lofamo://CLUSTER/supervisor/ID, as that of tls.cert, with an ECDSA P-256 key. Default none.
	Cert string `json:"cert,omitempty"`
	// Key belongs to Cert, and is readable by its owner only. Required with Cert.
	Key string `json:"key,omitempty"`
}

// RenewalConfig names the issuer of node certificates, and sets their lifetime.
type RenewalConfig struct {
	// Cert is a PEM file with the issuer's certificate, which every member's ca.pem must contain too. Default none.
	Cert string `json:"cert,omitempty"`
	// Key belongs to Cert, and is readable by its owner only. Required with Cert.
	Key string `json:"key,omitempty"`
	// Lifetime is the validity of renewed certificates, 20s to 8760h. 0 stands for 720h, the default. Halves renew when
	// half of that is left.
	Lifetime Duration `json:"lifetime,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c RenewalConfig) Filled() RenewalConfig {
	if c.Lifetime == 0 {
		c.Lifetime = Duration(DefaultRenewed)
	}
	return c
}

// DefaultRenewed is the default lifetime of renewed certificates.
const DefaultRenewed = 720 * time.Hour

func (c RenewalConfig) validate(p *problems) {
	if (c.Cert == "") != (c.Key == "") {
		p.bad("renewal.cert, renewal.key", c.Cert+", "+c.Key, "both or none")
	}
	if c.Cert == "" && c.Lifetime != 0 {
		p.bad("renewal.lifetime", c.Lifetime.D().String(), "none without renewal.cert")
	}
	if d := c.Lifetime.D(); d != 0 && (d < 20*time.Second || d > 8760*time.Hour) {
		p.bad("renewal.lifetime", d.String(), "20s to 8760h")
	}
}

// ReplicaEntry is one supervisor replica.
type ReplicaEntry struct {
	ID     string `json:"id"`             // its name, as in its certificate
	GRPC   string `json:"grpc"`           // API address, "ip:port"
	Report string `json:"report"`         // report address, UDP, "ip:port"
	HTTP   string `json:"http,omitempty"` // metrics and health, "ip:port", may be empty
	// Web is the address of the replica's page for browsers, "https://host:port", so that they can switch to it when
	// another replica fails. Default none.
	Web string `json:"web,omitempty"`
}

// defaultStopLimit is the time in which most servers boot, with their memory tests.
const defaultStopLimit = 10 * time.Minute

// StopTime returns StopLimit, or its default.
func (s Supervisor) StopTime() time.Duration {
	if s.StopLimit == nil {
		return defaultStopLimit
	}
	return s.StopLimit.D()
}

// DefaultSupervisor returns the defaults. Fields without a default are empty, and Validate names them.
func DefaultSupervisor() Supervisor {
	return Supervisor{
		DataDir:       "/var/lib/lofamo/supervisor",
		DiskWarnBytes: 1 << 30,
		DomainLabels:  fault.DomainLabels(),
		Etcd: EtcdConfig{
			ClusterState:        "new",
			CompactionRetention: Duration(time.Hour),
			QuotaBytes:          1 << 30,
			KeepEvents:          100_000,
			HistoryAge:          Duration(168 * time.Hour),
			HistoryBytes:        128 << 20,
		},
		Preset:    PresetDefault,
		Foresight: Duration(time.Hour),

		IncidentQuiet: Duration(time.Minute),
		Checksums:     allowedChecksums(),
		Log:           LogConfig{Level: "info", Format: "text"},
		Responses:     DefaultResponses(),
	}
}

// allowedChecksums returns all checksums that detect damage.
func allowedChecksums() []string {
	var out []string
	for _, a := range servicenet.Checksums() {
		if a != lofamov1.Checksum_CHECKSUM_NONE {
			out = append(out, servicenet.ChecksumName(a))
		}
	}
	return out
}

// Allowed returns the checksums that agents may choose from. It fails where Validate does.
func (s Supervisor) Allowed() ([]lofamov1.Checksum, error) { return parseChecksums(s.Checksums) }

// Reports returns all report addresses by their numbers.
func (s Supervisor) Reports() []string {
	if s.Parent() {
		return nil
	}
	return append([]string{s.Report}, s.ReportAlternates...)
}

// Services returns the addresses of all service interfaces by their numbers.
func (n NodeEntry) Services() []string { return append([]string{n.Service}, n.Alternates...) }

// Services returns the addresses of all service interfaces by their numbers.
func (n SpareEntry) Services() []string {
	if n.Service == "" {
		return n.Alternates
	}
	return append([]string{n.Service}, n.Alternates...)
}

// Embedded reports whether this replica runs its own etcd member.
func (s Supervisor) Embedded() bool { return len(s.Etcd.Endpoints) == 0 }

// Parent reports whether this replica belongs to a parent of regions.
func (s Supervisor) Parent() bool { return s.Region == "" && len(s.Regions) > 0 }

// RegionNames returns the names of the regions, in the order of the configuration.
func (s Supervisor) RegionNames() []string {
	var out []string
	for _, r := range s.Regions {
		out = append(out, r.Name)
	}
	return out
}

// EtcdName is the embedded member's name.
func (s Supervisor) EtcdName() string {
	if s.Etcd.Name != "" {
		return s.Etcd.Name
	}
	return s.ID
}

// EtcdToken distinguishes this cluster's etcd from others that it might contact by mistake.
func (s Supervisor) EtcdToken() string {
	token := "lofamo-" + s.Cluster
	if s.Region != "" {
		token += "-" + s.Region
	}
	return token
}

// Timing returns the preset with its overrides. It fails where Validate does.
func (s Supervisor) Timing() (Periods, error) { return timing(s.Preset, s.Periods) }

// Topology returns the parsed dims and the name of the node at every coordinate.
func (s Supervisor) Topology() (grid.Dims, map[grid.Coord]fault.NodeID, error) {
	d, err := grid.ParseDims(s.Dims)
	if err != nil {
		return grid.Dims{}, nil, err
	}
	ids := make(map[grid.Coord]fault.NodeID, len(s.Nodes))
	for _, n := range s.Nodes {
		c, err := grid.ParseCoord(n.Coord)
		if err != nil {
			return grid.Dims{}, nil, err
		}
		if err := d.Check(c); err != nil {
			return grid.Dims{}, nil, err
		}
		ids[c] = n.NodeID()
	}
	return d, ids, nil
}

// NodeID returns the entry's id, or the one that its coordinate gives it.
func (n NodeEntry) NodeID() fault.NodeID {
	if n.ID != "" {
		return n.ID
	}
	c, err := grid.ParseCoord(n.Coord)
	if err != nil {
		return ""
	}
	return fault.DefaultNodeID(c)
}
