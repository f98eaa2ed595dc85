package teller

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// What of the store is followed: the keys' beginnings.
const (
	kindNodes       = "nodes/"
	kindGroups      = "groups/"
	kindMaintenance = "maintenance/"
)

var kinds = []string{kindNodes, kindGroups, kindMaintenance}

func wanted(key string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return strings.HasPrefix(key, kind) })
}

// replica is what this replica's copy of the store says of nodes, as far as they are told of it. It
// implements downflow.Map.
type replica struct {
	names    *view.Names
	revision uint64
	nodes    map[fault.NodeID]*lofamov1.ToldNode // with neither groups nor maintenance
	groups   map[string][]fault.NodeID           // members, by id
	of       map[fault.NodeID][]string           // groups of a node, sorted
	marked   map[fault.NodeID]bool
}

func newReplica(names *view.Names) *replica {
	return &replica{
		names: names, nodes: make(map[fault.NodeID]*lofamov1.ToldNode), groups: make(map[string][]fault.NodeID),
		of: make(map[fault.NodeID][]string), marked: make(map[fault.NodeID]bool),
	}
}

// Revision implements downflow.Map.
func (r *replica) Revision() uint64 { return r.revision }

// Node implements downflow.Map.
func (r *replica) Node(id fault.NodeID) *lofamov1.ToldNode {
	if !r.names.Known(id) {
		return nil
	}
	n := r.nodes[id]
	if n == nil {
		n = &lofamov1.ToldNode{Id: string(id), State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE}
	}
	groups := r.of[id]
	if len(groups) == 0 && !r.marked[id] {
		return n
	}
	n = proto.CloneOf(n)
	n.Groups, n.Maintenance = groups[:min(len(groups), servicenet.MaxToldGroups)], r.marked[id]
	return n
}

// Neighbours implements downflow.Map.
func (r *replica) Neighbours(id fault.NodeID) []fault.NodeID {
	at, ok := r.names.Coord(id)
	if !ok {
		return nil
	}
	var out []fault.NodeID
	t := r.names.Topology()
	for _, c := range t.Dims.Neighbours(at) {
		if nb, ok := t.Place(c); ok {
			out = append(out, nb.ID)
		}
	}
	return out
}

// apply takes a document in and returns the nodes of which something else is to be told.
func (r *replica) apply(d *lofamov1.Document) ([]fault.NodeID, error) {
	key := d.GetKey()
	if id, ok := strings.CutPrefix(key, kindNodes); ok {
		return r.applyNode(fault.NodeID(id), d)
	}
	if id, ok := strings.CutPrefix(key, kindGroups); ok {
		return r.applyGroup(id, d)
	}
	if id, ok := strings.CutPrefix(key, kindMaintenance); ok {
		node := fault.NodeID(id)
		if r.marked[node] == !d.GetDeleted() {
			return nil, nil
		}
		r.marked[node] = !d.GetDeleted()
		return []fault.NodeID{node}, nil
	}
	return nil, nil
}

func (r *replica) applyNode(id fault.NodeID, d *lofamov1.Document) ([]fault.NodeID, error) {
	if d.GetDeleted() {
		delete(r.nodes, id)
		return []fault.NodeID{id}, nil
	}
	var n lofamov1.Node
	if err := proto.Unmarshal(d.GetValue(), &n); err != nil {
		return nil, fmt.Errorf("read %s: %w", d.GetKey(), err)
	}
	told := toldOf(&n)
	if proto.Equal(told, r.nodes[id]) {
		return nil, nil // only what is not told has changed
	}
	r.nodes[id] = told
	return []fault.NodeID{id}, nil
}

// toldOf is what of a node is told to others.
func toldOf(n *lofamov1.Node) *lofamov1.ToldNode {
	out := &lofamov1.ToldNode{Id: n.GetId(), State: n.GetState(), Cause: n.GetCause()}
	for _, c := range n.GetComponents() {
		if s := c.GetState(); s != lofamov1.State_SICK && s != lofamov1.State_FAILED {
			continue
		}
		if comp, err := fault.ParseComponent(c.GetName()); err == nil && len(out.Faults) < servicenet.MaxToldFaults {
			out.Faults = append(out.Faults, &lofamov1.ToldFault{Component: uint32(comp), State: c.GetState(), Cause: c.GetCause()})
		}
	}
	return out
}

func (r *replica) applyGroup(id string, d *lofamov1.Document) ([]fault.NodeID, error) {
	var members []fault.NodeID
	if !d.GetDeleted() {
		var g lofamov1.Group
		if err := proto.Unmarshal(d.GetValue(), &g); err != nil {
			return nil, fmt.Errorf("read %s: %w", d.GetKey(), err)
		}
		for _, m := range g.GetMembers() {
			members = append(members, fault.NodeID(m))
		}
		slices.Sort(members)
	}
	before := r.groups[id]
	var changed []fault.NodeID
	for _, m := range before {
		if _, still := slices.BinarySearch(members, m); !still {
			changed = append(changed, m)
			r.of[m] = slices.DeleteFunc(slices.Clone(r.of[m]), func(g string) bool { return g == id })
			if len(r.of[m]) == 0 {
				delete(r.of, m)
			}
		}
	}
	for _, m := range members {
		if _, was := slices.BinarySearch(before, m); !was {
			changed = append(changed, m)
			r.of[m] = append(slices.Clone(r.of[m]), id)
			slices.Sort(r.of[m])
		}
	}
	if r.groups[id] = members; len(members) == 0 {
		delete(r.groups, id)
	}
	return changed, nil
}
