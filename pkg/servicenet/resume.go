package servicenet

import "github.com/lofamo/lofamo/pkg/fault"

// OutboxSnapshot is where an outbox' numbers stand: what it needs, beside the reports that it gave out as Keep, to go on after its
// process was killed. It is stored before anything is sent, so that a supervisor never sees a number that is not in it and one
// number never means two things.
type OutboxSnapshot struct {
	Epoch    fault.Epoch
	Seq      fault.Seq // last given
	Exchange uint64    // id of the last path request: supervisors take none twice in an epoch
}

// Snapshot returns what Resume goes on from.
func (o *Outbox) Snapshot() OutboxSnapshot {
	return OutboxSnapshot{o.epoch, o.seq, o.paths.lastID}
}

// Resume goes on where an outbox was whose process is gone: in the same epoch, with the next number. To be called before
// Restore, which then takes the epoch's own reports too. Answers to what was sent before and is not restored are no news.
func (o *Outbox) Resume(s OutboxSnapshot) {
	if s.Epoch < 1 || s.Epoch > MaxEpoch {
		return
	}
	o.epoch, o.seq, o.seqAcked, o.paths.lastID = s.Epoch, s.Seq, s.Seq, s.Exchange
}
