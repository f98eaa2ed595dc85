package ingest

import (
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	// crowded is how long a datagram waits for a worker in a crowd: half of the time after which its sender tries again.
	crowded = 15 * time.Millisecond
	// copyTime is for how long, twice that at most, copies are known: then a sender that has heard nothing is
	// answered again.
	copyTime = 250 * time.Millisecond
	// copiesMost bounds the datagrams that are remembered of one copyTime; copies of more are verified.
	copiesMost = 1 << 14
)

// copies remembers which reports were taken lately. When more come than can be verified in the time after which
// their senders try again, the copies would make it later still for all. Only what was verified is remembered, by what
// was verified; a copy is known by what it claims, and believed for nothing but that it may be dropped.
type copies struct {
	mu            sync.Mutex
	begun         time.Time // of latest
	latest, older map[string]struct{}
	crowd         time.Time // when something had last waited for long
}

// take notes that reports were taken.
func (c *copies) take(key string, now time.Time) {
	if key == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	if len(c.latest) < copiesMost {
		c.latest[key] = struct{}{}
	}
}

// has says whether the reports that an envelope claims were taken lately, and too much comes to look at copies; waited is
// for how long it has waited. Only in a crowd is the envelope looked at.
func (c *copies) has(envelope []byte, now time.Time, waited time.Duration) bool {
	if !c.crowds(now, waited) {
		return false
	}
	key := copyKey(envelope)
	if key == "" {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	_, latest := c.latest[key]
	_, older := c.older[key]
	return latest || older
}

// crowds notes for how long something has waited, and says whether there is a crowd.
func (c *copies) crowds(now time.Time, waited time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waited > crowded {
		c.crowd = now
	}
	return now.Sub(c.crowd) <= copyTime
}

// turn forgets what is too old.
func (c *copies) turn(now time.Time) {
	since := now.Sub(c.begun)
	if c.latest != nil && since < copyTime {
		return
	}
	c.older = nil
	if since < 2*copyTime {
		c.older = c.latest
	}
	c.latest, c.begun = make(map[string]struct{}), now
}

// takenKey is the key of reports that were verified; empty for what is not remembered, digests.
func takenKey(list []fault.Report) string {
	var key []byte
	for i := range list {
		if list[i].Digest {
			return ""
		}
		key = appendID(key, list[i].ID)
	}
	return string(key)
}

func appendID(key []byte, id fault.ReportID) []byte {
	key = protowire.AppendString(key, string(id.Origin.Node))
	for _, v := range [...]uint64{uint64(id.Origin.Half), uint64(id.Epoch), uint64(id.Seq)} {
		key = protowire.AppendVarint(key, v)
	}
	return key
}

// The fields that lead from a message to the ids of its reports.
var (
	reportsField = fieldOf((*lofamov1.Message)(nil).ProtoReflect(), "reports")
	listField    = fieldOf((*lofamov1.Reports)(nil).ProtoReflect(), "reports")
	idField      = fieldOf((*lofamov1.Report)(nil).ProtoReflect(), "id")
	digestField  = fieldOf((*lofamov1.Report)(nil).ProtoReflect(), "digest")
)

// copyKey is takenKey of what an envelope that nobody has verified yet says it holds. The same reports sent again
// have the same key unless they are bundled otherwise.
func copyKey(envelope []byte) string {
	var key []byte
	var id lofamov1.ReportID
	b := field(field(envelope, payloadField), reportsField)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return ""
		}
		if num == listField && typ == protowire.BytesType {
			report, _ := protowire.ConsumeBytes(b[n:])
			// What is left out is as in the one before.
			if hasNumber(report, digestField) || (proto.UnmarshalOptions{Merge: true}).Unmarshal(field(report, idField), &id) != nil {
				return ""
			}
			key = appendID(key, fault.ReportID{
				Origin: fault.Origin{Node: fault.NodeID(id.GetNode()), Half: fault.Half(id.GetHalf())}, Epoch: fault.Epoch(id.GetEpoch()), Seq: fault.Seq(id.GetSeq()),
			})
		}
		b = b[n+size:]
	}
	return string(key)
}

// hasNumber says whether there is a field of that number, or something that does not parse.
func hasNumber(b []byte, want protowire.Number) bool {
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 || num == want {
			return true
		}
		b = b[n:]
	}
	return false
}
