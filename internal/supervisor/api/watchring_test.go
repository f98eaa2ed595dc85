package api

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func frame(t interface{ Fatal(...any) }, revision uint64, nodes ...string) *watchFrame {
	var events []*lofamov1.Event
	for _, n := range nodes {
		events = append(events, &lofamov1.Event{Revision: revision, Node: n})
	}
	f, err := newWatchFrame(revision, events)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func revisions(frames []*watchFrame) (out []uint64) {
	for _, f := range frames {
		out = append(out, f.Revision)
	}
	return out
}

// TestWatchFrameEqualsProtobuf: the pieces of a frame equal protobuf's encoding of the response, for every selection,
// whether the frame was made from events or from the store's content.
func TestWatchFrameEqualsProtobuf(t *testing.T) {
	nodes := []string{"a", "b", "c", "d"}
	f := frame(t, 300, nodes...)
	t.Run("events", func(t *testing.T) { testWire(t, f, nodes) })
	var values [][]byte
	for _, n := range nodes {
		b, err := proto.Marshal(&lofamov1.Event{Node: n})
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, b)
	}
	t.Run("stored", func(t *testing.T) { testWire(t, newStoredFrame(300, f.Events(), values), nodes) })
}

func testWire(t *testing.T, f *watchFrame, nodes []string) {
	for chosen := range 1 << len(nodes) {
		keep := func(ev *lofamov1.Event) bool { return chosen>>slices.Index(nodes, ev.GetNode())&1 == 1 }
		want := &lofamov1.WatchResponse{Revision: 300}
		for _, ev := range f.Events() {
			if keep(ev) {
				want.Events = append(want.Events, ev)
			}
		}
		pieces := f.Wire(keep)
		if chosen == 0 {
			if pieces != nil {
				t.Errorf("nothing chosen: %x", pieces)
			}
			continue
		}
		var got lofamov1.WatchResponse
		if err := proto.Unmarshal(bytes.Join(pieces, nil), &got); err != nil || !proto.Equal(&got, want) {
			t.Errorf("%04b: %v, %v: want %v", chosen, &got, err, want)
		}
	}
	if len(f.Wire(nil)) != 1 || !bytes.Equal(f.Wire(nil)[0], bytes.Join(f.Wire(func(*lofamov1.Event) bool { return true }), nil)) {
		t.Error("the whole differs from all that is chosen")
	}
	var mark lofamov1.WatchResponse
	if err := proto.Unmarshal(frame(t, 7).Wire(func(*lofamov1.Event) bool { return false })[0], &mark); err != nil ||
		mark.GetRevision() != 7 || len(mark.GetEvents()) > 0 {
		t.Errorf("bookmark: %v, %v", &mark, err)
	}
}

// TestRingKeepsOnlyEncodedEvents: the memory of a ring is its encoded bytes, not the decoded events, and readers with a
// filter still get every event.
func TestRingKeepsOnlyEncodedEvents(t *testing.T) {
	const revisions, events = 64, 64
	r := newWatchRing(revisions, 1<<30)
	r.Begin(0)
	freed := make(chan struct{}, revisions)
	for rev := uint64(1); rev <= revisions; rev++ {
		var list []*lofamov1.Event
		for i := range events {
			list = append(list, &lofamov1.Event{Revision: rev, Node: fmt.Sprint("n", i), Reason: "of the test"})
		}
		f, err := newWatchFrame(rev, list)
		if err != nil {
			t.Fatal(err)
		}
		runtime.AddCleanup(list[0], func(struct{}) { freed <- struct{}{} }, struct{}{})
		r.Add(f)
	}
	for range revisions {
		runtime.GC() // cleanups follow a collection at some time
		select {
		case <-freed:
		case <-time.After(time.Minute):
			t.Fatal("a ring keeps decoded events")
		}
	}
	frames, _ := r.After(0, revisions, nil)
	if len(frames) != revisions {
		t.Fatalf("%d frames: want %d", len(frames), revisions)
	}
	for _, f := range frames {
		kept := 0
		pieces := f.Wire(func(ev *lofamov1.Event) bool {
			if ev.GetNode() == "n7" && ev.GetRevision() == f.Revision {
				kept++
			}
			return ev.GetNode() == "n7"
		})
		var got lofamov1.WatchResponse
		if err := proto.Unmarshal(bytes.Join(pieces, nil), &got); err != nil || kept != 1 || len(got.GetEvents()) != 1 {
			t.Errorf("revision %d: %d kept, %d sent: want one; %v", f.Revision, kept, len(got.GetEvents()), err)
		}
	}
}

func TestRingKeepsItsBounds(t *testing.T) {
	size := len(frame(t, 1, "a").Wire(nil)[0])
	for _, tc := range []struct {
		name              string
		frames, bytes     int
		add               int
		kept, floor, head uint64
	}{
		{"below both", 4, 1 << 20, 4, 4, 0, 4},
		{"too many", 4, 1 << 20, 10, 4, 6, 10},
		{"too large", 100, 3 * size, 10, 3, 7, 10},
		{"one larger than all", 100, 1, 10, 1, 9, 10},
	} {
		r := newWatchRing(tc.frames, tc.bytes)
		if _, ok := r.After(0, 9, nil); ok || r.Begun() {
			t.Errorf("%s: it knows what came before it began", tc.name)
		}
		r.Begin(0)
		for i := range tc.add {
			r.Add(frame(t, uint64(i+1), "a"))
		}
		all, ok := r.After(r.Floor(), 1000, nil)
		if !ok || uint64(len(all)) != tc.kept || r.Floor() != tc.floor || r.Head() != tc.head {
			t.Errorf("%s: %d frames from %d to %d, %v", tc.name, len(all), r.Floor(), r.Head(), ok)
		}
	}
}

// TestRevisionComesOnce: a restarted watch of the store may repeat frames, and two writers of one revision appear
// as one frame or not at all.
func TestRevisionComesOnce(t *testing.T) {
	r := newWatchRing(10, 1<<20)
	r.Begin(5)
	r.Add(frame(t, 6, "a", "b"))
	r.Add(frame(t, 6, "c"))
	r.Add(frame(t, 4, "d"))
	r.Pass(9)
	r.Add(frame(t, 8, "e"))
	r.Pass(7)
	got, ok := r.After(5, 10, nil)
	if !ok || len(got) != 1 || got[0].Len() != 2 || r.Head() != 9 || r.Bookmark() != 9 {
		t.Errorf("%v, head %d, bookmark %d", revisions(got), r.Head(), r.Bookmark())
	}
	if got, ok := r.After(9, 10, nil); !ok || len(got) > 0 {
		t.Errorf("after the head: %v", revisions(got))
	}
	if got, ok := r.After(100, 10, nil); !ok || len(got) > 0 {
		t.Errorf("ahead of the head: %v", revisions(got))
	}
	r.Begin(20)
	if _, ok := r.After(19, 10, nil); ok {
		t.Error("it knows what came before it began anew")
	}
}

// TestResumedWatcherMissesNothing: a watcher that resumes at any revision, in steps of any size, sees the same as a complete
// list after that revision, or learns that some changes are gone.
func TestResumedWatcherMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 6).Draw(t, "capacity")
		r := newWatchRing(capacity, 1<<20)
		rev := uint64(rapid.IntRange(0, 5).Draw(t, "begin"))
		r.Begin(rev)
		var all []uint64
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			rev += uint64(rapid.IntRange(1, 3).Draw(t, "gap"))
			if rapid.Bool().Draw(t, "bookmark") {
				r.Pass(rev)
				continue
			}
			r.Add(frame(t, rev, fmt.Sprint(rev)))
			all = append(all, rev)
		}
		step := rapid.IntRange(1, 4).Draw(t, "step")
		for after := range rev + 3 {
			want := all[sortedAfter(all, after):]
			got, ok := r.After(after, step, nil)
			for ok && len(got) > 0 {
				at := got[len(got)-1].Revision
				more, still := r.After(at, step, nil)
				if !still {
					t.Fatalf("lost its place at %d", at)
				}
				if len(more) == 0 {
					break
				}
				got = append(got, more...)
			}
			if ok && !slices.Equal(revisions(got), want) {
				t.Fatalf("after %d: %v, want %v", after, revisions(got), want)
			}
			if !ok && after >= r.Floor() || ok && after < r.Floor() {
				t.Fatalf("after %d: %v with the floor at %d", after, ok, r.Floor())
			}
			if len(want) <= capacity && after >= r.Floor() && !ok {
				t.Fatalf("after %d: not all here, though there is room", after)
			}
		}
	})
}

func sortedAfter(all []uint64, after uint64) int {
	i, _ := slices.BinarySearch(all, after+1)
	return i
}
