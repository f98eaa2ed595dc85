package awareness

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestNodeToCommitLeavesOutOnlyNormalStatements compares it with Node in a torus with a sick part, a dead node and a descriptor
// that contradicts its NORMAL subject.
func TestNodeToCommitLeavesOutOnlyNormalStatements(t *testing.T) {
	b := newBench(grid.Dims{X: 3, Y: 3, Z: 3})
	b.now = b.now.Add(time.Millisecond)
	b.m.Step(b.now, Evidence{b.digest(5, fault.HalfHost, fault.Sick)})
	contradicts := b.digest(7, fault.HalfDNP, fault.Normal)
	last := &contradicts.Report.Observations[len(contradicts.Report.Observations)-1]
	last.State = fault.Failed
	b.m.Step(b.now, Evidence{contradicts})
	if dead := b.death(grid.Coord{X: 2, Y: 2, Z: 2}); dead != 1 {
		t.Fatalf("%d nodes are dead, want 1", dead)
	}
	contradicted := false
	for i := range b.m.Len() {
		want := b.m.NodeAt(i)
		got, ok := b.m.NodeToCommit(want.ID)
		if !ok {
			t.Fatalf("node %s is unknown", want.ID)
		}
		for i := range want.Components {
			c := &want.Components[i]
			if c.State != fault.Normal {
				continue
			}
			c.Evidence = slices.DeleteFunc(c.Evidence, func(e EvidenceStatus) bool { return e.State == fault.Normal })
			if len(c.Evidence) == 0 {
				c.Evidence = nil
			}
			contradicted = contradicted || want.ID == last.Node && c.Component == last.Component && len(c.Evidence) > 0
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("node %s to commit:\n got %+v\nwant %+v", want.ID, got, want)
		}
	}
	if !contradicted {
		t.Errorf("no evidence against the NORMAL %s of %s", last.Component, last.Node)
	}
	if _, ok := b.m.NodeToCommit("nobody"); ok {
		t.Error("a node outside the torus has a status")
	}
}

// BenchmarkStatus measures the status of a healthy node, for a reader and for a commit.
func BenchmarkStatus(b *testing.B) {
	w := newBench(grid.Dims{X: 10, Y: 10, Z: 10})
	for name, of := range map[string]func(fault.NodeID) (NodeStatus, bool){"whole": w.m.Node, "to commit": w.m.NodeToCommit} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ids, i := w.m.own, 0
			for b.Loop() {
				if _, ok := of(ids[i%len(ids)].id); !ok {
					b.Fatal("no status")
				}
				i++
			}
		})
	}
}
