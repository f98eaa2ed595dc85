package api

import (
	"fmt"
	"sync/atomic"
	"weak"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The numbers of the fields of a WatchResponse.
const (
	eventsField   protowire.Number = 1
	revisionField protowire.Number = 2
)

// watchFrame has all changes of one revision; an empty one is a bookmark. Its content never changes.
//
// A ring keeps frames for their encoded form only. Decoded events take four times that memory, and mostly nobody reads
// them again: the garbage collector may take them, and the next reader with a filter decodes them once more.
type watchFrame struct {
	Revision uint64

	wire    []byte // as a WatchResponse
	ends    []int  // where in wire each event ends; the revision follows the last one
	decoded atomic.Pointer[weak.Pointer[[]*lofamov1.Event]]
}

// eventRevisionField is the number of Event.revision.
const eventRevisionField protowire.Number = 1

// newStoredFrame is newWatchFrame for changes as the store has them: values are the encoded events, which lack the revision, and
// events are the same decoded.
func newStoredFrame(revision uint64, events []*lofamov1.Event, values [][]byte) *watchFrame {
	f := &watchFrame{Revision: revision, ends: make([]int, len(values))}
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
	f.share(events)
	return f
}

// endWire adds the revision behind the events.
func (f *watchFrame) endWire() {
	f.wire = protowire.AppendTag(f.wire, revisionField, protowire.VarintType)
	f.wire = protowire.AppendVarint(f.wire, f.Revision)
}

// newWatchFrame encodes the changes of a revision, which do not change afterwards.
func newWatchFrame(revision uint64, events []*lofamov1.Event) (*watchFrame, error) {
	f := &watchFrame{Revision: revision, ends: make([]int, len(events))}
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
	f.share(events)
	return f, nil
}

// share lets other readers use these decoded events while anybody does.
func (f *watchFrame) share(events []*lofamov1.Event) {
	p := weak.Make(&events)
	f.decoded.Store(&p)
}

// Len returns the number of events.
func (f *watchFrame) Len() int { return len(f.ends) }

// Events returns the events, which are shared and read-only.
func (f *watchFrame) Events() []*lofamov1.Event {
	if f.Len() == 0 {
		return nil
	}
	if shared := f.decoded.Load().Value(); shared != nil {
		return *shared
	}
	var r lofamov1.WatchResponse
	if err := proto.Unmarshal(f.wire, &r); err != nil {
		panic(fmt.Sprintf("api: the frame of revision %d, made of decoded events: %v", f.Revision, err))
	}
	f.share(r.Events)
	return r.Events
}

// Wire returns the frame as an encoded WatchResponse, in one or more read-only pieces. If keep is not nil, only
// the events that it selects are included. The result is empty if the frame has events but keep selects none.
func (f *watchFrame) Wire(keep func(*lofamov1.Event) bool) [][]byte {
	if keep == nil || f.Len() == 0 {
		return [][]byte{f.wire}
	}
	var out [][]byte
	from, kept := 0, 0 // the run of kept events that is not in out yet begins at from
	for i, ev := range f.Events() {
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
