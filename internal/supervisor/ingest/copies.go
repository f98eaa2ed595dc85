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
	// crowded is the queueing delay of a datagram that indicates load: half of the sender's retry interval.
	crowded = 15 * time.Millisecond
	// copyTime is the time a copy is remembered, at most twice that. After that, a sender that received no answer
	// gets one again.
	copyTime = 250 * time.Millisecond
	// copiesMost bounds the datagrams that are remembered of one copyTime; copies of more are verified.
	copiesMost = 1 << 14
)

// copies remembers recently accepted reports. When reports arrive faster than they can be verified, senders retry,
// and the retries would delay all verification further. Only verified reports are remembered. A copy is recognised
// by its unverified claims, which can only cause it to be dropped.
type copies struct {
	mu            sync.Mutex
	begun         time.Time // of latest
	latest, older map[string]struct{}
	crowd         time.Time // when something had last waited for long
}

// take remembers accepted reports.
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

// has reports whether the reports that an envelope claims were accepted recently. It looks at the envelope only
// under load; waited is the envelope's time in the queue.
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

// crowds records a queueing delay, and reports whether the intake is under load.
func (c *copies) crowds(now time.Time, waited time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waited > crowded {
		c.crowd = now
	}
	return now.Sub(c.crowd) <= copyTime
}

// turn forgets expired entries.
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

// takenKey returns the key of verified reports. It returns "" for digests, which are not remembered.
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

// copyKey returns the takenKey that an unverified envelope claims. Resent reports have the same key unless they
// are bundled differently.
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
			// Omitted fields equal those of the previous report.
			if hasNumber(report, digestField) || (proto.UnmarshalOptions{Merge: true}).Unmarshal(field(report, idField), &id) != nil {
				return ""
			}
			key = appendID(key, fault.ReportID{
				Origin: fault.Origin{Node: fault.NodeID(id.GetNode()), Half: fault.Half(id.GetHalf())}, Epoch: fault.Epoch(id.GetEpoch()),
				Seq: fault.Seq(id.GetSeq()),
			})
		}
		b = b[n+size:]
	}
	return string(key)
}

// hasNumber reports whether b has a field of that number or a parse error.
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
