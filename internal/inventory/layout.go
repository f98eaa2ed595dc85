package inventory

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Layout holds the addresses of all members of a cluster. It turns them into the configurations of the members: neighbours
// in the torus, the supervisors that a node reports to, and the peers of gossip and etcd. Callers add files, keys and
// measurements, and validate.
type Layout struct {
	Cluster string // name
	Dims    grid.Dims
	// DomainLabels are the keys of failure domains; none: the default.
	DomainLabels []string
	Supervisors  []PlacedSupervisor
	Nodes        []PlacedNode // those with a place, by rank; the spares follow
}

// PlacedSupervisor is one supervisor. Addresses are "ip:port".
type PlacedSupervisor struct {
	ID     string
	Region string // empty: it serves the whole torus, or it belongs to the regions' parent
	GRPC   string
	HTTP   string // empty: none
	Web    string // web page; empty: none
	WebURL string // its URL; empty: none
	// EtcdPeer and EtcdClient are the addresses of its etcd member.
	EtcdPeer, EtcdClient string
	Gossip               string   // empty: no gossip
	Enrolment            string   // empty: no node enrols there
	Report               []string // by service interface of the nodes
}

// PlacedNode is one node with its addresses.
type PlacedNode struct {
	ID      fault.NodeID
	Region  string
	Labels  map[string]string
	Service []config.ServiceAddr // by service interface, at least one
	Gossip  string               // empty: no gossip
	HTTP    string               // empty: none
	// Links has one end for each direction that the torus has. A placed node may have more: it can then get links there
	// when other nodes join.
	Links map[grid.Direction]LinkEnd
}

// LinkEnd is one end of a link.
type LinkEnd struct {
	Listen    string // "ip:port"
	Interface string // the interface that it is bound to; empty: none
}

// Services returns the addresses of the service interfaces in order.
func (n PlacedNode) Services() []string {
	var out []string
	for _, s := range n.Service {
		out = append(out, s.Listen)
	}
	return out
}

// Places returns the number of nodes with a place in the torus. The nodes after them are spares.
func (l Layout) Places() int { return l.Dims.Nodes() }

// Directions returns the directions in which a node has links. A spare is ready for all of them.
func (l Layout) Directions(number int) []grid.Direction {
	if number < l.Places() {
		return l.Dims.LinksOf(l.Dims.Node(number))
	}
	return l.Dims.Links()
}

// Serving returns the indices of a region's supervisors. Those of region "" serve the whole torus.
func (l Layout) Serving(region string) []int {
	var out []int
	for i, s := range l.Supervisors {
		if s.Region == region {
			out = append(out, i)
		}
	}
	return out
}

// Supervisor returns the default configuration with the addresses that supervisor i needs.
func (l Layout) Supervisor(i int) config.Supervisor {
	s := l.Supervisors[i]
	cfg := config.DefaultSupervisor()
	cfg.Cluster, cfg.ID, cfg.Dims, cfg.Region = l.Cluster, s.ID, l.Dims.String(), s.Region
	if len(l.DomainLabels) > 0 {
		cfg.DomainLabels = slices.Clone(l.DomainLabels)
	}
	places := slices.Collect(l.Dims.All())
	for r, n := range l.Nodes {
		services := n.Services()
		if r < l.Places() {
			cfg.Nodes = append(cfg.Nodes, config.NodeEntry{ID: n.ID, Coord: places[r].String(), Service: services[0],
				Alternates: services[1:], Labels: n.Labels, Region: n.Region})
		} else {
			cfg.Spares = append(cfg.Spares, config.SpareEntry{ID: n.ID, Service: services[0], Alternates: services[1:], Labels: n.Labels})
		}
	}
	cfg.GRPC, cfg.HTTP, cfg.Web.Listen, cfg.GossipListen = s.GRPC, s.HTTP, s.Web, s.Gossip
	cfg.Enrolment.Listen = s.Enrolment
	cfg.Report, cfg.ReportAlternates = s.Report[0], s.Report[1:]
	var members []string
	for _, j := range l.Serving(s.Region) {
		other := l.Supervisors[j]
		if j != i && other.Gossip != "" {
			cfg.GossipJoin = append(cfg.GossipJoin, other.Gossip)
		}
		members = append(members, other.ID+"=https://"+other.EtcdPeer)
		cfg.Replicas = append(cfg.Replicas, config.ReplicaEntry{ID: other.ID, GRPC: other.GRPC, Report: other.Report[0], HTTP: other.HTTP,
			Web: other.WebURL})
	}
	cfg.Etcd.Name, cfg.Etcd.InitialCluster = s.ID, strings.Join(members, ",")
	cfg.Etcd.PeerURL, cfg.Etcd.ClientURL = "https://"+s.EtcdPeer, "https://"+s.EtcdClient
	return cfg
}

// Agent returns the default configuration with the addresses of a node's neighbours and supervisors.
func (l Layout) Agent(number int) config.Agent {
	n := l.Nodes[number]
	cfg := config.DefaultAgent()
	cfg.Cluster, cfg.Node, cfg.Dims, cfg.Spare = l.Cluster, n.ID, l.Dims.String(), number >= l.Places()
	if !cfg.Spare {
		cfg.Coord = l.Dims.Node(number).String()
	}
	cfg.Links = l.links(number)
	cfg.Service.Listen, cfg.Service.Interface, cfg.Service.Alternates = n.Service[0].Listen, n.Service[0].Interface, n.Service[1:]
	cfg.Service.GossipListen, cfg.HTTP = n.Gossip, n.HTTP
	ours := l.Serving(n.Region)
	for i := range ours {
		s := l.Supervisors[ours[i]]
		if n.Gossip != "" && s.Gossip != "" {
			cfg.Service.GossipJoin = append(cfg.Service.GossipJoin, s.Gossip)
		}
		// Each node prefers another replica, so that all of them receive reports.
		s = l.Supervisors[ours[(number+i)%len(ours)]]
		cfg.Supervisors = append(cfg.Supervisors, config.SupervisorAddr{ID: s.ID, Report: s.Report[0], Alternates: s.Report[1:]})
	}
	return cfg
}

// links returns a node's links. A spare's links have no peers, nor have ends in directions in which a node has no link.
func (l Layout) links(number int) map[string]config.LinkAddr {
	out := map[string]config.LinkAddr{}
	for _, d := range grid.Directions() {
		local, ok := l.Nodes[number].Links[d]
		if !ok {
			continue
		}
		a := config.LinkAddr{Local: local.Listen, Interface: local.Interface}
		if number < l.Places() {
			if at, linked := l.Dims.Neighbour(l.Dims.Node(number), d); linked {
				peer := l.Nodes[l.Dims.Index(at)]
				a.Peer, a.PeerNode = peer.Links[d.Opposite()].Listen, peer.ID
			}
		}
		out[d.String()] = a
	}
	return out
}

// IPs returns the distinct IPs of a supervisor, for its certificate.
func (s PlacedSupervisor) IPs() ([]net.IP, error) {
	var all []netip.Addr
	for _, addr := range append([]string{s.GRPC, s.HTTP, s.Web, s.Gossip, s.Enrolment, s.EtcdPeer, s.EtcdClient}, s.Report...) {
		if addr == "" {
			continue
		}
		ap, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, fmt.Errorf("supervisor address %q: want ip:port: %w", addr, err)
		}
		all = append(all, ap.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var out []net.IP
	for _, ip := range slices.Compact(all) {
		out = append(out, ip.AsSlice())
	}
	return out, nil
}
