package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// above holds the parts of a map above the nodes: group faults and warnings.
type above struct {
	groups   map[string]awareness.GroupStatus
	warnings map[warned]awareness.WarningStatus
	changed  bool // since it was put into a map
}

// warned is the subject of a warning.
type warned struct {
	node      fault.NodeID
	component fault.Component
	quantity  fault.Quantity
}

func newAbove() above {
	return above{groups: make(map[string]awareness.GroupStatus), warnings: make(map[warned]awareness.WarningStatus)}
}

// SetGroup sets the present state of a group fault; NORMAL ends it.
func (b *Builder) SetGroup(g awareness.GroupStatus) {
	b.above.changed = true
	if g.State == fault.Normal {
		delete(b.above.groups, g.ID)
		return
	}
	b.above.groups[g.ID] = g
}

// SetWarning sets the present state of a warning.
func (b *Builder) SetWarning(w awareness.WarningStatus) {
	b.above.changed = true
	key := warned{w.Node, w.Component, w.Quantity}
	if w.Ended {
		delete(b.above.warnings, key)
		return
	}
	b.above.warnings[key] = w
}

// DropGroup and DropWarning remove entries that are no longer in the store.
func (b *Builder) DropGroup(id string) {
	b.SetGroup(awareness.GroupStatus{ID: id, State: fault.Normal})
}

// DropWarning is DropGroup for a warning.
func (b *Builder) DropWarning(node fault.NodeID, c fault.Component, q fault.Quantity) {
	b.SetWarning(awareness.WarningStatus{Node: node, Component: c, Quantity: q, Ended: true})
}

// into puts changed entries into a map. There are few groups and warnings, and they seldom change.
func (a *above) into(m *Map) {
	if !a.changed {
		return
	}
	a.changed = false
	m.Groups = slices.SortedFunc(maps.Values(a.groups), func(a, b awareness.GroupStatus) int { return strings.Compare(a.ID, b.ID) })
	rank := func(id fault.NodeID) int {
		at, _ := m.Rank(id)
		return at
	}
	m.Warnings = slices.SortedFunc(maps.Values(a.warnings), func(a, b awareness.WarningStatus) int {
		return cmp.Or(cmp.Compare(rank(a.Node), rank(b.Node)), cmp.Compare(a.Component, b.Component), cmp.Compare(a.Quantity, b.Quantity))
	})
	m.member = make(map[fault.NodeID][]string)
	for _, g := range m.Groups {
		for _, id := range g.Members {
			m.member[id] = append(m.member[id], g.ID)
		}
	}
}
