package cluster

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// replaceWorld returns a replacement and a committed state, which the tests change as supervisors would.
func replaceWorld() (replacement, replaceState) {
	top := &lofamov1.Topology{Dims: "3x1x1", Nodes: []*lofamov1.TopologyNode{
		{Id: "n0", Coord: "0,0,0"}, {Id: "n1", Coord: "1,0,0"}, {Id: "n2", Coord: "2,0,0"}, {Id: "s0"}, {Id: "s1"},
	}}
	return replacement{"n1", "s0", "swap"}, replaceState{topology: top, marks: map[string]string{}, failed: map[string]bool{}, drain: true}
}

// Each step follows from the committed state alone, so that a restart after any step continues with the next.
func TestReplaceSteps(t *testing.T) {
	r, s := replaceWorld()
	expect := func(want replaceStep, waits ...string) {
		t.Helper()
		step, on, err := r.next(s)
		if step != want || err != nil || !slices.Equal(on, waits) {
			t.Fatalf("step %d, waits for %v, %v: want %d, %v", step, on, err, want, waits)
		}
	}
	expect(replaceMark)
	s.marks["n1"] = "swap"
	expect(replaceMark)
	s.marks["s0"] = "swap"
	expect(replaceMask)
	other := &lofamov1.LinkMask{Node: "n1", Coord: "1,0,0", Direction: "X+", Peer: "n2", PeerCoord: "2,0,0", Reason: "flaky"}
	own := &lofamov1.LinkMask{Node: "n0", Coord: "0,0,0", Direction: "X+", Peer: "n1", PeerCoord: "1,0,0", Reason: "swap",
		Waiting: []string{"n0", "n1"}}
	s.masks = []*lofamov1.LinkMask{other}
	expect(replaceMask)
	s.masks = append(s.masks, own)
	expect(replaceDrain, "n0", "n1")
	s.failed["n1"] = true
	expect(replaceDrain, "n0")
	s.drain = false
	expect(replaceSwap, "n0")
	s.drain, own.Waiting = true, nil
	expect(replaceSwap)
	s.topology.Nodes[1].Coord, s.topology.Nodes[3].Coord = "", "1,0,0"
	s.unwell = []string{"n2/X-"}
	expect(replaceAwait, "n2/X-")
	s.unwell = nil
	expect(replaceRestore)
	if ours := r.ours(s, "1,0,0"); len(ours) != 1 || !proto.Equal(ours[0], own) {
		t.Errorf("restores %v: a mask that stood before is to stay", ours)
	}
	s.masks = []*lofamov1.LinkMask{other}
	expect(replaceEnd)
	delete(s.marks, "s0")
	expect(replaceDone)
}

// TestReplaceDrainsWithoutLeader: masks of a replica that reaches no leader name no waiting ends. All living ends count as waiting until a
// leader answers or the time limit for draining has passed.
func TestReplaceDrainsWithoutLeader(t *testing.T) {
	r, s := replaceWorld()
	s.marks["n1"], s.marks["s0"], s.stale = "swap", "swap", true
	s.masks = []*lofamov1.LinkMask{
		{Node: "n0", Coord: "0,0,0", Direction: "X+", Peer: "n1", PeerCoord: "1,0,0", Reason: "swap"},
		{Node: "n1", Coord: "1,0,0", Direction: "X+", Peer: "", PeerCoord: "2,0,0", Reason: "swap"}, // n2 has left
	}
	expect := func(want replaceStep, waits ...string) {
		t.Helper()
		step, on, err := r.next(s)
		if step != want || err != nil || !slices.Equal(on, waits) {
			t.Errorf("step %d, waits for %v, %v: want %d, %v", step, on, err, want, waits)
		}
	}
	expect(replaceDrain, "n0", "n1")
	s.failed["n1"] = true
	expect(replaceDrain, "n0")
	s.drain = false
	expect(replaceSwap, "n0")
	s.drain, s.stale = true, false
	s.masks[0].Waiting = []string{"n0"}
	expect(replaceDrain, "n0")
	s.masks[0].Waiting = nil
	expect(replaceSwap)
}

// An existing mark of a person, on either node, stays unchanged after the replacement; one of an earlier replacement
// ends.
func TestReplaceLeavesMarks(t *testing.T) {
	for _, tc := range []struct {
		broken, spare string
		unmarked      []string
		ends          bool
	}{
		{"", "", []string{"n1", "s0"}, false}, {"fan", "", []string{"s0"}, false}, {"", "fan", []string{"n1"}, false}, {"fan", "memory",
			nil, false},
		{"s0 is put in the place of n1", "s0 is put in the place of n1", nil, true},
		{"", "s1 is put in the place of s0", []string{"n1"}, true}, {"", "s0 is put in the place of n2", []string{"n1"}, false},
	} {
		r, s := replaceWorld()
		r = newReplacement(r.broken, r.spare)
		for id, why := range map[string]string{r.broken: tc.broken, r.spare: tc.spare} {
			if why != "" {
				s.marks[id] = why
			}
		}
		if got := r.unmarked(s); !slices.Equal(got, tc.unmarked) {
			t.Errorf("%q and %q: marks %v, want %v", tc.broken, tc.spare, got, tc.unmarked)
		}
		s.topology.Nodes[1].Coord, s.topology.Nodes[3].Coord = "", "1,0,0"
		want := replaceDone
		if tc.ends {
			want = replaceEnd
		}
		if step, _, err := r.next(s); step != want || err != nil {
			t.Errorf("%q and %q: step %d, %v: want %d", tc.broken, tc.spare, step, err, want)
		}
	}
}

func TestReplaceRefuses(t *testing.T) {
	r, s := replaceWorld()
	for _, c := range [][2]string{{"n1", "n2"}, {"s0", "s1"}, {"n1", "absent"}, {"absent", "s0"}} {
		r.broken, r.spare = c[0], c[1]
		var cannot cannotReplace
		if _, _, err := r.next(s); !errors.As(err, &cannot) {
			t.Errorf("%s by %s: %v", c[0], c[1], err)
		}
	}
}

// Beside an empty place, or one of another region, the links that can be masked are.
func TestReplaceBesideNobody(t *testing.T) {
	r, s := replaceWorld()
	s.topology.Nodes[2].Coord = "" // n2
	s.marks["n1"], s.marks["s0"] = "swap", "swap"
	if got := unmasked(s, "1,0,0"); !slices.Equal(got, []grid.Direction{grid.XMinus}) {
		t.Errorf("masks %v", got)
	}
	s.masks = []*lofamov1.LinkMask{{Node: "n0", Coord: "0,0,0", Direction: "X+", Peer: "n1", PeerCoord: "1,0,0", Reason: "swap"}}
	if step, waits, err := r.next(s); step != replaceSwap || err != nil {
		t.Errorf("step %d, waits for %v, %v", step, waits, err)
	}
}

func TestOthers(t *testing.T) {
	l := &lofamov1.Link{Node: "a", Peer: "b"}
	if others(l, "a") != "b" || others(l, "b") != "a" {
		t.Error("the other end of a link")
	}
}
