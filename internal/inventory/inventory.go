// Package inventory generates each machine's directory /etc/lofamo from one file that an operator writes, the inventory
// of a cluster's machines: configuration, certificates and keys. It keeps the operator's own secret, the authority's
// key.
//
// It talks to no machine: the operator copies the directories by other means.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Inventory lists the machines of a cluster and their addresses.
type Inventory struct {
	// Cluster is the cluster's name, as in the certificates. 1 to 63 of a-z, 0-9, '-' and '.'. Required.
	Cluster string `json:"cluster"`
	// Dims are the sizes of the torus, "XxYxZ", each 1 to 65536, and its empty places, if any: "3x2x2 without 1,0,0 2,1,1".
	// "0,1,1..2,1,1" is a range of ranks, X fastest. A torus with empty places has at most 1,048,576 places. Required, but
	// 'lofamoctl cluster init' chooses the torus for at most 10,000 nodes if no node has a coord.
	Dims string `json:"dims"`
	// Preset of periods: default, fast or relaxed. Default default.
	Preset string `json:"preset,omitempty"`
	// Gossip: the gossip rail is used besides the direct one. Default true.
	Gossip *bool `json:"gossip,omitempty"`
	// Enrolment lets machines that are not listed here join the running cluster (lofamo-agent run --join). Default true if no
	// node is listed, else false.
	Enrolment *bool `json:"enrolment,omitempty"`
	// NodeCertificateDays is the lifetime of node certificates in days, 1 to 365, both in the bundles and renewed.
	// Halves renew them when half of that is left. Default 365 for those in the bundles and 30 for renewed ones.
	NodeCertificateDays int `json:"nodeCertificateDays,omitempty"`
	// Ports of everything that an address below does not name.
	Ports Ports `json:"ports,omitzero"`
	// DomainLabels are the keys of labels that are failure domains, at most 16, such as topology.kubernetes.io/rack: places
	// are chosen by them, and new clusters begin with them. Default rack, switch and power.
	DomainLabels []string `json:"domainLabels,omitempty"`
	// Supervisors are the replicas: 1, 3 or 5.
	Supervisors []Supervisor `json:"supervisors"`
	// Nodes has one entry for each place of the torus that is not empty. Without any, all nodes join later.
	Nodes []Node `json:"nodes,omitempty"`
	// Spares stand by to replace nodes. Default none.
	Spares []Node `json:"spares,omitempty"`
}

// Ports are the common ports of all machines, 1 to 65535. 0 stands for the default.
type Ports struct {
	// Service is the port of the nodes' direct rail, UDP, 1 to 65535. Default 7100.
	Service int `json:"service,omitempty"`
	// NodeGossip is the port of the nodes' gossip rail, UDP and TCP, 1 to 65535. Default 7101.
	NodeGossip int `json:"nodeGossip,omitempty"`
	// Links is the first port of the nodes' links, UDP and TCP, 1 to 65530: X+ has it, X- the next, then Y+, Y-, Z+,
	// Z-. Default 7110.
	Links int `json:"links,omitempty"`
	// Report is the port of the supervisors' direct rail, UDP, 1 to 65535. Default 7945.
	Report int `json:"report,omitempty"`
	// GRPC is the port of the supervisors' API, TCP, 1 to 65535. Default 7946.
	GRPC int `json:"grpc,omitempty"`
	// HTTP is the port of the supervisors' metrics and health, TCP, 1 to 65535. Default 7947.
	HTTP int `json:"http,omitempty"`
	// Web is the port of the supervisors' page for browsers, TCP, 1 to 65535. Each supervisor makes its own TLS certificate. Default 7949.
	Web int `json:"web,omitempty"`
	// Gossip is the port of the supervisors' gossip rail, UDP and TCP, 1 to 65535. Default 7948.
	Gossip int `json:"gossip,omitempty"`
	// Enrolment is the supervisors' port at which nodes enrol, TCP, 1 to 65535. Default 7944.
	Enrolment int `json:"enrolment,omitempty"`
	// EtcdPeer is the port at which the supervisors' etcd members reach one another, TCP, 1 to 65535. Default 2380.
	EtcdPeer int `json:"etcdPeer,omitempty"`
	// EtcdClient is the port at which clients reach the supervisors' etcd members, TCP, 1 to 65535. Default 2379.
	EtcdClient int `json:"etcdClient,omitempty"`
	// AgentHTTP is the port of the nodes' metrics and health, on their service address, TCP, 1 to 65535. Default 0: none.
	AgentHTTP int `json:"agentHTTP,omitempty"`
}

// Supervisor is one replica.
type Supervisor struct {
	// ID is its name, as in its certificate. Required.
	ID string `json:"id"`
	// Address is an IP at which nodes and other replicas reach it. Required.
	Address string `json:"address"`
	// Ports of this replica. 0 stands for the common value.
	Ports Ports `json:"ports,omitzero"`
}

// Node is a node, or a spare.
type Node struct {
	// ID is its name. Default from the coordinate: n1-0-1 at 1,0,1. Required of a spare.
	ID fault.NodeID `json:"id,omitempty"`
	// Coord is the node's coordinates, "x,y,z". Empty for a spare. For a node with an id and without coord, 'lofamoctl
	// cluster init' and 'add-node' choose a place by the labels of domainLabels; the inventory.yaml that they write
	// has it.
	Coord string `json:"coord,omitempty"`
	// Service is its address in the service network, an IP or "ip:port". Required.
	Service string `json:"service"`
	// Interface is the network interface of the service network, to which the rails are bound. Default none: not bound.
	Interface string `json:"interface,omitempty"`
	// Links are the node's own ends of the links by direction, X+ to Z-. A direction without an entry uses the service
	// address.
	Links map[string]Link `json:"links,omitempty"`
	// Labels of the node, such as its rack. Default none.
	Labels map[string]string `json:"labels,omitempty"`
}

// Link is a node's own end of a link.
type Link struct {
	// Address is an IP or "ip:port". Required.
	Address string `json:"address"`
	// Interface binds the link to a network interface. Default none.
	Interface string `json:"interface,omitempty"`
}

// Load reads and validates a file.
func Load(path string) (Inventory, error) {
	inv, err := readFile(path)
	if err != nil {
		return inv, err
	}
	if err := inv.Validate(); err != nil {
		return inv, fmt.Errorf("inventory %s: %w", path, err)
	}
	return inv, nil
}

// readFile reads a file without validating it.
func readFile(path string) (inv Inventory, err error) {
	if _, err := os.Stat(path); err != nil {
		return inv, fmt.Errorf("inventory: %w", err)
	}
	if err := config.ReadStrict(path, config.MaxNodesFile, &inv); err != nil {
		return inv, fmt.Errorf("inventory: %w", err)
	}
	if len(inv.Nodes) == 0 && inv.Dims == "" {
		inv.Dims = grid.Dims{}.String() // all nodes join later
	}
	return inv, nil
}

// nodeLifetime is the given lifetime of node certificates; 0: the default.
func (inv Inventory) nodeLifetime() time.Duration {
	return time.Duration(inv.NodeCertificateDays) * 24 * time.Hour
}

func (p Ports) or(q Ports) Ports {
	for _, f := range []struct{ to, from *int }{
		{&p.Service, &q.Service}, {&p.NodeGossip, &q.NodeGossip}, {&p.Links, &q.Links}, {&p.Report, &q.Report}, {&p.GRPC,
			&q.GRPC}, {&p.HTTP, &q.HTTP}, {&p.Web, &q.Web},
		{&p.Gossip, &q.Gossip}, {&p.Enrolment, &q.Enrolment}, {&p.EtcdPeer, &q.EtcdPeer}, {&p.EtcdClient, &q.EtcdClient},
		{&p.AgentHTTP, &q.AgentHTTP},
	} {
		if *f.to == 0 {
			*f.to = *f.from
		}
	}
	return p
}

var defaultPorts = Ports{Service: config.PortService, NodeGossip: config.PortGossip, Links: config.PortLinks, Report: 7945,
	GRPC: 7946, HTTP: 7947, Web: 7949, Gossip: 7948, Enrolment: config.PortEnrolment, EtcdPeer: 2380, EtcdClient: 2379}

// DefaultPorts returns the ports of an inventory that names none.
func DefaultPorts() Ports { return defaultPorts }

// Validate names every bad field. Checks by the programs' own configurations follow when these are generated.
func (inv Inventory) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		if given == "" {
			given = "nothing"
		}
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	if inv.Cluster == "" {
		bad("cluster", "", "1 to 63 of a-z, 0-9, '-' and '.'")
	}
	if inv.NodeCertificateDays < 0 || inv.NodeCertificateDays > 365 {
		bad("nodeCertificateDays", inv.NodeCertificateDays, "1 to 365, or 0 for the default")
	}
	errs = append(errs, inv.Ports.check("ports"), config.CheckDomainLabels(inv.DomainLabels))
	if !slices.Contains([]int{1, 3, 5}, len(inv.Supervisors)) {
		bad("supervisors", len(inv.Supervisors), "1, 3 or 5: a majority must remain when one dies, and an even number adds none")
	}
	ids := map[string]string{}
	once := func(field, id string) {
		if !idPattern.MatchString(id) {
			bad(field, id, "a name of letters, digits, '-', '_' and '.', which is a directory's too")
			return
		}
		if other, ok := ids[id]; ok {
			bad(field, id, "a name of its own: "+other+" has it")
		}
		ids[id] = field
	}
	for i, s := range inv.Supervisors {
		field := fmt.Sprintf("supervisors[%d]", i)
		once(field+".id", s.ID)
		if ip, err := netip.ParseAddr(s.Address); err != nil || ip.IsUnspecified() {
			bad(field+".address", s.Address, "the IP of one machine")
		}
		errs = append(errs, s.Ports.check(field+".ports"))
	}
	ids = map[string]string{} // nodes and supervisors may share a machine's name
	d, err := grid.ParseTorus(inv.Dims)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("dims: %w", err))...)
	}
	places := map[grid.Coord]string{}
	for i, n := range inv.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		at, err := n.at(d)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.coord: %w", field, err))
			continue
		}
		if other, ok := places[at]; ok {
			bad(field+".coord", n.Coord, "a place of its own: "+other+" has it")
		}
		places[at] = field
		once(field+".id", string(n.name(at)))
		errs = append(errs, n.check(field, d, d.LinksOf(at)))
	}
	if missing := d.Nodes() - len(places); missing > 0 && len(errs) == countNil(errs) {
		bad("nodes", fmt.Sprintf("%d places", len(places)), fmt.Sprintf("all %d of the %s torus", d.Nodes(), d))
	}
	for i, n := range inv.Spares {
		field := fmt.Sprintf("spares[%d]", i)
		if n.Coord != "" {
			bad(field+".coord", n.Coord, "none: a spare has no place")
		}
		once(field+".id", string(n.ID))
		errs = append(errs, n.check(field, d, d.Links()))
	}
	return cmp.Or(errors.Join(errs...), inv.checkAddresses())
}

// checkAddresses names every address at which two sockets of the cluster would listen. UDP and TCP ports do not conflict.
func (inv Inventory) checkAddresses() error {
	l, err := inv.Layout()
	if err != nil {
		return err
	}
	var errs []error
	taken := map[string]string{} // what listens there
	listen := func(what, address string, protocols ...string) {
		for _, protocol := range protocols {
			key := protocol + " " + canonical(address)
			if other, ok := taken[key]; ok && address != "" {
				errs = append(errs, fmt.Errorf("%s: given %s: want another address: %s has this one", what, address, other))
				return
			}
			taken[key] = what
		}
	}
	for _, s := range l.Supervisors {
		of := "supervisor " + s.ID + ": "
		for _, a := range s.Report {
			listen(of+"ports.report", a, "udp")
		}
		listen(of+"ports.gossip", s.Gossip, "udp", "tcp")
		listen(of+"ports.grpc", s.GRPC, "tcp")
		listen(of+"ports.http", s.HTTP, "tcp")
		listen(of+"ports.web", s.Web, "tcp")
		listen(of+"ports.enrolment", s.Enrolment, "tcp")
		listen(of+"ports.etcdPeer", s.EtcdPeer, "tcp")
		listen(of+"ports.etcdClient", s.EtcdClient, "tcp")
	}
	for i, n := range l.Nodes {
		of := "node " + string(n.ID) + ": "
		for _, a := range n.Service {
			listen(of+"service", a.Listen, "udp")
		}
		listen(of+"ports.nodeGossip", n.Gossip, "udp", "tcp")
		listen(of+"ports.agentHTTP", n.HTTP, "tcp")
		for _, dir := range l.Directions(i) {
			listen(of+"links."+dir.String(), n.Links[dir].Listen, "udp", "tcp")
		}
	}
	return errors.Join(errs...)
}

// canonical returns the canonical form of a host:port address. One IPv6 address has many spellings, and an IPv4 address may be IPv4-mapped.
func canonical(address string) string {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

func countNil(errs []error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

// idPattern is the form of names: they are directories too.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func (p Ports) check(field string) error {
	var errs []error
	for _, f := range []struct {
		name string
		port int
		to   int // the last that is used
	}{
		{"service", p.Service, p.Service}, {"nodeGossip", p.NodeGossip, p.NodeGossip}, {"links", p.Links, p.Links + 5}, {"report",
			p.Report, p.Report}, {"grpc", p.GRPC, p.GRPC},
		{"http", p.HTTP, p.HTTP}, {"web", p.Web, p.Web}, {"gossip", p.Gossip, p.Gossip}, {"enrolment", p.Enrolment,
			p.Enrolment}, {"etcdPeer", p.EtcdPeer, p.EtcdPeer}, {"etcdClient", p.EtcdClient, p.EtcdClient}, {"agentHTTP", p.AgentHTTP, p.AgentHTTP},
	} {
		if f.port < 0 || f.port != 0 && f.to > 65535 {
			errs = append(errs, fmt.Errorf("%s.%s: given %d: want 1 to %d, or 0 for the default", field, f.name, f.port, 65535-(f.to-f.port)))
		}
	}
	return errors.Join(errs...)
}

func (n Node) at(d grid.Dims) (grid.Coord, error) {
	if n.Coord == "" {
		return grid.Coord{}, errors.New("given nothing: want the node's place; inventory.yaml of the operator's directory has those that " +
			"'cluster init' chose")
	}
	at, err := grid.ParseCoord(n.Coord)
	if err != nil {
		return at, err
	}
	return at, d.Check(at)
}

func (n Node) name(at grid.Coord) fault.NodeID {
	if n.ID != "" {
		return n.ID
	}
	return fault.DefaultNodeID(at)
}

// check checks the addresses of a node with links in these directions.
func (n Node) check(field string, d grid.Dims, links []grid.Direction) error {
	var errs []error
	if _, err := at(n.Service, 1); err != nil {
		errs = append(errs, fmt.Errorf("%s.service: %w", field, err))
	}
	for _, dir := range slices.Sorted(maps.Keys(n.Links)) {
		if !slices.ContainsFunc(links, func(l grid.Direction) bool { return l.String() == dir }) {
			errs = append(errs, fmt.Errorf("%s.links.%s: want a direction in which the node has a link in the %s torus", field, dir, d.Short()))
		}
		if _, err := at(n.Links[dir].Address, 1); err != nil {
			errs = append(errs, fmt.Errorf("%s.links.%s.address: %w", field, dir, err))
		}
	}
	return errors.Join(errs...)
}

// at completes an address by a port.
func at(address string, port int) (string, error) {
	ip, err := netip.ParseAddr(address)
	if err == nil && !ip.IsUnspecified() {
		return netip.AddrPortFrom(ip, uint16(port)).String(), nil //nolint:gosec // Validate bounds ports
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil || ap.Addr().IsUnspecified() || ap.Port() == 0 {
		return "", fmt.Errorf("given %s: want the IP of one machine, or its ip:port", strconv.Quote(address))
	}
	return ap.String(), nil
}

// enrols reports whether machines that are not listed may join.
func (inv Inventory) enrols() bool {
	if inv.Enrolment != nil {
		return *inv.Enrolment
	}
	return len(inv.Nodes) == 0
}

// Layout is where everything of a validated inventory is.
func (inv Inventory) Layout() (Layout, error) {
	d, err := grid.ParseDims(inv.Dims)
	if err != nil {
		return Layout{}, fmt.Errorf("dims: %w", err)
	}
	gossip := inv.Gossip == nil || *inv.Gossip
	ports := inv.Ports.or(defaultPorts)
	l := Layout{Cluster: inv.Cluster, Dims: d, DomainLabels: inv.DomainLabels, Nodes: make([]PlacedNode, d.Nodes())}
	for _, s := range inv.Supervisors {
		p := s.Ports.or(ports)
		on := func(port int) string {
			if strings.Contains(s.Address, ":") {
				return "[" + s.Address + "]:" + strconv.Itoa(port)
			}
			return s.Address + ":" + strconv.Itoa(port)
		}
		r := PlacedSupervisor{ID: s.ID, GRPC: on(p.GRPC), HTTP: on(p.HTTP), Web: on(p.Web), WebURL: "https://" + on(p.Web),
			EtcdPeer: on(p.EtcdPeer), EtcdClient: on(p.EtcdClient), Report: []string{on(p.Report)}}
		if gossip {
			r.Gossip = on(p.Gossip)
		}
		if inv.enrols() {
			r.Enrolment = on(p.Enrolment)
		}
		l.Supervisors = append(l.Supervisors, r)
	}
	for _, n := range inv.Nodes {
		place, err := n.at(d)
		if err != nil {
			return Layout{}, err
		}
		if l.Nodes[d.Index(place)], err = n.layout(n.name(place), d, ports, gossip); err != nil {
			return Layout{}, err
		}
	}
	for _, n := range inv.Spares {
		spare, err := n.layout(n.ID, d, ports, gossip)
		if err != nil {
			return Layout{}, err
		}
		l.Nodes = append(l.Nodes, spare)
	}
	return l, nil
}

func (n Node) layout(id fault.NodeID, d grid.Dims, p Ports, gossip bool) (PlacedNode, error) {
	service, err := at(n.Service, p.Service)
	if err != nil {
		return PlacedNode{}, fmt.Errorf("node %s: service: %w", id, err)
	}
	out := PlacedNode{ID: id, Labels: n.Labels, Service: []config.ServiceAddr{{Listen: service, Interface: n.Interface}},
		Links: map[grid.Direction]LinkEnd{}}
	host := netip.MustParseAddrPort(service).Addr().String()
	if gossip {
		if out.Gossip, err = at(host, p.NodeGossip); err != nil {
			return PlacedNode{}, fmt.Errorf("node %s: gossip: %w", id, err)
		}
	}
	if p.AgentHTTP != 0 {
		if out.HTTP, err = at(host, p.AgentHTTP); err != nil {
			return PlacedNode{}, fmt.Errorf("node %s: agentHTTP: %w", id, err)
		}
	}
	for _, dir := range d.Links() {
		l, ok := n.Links[dir.String()]
		if !ok {
			l.Address = host
		}
		listen, err := at(l.Address, p.Links+dir.Index())
		if err != nil {
			return PlacedNode{}, fmt.Errorf("node %s: link %s: %w", id, dir, err)
		}
		out.Links[dir] = LinkEnd{Listen: listen, Interface: l.Interface}
	}
	return out, nil
}

// Has reports whether a node, spare or supervisor has this name.
func (inv Inventory) Has(id string) bool {
	l, err := inv.Layout()
	return err == nil && (slices.ContainsFunc(l.Nodes, func(n PlacedNode) bool { return string(n.ID) == id }) ||
		slices.ContainsFunc(l.Supervisors, func(s PlacedSupervisor) bool { return s.ID == id }))
}
