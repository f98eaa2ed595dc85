package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// EnrolmentConfig lets new nodes enrol: each gets certificates and a place in the torus. All fields but listen must be equal
// on all replicas.
type EnrolmentConfig struct {
	// Listen is the address at which nodes without a certificate enrol, TCP, "ip:port". Requires renewal. Default none: no
	// node can enrol here.
	Listen string `json:"listen,omitempty"`
	// Kubernetes accepts the service account tokens of agents' pods. Default none.
	Kubernetes EnrolmentKubernetes `json:"kubernetes,omitzero"`
	// Certificates accepts certificates that nodes have from another authority, such as a SPIFFE one. Default none.
	Certificates EnrolmentCertificates `json:"certificates,omitzero"`
	// ForgetAfter is the time after which a node that stays FAILED is removed from the topology, which frees its place. It
	// may enrol again. At most one node is removed in 10 s, none under maintenance, and none while more than a quarter of all
	// nodes are FAILED or UNKNOWN. 10m to 8760h. Default 0: never.
	ForgetAfter Duration `json:"forgetAfter,omitzero"`
}

// EnrolmentKubernetes says which service accounts may enrol nodes. The API server names the node of the pod that has the
// token, and only that node can enrol.
type EnrolmentKubernetes struct {
	// Audience of the tokens, as in the pods' projected volumes. Required with serviceAccounts.
	Audience string `json:"audience,omitempty"`
	// ServiceAccounts that may enrol nodes, "NAMESPACE/NAME", at most 16. Default none.
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Kubeconfig is the absolute path of a kubeconfig file. Default none: the supervisor runs in a pod, and asks as its
	// service account, which needs the right to create tokenreviews.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// ForgetNodes removes a node that enrolled this way from the topology when Kubernetes no longer has its Node object. The
	// service account needs the right to list nodes. Default false.
	ForgetNodes bool `json:"forgetNodes,omitempty"`
}

// EnrolmentCertificates says which certificates of another authority may enrol nodes.
type EnrolmentCertificates struct {
	// CA is a PEM file with the authorities. Read again for every request.
	CA string `json:"ca,omitempty"`
	// URI is the pattern of the certificate's SAN URI: {node}, exactly once, stands for the node's name, as in
	// spiffe://example.org/lofamo/{node}. Required with ca.
	URI string `json:"uri,omitempty"`
}

// Enabled reports whether any service account may enrol.
func (c EnrolmentKubernetes) Enabled() bool { return len(c.ServiceAccounts) > 0 }

// maxServiceAccounts bounds EnrolmentKubernetes.ServiceAccounts.
const maxServiceAccounts = 16

var serviceAccount = lazily(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

func (c EnrolmentConfig) validate(p *problems, renewal bool) {
	if c.Listen != "" {
		p.listen("enrolment.listen", c.Listen)
		if !renewal {
			p.bad("enrolment.listen", c.Listen, "nothing without renewal: this replica cannot sign certificates")
		}
	}
	k := c.Kubernetes
	if k.Enabled() != (k.Audience != "") || len(k.Audience) > 253 {
		p.bad("enrolment.kubernetes.audience", k.Audience, "1 to 253 bytes with serviceAccounts, or nothing without")
	}
	if n := len(k.ServiceAccounts); n > maxServiceAccounts {
		p.bad("enrolment.kubernetes.serviceAccounts", n, "at most %d", maxServiceAccounts)
	}
	for i, a := range k.ServiceAccounts {
		if !serviceAccount().MatchString(a) {
			p.bad(fmt.Sprintf("enrolment.kubernetes.serviceAccounts[%d]", i), a, "NAMESPACE/NAME")
		}
	}
	if k.Kubeconfig != "" && !filepath.IsAbs(k.Kubeconfig) {
		p.bad("enrolment.kubernetes.kubeconfig", k.Kubeconfig, "an absolute path, or nothing in a pod")
	}
	if k.ForgetNodes && !k.Enabled() {
		p.bad("enrolment.kubernetes.forgetNodes", true, "false without serviceAccounts")
	}
	if x := c.Certificates; (x.CA == "") != (x.URI == "") {
		p.bad("enrolment.certificates.ca, enrolment.certificates.uri", x.CA+", "+x.URI, "both or none")
	} else if x.URI != "" && (strings.Count(x.URI, nodeHole) != 1 || !strings.Contains(x.URI, "://")) {
		p.bad("enrolment.certificates.uri", x.URI, "a URI with %s in it once, as in spiffe://example.org/lofamo/%s", nodeHole, nodeHole)
	}
	if d := c.ForgetAfter.D(); d != 0 && (d < 10*time.Minute || d > 8760*time.Hour) {
		p.bad("enrolment.forgetAfter", d.String(), "10m to 8760h, or 0s for never")
	}
}

// NodeOf returns the node that a SAN URI names.
func (c EnrolmentCertificates) NodeOf(uri string) (fault.NodeID, bool) {
	before, after, _ := strings.Cut(c.URI, nodeHole)
	rest, ok := strings.CutPrefix(uri, before)
	name, cut := strings.CutSuffix(rest, after)
	return fault.NodeID(name), c.URI != "" && ok && cut && fault.IsName(name)
}

// JoinConfig makes lofamo-agent run enrol the node with the supervisors, and then run with what they answer: names,
// certificates, gossip keys, periods and the addresses of the supervisors. The torus chooses its place.
type JoinConfig struct {
	// Supervisors are the enrolment addresses, "ip:port" or "host:port", 1 to 16: any one suffices. Required.
	Supervisors []string `json:"supervisors,omitempty"`
	// TokenFile has a token, as 'lofamoctl token create' prints it. Default none.
	TokenFile string `json:"tokenFile,omitempty"`
	// ServiceAccountTokenFile has the token of the pod's service account, from a projected volume. Default none.
	ServiceAccountTokenFile string `json:"serviceAccountTokenFile,omitempty"`
	// Cert is a PEM file with a certificate that the node has from another authority. Default none.
	Cert string `json:"cert,omitempty"`
	// Key belongs to Cert, and is readable by its owner only. Required with Cert.
	Key string `json:"key,omitempty"`
	// CA is a PEM file with the cluster's authorities. Required with serviceAccountTokenFile and with cert; a token names the authority.
	CA string `json:"ca,omitempty"`
	// Address is this machine's IP in the service network and for links. Default: that from which it reaches a supervisor.
	// Required with service.listen: the IP of service.listen or of one of service.alternates.
	Address string `json:"address,omitempty"`
	// Ports are the ports of this node at Address.
	Ports JoinPorts `json:"ports,omitzero"`
	// Labels of the node, such as its rack: keys and values as in Kubernetes, at most 64. Default none.
	Labels map[string]string `json:"labels,omitempty"`
}

// NamesNode reports whether the evidence of an enrolment names the node, as that of Kubernetes or of another authority does. A token does
// not: a node with a token keeps the name with which it has enrolled.
func (c JoinConfig) NamesNode() bool { return c.ServiceAccountTokenFile != "" || c.Cert != "" }

// JoinPorts are a node's ports.
type JoinPorts struct {
	Service int `json:"service,omitempty"` // direct rail, UDP, 1 to 65535. 0 stands for 7100, the default
	Gossip  int `json:"gossip,omitempty"`  // gossip, UDP and TCP, 1 to 65535. 0 stands for 7101, the default
	// Links is the port of link X+, UDP and TCP, 1 to 65530; the other directions have the next five. 0 stands for 7110,
	// the default.
	Links int `json:"links,omitempty"`
}

// Filled returns the ports with their defaults filled in.
func (p JoinPorts) Filled() JoinPorts {
	return JoinPorts{Service: cmp.Or(p.Service, PortService), Gossip: cmp.Or(p.Gossip, PortGossip), Links: cmp.Or(p.Links, PortLinks)}
}

// JoinedAgent in JoinedDir of the state directory is the complete configuration of a node that has enrolled.
const (
	JoinedDir   = "joined"
	JoinedAgent = "agent.yaml"
)

// DefaultPorts of nodes.
const (
	PortService = 7100
	PortGossip  = 7101
	PortLinks   = 7110
	// PortEnrolment is the supervisors' default port for enrolment.
	PortEnrolment = 7944
)

// WithEnrolmentPort returns an address of a supervisor with the default port for enrolment, unless it has a port: "host", "ip", "[ip]",
// "host:port" and "[ip]:port" are addresses.
func WithEnrolmentPort(address string) string {
	host := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	if ip, err := netip.ParseAddr(host); err == nil && (ip.Is4() || ip.Is6()) || !strings.ContainsAny(address, ":[]") && address != "" {
		return net.JoinHostPort(host, strconv.Itoa(PortEnrolment))
	}
	return address
}

// Given reports whether the node joins by enrolment.
func (c JoinConfig) Given() bool { return len(c.Supervisors) > 0 }

// ValidateJoin checks a configuration whose node enrols, before it has. It names every bad field at once.
func (a Agent) ValidateJoin() error {
	p := &problems{}
	p.add(a.Join.validate())
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"cluster", a.Cluster != ""}, {"coord", a.Coord != ""}, {"dims", a.Dims != ""}, {"links", len(a.Links) > 0}, {"tls", a.TLS != AgentTLS{}},
		{"supervisors", len(a.Supervisors) > 0}, {"periods", a.Periods != nil},
	} {
		if f.given {
			p.bad(f.name, "a value", "nothing with join: the supervisors provide it")
		}
	}
	if !a.Window.Zero() {
		p.bad("window", "a value", "nothing with join: a node with a window cannot enrol")
	}
	p.name("node", string(a.Node))
	if fault.IsLoopbackName(string(a.Node)) {
		p.bad("node", a.Node, "a name of its own: every machine has this one")
	}
	if a.Service.Listen != "" {
		p.listen("service.listen", a.Service.Listen)
		a.validateProvable(p)
	}
	if a.Service.GossipListen != "" {
		p.listen("service.gossipListen", a.Service.GossipListen)
	}
	a.validateOwn(p)
	return p.err()
}

// validateProvable refuses links at an IP that the service does not have: a node proves the addresses of its service alone.
func (a Agent) validateProvable(p *problems) {
	links, _ := netip.ParseAddr(a.Join.Address)
	if !slices.ContainsFunc(a.Service.Interfaces(), func(i ServiceAddr) bool {
		at, err := netip.ParseAddrPort(i.Listen)
		return err == nil && at.Addr().Unmap() == links.Unmap()
	}) {
		p.bad("join.address", a.Join.Address, "with service.listen, the IP of service.listen or of one of service.alternates: "+
			"supervisors accept links only at an IP that the node has proved")
	}
}

// validate names every bad field at once.
func (c JoinConfig) validate() error {
	p := &problems{}
	if n := len(c.Supervisors); n < 1 || n > 16 {
		p.bad("join.supervisors", n, "1 to 16 addresses")
	}
	for i, s := range c.Supervisors {
		host, port, err := net.SplitHostPort(s)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(s, " /") {
			p.bad(fmt.Sprintf("join.supervisors[%d]", i), s, `"ip:port" or "host:port", port 1 to 65535`)
		}
	}
	evidence := 0
	for _, s := range []string{c.TokenFile, c.ServiceAccountTokenFile, c.Cert} {
		if s != "" {
			evidence++
		}
	}
	if evidence > 1 {
		p.bad("join.tokenFile, join.serviceAccountTokenFile, join.cert", evidence, "at most one of them")
	}
	if (c.Cert == "") != (c.Key == "") {
		p.bad("join.cert, join.key", c.Cert+", "+c.Key, "both or none")
	}
	if c.NamesNode() && c.CA == "" {
		p.bad("join.ca", "", "a file with the cluster's authorities: without a token, nothing else names them")
	}
	if c.Address != "" {
		if ip, err := netip.ParseAddr(c.Address); err != nil || ip.IsUnspecified() {
			p.bad("join.address", c.Address, "the IP of this machine")
		}
	}
	filled := c.Ports.Filled()
	ports := []struct {
		name    string
		port, n int
	}{{"service", filled.Service, 1}, {"gossip", filled.Gossip, 1}, {"links", filled.Links, grid.NumDirections}}
	for i, a := range ports {
		if a.port < 1 || a.port+a.n-1 > 65535 {
			p.bad("join.ports."+a.name, a.port, "1 to %d", 65536-a.n)
		}
		for _, b := range ports[:i] {
			if a.port < b.port+b.n && b.port < a.port+a.n {
				p.bad("join.ports."+a.name, a.port, "a port of its own: join.ports.%s takes %d to %d", b.name, b.port, b.port+b.n-1)
			}
		}
	}
	p.labels("join", c.Labels)
	return p.err()
}

// Joined is what a node learns when it enrols.
type Joined struct {
	Cluster     string
	Node        fault.NodeID
	Preset      string
	Periods     *PeriodsOverride
	Supervisors []SupervisorAddr
	Gossip      []string // of supervisors, "ip:port"
	GossipKeys  string   // file; empty: no gossip
	TLS         AgentTLS
	Address     netip.Addr // of this node
}

// With returns the complete configuration of a node that has enrolled: a spare with an end of a link in each direction.
func (a Agent) With(j Joined) Agent {
	on := func(port int) string { return netip.AddrPortFrom(j.Address, uint16(port)).String() } //nolint:gosec // validated
	ports := a.Join.Ports.Filled()
	a.Join = JoinConfig{}
	a.Cluster, a.Node, a.Preset, a.Periods, a.Supervisors, a.TLS = j.Cluster, j.Node, j.Preset, j.Periods, j.Supervisors, j.TLS
	a.Spare, a.Coord, a.Dims = true, "", ""
	a.Links = make(map[string]LinkAddr, grid.NumDirections)
	for _, d := range grid.Directions() {
		a.Links[d.String()] = LinkAddr{Local: on(ports.Links + d.Index())}
	}
	a.Service.Listen = cmp.Or(a.Service.Listen, on(ports.Service))
	if j.GossipKeys != "" {
		a.Service.GossipListen = cmp.Or(a.Service.GossipListen, on(ports.Gossip))
		a.Service.GossipJoin, a.Service.GossipKeyFile = slices.Clone(j.Gossip), j.GossipKeys
	}
	return a
}
