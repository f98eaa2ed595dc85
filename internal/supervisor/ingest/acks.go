package ingest

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const (
	// holdTime is the time an ack waits for a message that can carry it. The wait costs only space in the sender's
	// log.
	holdTime = 5 * time.Millisecond
	// failedTime is the time an unsendable ack waits for the next message from its half, or the next ack to it.
	failedTime = time.Second
	// maxHeld bounds the halves with waiting acks, and maxHeldAcks the acks of each. Further acks are dropped and
	// counted: a half resends every unacknowledged report.
	maxHeld     = 4096
	maxHeldAcks = 4 * servicenet.MaxAcks
)

// dest is the destination of acks: either a half, at any address known to be its own, or one single place that may
// belong to anybody. Such a place is a relay, or the source address of a datagram that may be a replay. Messages
// for the half never go to such a place.
type dest struct {
	origin fault.Origin
	only   engine.To // zero: the half, at its latest address
}

// held are the acks that wait for one destination.
type held struct {
	dest
	acks   []*lofamov1.Ack
	to     engine.To // the newest
	due    time.Time
	failed bool // a send failed: the acks wait for the half's next message or the next ack to the half, and ignore due
}

// ackTable delays acks for a short time so that other messages can carry them (seed 002 §3). It reads no clock and
// has no lock: its owner provides both.
type ackTable struct {
	halves map[dest]*held
	// Ordered by due time; all delays are equal.
	waiting, failed []*held
}

func newAckTable() *ackTable { return &ackTable{halves: make(map[dest]*held)} }

// hold stores an ack. It reports whether there was room. The table sends failed acks to the same destination again together with ack.
func (t *ackTable) hold(now time.Time, d dest, to engine.To, ack *lofamov1.Ack) bool {
	h := t.halves[d]
	var failed []*lofamov1.Ack
	if h != nil && h.failed {
		t.remove(h)
		h, failed = nil, h.acks
	}
	if h == nil {
		if len(t.halves) == maxHeld {
			return false
		}
		h = &held{dest: d, acks: failed, due: now.Add(holdTime)}
		t.halves[d] = h
		t.waiting = append(t.waiting, h)
	}
	h.to = to
	if last := len(h.acks) - 1; last >= 0 && joins(h.acks[last], ack) {
		h.acks[last].Seqs = append(h.acks[last].Seqs, ack.GetSeqs()...)
		return true
	}
	if len(h.acks) == maxHeldAcks {
		return false
	}
	h.acks = append(h.acks, ack)
	return true
}

// joins reports whether one ack may replace both. Acks with unknown fields of a later version are never merged.
func joins(a, b *lofamov1.Ack) bool {
	return len(a.ProtoReflect().GetUnknown()) == 0 && len(b.ProtoReflect().GetUnknown()) == 0 &&
		a.GetStatus() == b.GetStatus() && a.GetEpoch() == b.GetEpoch() && a.GetHighestEpoch() == b.GetHighestEpoch() &&
		len(a.GetSeqs())+len(b.GetSeqs()) <= servicenet.MaxAckSeqs
}

// keep takes back acks that could not be sent, if the half may reappear at another address.
func (t *ackTable) keep(now time.Time, d dest, to engine.To, acks []*lofamov1.Ack) bool {
	h := t.halves[d]
	if h == nil {
		if d.only != (engine.To{}) || len(t.halves) == maxHeld {
			return false
		}
		h = &held{dest: d, to: to, due: now.Add(failedTime), failed: true}
		t.halves[d] = h
		t.failed = append(t.failed, h)
	}
	if len(h.acks)+len(acks) > maxHeldAcks {
		return false
	}
	h.acks = append(h.acks, acks...)
	return true
}

// take removes and returns the acks that wait for a destination.
func (t *ackTable) take(d dest) []*lofamov1.Ack {
	h := t.halves[d]
	if h == nil {
		return nil
	}
	t.remove(h)
	return h.acks
}

func (t *ackTable) remove(h *held) {
	delete(t.halves, h.dest)
	list := &t.waiting
	if h.failed {
		list = &t.failed
	}
	if i := slices.Index(*list, h); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// due removes and returns the acks whose delay is over, one destination at a time. lost counts the dropped acks.
func (t *ackTable) due(now time.Time) (h *held, lost int) {
	if len(t.waiting) > 0 && !now.Before(t.waiting[0].due) {
		h = t.waiting[0]
		t.remove(h)
	}
	for len(t.failed) > 0 && !now.Before(t.failed[0].due) {
		lost += len(t.failed[0].acks)
		t.remove(t.failed[0])
	}
	return h, lost
}

// wake returns the next due time; zero: no ack waits.
func (t *ackTable) wake() time.Time {
	var wake time.Time
	for _, list := range [][]*held{t.waiting, t.failed} {
		if len(list) > 0 {
			wake = fault.Earliest(wake, list[0].due)
		}
	}
	return wake
}

// pack takes acks from the front of a list, as many as one message may have and as fit into room bytes. It splits
// an ack that does not fit whole. From a non-empty list it takes at least one sequence number.
func pack(acks []*lofamov1.Ack, room int) (now, rest []*lofamov1.Ack) {
	for len(acks) > 0 && len(now) < servicenet.MaxAcks {
		a := acks[0]
		all := a.GetSeqs()
		n, size := len(all), ackSize(a)
		for ; n > 0 && size > room; size = ackSize(a) {
			n /= 2
			a = part(a, all[:n:n])
		}
		if n == 0 {
			if len(now) > 0 {
				break
			}
			n, a = 1, part(a, all[:1:1])
			size = ackSize(a)
		}
		if n < len(all) {
			acks = append([]*lofamov1.Ack{part(a, all[n:])}, acks[1:]...)
		} else {
			acks = acks[1:]
		}
		room -= size
		now = append(now, a)
	}
	return now, acks
}

// ackSize returns the bytes that an ack adds to a message.
func ackSize(a *lofamov1.Ack) int { return 1 + protowire.SizeBytes(proto.Size(a)) }

// part is an ack of some of the numbers.
func part(a *lofamov1.Ack, seqs []uint64) *lofamov1.Ack {
	out := &lofamov1.Ack{
		Status: a.GetStatus(), Node: a.GetNode(), Half: a.GetHalf(), Epoch: a.GetEpoch(), Seqs: seqs,
		Leader: a.GetLeader(), HighestEpoch: a.GetHighestEpoch(),
	}
	out.ProtoReflect().SetUnknown(a.ProtoReflect().GetUnknown())
	return out
}
