package controller

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Batch is the answer of an executor process to one call.
type Batch struct {
	Run        string // of the process; readings of another run are void
	Configured int    // nodes with a controller
	Readings   []Reading
}

// Around is the part of the leader's map that the book needs.
type Around struct {
	Known func(fault.NodeID) bool   // the node is in the topology
	Quiet map[fault.NodeID]struct{} // nodes without a sign of life and without an announced stop
}

// Book keeps the last readings at the leader. It accepts only those of nodes in the topology, so that their number bounds it.
// Not safe for concurrent use.
type Book struct {
	run     string
	after   uint64
	entries map[fault.NodeID]*entry
	ended   bool // the readings are void until the next batch
}

// entry is a node's reading, with the leader's own conclusion.
type entry struct {
	Reading

	feed      bool // the node and its controller are silent, and the controller has answered before
	feedSince time.Time
	told      []response.OutsideCondition // the conditions that policies have last received
}

// Position returns the run and version of the last reading, for the next call.
func (b *Book) Position() (run string, after uint64) { return b.run, b.after }

// Take adds a batch. It returns the conditions that have changed; false if none have.
func (b *Book) Take(now time.Time, batch Batch, around Around) (response.OutsideChanged, bool) {
	ev := response.OutsideChanged{Source: response.FromControllers, Nodes: map[fault.NodeID][]response.OutsideCondition{}}
	if b.entries == nil || b.run != batch.Run || b.ended {
		ev.All = true
		b.ended = false
	}
	if b.entries == nil || b.run != batch.Run {
		b.run, b.after, b.entries = batch.Run, 0, map[fault.NodeID]*entry{}
	}
	for _, r := range batch.Readings {
		if r.Version <= b.after {
			continue
		}
		b.after = r.Version
		if !r.Finding.Valid() || !around.Known(r.Node) { // of a later version, or a stranger
			continue
		}
		r.Answer = r.cleaned()
		e := b.entries[r.Node]
		if e == nil {
			e = &entry{feedSince: now}
			b.entries[r.Node] = e
		}
		r.Since, r.HealthSince = steady(e.Since, r.Since), steady(e.HealthSince, r.HealthSince)
		e.Reading = r
	}
	for id, e := range b.entries {
		if !around.Known(id) {
			delete(b.entries, id)
			ev.Nodes[id] = nil
			continue
		}
		_, quiet := around.Quiet[id]
		if feed := quiet && e.Finding == Silent && e.Last != 0; feed != e.feed {
			e.feed, e.feedSince = feed, now
		}
		if c := e.conditions(); ev.All || !slices.Equal(c, e.told) {
			e.told, ev.Nodes[id] = c, c
		}
	}
	return ev, ev.All || len(ev.Nodes) > 0
}

// Lost makes the readings void for policies, because no executor process answers. People still see them, with their age.
func (b *Book) Lost() response.OutsideChanged {
	b.ended = true
	return response.OutsideChanged{Source: response.FromControllers, Unknown: true}
}

// steady returns the time before if both differ by less than a second: the ages of two calls do not agree exactly.
func steady(before, at time.Time) time.Time {
	if d := at.Sub(before); d > -time.Second && d < time.Second {
		return before
	}
	return at
}

// Reading returns the last reading of a node's controller, and whether it hints at a power feed.
func (b *Book) Reading(node fault.NodeID) (r Reading, feed, ok bool) {
	e := b.entries[node]
	if e == nil {
		return Reading{}, false, false
	}
	return e.Reading, e.feed, true
}
