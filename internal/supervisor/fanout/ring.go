// The ring keeps the newest changes of the fault map for watchers: each revision decoded and
// encoded once, for however many watchers, in a bounded ring.
//
//	   forgotten      │ frames kept                │ to come
//	──────────────────┴────────────────────────────┴────────►  revision
//	               Floor                         Head
//
// Who resumes after a revision from Floor on needs nothing else. Who resumes before reads history first.
//
// It is pure: fanout.go feeds it from the store and wakes the watchers.

package fanout

import (
	"fmt"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The numbers of the fields of a WatchResponse.
const (
	eventsField   protowire.Number = 1
	revisionField protowire.Number = 2
)

// Frame is all changes of one revision; without any it is a bookmark. It does not change.
type Frame struct {
	Revision uint64
	Events   []*lofamov1.Event

	wire []byte // as a WatchResponse
	ends []int  // where in wire each event ends; the revision follows the last one
}

// newFrame encodes the changes of a revision, which are not changed any more.
func newFrame(revision uint64, events []*lofamov1.Event) (*Frame, error) {
	f := &Frame{Revision: revision, Events: events, ends: make([]int, len(events))}
	size := 1 + protowire.SizeVarint(revision)
	for _, ev := range events {
		size += 1 + protowire.SizeBytes(proto.Size(ev))
	}
	f.wire = make([]byte, 0, size)
	for i, ev := range events {
		f.wire = protowire.AppendTag(f.wire, eventsField, protowire.BytesType)
		f.wire = protowire.AppendVarint(f.wire, uint64(proto.Size(ev)))
		var err error
		if f.wire, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(f.wire, ev); err != nil {
			return nil, fmt.Errorf("encode the changes of revision %d: %w", revision, err)
		}
		f.ends[i] = len(f.wire)
	}
	f.wire = protowire.AppendTag(f.wire, revisionField, protowire.VarintType)
	f.wire = protowire.AppendVarint(f.wire, revision)
	return f, nil
}

// Wire is the frame as an encoded WatchResponse, in one or more pieces that are not to be changed: the
// whole of it, or (keep is not nil) what keep chooses among the events. It is empty when that is nothing,
// though there were events.
func (f *Frame) Wire(keep func(*lofamov1.Event) bool) [][]byte {
	if keep == nil || len(f.Events) == 0 {
		return [][]byte{f.wire}
	}
	var out [][]byte
	from, kept := 0, 0 // the run of kept events that is not in out yet begins at from
	for i, ev := range f.Events {
		if keep(ev) {
			kept++
			continue
		}
		begin := 0
		if i > 0 {
			begin = f.ends[i-1]
		}
		if from < begin {
			out = append(out, f.wire[from:begin])
		}
		from = f.ends[i]
	}
	if kept == 0 {
		return nil
	}
	return append(out, f.wire[from:])
}

// ring is a bounded run of frames. Its zero value is not usable; see newRing. It is for one goroutine at a time.
type ring struct {
	maxFrames, maxBytes int

	frames      []*Frame // oldest first, by revision
	bytes       int
	floor, head uint64
	bookmark    uint64
	begun       bool
}

// newRing returns a ring of at most so many frames (at least 1) and encoded bytes; a single frame may be larger.
func newRing(maxFrames, maxBytes int) *ring {
	return &ring{maxFrames: maxFrames, maxBytes: maxBytes}
}

// Begin forgets everything: the next frame is the first after a revision.
func (r *ring) Begin(revision uint64) {
	r.frames, r.bytes = nil, 0
	r.floor, r.head, r.bookmark, r.begun = revision, revision, revision, true
}

// Begun says whether Begin was called.
func (r *ring) Begun() bool { return r.begun }

// Floor is the oldest revision after which the ring knows everything.
func (r *ring) Floor() uint64 { return r.floor }

// Head is the revision up to which the ring knows everything.
func (r *ring) Head() uint64 { return r.head }

// Bookmark is the newest revision that was told by Pass.
func (r *ring) Bookmark() uint64 { return r.bookmark }

// Add takes the changes of the next revision. A revision up to Head is known and left out.
func (r *ring) Add(f *Frame) {
	if f.Revision <= r.head {
		return
	}
	r.head = f.Revision
	r.frames = append(r.frames, f)
	r.bytes += len(f.wire)
	drop := 0
	for n := len(r.frames); n-drop > r.maxFrames || n-drop > 1 && r.bytes > r.maxBytes; drop++ {
		r.bytes -= len(r.frames[drop].wire)
		r.floor = r.frames[drop].Revision
	}
	if drop > 0 {
		clear(r.frames[:drop]) // append moves the rest when it needs room; until then nothing is held
		r.frames = r.frames[drop:]
	}
}

// Pass says that there is nothing up to a revision but what was added.
func (r *ring) Pass(revision uint64) {
	r.head = max(r.head, revision)
	r.bookmark = max(r.bookmark, revision)
}

// After appends to out the oldest frames after a revision, at most so many. It says false, and appends nothing,
// when not all that followed the revision is here.
func (r *ring) After(revision uint64, limit int, out []*Frame) ([]*Frame, bool) {
	if !r.begun || revision < r.floor {
		return out, false
	}
	i := sort.Search(len(r.frames), func(i int) bool { return r.frames[i].Revision > revision })
	n := min(limit, len(r.frames)-i)
	return append(out, r.frames[i:i+n]...), true
}
