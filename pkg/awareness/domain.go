package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// domains are the failure domains: properties that nodes share, independent of the torus.
type domains struct {
	keys   []string
	values [][]string // by key; index 0 stands for no value
	sizes  [][]int    // number of nodes in the map with the value
	of     [][]int32  // by key and rank: index of the value
}

// newDomains reads the labels. It stores only keys for which nodes have a value.
func newDomains(cfg Config, nodes []*node) domains {
	var d domains
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == nil })
	for _, key := range cfg.DomainLabels {
		values, sizes, of := []string{""}, []int{0}, make([]int32, cfg.Dims.Places())
		index := map[string]int32{}
		for _, n := range nodes {
			v := cfg.Labels[n.id][key]
			if v == "" {
				continue
			}
			i, ok := index[v]
			if !ok {
				i = int32(len(values))
				index[v], values, sizes = i, append(values, v), append(sizes, 0)
			}
			of[n.rank] = i
			if !cfg.Foreign[n.id] {
				sizes[i]++
			}
		}
		if len(values) > 1 {
			d.keys, d.values, d.sizes, d.of = append(d.keys, key), append(d.values, values), append(d.sizes, sizes), append(d.of, of)
		}
	}
	return d
}

// labelled rebuilds the failure domains. Accusations against a node may now come from one domain or from several, and
// faults may have another domain in common.
func (m *Machine) labelled(l Labelled, now time.Time) {
	m.cfg.Labels, m.cfg.DomainLabels = l.Labels, l.DomainLabels
	m.domains = newDomains(m.cfg, m.nodes)
	m.sizes = nil
	for _, n := range m.own {
		if n.suspicion != &m.calm {
			m.touch(n)
		}
	}
	if c := &m.common; c.look.IsZero() { // else a search is due soon
		c.first, c.look = now, fault.Later(now, m.graceEnds())
	}
}

// name returns "rack=r7".
func (d *domains) name(key int, value int32) string { return d.keys[key] + "=" + d.values[key][value] }

// shared returns a failure domain that contains all accusers, but not all neighbours of the accused: their common
// accusation may be the domain's fault. A domain of all neighbours is ignored, because no outsider could ever confirm
// the accusation.
func (d *domains) shared(n *node, by []*node) (key int, value int32, ok bool) {
	if len(by) == 0 {
		return 0, 0, false
	}
	for k, of := range d.of {
		v := of[by[0].rank]
		outside := func(w *node) bool { return of[w.rank] != v }
		if v == 0 || slices.ContainsFunc(by, outside) {
			continue
		}
		if slices.ContainsFunc(n.neighbours, func(nb neighbour) bool { return outside(nb.node) }) {
			return k, v, true
		}
	}
	return 0, 0, false
}

// verdict reports whether the votes allow a verdict, whether it would be single-witness, and the domain that makes it
// so. Accusers in a single failure domain count as one witness, and a live witness outside of the domain may contradict
// them. If witnesses are mute, only a quorum counts here: see judgeMutes for the other cases.
func (m *Machine) verdict(n *node, v votes, now time.Time) (ok, single bool, domain string) {
	ok, single = enough(v.cast, v.live, len(n.neighbours))
	if single && v.mute > 0 {
		return false, true, ""
	}
	if !ok || len(m.domains.keys) == 0 {
		return ok, single, ""
	}
	k, value, shared := m.domains.shared(n, v.by)
	if !shared {
		return ok, single, ""
	}
	for _, nb := range n.neighbours {
		if !m.apart(nb, now) && m.domains.of[k][nb.node.rank] != value && nb.node.rounds[0].mute.IsZero() && m.acquits(nb.node, now) {
			ok = false
		}
	}
	return ok, true, m.domains.name(k, value)
}
