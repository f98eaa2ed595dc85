// The export carries the committed map of a region to the parent of regions. It consists of two
// machines: the feed at the region's leader sends the changes, and the ledger at the parent's leader accepts
// each of them once and in order, despite lost connections and new leaders on either side (seed 003
// §5.2.3.2: a map is divided, and the parts are delegated).
//
// The delivery is exactly once. A region's changes are identified by the revision of its store, and its events
// by their number there. The parent commits both together with the changes, in one transaction. So after any
// interruption either side can say which changes the other has. If the region's store no longer has the missing
// changes, the region sends all its documents, and the parent derives replacements for the missing events.
//
// The files export*.go are pure: the uplink and the parent read clocks, stores and sockets for them.

package federation

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Position is the point up to which the parent has a region's store.
type Position struct {
	Revision  uint64 `json:"revision"`   // all changes up to there are in
	NextEvent uint64 `json:"next_event"` // number of the first event that is not
	Term      uint64 `json:"term"`       // of whoever passed that on
	// Store identifies the region's store; the other fields apply to that store only. Empty: a region of an older
	// version.
	Store string `json:"store,omitempty"`
}

// Unit is an item to commit: one transaction of a region's store, or a snapshot of the whole store.
type Unit struct {
	Snapshot  bool   // the documents are all there are
	First     uint64 // number of the first event
	Events    []*lofamov1.Event
	Documents []*lofamov1.Document
	Lost      uint64   // events before First that are lost for good
	Made      int      // of the events, so many at the beginning have no number: see Complete
	After     Position // after the commit
}

// The kinds of exported documents, which make up a region's map.
const (
	KindNodes       = "nodes/"
	KindGroups      = "groups/"
	KindWarnings    = "warnings/"
	KindMaintenance = "maintenance/"
	KindTopology    = "topology"
)

// PassedOn reports whether a key below the store's prefix belongs to the map.
func PassedOn(key string) bool {
	for _, kind := range []string{KindNodes, KindGroups, KindWarnings, KindMaintenance} {
		if len(key) > len(kind) && strings.HasPrefix(key, kind) {
			return true
		}
	}
	return key == KindTopology || strings.HasPrefix(key, KindTopology+"/")
}

// maxDocumentKey bounds a document's key.
const maxDocumentKey = 512

func checkDocument(d *lofamov1.Document, member func(id string) bool) error {
	key := d.GetKey()
	if len(key) > maxDocumentKey || !PassedOn(key) {
		return fmt.Errorf("document %.80q: no part of a region's map", key)
	}
	if id, ok := strings.CutPrefix(key, KindNodes); ok && !d.GetDeleted() && member != nil && !member(id) {
		return fmt.Errorf("document %q: the node is not the region's", key)
	}
	return nil
}

// PartBytes is the target size of a change's messages, below the MiB that the API's server accepts.
const PartBytes = 512 << 10

// splitChange splits a change into messages: events first, so that a document never precedes its events.
func splitChange(c *lofamov1.UpstreamChange) []*lofamov1.UpstreamChange {
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
