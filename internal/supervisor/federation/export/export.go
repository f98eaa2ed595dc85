// Package export is how the committed map of a region reaches the parent of regions, as machines: the
// Feed at the region's leader, which passes changes on, and the Ledger at the parent's leader, which takes
// them in, each once and in order, whatever becomes of connections and leaders on either side (seed 003
// §5.2.3.2: a map is divided, and the parts are delegated).
//
// What makes it exact: a region's changes are known by the revision of its store, its events by their
// number there, and the parent commits both with what they stand for, in one transaction. So either side
// can say after any interruption what the other has. Where the region's store no longer has what is
// missing, all its documents are sent, and what is missing of the events is made good by what they led to.
//
// It reads no clock, no store and no socket; packages upstream and regions do.
package export

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Position is how far a region's store has been taken in.
type Position struct {
	Revision  uint64 `json:"revision"`   // all changes up to there are in
	NextEvent uint64 `json:"next_event"` // number of the first event that is not
	Term      uint64 `json:"term"`       // of whoever passed that on
	// Store is which store of the region's it is; the rest is of that one only. Empty: a region of an older version.
	Store string `json:"store,omitempty"`
}

// Unit is what is to be committed of a region: the changes of one transaction of its store, or all it has.
type Unit struct {
	Snapshot  bool   // the documents are all there are
	First     uint64 // number of the first event
	Events    []*lofamov1.Event
	Documents []*lofamov1.Document
	Lost      uint64   // events before First that nobody has any more
	Made      int      // of the events, so many at the beginning have no number: see Complete
	After     Position // once it is committed
}

// The kinds of documents that are passed on: what a region's map consists of.
const (
	KindNodes       = "nodes/"
	KindGroups      = "groups/"
	KindWarnings    = "warnings/"
	KindMaintenance = "maintenance/"
	KindTopology    = "topology"
)

// PassedOn says whether a key below the store's prefix belongs to the map.
func PassedOn(key string) bool {
	for _, kind := range []string{KindNodes, KindGroups, KindWarnings, KindMaintenance} {
		if len(key) > len(kind) && strings.HasPrefix(key, kind) {
			return true
		}
	}
	return key == KindTopology || strings.HasPrefix(key, KindTopology+"/")
}

// maxKey bounds a document's key.
const maxKey = 512

func checkDocument(d *lofamov1.Document, member func(id string) bool) error {
	key := d.GetKey()
	if len(key) > maxKey || !PassedOn(key) {
		return fmt.Errorf("document %.80q: no part of a region's map", key)
	}
	if id, ok := strings.CutPrefix(key, KindNodes); ok && !d.GetDeleted() && member != nil && !member(id) {
		return fmt.Errorf("document %q: the node is not the region's", key)
	}
	return nil
}

// PartBytes is the size up to which a message of a change is filled, below the MiB that the API's server takes.
const PartBytes = 512 << 10

// Parts cuts a change into messages: events first, so that a document never comes before its events.
func Parts(c *lofamov1.UpstreamChange) []*lofamov1.UpstreamChange {
	var out []*lofamov1.UpstreamChange
	number := c.GetFirstEvent()
	size := 0
	cur := func(n int) *lofamov1.UpstreamChange {
		if len(out) > 0 && (size == 0 || size+n <= PartBytes) {
			size += n
			return out[len(out)-1]
		}
		p := &lofamov1.UpstreamChange{
			Previous: c.GetPrevious(), Revision: c.GetRevision(), Snapshot: c.GetSnapshot(),
			FirstEvent: number, More: true,
		}
		size = n
		out = append(out, p)
		return p
	}
	for _, ev := range c.GetEvents() {
		p := cur(proto.Size(ev))
		p.Events = append(p.Events, ev)
		number++
	}
	for _, d := range c.GetDocuments() {
		p := cur(proto.Size(d))
		p.Documents = append(p.Documents, d)
	}
	if len(out) == 0 {
		cur(0)
	}
	out[len(out)-1].More = false
	return out
}
