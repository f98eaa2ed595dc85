package view

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// torus returns the names of a torus with default ids.
func torus(dims grid.Dims) *Names {
	ids := make(map[grid.Coord]fault.NodeID, dims.Nodes())
	for r := range dims.Nodes() {
		ids[dims.At(r)] = fault.DefaultNodeID(dims.At(r))
	}
	return NewNames(dims, ids)
}

func TestMapOfNothingKnown(t *testing.T) {
	names := torus(grid.Dims{X: 2, Y: 2, Z: 1})
	m := NewBuilder(names, now).Map(7)
	if c := m.Counts(); m.Len() != 4 || m.Revision != 7 || c.Nodes[fault.Unknown] != 4 || c.Links[fault.Unknown] != 16 || c.NotNormal != 4 {
		t.Errorf("%d nodes at %d, %+v", m.Len(), m.Revision, c)
	}
	e, ok := m.Find("n1-1-0")
	if !ok || e.Status.Coord != (grid.Coord{X: 1, Y: 1}) || !e.Status.Since.Equal(now) || len(e.Status.Components) != 14 {
		t.Errorf("%+v", e)
	}
	if _, ok := m.Find("n9"); ok {
		t.Error("a node that there is not is found")
	}
}

// TestMapTakesOnlyItsNodes: at their places.
func TestMapTakesOnlyItsNodes(t *testing.T) {
	b := NewBuilder(torus(grid.Dims{X: 2, Y: 2, Z: 1}), now)
	for name, want := range map[string]bool{"there": true, "nobody": false, "elsewhere": false} {
		st := sample()
		switch name {
		case "nobody":
			st.ID = "n9"
		case "elsewhere":
			st.Coord = grid.Coord{}
		}
		if got := b.Set(Entry{Status: st}); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	b.Reset("n1-0-0", now)
	if b.State("n1-0-0") != fault.Unknown {
		t.Error("it is not forgotten")
	}
}

func TestMapKeepsEverythingButSignsOfLife(t *testing.T) {
	b := NewBuilder(torus(grid.Dims{X: 2, Y: 2, Z: 1}), now)
	want := Entry{Status: sample(), Revision: 5, GivenUp: [2]bool{true, false}}
	b.Set(want)
	got, _ := b.Map(5).Find("n1-0-0")
	want.Status.Life, want.Status.RegistersAt, want.Status.Registers = time.Time{}, time.Time{}, fault.Registers{}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestVersionsOfMap: each version stays equal to a full copy of the map, for ever.
func TestVersionsOfMap(t *testing.T) {
	names := torus(grid.Dims{X: 8, Y: 8, Z: 5})
	ids := names.All()
	rapid.Check(t, func(t *rapid.T) {
		b := NewBuilder(names, now)
		naive := make([]awareness.NodeStatus, len(ids))
		first := b.Map(0)
		for rank := range naive {
			naive[rank] = first.At(rank).Status
		}
		type version struct {
			m     Map
			naive []awareness.NodeStatus
		}
		var versions []version
		for rev := range rapid.IntRange(1, 4).Draw(t, "versions") {
			for range rapid.IntRange(0, 40).Draw(t, "changes") {
				rank := rapid.IntRange(0, len(ids)-1).Draw(t, "rank")
				st := b.now.At(rank).Status
				st.State = fault.State(rapid.IntRange(1, 4).Draw(t, "state"))
				i := rapid.IntRange(0, len(st.Components)-1).Draw(t, "component")
				st.Components[i].State = fault.State(rapid.IntRange(1, 4).Draw(t, "its state"))
				naive[rank] = st
				b.Set(Entry{Status: st, Revision: uint64(rev)})
			}
			versions = append(versions, version{b.Map(uint64(rev)), slices.Clone(naive)})
		}
		for _, v := range versions {
			check(t, v.m, v.naive)
		}
	})
}

func sameState(a, b awareness.ComponentStatus) bool {
	return a.Component == b.Component && a.State == b.State
}

func check(t *rapid.T, m Map, naive []awareness.NodeStatus) {
	var counts Counts
	var notNormal, failed []int
	for rank, st := range naive {
		e := m.At(rank)
		if e.Status.ID != st.ID || e.Status.State != st.State || !slices.EqualFunc(e.Status.Components, st.Components, sameState) {
			t.Fatalf("revision %d, rank %d: %+v, want %+v", m.Revision, rank, e.Status, st)
		}
		var parts, faulty []awareness.ComponentStatus
		for c, s := range m.Components(rank) {
			parts = append(parts, awareness.ComponentStatus{Component: c, State: s})
		}
		for c, s := range m.Faulty(rank) {
			faulty = append(faulty, awareness.ComponentStatus{Component: c, State: s})
		}
		ok := func(s awareness.ComponentStatus) bool { return s.State != fault.Sick && s.State != fault.Failed }
		if wanted := slices.DeleteFunc(slices.Clone(st.Components), ok); !slices.EqualFunc(parts, st.Components, sameState) ||
			!slices.EqualFunc(faulty, wanted, sameState) {
			t.Fatalf("revision %d, rank %d: components %v, faulty %v: want those of %+v", m.Revision, rank, parts, faulty, st)
		}
		e.Status.Components = nil
		if brief := m.Brief(rank); !reflect.DeepEqual(brief, e) {
			t.Fatalf("revision %d, rank %d: brief entry: %s", m.Revision, rank, cmp.Diff(e, brief))
		}
		counts.Nodes[st.State]++
		bad := st.State != fault.Normal
		for _, c := range st.Components {
			if _, link := c.Component.LinkDirection(); link {
				counts.Links[c.State]++
			}
			bad = bad || c.State == fault.Sick || c.State == fault.Failed
		}
		if bad {
			counts.NotNormal++
			notNormal = append(notNormal, rank)
		}
		if st.State == fault.Failed {
			failed = append(failed, rank)
		}
	}
	if m.Counts() != counts {
		t.Fatalf("revision %d: %+v, want %+v", m.Revision, m.Counts(), counts)
	}
	if got := slices.Collect(m.NotNormal()); !slices.Equal(got, notNormal) {
		t.Fatalf("not normal: %v, want %v", got, notNormal)
	}
	if got := slices.Collect(m.In(fault.Failed)); !slices.Equal(got, failed) {
		t.Fatalf("FAILED: %v, want %v", got, failed)
	}
}

// healthy returns a map of 100,000 nodes; every n-th is FAILED.
// TestPlainNodeHasNothingThatEndsByItself: the document of a plain node stays as it is under reports without news, so a
// restart notice or a flapping component, which ends without a change of state, makes a node not plain.
func TestPlainNodeHasNothingThatEndsByItself(t *testing.T) {
	b := NewBuilder(torus(grid.Dims{X: 2, Y: 2, Z: 1}), now)
	normal := func() awareness.NodeStatus {
		e, _ := b.At("n1-0-0")
		st := e.Status
		st.State, st.Components = fault.Normal, slices.Clone(st.Components)
		for i := range st.Components {
			st.Components[i].State = fault.Normal
		}
		return st
	}
	plain, flapping, sick, restarts := normal(), normal(), normal(), normal()
	flapping.Components[2].Flapping = true
	sick.Components[2].State = fault.Sick
	restarts.Restart.Half = fault.HalfDNP
	for _, tc := range []struct {
		name string
		st   awareness.NodeStatus
		want bool
	}{{"all NORMAL", plain, true}, {"a flapping part", flapping, false}, {"a SICK part", sick, false}, {"a restart", restarts, false},
		{"all NORMAL again", plain, true}} {
		b.Set(Entry{Status: tc.st})
		if _, got := b.Plain(tc.st.ID); got != tc.want {
			t.Errorf("%s: plain %t, want %t", tc.name, got, tc.want)
		}
	}
}

func healthy(n int) (*Builder, *Names) {
	names := torus(grid.Dims{X: 50, Y: 50, Z: 40})
	b := NewBuilder(names, now)
	for rank := range names.Dims().Nodes() {
		st := b.now.At(rank).Status
		st.State = fault.Normal
		for i := range st.Components {
			st.Components[i].State = fault.Normal
		}
		if rank%n == n-1 {
			st.State = fault.Failed
		}
		b.Set(Entry{Status: st})
	}
	return b, names
}

// BenchmarkMap measures a map of 100,000 nodes: a version after scattered changes, and the query for abnormal
// nodes.
func BenchmarkMap(b *testing.B) {
	builder, _ := healthy(1000)
	for _, changes := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint("commit of ", changes), func(b *testing.B) {
			entries := make([]Entry, changes)
			for i := range entries {
				entries[i] = builder.now.At(i * 97)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range entries {
					builder.Set(e)
				}
				builder.Map(1)
			}
		})
	}
	m := builder.Map(1)
	b.Run("not normal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range m.NotNormal() {
				n++
			}
			if n != 100 {
				b.Fatal(n)
			}
		}
	})
}

// TestWarningOfNodeWithoutPlace: it has no coordinates, rather than 0,0,0.
func TestWarningOfNodeWithoutPlace(t *testing.T) {
	names := NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a"})
	for id, want := range map[fault.NodeID]string{"a": "0,0,0", "gone": ""} {
		if ev := WarningEvent(awareness.WarningStatus{Node: id}, names, now); ev.GetCoord() != want {
			t.Errorf("%s is at %q, want %q", id, ev.GetCoord(), want)
		}
	}
}
