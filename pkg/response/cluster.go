package response

import (
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// cluster holds the nodes, as the caps count them.
type cluster struct {
	dims  grid.Dims
	nodes map[fault.NodeID]place
	at    map[grid.Coord]fault.NodeID // those that are not spare
	keys  []string                    // of failure domains for which some node has a value
	sizes [][]int                     // nodes by key and value; value 0: none
	names [][]string                  // of the values
	inUse int                         // managed nodes that are not spare
}

// place is a node's position in the torus and in its failure domains.
type place struct {
	NodeInfo
	values []int32 // by key: of a failure domain; 0: none
}

// newCluster builds the cluster from a topology. The cost grows with the number of nodes.
func newCluster(t TopologyChanged, cfg Config) cluster {
	c := cluster{dims: t.Dims, nodes: make(map[fault.NodeID]place, len(t.Nodes)),
		at: make(map[grid.Coord]fault.NodeID, len(t.Nodes))}
	for _, key := range cfg.DomainLabels {
		for _, n := range t.Nodes {
			if n.Labels[key] != "" {
				c.keys = append(c.keys, key)
				break
			}
		}
	}
	index := make([]map[string]int32, len(c.keys))
	for k := range c.keys {
		index[k] = map[string]int32{}
		c.sizes, c.names = append(c.sizes, []int{0}), append(c.names, []string{""})
	}
	for _, n := range t.Nodes {
		p := place{NodeInfo: n, values: make([]int32, len(c.keys))}
		if !n.Spare {
			c.at[n.Coord] = n.ID
			if fault.Managed(n.Labels) {
				c.inUse++
			}
		}
		for k, key := range c.keys {
			v := n.Labels[key]
			if v == "" {
				c.sizes[k][0]++
				continue
			}
			i, ok := index[k][v]
			if !ok {
				i = int32(len(c.sizes[k]))
				index[k][v] = i
				c.sizes[k], c.names[k] = append(c.sizes[k], 0), append(c.names[k], v)
			}
			c.sizes[k][i]++
			p.values[k] = i
		}
		c.nodes[n.ID] = p
	}
	return c
}

// managed reports whether executors may act on a node. Nodes that named themselves neither count in the caps and the breaker, nor as
// witnesses: a stranger with a token can enrol many.
func (c *cluster) managed(id fault.NodeID) bool { return fault.Managed(c.nodes[id].Labels) }

// plane returns the coordinate on an axis.
func plane(c grid.Coord, axis int) int { return [3]int{c.X, c.Y, c.Z}[axis] }

// shared returns a failure domain that contains all the nodes, but not the whole cluster: that domain has no outsiders.
// Unknown nodes and nodes without a value share nothing.
func (c *cluster) shared(nodes []fault.NodeID) (name string, ok bool) {
	if len(nodes) == 0 {
		return "", false
	}
	for k := range c.keys {
		first, known := c.nodes[nodes[0]]
		if !known || first.values[k] == 0 || c.sizes[k][first.values[k]] == len(c.nodes) {
			continue
		}
		all := true
		for _, id := range nodes[1:] {
			if p, known := c.nodes[id]; !known || p.values[k] != first.values[k] {
				all = false
			}
		}
		if all {
			return c.keys[k] + "=" + c.names[k][first.values[k]], true
		}
	}
	return "", false
}

// recount counts all held nodes again, e.g. after a change of the topology.
func (e *Engine) recount() {
	e.held = map[fault.NodeID]bool{}
	e.byValue = make([][]int, len(e.cluster.keys))
	for k := range e.byValue {
		e.byValue[k] = make([]int, len(e.cluster.sizes[k]))
	}
	e.byPlane = [3]map[int]int{{}, {}, {}}
	seen := map[fault.NodeID]bool{}
	for _, r := range e.open {
		if id := r.Target.Node; !seen[id] {
			seen[id] = true
			e.recountNode(id)
		}
	}
}

// recountNode updates the counts for a node.
func (e *Engine) recountNode(id fault.NodeID) {
	if id == "" {
		return
	}
	holds := slices.ContainsFunc(e.ofNode(id), (*Response).holds)
	switch was := e.held[id]; {
	case holds && !was:
		e.held[id] = true
		e.count(id, 1)
	case was && !holds:
		delete(e.held, id)
		e.count(id, -1)
		e.freed()
	}
}

// count adds a node to the nodes under response, or removes it.
func (e *Engine) count(id fault.NodeID, by int) {
	p, known := e.cluster.nodes[id]
	if !known {
		return
	}
	for k, v := range p.values {
		e.byValue[k][v] += by
	}
	if p.Spare {
		return
	}
	for axis := range e.byPlane {
		e.byPlane[axis][plane(p.Coord, axis)] += by
	}
}

// ofNode returns the open responses on a node, for all its components.
func (e *Engine) ofNode(id fault.NodeID) []*Response {
	var out []*Response
	for c := range fault.NumComponents {
		out = append(out, e.of[Target{Node: id, Component: fault.Component(c)}]...)
	}
	return out
}
