package servicenet

import (
	"fmt"
	"maps"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// SenderEffects are a step's requests to the shell of either half besides sending. The shell persists NewEpoch and gives
// Keep and Forget to the spool before it sends anything.
type SenderEffects struct {
	NewEpoch    fault.Epoch      // non-zero: persist it
	Keep        []fault.Report   // for the spool: reports that entered the log
	Forget      []fault.ReportID // for the spool: reports that left it
	Replaced    []fault.ReportID // of Forget: ids that will never be committed, because other reports replace them
	SenderNotes []SenderNote
}

// SenderNote is a line for the log. A lasting condition causes one note when it begins, and one when it ends.
type SenderNote struct {
	Warn bool
	Text string
}

// SenderOutput is what the outbox has asked for since the last Take.
type SenderOutput struct {
	SenderEffects
	Send  []Send
	Paths []PathMessage
}

// Sender is the outbox of a half with its surroundings. It passes the relevant parts of received messages to the outbox,
// gathers the outbox's effects over one step, and describes them in log lines for people. It decides nothing: the
// Outbox decides which rail and path to use, and when. One goroutine owns it.
type Sender struct {
	self       fault.Origin
	outbox     *Outbox
	wake       time.Time // zero: no deadline
	network    fault.State
	isolated   bool
	asking     bool // no path works, and all are being tried
	migrations map[MigrationReason]uint64
	out        SenderOutput
}

// NewSender returns a sender for a half that has just started with the given epoch.
func NewSender(self fault.Origin, epoch fault.Epoch, cfg OutboxConfig) (*Sender, error) {
	box, err := NewOutbox(self, epoch, cfg)
	if err != nil {
		return nil, err
	}
	return &Sender{self: self, outbox: box, network: fault.Unknown, migrations: map[MigrationReason]uint64{}}, nil
}

// Room returns the bytes for the reports, status and health of one datagram by path.
func (s *Sender) Room(path fault.Path) int { return s.outbox.room.by(path) }

// Resume continues from the outbox of an earlier incarnation. Call it before Restore.
func (s *Sender) Resume(at OutboxSnapshot) { s.outbox.Resume(at) }

// Snapshot returns the current numbers for Resume. Store them before sending any message.
func (s *Sender) Snapshot() OutboxSnapshot { return s.outbox.Snapshot() }

// Restore takes over the reports of earlier lives. It comes before the first Add.
func (s *Sender) Restore(now time.Time, kept []Kept) {
	if len(kept) == 0 {
		return
	}
	what := "undelivered reports of earlier lives go on"
	if len(kept) == 1 {
		what = "undelivered report of an earlier life goes on"
	}
	s.note(false, "%d %s", len(kept), what)
	s.gather(now, nil, s.outbox.Restore(now, kept))
}

// Add logs a report and returns its ID, of several parts that of the first.
func (s *Sender) Add(now time.Time, r fault.Report) fault.ReportID {
	id, out := s.outbox.Add(now, r)
	s.gather(now, nil, out)
	return id
}

// Step gives the outbox an event.
func (s *Sender) Step(now time.Time, ev Event) { s.gather(now, ev, s.outbox.Step(now, ev)) }

// Tick wakes the outbox if it is due.
func (s *Sender) Tick(now time.Time) {
	if !s.wake.IsZero() && !now.Before(s.wake) {
		s.Step(now, Tick{})
	}
}

// Heard passes the relevant parts of a supervisor's verified message to the outbox: acknowledgements of this half's
// reports, the reply to a path request, a request to send everything again. It reports whether the message also
// acknowledges reports of the node's other half.
func (s *Sender) Heard(now time.Time, o Opened, path fault.Path, iface uint8) (forOther bool) {
	for _, ack := range o.Msg.GetAcks() {
		switch who := OriginOf(ack); {
		case who == s.self:
			s.Step(now, Acked{Ack: ack, Supervisor: o.Name, Path: path, Interface: iface})
		case who.Node == s.self.Node:
			forOther = true
		}
	}
	switch b := o.Msg.GetBody().(type) {
	case *lofamov1.Message_PathReply:
		if path == fault.PathDirect && s.repliesToThis(b.PathReply) {
			s.Step(now, Replied{Interface: iface, Supervisor: o.Name, Reply: b.PathReply})
		}
	case *lofamov1.Message_Again:
		s.Step(now, Damaged{Path: path, Interface: iface, Supervisor: o.Name})
	}
	return forOther
}

func (s *Sender) repliesToThis(r *lofamov1.PathReply) bool {
	return fault.NodeID(r.GetNode()) == s.self.Node && fault.Half(r.GetHalf()) == s.self.Half && fault.Epoch(r.GetEpoch()) == s.outbox.Epoch()
}

// Answers returns the number of answers that the outbox waited for. A replayed answer is none of these.
func (s *Sender) Answers() uint64 { return s.outbox.Answers() }

// Take returns the gathered output, and clears it.
func (s *Sender) Take() SenderOutput {
	out := s.out
	s.out = SenderOutput{}
	return out
}

// gather adds the outbox's output for an event; nil: the outbox acted on its own.
func (s *Sender) gather(now time.Time, ev Event, o Output) {
	s.wake = o.Wake
	s.out.Send = joined(s.out.Send, o.Send)
	s.out.Paths = joined(s.out.Paths, o.Paths)
	s.out.Keep = joined(s.out.Keep, o.Keep)
	s.out.Forget = joined(s.out.Forget, o.Forget)
	s.out.Replaced = joined(s.out.Replaced, o.Replaced)
	if o.ServiceNetwork.Valid() {
		s.network = o.ServiceNetwork
	}
	if o.NewEpoch != 0 {
		s.out.NewEpoch = o.NewEpoch
		s.note(true, "the supervisors do not take this boot epoch: going on from %d", o.NewEpoch)
	}
	if o.Dropped > 0 {
		what := ""
		if o.DroppedWhat != "" {
			what = ", most of it about " + o.DroppedWhat
		}
		s.note(true, "the log of reports is full%s: %d were coalesced into newer ones", what, o.Dropped)
	}
	if o.TooLong > 0 {
		s.note(true, "the names of the cluster and its nodes are too long for reports by way of the torus: %d were left out", o.TooLong)
	}
	for _, m := range o.Migrations {
		if m.From != m.To && m.From != (PathID{}) {
			s.migrations[s.reason(ev, m)]++
		}
		s.noteMigration(m)
	}
	if o.IsolatedChanged {
		s.isolated = o.Isolated
		s.noteIsolation(now)
	}
}

// joined appends b to a. If a is empty it returns b itself, because an output has no other owner.
func joined[T any](a, b []T) []T {
	if len(a) == 0 {
		return b
	}
	return append(a, b...)
}

// noteMigration notes a change of the primary path; metrics alone cover changes of only the state.
func (s *Sender) noteMigration(m Migration) {
	switch {
	case m.From == (PathID{}) && m.To == (PathID{}): // a half without paths of its own
		return
	case m.State == PathReestablishing:
		s.note(true, "no path to a supervisor works: asking for new ones, %s was the last: %s", s.outbox.PathName(m.From), m.Why)
		s.asking = true
		return
	case m.From == (PathID{}):
		s.note(false, "reports go by %s", s.outbox.PathName(m.To))
	case m.From != m.To:
		s.note(false, "reports go by %s instead of %s: %s", s.outbox.PathName(m.To), s.outbox.PathName(m.From), m.Why)
	case s.asking:
		s.note(false, "reports go by %s again: %s", s.outbox.PathName(m.To), m.Why)
	}
	s.asking = false
}

func (s *Sender) noteIsolation(now time.Time) {
	logged := s.outbox.Status(now).GetLogged()
	waiting := fmt.Sprintf("%d reports wait", logged)
	switch logged {
	case 0:
		waiting = "no report waits"
	case 1:
		waiting = "1 report waits"
	}
	if s.isolated {
		s.note(true, "no supervisor can be reached by any rail: %s", waiting)
		return
	}
	s.note(false, "a supervisor is reached again: %s", waiting)
}

func (s *Sender) note(warn bool, format string, args ...any) {
	s.out.SenderNotes = append(s.out.SenderNotes, SenderNote{warn, fmt.Sprintf(format, args...)})
}

// Wake returns when Tick must be called; zero: no deadline.
func (s *Sender) Wake() time.Time { return s.wake }

// Network returns the state of the service network according to the acknowledgements.
func (s *Sender) Network() fault.State { return s.network }

// Silent reports whether no rail has brought an answer for the time after which the service network counts as failed.
func (s *Sender) Silent() bool { return s.outbox.Silent() }

// Epoch returns the boot epoch in use.
func (s *Sender) Epoch() fault.Epoch { return s.outbox.Epoch() }

// Migrations returns how often the primary path has changed, by reason.
func (s *Sender) Migrations() map[MigrationReason]uint64 { return maps.Clone(s.migrations) }

// Stats returns the counters of the sender's log.
func (s *Sender) Stats() OutboxStats { return s.outbox.Stats() }

// Status returns the delivery status of the reports.
func (s *Sender) Status(now time.Time) *lofamov1.DeliveryStatus { return s.outbox.Status(now) }
