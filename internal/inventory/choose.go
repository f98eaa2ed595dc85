package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Planned is what Plan has added to an inventory.
type Planned struct {
	Places   int      // of nodes that had none
	Labelled int      // nodes that got the label of their switch
	Unknown  []string // nodes that have neither that label nor a switch
}

// Plan is Load for an inventory whose nodes may have no coord: it chooses their places by their failure domains, and
// without dims also the torus. Nodes of the former inventory keep their places; the zero Inventory has none. With switches
// it first gives the nodes their label SwitchLabel.
func Plan(path string, former Inventory, switches Switches) (inv Inventory, added Planned, err error) {
	if inv, err = readFile(path); err != nil {
		return inv, added, err
	}
	if switches != nil {
		added.Labelled, added.Unknown = switches.label(&inv)
		if added.Labelled == 0 && len(added.Unknown) > 0 {
			return inv, added, fmt.Errorf("inventory %s: topology.conf names none of its nodes that have no label %s, such as %s: want ids that "+
				"are the names in Slurm", path, SwitchLabel, added.Unknown[0])
		}
	}
	if added.Places, err = inv.choose(former); err == nil {
		err = inv.Validate()
	}
	if err != nil {
		return inv, Planned{}, fmt.Errorf("inventory %s: %w", path, err)
	}
	return inv, added, nil
}

// choose gives a place to each node without one, and returns their number.
func (inv *Inventory) choose(former Inventory) (chosen int, err error) {
	if !slices.ContainsFunc(inv.Nodes, func(n Node) bool { return n.Coord == "" }) {
		return 0, nil
	}
	given, err := inv.keep(former)
	if err != nil {
		return 0, err
	}
	fixed, order, err := inv.fixed()
	if err != nil {
		return 0, err
	}
	labels := make([]map[string]string, len(order))
	for i, n := range order {
		labels[i] = inv.Nodes[n].Labels
	}
	keys := inv.DomainLabels
	if len(keys) == 0 {
		keys = fault.DomainLabels()
	}
	domains := grid.NewDomains(keys, labels)
	var p *grid.Placement
	switch {
	case inv.Dims != "":
		var d grid.Dims
		if d, err = grid.ParseTorus(inv.Dims); err == nil {
			p, err = grid.Arrange(d, domains, fixed)
		}
	case given:
		return 0, errors.New("dims: given nothing: want the torus, because a node has a coord")
	case len(fixed) > 0:
		p, err = rejoined(former, domains, fixed)
	default:
		var d grid.Dims
		if d, err = grid.Fit(len(order)); err == nil {
			p, err = grid.Arrange(d, domains, nil)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("choose places: %w", err)
	}
	inv.Dims = p.Dims().String()
	for i, n := range order {
		inv.Nodes[n].Coord = p.Coord(i).String()
	}
	return len(order) - len(fixed), nil
}

// keep gives nodes the places that they had, and reports whether the inventory itself gives a node a place.
func (inv *Inventory) keep(former Inventory) (given bool, err error) {
	had := map[fault.NodeID]string{}
	for _, n := range former.Nodes {
		at, err := grid.ParseCoord(n.Coord)
		if err != nil {
			return false, err
		}
		had[n.name(at)] = n.Coord
	}
	var errs []error
	for i := range inv.Nodes {
		switch n := &inv.Nodes[i]; {
		case n.Coord != "":
			given = true
		case n.ID == "":
			errs = append(errs, fmt.Errorf("nodes[%d].id: given nothing: want a name, because the node has no coord", i))
		default:
			n.Coord = had[n.ID]
		}
	}
	return given, errors.Join(errs...)
}

// fixed returns the places of the nodes that have one, and the numbers of all nodes: first of these, then of the others.
func (inv *Inventory) fixed() (fixed []grid.Coord, order []int, err error) {
	var others []int
	for i, n := range inv.Nodes {
		if n.Coord == "" {
			others = append(others, i)
			continue
		}
		at, err := grid.ParseCoord(n.Coord)
		if err != nil {
			return nil, nil, fmt.Errorf("nodes[%d].coord: %w", i, err)
		}
		fixed, order = append(fixed, at), append(order, i)
	}
	return fixed, append(order, others...), nil
}

// rejoined leaves the remaining nodes of the former inventory at their places, and adds the other nodes one by one.
func rejoined(former Inventory, domains grid.Domains, fixed []grid.Coord) (*grid.Placement, error) {
	d, err := grid.ParseTorus(former.Dims)
	if err != nil {
		return nil, err
	}
	var left []grid.Coord
	for c := range d.All() {
		if !slices.Contains(fixed, c) {
			left = append(left, c)
		}
	}
	if d, err = d.Without(left...); err != nil {
		return nil, err
	}
	p, err := grid.Place(d, domains, fixed)
	for err == nil && p.Placed() < domains.Nodes() {
		p, err = p.Join()
	}
	return p, err
}
