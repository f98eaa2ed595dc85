// The ring keeps the newest changes of the fault map for watchers. It is bounded, and encodes each revision once for all
// watchers.
//
//	   forgotten      │ frames kept                │ to come
//	──────────────────┴────────────────────────────┴────────►  revision
//	               Floor                         Head
//
// The ring suffices for a watcher that resumes at Floor or later. An earlier one reads history first.
//
// It is pure: watchhub.go feeds it from the store and wakes the watchers.

package api

import "sort"

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
