package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Shape describes the network to make.
type Shape struct {
	Dims            grid.Dims
	Supervisors     int // 1 to 9
	ServiceNetworks int // 1 or 2; 1 when zero
	// Cards are nodes whose DNP half has a namespace of its own (Card), with the node's torus links and a cable to the
	// node's namespace.
	Cards []fault.NodeID
}

func (s *Shape) complete() error {
	if s.ServiceNetworks == 0 {
		s.ServiceNetworks = 1
	}
	var errs []error
	if err := s.Dims.Validate(); err != nil {
		errs = append(errs, err)
	} else if n := s.Dims.Nodes(); n > maxNodes {
		errs = append(errs, fmt.Errorf("dims %s: %d nodes: want at most %d, each has a namespace", s.Dims, n, maxNodes))
	}
	if s.Supervisors < 1 || s.Supervisors > maxSupervisors {
		errs = append(errs, fmt.Errorf("supervisors: given %d: want 1 to %d", s.Supervisors, maxSupervisors))
	}
	if s.ServiceNetworks < 1 || s.ServiceNetworks > 2 {
		errs = append(errs, fmt.Errorf("service networks: given %d: want 1 or 2", s.ServiceNetworks))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	known := map[fault.NodeID]bool{}
	for r := range s.Dims.Nodes() {
		known[fault.DefaultNodeID(s.Dims.At(r))] = true
	}
	for _, id := range s.Cards {
		if !known[id] {
			errs = append(errs, fmt.Errorf("cards: given %s: want nodes of the torus, each once", id))
		}
		known[id] = false
	}
	return errors.Join(errs...)
}

const (
	maxNodes       = 240 // hosts in the /24 of a service network, below the supervisors'
	maxSupervisors = 9

	// supervisorBridge is the network of the supervisors among themselves.
	supervisorBridge = "sup0"
	// hub is the namespace that holds the bridges.
	hub = "net"

	// WindowInterface is the interface of a node and of its card for the window between the two halves.
	WindowInterface = "win"
)

// Card returns the name of the member that runs the DNP half of a node in Shape.Cards.
func Card(id fault.NodeID) string { return string(id) + "-card" }

// WindowAddresses returns the addresses of the window between a node and its card, by the place of the node in Shape.Cards.
func WindowAddresses(k int) (node, card netip.AddrPort) {
	a, b := windowAddrs(k)
	return netip.AddrPortFrom(a.Addr(), portWindow), netip.AddrPortFrom(b.Addr(), portWindow)
}

// Every member has its addresses for itself: the ports can be the same everywhere.
const (
	portReport, portGossip, portLink   = 7700, 7946, 7701
	portWindow                         = 7960
	portGRPC, portHTTP                 = 9443, 9080
	portEtcdClient, portEtcdPeer       = 2379, 2380
	testsHost, firstSupervisorHost     = 1, 11
	firstNodeHost, firstServiceHost    = 1, 251 - maxSupervisors
	serviceSubnet, linkSubnet          = 220, 230 // 10.220.n.0/24 service network n; 10.230.0.0/16 links
	windowSubnet                       = 231      // 10.231.0.0/24
	supervisorSubnet, slots            = 214, 64  // 10.214.SLOT.0/24
	bitsOfService, bitsOfLink, perAxis = 24, 31, 3
)

// end is one end of a cable: a network interface in a namespace.
type end struct {
	space  string // namespace; empty: that of the tests
	dev    string
	addr   netip.Prefix // the zero Prefix: none
	bridge string       // bridge of this port; empty: none
}

// plug is an interface as the tests name it.
type plug struct {
	member string // a node's or a supervisor's id
	iface  string
}

// wire is a cable as seen from one of its ends.
type wire struct{ own, far end }

// layout lists all objects to make, by names and addresses only.
type layout struct {
	shape     Shape
	prefix    string // of every namespace
	spaces    []string
	bridges   []string // in hub
	cables    []wire
	plugs     map[plug]wire
	nodes     []fault.NodeID // by rank
	addresses cluster.Addresses
}

// plan lays out the network that has this slot.
func plan(s Shape, prefix string, slot int) *layout {
	l := &layout{shape: s, prefix: prefix, plugs: map[plug]wire{}, bridges: []string{supervisorBridge}}
	l.spaces = append(l.spaces, l.space(hub))
	for k := range s.ServiceNetworks {
		l.bridges = append(l.bridges, serviceInterface(k))
	}
	l.connect(
		end{dev: fmt.Sprintf("lofamo%d", slot), addr: supervisorAddr(slot, testsHost)},
		end{space: l.space(hub), dev: supervisorBridge + "-tests", bridge: supervisorBridge},
	)
	for i := range s.Supervisors {
		l.addSupervisor(i, slot)
	}
	for r := range s.Dims.Nodes() {
		l.addNode(r)
	}
	for r := range s.Dims.Nodes() {
		l.addLinks(r)
	}
	for k, id := range s.Cards {
		mine, theirs := windowAddrs(k)
		l.spaces = append(l.spaces, l.space(Card(id)))
		l.connect(end{space: l.space(string(id)), dev: WindowInterface, addr: mine},
			end{space: l.space(Card(id)), dev: WindowInterface, addr: theirs})
	}
	return l
}

func serviceInterface(network int) string { return fmt.Sprintf("svc%d", network) }

// linkInterface returns the name of a node's interface for a direction, such as "tx+".
func linkInterface(d grid.Direction) string { return "t" + strings.ToLower(d.String()) }

func (l *layout) space(member string) string { return l.prefix + member }

// connect lays a cable.
func (l *layout) connect(a, b end) {
	l.cables = append(l.cables, wire{a, b})
	for _, w := range []wire{{a, b}, {b, a}} {
		if member, ok := strings.CutPrefix(w.own.space, l.prefix); ok && member != hub {
			l.plugs[plug{member, w.own.dev}] = w
		}
	}
}

// toBridge lays a cable from a member to a bridge.
func (l *layout) toBridge(member, bridge, port string, addr netip.Prefix) {
	l.connect(
		end{space: l.space(member), dev: bridge, addr: addr},
		end{space: l.space(hub), dev: bridge + "-" + port, bridge: bridge},
	)
}

func (l *layout) addSupervisor(i, slot int) {
	id := cluster.SupervisorID(i)
	l.spaces = append(l.spaces, l.space(id))
	port := fmt.Sprintf("s%d", i)
	own := supervisorAddr(slot, firstSupervisorHost+i)
	l.toBridge(id, supervisorBridge, port, own)
	a := cluster.SupervisorAddresses{
		GRPC: at(own, portGRPC), HTTP: at(own, portHTTP), EtcdClient: at(own, portEtcdClient), EtcdPeer: at(own, portEtcdPeer),
		Gossip: at(serviceAddr(0, firstServiceHost+i), portGossip),
	}
	for k := range l.shape.ServiceNetworks {
		addr := serviceAddr(k, firstServiceHost+i)
		l.toBridge(id, serviceInterface(k), port, addr)
		a.Report = append(a.Report, at(addr, portReport))
	}
	l.addresses.Supervisors = append(l.addresses.Supervisors, a)
}

func (l *layout) addNode(rank int) {
	id := fault.DefaultNodeID(l.shape.Dims.At(rank))
	l.nodes = append(l.nodes, id)
	l.spaces = append(l.spaces, l.space(string(id)))
	a := cluster.NodeAddresses{
		Gossip: at(serviceAddr(0, firstNodeHost+rank), portGossip), Links: map[grid.Direction]cluster.LinkAddress{},
	}
	for k := range l.shape.ServiceNetworks {
		addr := serviceAddr(k, firstNodeHost+rank)
		l.toBridge(string(id), serviceInterface(k), fmt.Sprintf("n%d", rank), addr)
		a.Service = append(a.Service, config.ServiceAddr{Listen: at(addr, portReport), Interface: serviceInterface(k)})
	}
	l.addresses.Nodes = append(l.addresses.Nodes, a)
}

// addLinks lays the cables of a node in the positive directions; its neighbours lay the others.
func (l *layout) addLinks(rank int) {
	for _, d := range l.shape.Dims.Links() {
		if !d.Positive() {
			continue
		}
		c, _ := l.shape.Dims.Neighbour(l.shape.Dims.At(rank), d)
		peer, back := l.shape.Dims.Rank(c), d.Opposite()
		mine, theirs := linkAddrs(rank*perAxis + d.Axis())
		l.connect(
			end{space: l.linkSpace(rank), dev: linkInterface(d), addr: mine},
			end{space: l.linkSpace(peer), dev: linkInterface(back), addr: theirs},
		)
		l.addresses.Nodes[rank].Links[d] = cluster.LinkAddress{Listen: at(mine, portLink), Interface: linkInterface(d)}
		l.addresses.Nodes[peer].Links[back] = cluster.LinkAddress{Listen: at(theirs, portLink), Interface: linkInterface(back)}
	}
}

// linkSpace returns the namespace with the torus links of a node.
func (l *layout) linkSpace(rank int) string {
	if id := l.nodes[rank]; slices.Contains(l.shape.Cards, id) {
		return l.space(Card(id))
	}
	return l.space(string(l.nodes[rank]))
}

// supervisorNet is the only network that the tests' own namespace takes part in.
func supervisorNet(slot int) netip.Prefix { return supervisorAddr(slot, 0).Masked() }

func supervisorAddr(slot, host int) netip.Prefix {
	return ip4(supervisorSubnet, slot, host, bitsOfService)
}

func serviceAddr(network, host int) netip.Prefix {
	return ip4(serviceSubnet, network, host, bitsOfService)
}

// linkAddrs returns the two addresses of a cable between neighbours (RFC 3021).
func linkAddrs(n int) (even, odd netip.Prefix) {
	n *= 2
	return ip4(linkSubnet, n/256, n%256, bitsOfLink), ip4(linkSubnet, n/256, n%256+1, bitsOfLink)
}

func windowAddrs(k int) (node, card netip.Prefix) {
	return ip4(windowSubnet, 0, 2*k, bitsOfLink), ip4(windowSubnet, 0, 2*k+1, bitsOfLink)
}

func ip4(b, c, d, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(b), byte(c), byte(d)}), bits)
}

func at(p netip.Prefix, port uint16) string { return netip.AddrPortFrom(p.Addr(), port).String() }
