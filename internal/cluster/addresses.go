package cluster

import (
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Addresses is where everything of a cluster listens, each "ip:port". Without a plan of its own a
// cluster takes free ports of 127.0.0.1.
type Addresses struct {
	Supervisors []SupervisorAddresses // by number
	Nodes       []NodeAddresses       // by rank, and then the spares
}

// SupervisorAddresses are one replica's listen addresses. Its certificate names all their IPs.
type SupervisorAddresses struct {
	GRPC, HTTP           string
	Web                  string // the page for browsers; empty: none
	EtcdPeer, EtcdClient string
	Gossip               string
	Report               []string // by service interface of the nodes
}

// NodeAddresses are one node's listen addresses.
type NodeAddresses struct {
	// Service is by service interface. If an address names a real interface, the rail is bound to that, and the sensors
	// watch that of number 0. Empty: not bound, and the sensors watch a simulated one.
	Service []config.ServiceAddr
	Gossip  string
	HTTP    string                         // metrics and health; empty: none
	Links   map[grid.Direction]LinkAddress // one for each direction that the torus has
}

// LinkAddress is one end of a torus link. If it names a real interface, the link is bound to that.
type LinkAddress = inventory.LinkEnd

// check reports whether the plan covers the cluster. The programs' configurations check the addresses themselves.
func (a Addresses) check(d grid.Dims, spares, supervisors, interfaces int) error {
	var errs []error
	if n := len(a.Supervisors); n != supervisors {
		errs = append(errs, fmt.Errorf("addresses: given those of %s: want %d", fault.Plural(n, "supervisor"), supervisors))
	}
	if n := len(a.Nodes); n != d.Nodes()+spares {
		errs = append(errs, fmt.Errorf("addresses: given those of %s: want %d for a %s torus and %d spares",
			fault.Plural(n, "node"), d.Nodes()+spares, d, spares))
	}
	for i, s := range a.Supervisors {
		if n := len(s.Report); n != interfaces {
			errs = append(errs, fmt.Errorf("addresses: supervisor %d: given %d report addresses: want %d, one for each service interface", i, n,
				interfaces))
		}
	}
	for r, n := range a.Nodes {
		if has := len(n.Service); has != interfaces {
			errs = append(errs, fmt.Errorf("addresses: node of rank %d: given %d service interfaces: want %d", r, has, interfaces))
		}
		for _, dir := range d.Links() {
			if n.Links[dir].Listen == "" {
				errs = append(errs, fmt.Errorf("addresses: node of rank %d: no link %s", r, dir))
			}
		}
	}
	return errors.Join(errs...)
}

// layout is the same with the replica's name and region.
func (s SupervisorAddresses) layout(id, region string) inventory.PlacedSupervisor {
	return inventory.PlacedSupervisor{
		ID: id, Region: region, GRPC: s.GRPC, HTTP: s.HTTP, Web: s.Web, WebURL: webURL(s.Web), EtcdPeer: s.EtcdPeer, EtcdClient: s.EtcdClient,
		Gossip: s.Gossip, Report: s.Report,
	}
}

// addresses returns the plan that was given, or free ports of 127.0.0.1.
func (c *Cluster) addresses(o Options) (Addresses, error) {
	if o.Addresses != nil {
		c.planned = true
		return *o.Addresses, nil
	}
	return c.takePorts()
}

// takePorts takes free ports of 127.0.0.1 and holds them until the start.
func (c *Cluster) takePorts() (Addresses, error) {
	interfaces := c.info.interfaces()
	perSupervisor, perNode := 6+interfaces, 2+interfaces
	b, err := reservePorts(len(c.info.Supervisors)*perSupervisor + len(c.info.All())*(perNode+grid.NumDirections))
	if err != nil {
		return Addresses{}, err
	}
	c.ports = b
	var a Addresses
	for range c.info.Supervisors {
		s, takeErr := b.supervisor(interfaces)
		err = errors.Join(err, takeErr)
		a.Supervisors = append(a.Supervisors, s)
	}
	for range c.info.All() {
		n, takeErr := b.node(interfaces)
		err = errors.Join(err, takeErr)
		a.Nodes = append(a.Nodes, n)
	}
	return a, err
}

// supervisor takes the addresses of one replica.
func (b *portBlock) supervisor(interfaces int) (s SupervisorAddresses, err error) {
	for _, addr := range []*string{&s.GRPC, &s.HTTP, &s.Web, &s.Gossip, &s.EtcdPeer, &s.EtcdClient} {
		taken, takeErr := b.take()
		*addr, err = taken, errors.Join(err, takeErr)
	}
	for k := range interfaces {
		addr, takeErr := b.takeOn(k)
		s.Report, err = append(s.Report, addr), errors.Join(err, takeErr)
	}
	return s, err
}
