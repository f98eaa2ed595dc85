// The ring keeps the newest changes of the fault map for watchers. It is bounded, and decodes and encodes each
// revision once for all watchers.
//
//	   forgotten      │ frames kept                │ to come
//	──────────────────┴────────────────────────────┴────────►  revision
//	               Floor                         Head
//
// The ring suffices for a watcher that resumes at Floor or later. An earlier one reads history first.
//
// It is pure: watchhub.go feeds it from the store and wakes the watchers.

package api

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

// watchFrame has all changes of one revision; an empty one is a bookmark. It is immutable.
type watchFrame struct {
	Revision uint64
	Events   []*lofamov1.Event

	wire []byte // as a WatchResponse
	ends []int  // where in wire each event ends; the revision follows the last one
}

// eventRevisionField is the number of Event.revision.
const eventRevisionField protowire.Number = 1

// newStoredFrame is newWatchFrame for changes as the store has them: values are the encoded events, which lack the revision.
func newStoredFrame(revision uint64, events []*lofamov1.Event, values [][]byte) *watchFrame {
	f := &watchFrame{Revision: revision, Events: events, ends: make([]int, len(values))}
	own := protowire.AppendVarint(protowire.AppendTag(nil, eventRevisionField, protowire.VarintType), revision)
	size := 1 + protowire.SizeVarint(revision)
	for _, v := range values {
		size += 1 + protowire.SizeBytes(len(v)+len(own))
	}
	f.wire = make([]byte, 0, size)
	for i, v := range values {
		f.wire = protowire.AppendTag(f.wire, eventsField, protowire.BytesType)
		f.wire = protowire.AppendVarint(f.wire, uint64(len(v)+len(own)))
		f.wire = append(append(f.wire, v...), own...)
		f.ends[i] = len(f.wire)
	}
	f.endWire()
	return f
}

// endWire adds the revision behind the events.
func (f *watchFrame) endWire() {
	f.wire = protowire.AppendTag(f.wire, revisionField, protowire.VarintType)
	f.wire = protowire.AppendVarint(f.wire, f.Revision)
}

// newWatchFrame encodes the changes of a revision, which do not change afterwards.
func newWatchFrame(revision uint64, events []*lofamov1.Event) (*watchFrame, error) {
	f := &watchFrame{Revision: revision, Events: events, ends: make([]int, len(events))}
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
	f.endWire()
	return f, nil
}

// Wire returns the frame as an encoded WatchResponse, in one or more read-only pieces. If keep is not nil, only
// the events that it selects are included. The result is empty if the frame has events but keep selects none.
func (f *watchFrame) Wire(keep func(*lofamov1.Event) bool) [][]byte {
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

// watchRing is a bounded run of frames. Its zero value is not usable; see newWatchRing. It is not safe for concurrent use.
type watchRing struct {
	maxFrames, maxBytes int

	frames      []*watchFrame // oldest first, by revision
	bytes       int
	floor, head uint64
	bookmark    uint64
	begun       bool
}

// newWatchRing returns a ring of at most so many frames (at least 1) and encoded bytes; a single frame may be larger.
func newWatchRing(maxFrames, maxBytes int) *watchRing {
	return &watchRing{maxFrames: maxFrames, maxBytes: maxBytes}
}

// Begin forgets everything: the next frame is the first after a revision.
func (r *watchRing) Begin(revision uint64) {
	r.frames, r.bytes = nil, 0
	r.floor, r.head, r.bookmark, r.begun = revision, revision, revision, true
}

// Begun reports whether Begin was called.
func (r *watchRing) Begun() bool { return r.begun }

// Floor returns the oldest revision after which the ring is complete.
func (r *watchRing) Floor() uint64 { return r.floor }

// Head returns the revision up to which the ring is complete.
func (r *watchRing) Head() uint64 { return r.head }

// Bookmark returns the newest revision passed to Pass.
func (r *watchRing) Bookmark() uint64 { return r.bookmark }

// Add adds the changes of the next revision. It ignores revisions up to Head.
func (r *watchRing) Add(f *watchFrame) {
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
func (r *watchRing) Pass(revision uint64) {
	r.head = max(r.head, revision)
	r.bookmark = max(r.bookmark, revision)
}

// After appends the oldest frames after a revision to out, at most limit. If the ring lacks some of the changes it
// returns false and appends nothing.
func (r *watchRing) After(revision uint64, limit int, out []*watchFrame) ([]*watchFrame, bool) {
	if !r.begun || revision < r.floor {
		return out, false
	}
	i := sort.Search(len(r.frames), func(i int) bool { return r.frames[i].Revision > revision })
	n := min(limit, len(r.frames)-i)
	return append(out, r.frames[i:i+n]...), true
}
