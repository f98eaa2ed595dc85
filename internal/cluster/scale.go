package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Scaled is one step of Scale.
type Scaled struct {
	Node  fault.NodeID
	Coord string // its place; of a node that left, the one that it had
	Left  bool
	Dims  string // the torus after the step
}

// Scale lets nodes join a running cluster, or lets the newest ones leave, until the given number has places. It calls
// done, if not nil, after each. A node that joins is one that has left before, a spare, or a new one, in this order.
func (c *Cluster) Scale(ctx context.Context, nodes int, done func(Scaled)) error {
	if nodes < 2 || nodes > MaxNodes {
		return fmt.Errorf("nodes: given %d: want 2 to %d on one machine", nodes, MaxNodes)
	}
	if c.info.Regions > 0 {
		return errors.New("scale: this torus is divided into regions, whose places are fixed by their configurations")
	}
	cl, err := c.ClientAs(pki.RoleOperator)
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	top, err := cl.GetTopology(ctx)
	if err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	if err := c.change(func() error { c.notePlaces(top); return nil }); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	for c.info.placed() != nodes {
		one := c.grow
		if c.info.placed() > nodes {
			one = c.shrink
		}
		if err := c.step(func() (Scaled, error) { return one(ctx, cl) }, done); err != nil {
			return fmt.Errorf("scale to %d nodes: %w", nodes, err)
		}
	}
	return nil
}

// step does one step of Scale and reports it to done, if not nil. No other program changes the cluster meanwhile, and a cluster that
// one has stopped between two steps stays stopped.
func (c *Cluster) step(do func() (Scaled, error), done func(Scaled)) error {
	unlock, err := c.hold()
	if err != nil {
		return err
	}
	defer unlock()
	if len(c.Running()) == 0 {
		return errors.New("the cluster was stopped")
	}
	s, err := do()
	if err == nil && done != nil {
		done(s)
	}
	return err
}

// joinTime bounds the wait until a node that joined before has reported its ends of links.
const joinTime = 20 * time.Second

// notePlaces notes which nodes have places, since single nodes may have joined, left or been replaced.
func (c *Cluster) notePlaces(top *lofamov1.Topology) {
	placed := make(map[string]bool)
	for _, n := range top.GetNodes() {
		placed[n.GetId()] = n.GetCoord() != ""
	}
	for i := range c.info.Nodes {
		c.info.Nodes[i].Left = !placed[string(c.info.Nodes[i].ID)]
	}
	for i := range c.info.Spares {
		c.info.Spares[i].Joined = placed[string(c.info.Spares[i].ID)]
	}
}

// grow lets one node join.
func (c *Cluster) grow(ctx context.Context, cl *client.Client) (Scaled, error) {
	i := slices.IndexFunc(c.info.Nodes, func(n NodeInfo) bool { return n.Left })
	if i < 0 {
		if i = slices.IndexFunc(c.info.Spares, func(n NodeInfo) bool { return !n.Joined }); i < 0 {
			if err := c.addNode(); err != nil {
				return Scaled{}, err
			}
			i = len(c.info.Spares) - 1
		}
		i += len(c.info.Nodes)
	}
	n := c.info.at(i)
	cfg, err := config.LoadAgent(filepath.Join(c.nodeDir(n.ID), "agent.yaml"), nil)
	if err != nil {
		return Scaled{}, err
	}
	left := n.Left
	n.Left = false
	fail := func(err error) (Scaled, error) {
		n.Left = left
		return Scaled{}, errors.Join(fmt.Errorf("node %s joins: %w", n.ID, err), c.save())
	}
	if pid, _ := c.daemon(*n); pid == 0 {
		if err := errors.Join(c.startRun(string(n.ID)), c.save()); err != nil {
			return fail(err)
		}
	}
	node := &lofamov1.TopologyNode{Id: string(n.ID), Coord: n.Coord, Service: []string{cfg.Service.Listen}}
	for _, a := range cfg.Service.Alternates {
		node.Service = append(node.Service, a.Listen)
	}
	var resp *lofamov1.JoinNodesResponse
	trying, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	err = c.poll(trying, pollEvery, func() (bool, error) {
		resp, err = cl.JoinNodes(ctx, &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{node}})
		return status.Code(err) != codes.Aborted, err // aborted: the last one has not reported its ends of links yet
	})
	if err != nil {
		return fail(err)
	}
	n.Joined = n.Coord == ""
	return Scaled{Node: n.ID, Coord: resp.GetNodes()[0].GetCoord(), Dims: resp.GetDims()}, c.save()
}

// shrink lets the newest node leave, and ends its processes.
func (c *Cluster) shrink(ctx context.Context, cl *client.Client) (Scaled, error) {
	all := c.info.All()
	i := len(all) - 1
	for i >= 0 && (all[i].Left || i >= len(c.info.Nodes) && !all[i].Joined) {
		i--
	}
	n := c.info.at(i)
	resp, err := cl.LeaveNodes(ctx, &lofamov1.LeaveNodesRequest{Nodes: []string{string(n.ID)}, Forget: true})
	if err != nil {
		return Scaled{}, fmt.Errorf("node %s leaves: %w", n.ID, err)
	}
	s := Scaled{Node: n.ID, Coord: resp.GetNodes()[0].GetCoord(), Left: true, Dims: resp.GetDims()}
	n.Left, n.Joined = n.Coord != "", false
	if err := errors.Join(c.endNode(ctx, n), c.save()); err != nil {
		return s, fmt.Errorf("end node %s: %w", s.Node, err)
	}
	if n.Left {
		return s, nil
	}
	// Its name may be given again, to a node that has never held an order.
	dir := c.nodeDir(n.ID)
	c.info.Spares = slices.DeleteFunc(slices.Clone(c.info.Spares), func(o NodeInfo) bool { return o.ID == s.Node })
	return s, errors.Join(c.save(), os.RemoveAll(dir))
}

// endNode ends the processes of a node.
func (c *Cluster) endNode(ctx context.Context, n *NodeInfo) error {
	p, err := openProcess(c.daemon(*n))
	if errors.Is(err, errNotOurs) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if left := endAll(ctx, []*process{p}, stopGrace); len(left) > 0 {
		return fmt.Errorf("process %d does not end, though killed", p.pid)
	}
	c.expectExit(member{"node", string(n.ID)}.String())
	n.RunPID, n.Started = 0, 0
	return nil
}

// addNode creates the files of one more node without coordinates, modelled on the first.
func (c *Cluster) addNode() error {
	if c.planned {
		return errors.New("add a node: the cluster's addresses were given: none is known for another one")
	}
	var id fault.NodeID
	for i := len(c.info.Nodes); id == ""; i++ {
		name := fault.NodeID(fmt.Sprintf("node-%d", i))
		if _, err := c.Node(string(name)); err != nil {
			id = name
		}
	}
	dir := c.nodeDir(id)
	n := NodeInfo{ID: id, StateDir: filepath.Join(dir, "state")}
	fail := func(err error) error {
		return errors.Join(fmt.Errorf("add node %s: %w", id, err), os.RemoveAll(dir))
	}
	model := c.info.Nodes[0]
	cfg, err := config.LoadAgent(filepath.Join(c.nodeDir(model.ID), "agent.yaml"), nil)
	if err != nil {
		return fail(err)
	}
	ca, err := pki.LoadCA(c.PKI("ca.pem"), c.PKI("ca.key"))
	if err != nil {
		return fail(err)
	}
	if err := c.issueNode(ca, id); err != nil {
		return fail(err)
	}
	interfaces := c.info.interfaces()
	ports, err := reservePorts(2 + interfaces + grid.NumDirections)
	if err != nil {
		return fail(err)
	}
	defer ports.release()
	a, err := ports.node(interfaces)
	if err != nil {
		return fail(err)
	}
	cfg.Node, cfg.Coord, cfg.Dims, cfg.Spare, cfg.StateDir = id, "", "", true, n.StateDir
	cfg.Links = map[string]config.LinkAddr{}
	for d, end := range a.Links {
		cfg.Links[d.String()] = config.LinkAddr{Local: end.Listen}
	}
	cfg.Service.Listen, cfg.Service.Alternates = a.Service[0].Listen, a.Service[1:]
	cfg.Service.GossipListen, cfg.HTTP = a.Gossip, a.HTTP
	n.HTTP = a.HTTP
	cfg.TLS = c.agentTLS(id)
	cfg.Sensors = c.sensorConfig(n, cfg.Sensors.Peripherals[0].Interval)
	if err := c.writeAgent(n, cfg); err != nil {
		return fail(err)
	}
	c.info.Spares = append(c.info.Spares, n)
	return c.save()
}

// node takes the addresses of one node, with all ends of links.
func (b *portBlock) node(interfaces int) (NodeAddresses, error) {
	var errs error
	takeOn := func(k int) string {
		addr, err := b.takeOn(k)
		errs = errors.Join(errs, err)
		return addr
	}
	n := NodeAddresses{Gossip: takeOn(0), HTTP: takeOn(0), Links: map[grid.Direction]LinkAddress{}}
	for k := range interfaces {
		n.Service = append(n.Service, config.ServiceAddr{Listen: takeOn(k)})
	}
	for _, d := range grid.Directions() {
		n.Links[d] = LinkAddress{Listen: takeOn(0)}
	}
	return n, errs
}
