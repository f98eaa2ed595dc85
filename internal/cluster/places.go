package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// placesTime bounds the request for the present topology.
const placesTime = 5 * time.Second

// topologyNow returns the supervisors' topology. It is nil if regions fix the places, or if the supervisors have not stored one yet.
func (c *Cluster) topologyNow(ctx context.Context) (*lofamov1.Topology, error) {
	if c.info.Regions > 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	cl, err := c.Client()
	if err != nil {
		return nil, err
	}
	defer func() { _ = cl.Close() }()
	ctx, cancel := context.WithTimeout(ctx, placesTime)
	defer cancel()
	top, err := cl.GetTopology(ctx)
	if err != nil || len(top.GetNodes()) == 0 {
		return nil, err
	}
	return top, nil
}

// ErrPlaceUnknown means that NodeNow could not find out which node has a place.
var ErrPlaceUnknown = errors.New("no supervisor tells whether a spare has this place now")

// NodeNow finds a node by its id, or by its coordinates. Unlike Node, it asks the supervisors which node has the place now. If no
// supervisor answers, it returns the node that was created for these coordinates, or ErrPlaceUnknown if the cluster has spares.
func (c *Cluster) NodeNow(ctx context.Context, name string) (NodeInfo, error) {
	at, err := grid.ParseCoord(name)
	if err != nil {
		return c.Node(name)
	}
	top, err := c.topologyNow(ctx)
	switch {
	case err != nil && len(c.info.Spares) > 0:
		return NodeInfo{}, fmt.Errorf("node %q: %w: want the id of a node: %w", name, ErrPlaceUnknown, err)
	case top == nil:
		return c.Node(name)
	}
	i := slices.IndexFunc(top.GetNodes(), func(n *lofamov1.TopologyNode) bool { return n.GetCoord() == at.String() })
	if i < 0 {
		return NodeInfo{}, fmt.Errorf("node %q: no node is there now: want a node's place in the %s torus", name, top.GetDims())
	}
	return c.Node(top.GetNodes()[i].GetId())
}

// WithHalves returns the nodes that have halves. These are all nodes with a place, and the nodes that were created with a place and have
// lost it to a spare. A spare counts as having halves if run.sock is in its state directory. A daemon makes this socket once it runs
// halves, and removes it when it ends; a killed daemon leaves it behind.
func (c *Cluster) WithHalves() []NodeInfo {
	return slices.DeleteFunc(c.info.All(), func(n NodeInfo) bool { return n.Left || n.Coord == "" && !n.Joined && !n.hasRunSocket() })
}

func (n NodeInfo) hasRunSocket() bool {
	_, err := os.Stat(filepath.Join(n.StateDir, runSocket))
	return err == nil
}
