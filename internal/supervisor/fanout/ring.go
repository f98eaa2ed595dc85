// The ring keeps the newest changes of the fault map for watchers. It is bounded, and decodes and encodes each
// revision once for all watchers.
//
//	   forgotten      │ frames kept                │ to come
//	──────────────────┴────────────────────────────┴────────►  revision
//	               Floor                         Head
//
// The ring suffices for a watcher that resumes at Floor or later. An earlier one reads history first.
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

// Frame has all changes of one revision; an empty one is a bookmark. It is immutable.
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

// Wire returns the frame as an encoded WatchResponse, in one or more read-only pieces. If keep is not nil, only
// the events that it selects are included. The result is empty if the frame has events but keep selects none.
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

// ring is a bounded run of frames. Its zero value is not usable; see newRing. It is not safe for concurrent use.
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

// Begun reports whether Begin was called.
func (r *ring) Begun() bool { return r.begun }

// Floor returns the oldest revision after which the ring is complete.
func (r *ring) Floor() uint64 { return r.floor }

// Head returns the revision up to which the ring is complete.
func (r *ring) Head() uint64 { return r.head }

// Bookmark returns the newest revision passed to Pass.
func (r *ring) Bookmark() uint64 { return r.bookmark }

// Add adds the changes of the next revision. It ignores revisions up to Head.
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

// Pass says that up to a revision there are no changes but the added ones.
func (r *ring) Pass(revision uint64) {
	r.head = max(r.head, revision)
	r.bookmark = max(r.bookmark, revision)
}

// After appends the oldest frames after a revision to out, at most limit. If the ring lacks some of the changes it
// returns false and appends nothing.
func (r *ring) After(revision uint64, limit int, out []*Frame) ([]*Frame, bool) {
	if !r.begun || revision < r.floor {
		return out, false
	}
	i := sort.Search(len(r.frames), func(i int) bool { return r.frames[i].Revision > revision })
	n := min(limit, len(r.frames)-i)
	return append(out, r.frames[i:i+n]...), true
}
