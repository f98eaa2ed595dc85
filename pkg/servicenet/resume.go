package servicenet

import "github.com/lofamo/lofamo/pkg/fault"

// OutboxSnapshot is the position of an outbox' numbers. Together with the reports given out as Keep, it lets the
// outbox resume after its process was killed. It is stored before anything is sent, so that a supervisor never sees a
// number that is not in it and one number never means two things.
type OutboxSnapshot struct {
	Epoch    fault.Epoch
	Seq      fault.Seq // last given
	Exchange uint64    // id of the last path request: supervisors accept none twice in an epoch
}

// Snapshot returns the state for Resume.
func (o *Outbox) Snapshot() OutboxSnapshot {
	return OutboxSnapshot{o.epoch, o.seq, o.paths.lastID}
}

// Resume continues an outbox whose process is gone: in the same epoch, with the next number. Call it before Restore,
// which then takes the epoch's own reports too. Answers to reports that were sent before and are not restored are no
// news.
func (o *Outbox) Resume(s OutboxSnapshot) {
	if s.Epoch < 1 || s.Epoch > MaxEpoch {
		return
	}
	o.epoch, o.seq, o.seqAcked, o.paths.lastID = s.Epoch, s.Seq, s.Seq, s.Exchange
}
