package grid

import (
	"fmt"
	"slices"
)

// Domains are the failure domains of nodes, which are numbered from 0: the value of each node for each label key. Nodes
// with the same value may die of one cause.
type Domains struct {
	keys   []string
	values [][]string // by key; 0 stands for no value
	of     []int32    // by node, then by key: index of the value
	nodes  int
}

// NewDomains reads the labels of numbered nodes. It ignores keys for which no node has a value.
func NewDomains(keys []string, labels []map[string]string) Domains {
	ds := Domains{nodes: len(labels)}
	for _, key := range keys {
		if slices.ContainsFunc(labels, func(l map[string]string) bool { return l[key] != "" }) {
			ds.keys, ds.values = append(ds.keys, key), append(ds.values, []string{""})
		}
	}
	index := make([]map[string]int32, len(ds.keys))
	ds.of = make([]int32, 0, len(labels)*len(ds.keys))
	for _, l := range labels {
		for k, key := range ds.keys {
			v := l[key]
			i, ok := index[k][v]
			if !ok && v != "" {
				if index[k] == nil {
					index[k] = make(map[string]int32)
				}
				i = int32(len(ds.values[k])) //nolint:gosec // at most one value a node
				index[k][v], ds.values[k] = i, append(ds.values[k], v)
			}
			ds.of = append(ds.of, i)
		}
	}
	return ds
}

// Nodes returns the number of nodes.
func (ds Domains) Nodes() int { return ds.nodes }

// Placement has nodes at places of a torus, and their failure domains. Each distinct neighbour of a node is a witness
// of its death. Neighbours with the same value of a label key count as one witness, so a node needs witnesses in
// several domains. Nodes without a value share no domain with any other.
type Placement struct {
	dims    Dims
	domains Domains
	where   []int32 // rank by node; nodes after these have no place yet
	node    []int32 // by rank; none: empty, or a node of somebody else
	values  []int32 // by rank, then by key: of the node's domains
	links   [][NumDirections]int32
	near    []witnesses
	costs   []int64 // by rank
}

// none stands for no node, and for no link.
const none = -1

// witnesses are the ranks of a node's distinct neighbours.
type witnesses struct {
	n    int
	rank [NumDirections]int32
}

func (w *witnesses) all() []int32 { return w.rank[:w.n] }

// Place makes a placement from the places of nodes 0 to len(at)-1. Further nodes of the domains have no place yet.
// Places that at does not name, but that have a node, belong to nodes without known labels, as those of other regions.
func Place(d Dims, ds Domains, at []Coord) (*Placement, error) {
	p, err := place(d, ds, at)
	if err != nil {
		return nil, err
	}
	p.costs = make([]int64, d.Places())
	for r := range p.costs {
		p.costs[r] = p.cost(int32(r), &p.near[r]) //nolint:gosec // MaxPlaces bounds it
	}
	return p, nil
}

// place is Place without the costs, which only an exchange of nodes needs.
func place(d Dims, ds Domains, at []Coord) (*Placement, error) {
	if n := d.Places(); n > MaxPlaces {
		return nil, fmt.Errorf("dims %s: %d places: want at most %d", d.Box(), n, MaxPlaces)
	}
	if len(at) > ds.nodes {
		return nil, fmt.Errorf("places: given %d: want at most one for each of %d nodes", len(at), ds.nodes)
	}
	p := &Placement{dims: d, domains: ds, where: make([]int32, len(at)), node: make([]int32, d.Places()),
		values: make([]int32, d.Places()*len(ds.keys))}
	for r := range p.node {
		p.node[r] = none
	}
	for i, c := range at {
		if err := d.Check(c); err != nil {
			return nil, fmt.Errorf("place of node %d: %w", i, err)
		}
		r := d.Rank(c)
		if other := p.node[r]; other != none {
			return nil, fmt.Errorf("place of node %d: given %s: want another place: node %d has it", i, c, other)
		}
		p.put(int32(i), int32(r)) //nolint:gosec // MaxPlaces bounds both
	}
	p.links = d.linkTable()
	p.near = make([]witnesses, d.Places())
	for r := range p.near {
		if d.Full() || !d.emptyRank(r) {
			p.near[r] = distinct(p.links[r])
		}
	}
	return p, nil
}

func (p *Placement) put(node, rank int32) {
	p.where[node], p.node[rank] = rank, node
	keys := len(p.domains.keys)
	copy(p.values[int(rank)*keys:][:keys], p.domains.of[int(node)*keys:])
}

// Dims returns the torus.
func (p *Placement) Dims() Dims { return p.dims }

// Placed returns the number of nodes that have a place.
func (p *Placement) Placed() int { return len(p.where) }

// Coord returns the place of a node, which must have one.
func (p *Placement) Coord(node int) Coord { return p.dims.At(int(p.where[node])) }

// coords returns the places of all nodes.
func (p *Placement) coords() []Coord {
	out := make([]Coord, len(p.where))
	for i := range out {
		out[i] = p.Coord(i)
	}
	return out
}

// linkTable returns, for each place and direction, the rank of the next place that has a node; for empty places too.
func (d Dims) linkTable() [][NumDirections]int32 {
	out := make([][NumDirections]int32, d.Places())
	stride := 1
	for axis := range 3 {
		size := d.size(axis)
		for first := range out {
			if first/stride%size != 0 {
				continue
			}
			for _, dir := range []int{2 * axis, 2*axis + 1} {
				last := int32(none)
				for i := range 2 * size { // the second time with what the first has met
					at := i % size
					if dir == 2*axis { // X+ leads to the place that a walk backwards has met last
						at = size - 1 - at
					}
					r := int32(first + at*stride) //nolint:gosec // MaxPlaces bounds it
					out[r][dir] = last
					if last == r {
						out[r][dir] = none
					}
					if d.Full() || !d.emptyRank(int(r)) {
						last = r
					}
				}
			}
		}
		stride *= size
	}
	return out
}

func distinct(links [NumDirections]int32) (w witnesses) {
	for _, r := range links {
		if r != none && !slices.Contains(w.all(), r) {
			w.rank[w.n] = r
			w.n++
		}
	}
	return w
}

// oneExposed is the cost of a node that the death of one domain deprives of all witnesses. It outweighs all else: the
// rest of a cost is at most 25 for each key and place.
const oneExposed = 1 << 36

// cost rates a place with given neighbours: oneExposed for each key by which its node is exposed, and the square of the
// number of witnesses that share a domain with another one.
func (p *Placement) cost(r int32, w *witnesses) (c int64) {
	if p.node[r] == none {
		return 0
	}
	for k := range p.domains.keys {
		domains, only := p.domainsOf(w, k)
		shared := int64(w.n - domains)
		if c += shared * shared; weaknessOf(only, p.value(r, k)) == exposed {
			c += oneExposed
		}
	}
	return c
}

// value returns the value of a place's node for a label key.
func (p *Placement) value(r int32, k int) int32 { return p.values[int(r)*len(p.domains.keys)+k] }

// domainsOf returns the number of domains in which witnesses lie, and the domain if all lie in one.
func (p *Placement) domainsOf(w *witnesses, k int) (domains int, only int32) {
	var seen [NumDirections]int32
	known := 0
	for _, n := range w.all() {
		v := p.value(n, k)
		if v == 0 {
			domains++
			continue
		}
		if !slices.Contains(seen[:known], v) {
			seen[known] = v
			known++
		}
	}
	if domains == 0 && known == 1 {
		only = seen[0]
	}
	return domains + known, only
}

// weakness is what the witnesses of a node lack by one label key.
type weakness int

const (
	spread  weakness = iota // nothing: they lie in several domains, or have no value
	within                  // all lie in the node's own domain
	exposed                 // all lie in one other domain: its death takes them, but not the node
)

// weaknessOf compares the only domain of all witnesses, if there is one, with the node's own.
func weaknessOf(only, own int32) weakness {
	switch only {
	case 0:
		return spread
	case own:
		return within
	}
	return exposed
}

func (p *Placement) weakness(r int32, w *witnesses, k int) weakness {
	_, only := p.domainsOf(w, k)
	return weaknessOf(only, p.value(r, k))
}

// Quality rates a placement.
type Quality struct {
	// Witnesses is the smallest number of witnesses of a node.
	Witnesses int
	// Few are the nodes with fewer than two witnesses in a torus of three nodes or more.
	Few []Few
	// Keys are the label keys for which nodes have values.
	Keys []KeyQuality
}

// KeyQuality rates a placement by one label key.
type KeyQuality struct {
	Key string
	// Domains is the number of values, and Unlabelled the number of nodes without one: each is a domain of its own.
	Domains, Unlabelled int
	// Least is the smallest number of domains in which the witnesses of one node lie; Worst is the first such node.
	Least, Worst int
	// Exposed are the nodes that would survive the death of a domain, but lose all witnesses by it.
	Exposed []Exposure
}

// Exposure is a node whose witnesses all lie in one domain that is not its own.
type Exposure struct {
	Node  int
	Value string // of the label
}

// Exposed returns the number of exposures by all keys.
func (q Quality) Exposed() (n int) {
	for _, k := range q.Keys {
		n += len(k.Exposed)
	}
	return n
}

// Quality rates the placement. Nodes are in the order of their places.
func (p *Placement) Quality() Quality {
	q, nodes := Quality{Witnesses: NumDirections}, p.dims.Nodes()
	for k, key := range p.domains.keys {
		q.Keys = append(q.Keys, KeyQuality{Key: key, Domains: len(p.domains.values[k]) - 1, Least: NumDirections + 1})
	}
	for r, node := range p.node {
		if node == none {
			continue
		}
		w := &p.near[r]
		q.Witnesses = min(q.Witnesses, w.n)
		if w.n < min(nodes-1, 2) {
			few := Few{Node: int(node)}
			for _, to := range w.all() {
				few.Witnesses = append(few.Witnesses, p.dims.At(int(to)))
			}
			q.Few = append(q.Few, few)
		}
		for k := range q.Keys {
			of := &q.Keys[k]
			if p.value(int32(r), k) == 0 { //nolint:gosec // MaxPlaces bounds it
				of.Unlabelled++
			}
			domains, only := p.domainsOf(w, k)
			if domains < of.Least {
				of.Least, of.Worst = domains, int(node)
			}
			if weaknessOf(only, p.value(int32(r), k)) == exposed { //nolint:gosec // MaxPlaces bounds it
				of.Exposed = append(of.Exposed, Exposure{Node: int(node), Value: p.domains.values[k][only]})
			}
		}
	}
	return q
}
