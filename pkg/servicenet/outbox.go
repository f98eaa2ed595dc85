package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// OutboxConfig sets an outbox. Times are on the sender's clock.
type OutboxConfig struct {
	AckTimeout       time.Duration // first and least wait for RECEIVED
	MaxAckTimeout    time.Duration // most that the estimator makes of it
	MaxBackoff       time.Duration // between attempts
	NetworkDeadAfter time.Duration // no RECEIVED on the direct rail for so long: FAILED
	MaxReports       int           // in the log
	Rails            []fault.Path  // that this half has; a DNP half has only PathTorus
}

// DefaultOutboxConfig returns the values of the default preset for a half with the given rails.
func DefaultOutboxConfig(rails ...fault.Path) OutboxConfig {
	return OutboxConfig{
		AckTimeout:       30 * time.Millisecond,
		MaxAckTimeout:    500 * time.Millisecond,
		MaxBackoff:       time.Second,
		NetworkDeadAfter: 1200 * time.Millisecond,
		MaxReports:       1024,
		Rails:            rails,
	}
}

// Event is what happens to an outbox: Tick, Acked, RailUp, RailDown or Supervisors.
type Event interface{ outboxEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Acked is a verified acknowledgement and the rail on which it came.
type Acked struct {
	Ack  *lofamov1.Ack
	Path fault.Path
}

// RailUp says that a rail can be used again.
type RailUp struct{ Path fault.Path }

// RailDown says that a rail cannot be used now: no carrier, no address, refused by the kernel.
type RailDown struct{ Path fault.Path }

// Supervisors says which supervisors there are and, as a hint, who leads.
type Supervisors struct {
	Targets []string // ids
	Leader  string   // empty: not known
}

func (Tick) outboxEvent()        {}
func (Acked) outboxEvent()       {}
func (RailUp) outboxEvent()      {}
func (RailDown) outboxEvent()    {}
func (Supervisors) outboxEvent() {}

// Send is one attempt to be made now.
type Send struct {
	Report  fault.Report // its ages include the time in the log
	Path    fault.Path
	Target  string // supervisor id; empty on rails that have no target
	Attempt int    // from 1
}

// Output is what the shell is to do.
type Output struct {
	Send           []Send
	NewEpoch       fault.Epoch // non-zero: persist it; the reports already carry it
	ServiceNetwork fault.State // what RECEIVEDs and their absence say; UNKNOWN before the first verdict
	Changed        bool        // ServiceNetwork changed in this step
	Dropped        int         // reports whose history was shortened in this step
	Wake           time.Time   // step again then; zero: nothing to wait for
}

// Outbox is the log of one half. One goroutine owns it.
type Outbox struct{}

// NewOutbox returns an empty log.
func NewOutbox(origin fault.Origin, epoch fault.Epoch, cfg OutboxConfig) (*Outbox, error) {
	panic("skeleton")
}

// Add logs a report, gives it its id and says what to send.
func (o *Outbox) Add(now time.Time, r fault.Report) (fault.ReportID, Output) { panic("skeleton") }

// Step handles one event.
func (o *Outbox) Step(now time.Time, ev Event) Output { panic("skeleton") }

// Epoch returns the boot epoch in use.
func (o *Outbox) Epoch() fault.Epoch { panic("skeleton") }

// OutboxStats counts since the start, but for Pending and Received.
type OutboxStats struct {
	Pending   int // reports in the log, not committed
	Received  int // of these, already received
	Added     uint64
	Committed uint64
	Sent      [4]uint64 // by fault.Path
	Retries   uint64
	Shortened uint64 // reports coalesced away
	RTT       time.Duration
	Timeout   time.Duration
}

// Stats returns the counters.
func (o *Outbox) Stats() OutboxStats { panic("skeleton") }
