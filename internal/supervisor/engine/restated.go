package engine

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Restated is a verified digest that repeats an earlier one. Only its metadata remains.
type Restated struct {
	ID      fault.ReportID
	Words   uint64 // see Words
	Path    fault.Path
	Held    time.Duration // total over all hops, and at the replica that received it
	Arrived time.Time     // at this replica
}

// FullDigestRequester asks origins for a full digest next time. It does not block and may drop: the engine repeats
// the request.
type FullDigestRequester interface {
	RequestFull(origins []fault.Origin)
}

// MaxRestated bounds the restated digests of one Input.
const MaxRestated = 1024

// Words hashes the content of a digest, its sender's delivery status, and the status of the node's halves. It omits
// counters that only grow, because they do not matter at once. It returns 0 for a digest that must be sent in full: a
// partial one, whose words the machine does not compare.
func Words(r fault.Report, s *lofamov1.DeliveryStatus, health servicenet.Health) uint64 {
	if !r.Digest || r.Partial {
		return 0
	}
	h := fault.Words(r)
	mix := func(v uint64) { h = (h ^ v) * 1099511628211 } // FNV-1a, by words
	text := func(t string) {
		mix(uint64(len(t)))
		for i := range len(t) {
			mix(uint64(t[i]))
		}
	}
	bit := func(b bool) {
		if b {
			mix(1)
		} else {
			mix(2)
		}
	}
	bit(s != nil)
	mix(uint64(s.GetState()))
	text(s.GetPrimary())
	text(s.GetAlternate())
	text(s.GetSpool())
	bit(s.GetUnanswered() > 0)
	bit(s.GetIsolatedNs() > 0)
	mix(s.GetMigrations())
	mix(s.GetShortened())
	for _, r := range s.GetRails() {
		text(r.GetName())
		bit(r.GetDown())
	}
	if w := health.Words(); w != 0 { // a sender of an earlier version has no health
		mix(w)
	}
	return max(1, h)
}

// spoken is an origin's newest full digest, as far as the term must know it.
type spoken struct {
	epoch fault.Epoch
	words uint64
}

// noteWords remembers the words of a full digest and is, with takeRestated, the only writer of t.words. A digest with
// words 0 cannot be restated.
func (t *term) noteWords(id fault.ReportID, words uint64) {
	if words == 0 || !t.committed.Has(id.Origin.Node) {
		delete(t.words, id.Origin)
		return
	}
	t.words[id.Origin] = spoken{id.Epoch, words}
}

// takeRestated handles restated digests and requests the full digests that it lacks: this term is new, the full
// digest was lost, or the half has reported something else since.
func (t *term) takeRestated(now time.Time, list []Restated, requester FullDigestRequester) {
	var unknown []fault.Origin
	for i := range list {
		if r := &list[i]; !t.restated(now, r) {
			delete(t.words, r.ID.Origin)
			unknown = append(unknown, r.ID.Origin)
		}
	}
	if len(unknown) > 0 && requester != nil {
		requester.RequestFull(unknown)
	}
}

// restated handles one restated digest. It returns false if this term does not know its content.
func (t *term) restated(now time.Time, r *Restated) bool {
	origin := r.ID.Origin
	if t.words[origin] != (spoken{r.ID.Epoch, r.Words}) || origin.Half == fault.HalfHost && t.watchdogs.RunOut(now, origin.Node) {
		return false
	}
	verdict := t.inbox.Accept(r.ID, true)
	t.verdicts[verdict].Inc()
	if verdict != servicenet.Fresh {
		return true // a duplicate, or older than the known one
	}
	arrived := r.Arrived.Add(-r.Held)
	changed, unknown := t.stepped(now, awareness.Restated{
		Origin: origin, Epoch: r.ID.Epoch, Seq: r.ID.Seq, Path: r.Path, Held: max(0, now.Sub(arrived)),
	})
	if changed {
		t.open.touchOrigin(origin)
	}
	if unknown {
		return false
	}
	t.restateHealth(r.ID, arrived)
	t.log.add(Received{ID: r.ID, Digest: true, Path: r.Path, Arrived: r.Arrived, Copies: 1})
	if said, ok := t.senders[origin.Node]; ok && origin.Half == fault.HalfHost {
		said.At, said.OldAt, said.by = arrived, arrived.Add(statusMisses*t.e.cfg.Awareness.DigestPeriod), r.ID
		t.senders[origin.Node] = said
	}
	return true
}
