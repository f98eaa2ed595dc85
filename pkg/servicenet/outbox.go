package servicenet

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// OutboxConfig sets an outbox. All times are on the sender's own clock.
type OutboxConfig struct {
	AckTimeout       time.Duration // first and least wait for RECEIVED: three slices of 10 ms
	MaxAckTimeout    time.Duration // most that the estimator makes of it
	CommitTimeout    time.Duration // first wait for COMMITTED after RECEIVED; doubles to MaxBackoff
	MaxBackoff       time.Duration // longest wait between two attempts
	NetworkDeadAfter time.Duration // without RECEIVED on the direct rail for so long: FAILED
	MaxReports       int           // in the log, digests apart; at least 1
	Rails            []fault.Path  // that this half has; a DNP half has only PathTorus
	// Interfaces names the service interfaces, each a direct rail of its own; 1 to 8 with PathDirect,
	// none without.
	Interfaces []string
	// AggregateDelay is how long a report may wait for others to share its datagram while four are
	// unanswered.
	AggregateDelay time.Duration
	Checksums      []lofamov1.Checksum // offered to supervisors, the preferred first
}

// MaxInterfaces bounds OutboxConfig.Interfaces.
const MaxInterfaces = 8

// DefaultOutboxConfig returns the values of the default preset for a half with the given rails.
func DefaultOutboxConfig(rails ...fault.Path) OutboxConfig {
	var interfaces []string
	if slices.Contains(rails, fault.PathDirect) {
		interfaces = []string{"service"}
	}
	return OutboxConfig{
		Interfaces:       interfaces,
		AggregateDelay:   2 * time.Millisecond,
		Checksums:        []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C},
		AckTimeout:       30 * time.Millisecond,
		MaxAckTimeout:    500 * time.Millisecond,
		CommitTimeout:    500 * time.Millisecond,
		MaxBackoff:       time.Second,
		NetworkDeadAfter: 1200 * time.Millisecond,
		MaxReports:       1024,
		Rails:            rails,
	}
}

// Validate names every bad field at once.
func (c OutboxConfig) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"AckTimeout", c.AckTimeout}, {"CommitTimeout", c.CommitTimeout}, {"NetworkDeadAfter", c.NetworkDeadAfter}} {
		if f.d <= 0 {
			bad(f.name, f.d, "more than 0")
		}
	}
	if c.MaxAckTimeout < c.AckTimeout {
		bad("MaxAckTimeout", c.MaxAckTimeout, fmt.Sprintf("at least AckTimeout (%v)", c.AckTimeout))
	}
	if c.MaxBackoff < c.MaxAckTimeout {
		bad("MaxBackoff", c.MaxBackoff, fmt.Sprintf("at least MaxAckTimeout (%v)", c.MaxAckTimeout))
	}
	if c.MaxReports < 1 || c.MaxReports > 1<<16 {
		bad("MaxReports", c.MaxReports, "1 to 65536")
	}
	if len(c.Rails) == 0 {
		bad("Rails", "none", "at least one of DIRECT, GOSSIP, TORUS")
	}
	for i, p := range c.Rails {
		if !p.Valid() || slices.Contains(c.Rails[:i], p) {
			bad("Rails", p, "each of DIRECT, GOSSIP, TORUS at most once")
		}
	}
	c.validateInterfaces(bad)
	return errors.Join(errs...)
}

func (c OutboxConfig) validateInterfaces(bad func(field string, given any, want string)) {
	n := len(c.Interfaces)
	switch direct := slices.Contains(c.Rails, fault.PathDirect); {
	case direct && (n < 1 || n > MaxInterfaces):
		bad("Interfaces", n, fmt.Sprintf("1 to %d with the rail DIRECT", MaxInterfaces))
	case !direct && n > 0:
		bad("Interfaces", n, "none without the rail DIRECT")
	}
	for i, name := range c.Interfaces {
		if name == "" || len(name) > 40 || slices.Contains(c.Interfaces[:i], name) {
			bad("Interfaces", strconv.Quote(name), "different names of 1 to 40 bytes")
		}
	}
	if c.AggregateDelay < 0 || c.AggregateDelay > c.AckTimeout {
		bad("AggregateDelay", c.AggregateDelay, fmt.Sprintf("0 to AckTimeout (%v)", c.AckTimeout))
	}
	for i, sum := range c.Checksums {
		if _, known := lofamov1.Checksum_name[int32(sum)]; !known || slices.Contains(c.Checksums[:i], sum) {
			bad("Checksums", sum, "each known algorithm at most once")
		}
	}
}

// Outbox is the sender's log of one half. Reports stay until they are COMMITTED, digests until
// they are RECEIVED or replaced by the next digest.
//
//	              RECEIVED                    COMMITTED
//	unreceived ──────────────► received ──────────────────► freed
//	 │  ▲   ▲                     │
//	 └──┘   └─────────────────────┘ no COMMITTED in time: sent again, on the same rail,
//	 no RECEIVED in time: next rails            to another supervisor
//
// When a report has MaxReports others before it, those whose every observation newer ones restate
// are left out, oldest first; the newest says so in its details. Only when that frees nothing the
// oldest report goes (it cannot with MaxReports above some 140: there are not more components to
// speak of). One goroutine owns an Outbox.
type Outbox struct {
	origin fault.Origin
	epoch  fault.Epoch
	cfg    OutboxConfig

	seq        fault.Seq // last given
	log        []*entry  // by seq
	reports    int       // entries that are not digests
	renumbered time.Time // when an epoch was last taken from the supervisors

	have, down [numPaths]bool
	targets    []target // see order
	leader     string
	sticky     string // whose answer came last
	rtt        [numPaths]rttEstimator
	direct     directHealth
	wake       time.Time // as last asked for
	stats      OutboxStats
}

const numPaths = int(fault.PathTorus) + 1

// entry is one logged report.
type entry struct {
	report   fault.Report // ages as of added
	added    time.Time
	due      time.Time // of the next attempt
	attempts int
	step     int // of the escalation: 0 is the first rail
	received bool
	// commitWait is the next wait for COMMITTED.
	commitWait time.Duration
	via        fault.Path // rail of the last RECEIVED; 0 before the first
	tried      []string   // supervisors tried in this round
	torusAt    time.Time  // of the only send by torus; zero for none or several
	torusSends int
}

// OutboxStats counts since the start, but for Pending, Received, RTT and Timeout.
type OutboxStats struct {
	Pending   int // reports and digests in the log
	Received  int // of these, received and not yet committed
	Added     uint64
	Committed uint64
	Sent      [numPaths]uint64 // by fault.Path
	Retries   uint64           // sends that were not the first of their report
	Shortened uint64           // reports left out because the log was full
	Answered  uint64           // reports and digests whose RECEIVED came
	RTT       time.Duration    // smoothed, direct rail; 0: no sample
	Timeout   time.Duration    // of the direct rail
}

// NewOutbox returns an empty log for a half that has just started with the given epoch.
func NewOutbox(origin fault.Origin, epoch fault.Epoch, cfg OutboxConfig) (*Outbox, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("outbox of %s: %w", origin, err)
	}
	if err := checkID("origin.node", string(origin.Node)); err != nil {
		return nil, fmt.Errorf("outbox of %s: %w", origin, err)
	}
	if !origin.Half.Valid() {
		return nil, fmt.Errorf("outbox of %s: origin.half: given %s: want host or dnp", origin, origin.Half)
	}
	if epoch < 1 || epoch > MaxEpoch {
		return nil, fmt.Errorf("outbox of %s: epoch: given %d: want 1 to %d", origin, epoch, MaxEpoch)
	}
	o := &Outbox{origin: origin, epoch: epoch, cfg: cfg}
	o.direct.state = fault.Unknown
	for _, p := range cfg.Rails {
		o.have[p] = true
	}
	return o, nil
}

// Epoch returns the boot epoch in use.
func (o *Outbox) Epoch() fault.Epoch { return o.epoch }

// Stats returns the counters.
func (o *Outbox) Stats() OutboxStats {
	s := o.stats
	s.Pending = len(o.log)
	for _, e := range o.log {
		if e.received {
			s.Received++
		}
	}
	s.RTT = o.rtt[fault.PathDirect].srtt
	s.Timeout = o.timeout(fault.PathDirect)
	return s
}

// Restore takes over reports of earlier lives, under their old ids. To be called before the first Add.
func (o *Outbox) Restore(now time.Time, kept []Kept) Output {
	var out Output
	o.pump(now, &out)
	return out
}

// Status says how the reports of this half fare.
func (o *Outbox) Status(now time.Time) *lofamov1.DeliveryStatus {
	return &lofamov1.DeliveryStatus{Logged: uint32(o.reports), Retries: o.stats.Retries, Shortened: o.stats.Shortened}
}

// Add logs a report, gives it its id and says what to send. A report too large for a datagram is
// split (SplitReport); the id is that of the first part. A digest replaces the one before it.
// Observations without a node are about the origin's own.
func (o *Outbox) Add(now time.Time, r fault.Report) (fault.ReportID, Output) {
	var out Output
	o.noteLateness(now)
	r.ID = fault.ReportID{Origin: o.origin, Epoch: o.epoch}
	r.Observations = slices.Clone(r.Observations)
	for i := range r.Observations {
		if r.Observations[i].Node == "" {
			r.Observations[i].Node = o.origin.Node
		}
	}
	if r.Digest {
		o.log = slices.DeleteFunc(o.log, func(e *entry) bool { return e.report.Digest })
	} else if o.reports >= o.cfg.MaxReports {
		out.Dropped = o.shorten(r)
	}
	first := o.seq + 1
	for _, part := range SplitReport(r) {
		o.seq++
		part.ID.Seq = o.seq
		o.log = append(o.log, &entry{report: part, added: now, due: now, commitWait: o.cfg.CommitTimeout})
		o.stats.Added++
		if !r.Digest {
			o.reports++
		}
	}
	for o.reports > o.cfg.MaxReports {
		o.remove(slices.IndexFunc(o.log, func(e *entry) bool { return !e.report.Digest }))
		out.Dropped++
	}
	o.stats.Shortened += uint64(out.Dropped)
	r.ID.Seq = first
	o.pump(now, &out)
	return r.ID, out
}

// Step handles one event.
func (o *Outbox) Step(now time.Time, ev Event) Output {
	var out Output
	o.noteLateness(now)
	switch ev := ev.(type) {
	case Tick:
	case Acked:
		o.acked(now, ev, &out)
	case RailUp:
		if ev.Path.Valid() {
			o.down[ev.Path] = false
		}
	case RailDown:
		o.railDown(now, ev.Path)
	case Supervisors:
		o.setSupervisors(now, ev)
	}
	o.pump(now, &out)
	return out
}

func (o *Outbox) remove(i int) {
	if !o.log[i].report.Digest {
		o.reports--
	}
	o.log = slices.Delete(o.log, i, i+1)
}

// find returns the index of the entry with the given number, and -1 when it is gone.
func (o *Outbox) find(seq fault.Seq) int {
	i, ok := slices.BinarySearchFunc(o.log, seq, func(e *entry, s fault.Seq) int {
		switch {
		case e.report.ID.Seq < s:
			return -1
		case e.report.ID.Seq > s:
			return 1
		}
		return 0
	})
	if !ok {
		return -1
	}
	return i
}

// shorten leaves out every report whose observations newer reports, r among them, all restate, and
// notes in r's details how many earlier statements on a component went. It returns how many
// reports did. A report goes whole or not at all: what an id stands for never changes.
func (o *Outbox) shorten(r fault.Report) int {
	type key struct {
		node fault.NodeID
		c    fault.Component
	}
	restated := make(map[key]bool)
	gone := make(map[key]int)
	for _, ob := range r.Observations {
		restated[key{ob.Node, ob.Component}] = true
	}
	n := 0
	for i := len(o.log) - 1; i >= 0; i-- {
		e := o.log[i]
		if e.report.Digest {
			continue
		}
		if slices.ContainsFunc(e.report.Observations, func(ob fault.Observation) bool { return !restated[key{ob.Node, ob.Component}] }) {
			for _, ob := range e.report.Observations {
				restated[key{ob.Node, ob.Component}] = true
			}
			continue
		}
		for _, ob := range e.report.Observations {
			gone[key{ob.Node, ob.Component}]++
		}
		o.remove(i)
		n++
	}
	for i, ob := range r.Observations {
		if g := gone[key{ob.Node, ob.Component}]; g > 0 {
			r.Observations[i].Detail = cutDetail(strings.TrimSpace(fmt.Sprintf("[%d earlier left out] %s", g, ob.Detail)), fault.MaxDetail)
		}
	}
	return n
}

func (o *Outbox) railDown(now time.Time, p fault.Path) {
	if !p.Valid() || o.down[p] {
		return
	}
	o.down[p] = true
	if p == fault.PathDirect {
		o.direct.recovered = 0
	}
	for _, e := range o.log {
		if !e.received && e.step > 0 && now.Before(e.due) {
			e.due = now
		}
	}
}

// acked handles a verified acknowledgement. What is not about this half's present epoch is ignored:
// it answers an earlier life.
func (o *Outbox) acked(now time.Time, ev Acked, out *Output) {
	a, path := ev.Ack, ev.Path
	if l := a.GetLeader(); l != "" && o.target(l) != nil {
		o.leader = l
	}
	stale := false
	for _, id := range AckedIDs(a) {
		if id.Origin != o.origin || id.Epoch != o.epoch {
			continue
		}
		if a.GetStatus() == lofamov1.Ack_STALE_EPOCH {
			stale = true
			continue
		}
		o.answered(now, id.Seq, ev)
		i := o.find(id.Seq)
		if i < 0 {
			continue
		}
		e := o.log[i]
		if !e.received {
			o.stats.Answered++
		}
		switch {
		case a.GetStatus() == lofamov1.Ack_COMMITTED && !e.report.Digest:
			o.stats.Committed++
			o.remove(i)
		case e.report.Digest:
			o.remove(i)
		case !e.received:
			o.becomeReceived(now, e, path)
		}
	}
	// Not more often than MaxBackoff: two processes with one identity would outbid each other without
	// end, and with a write to the disk each time.
	rested := o.renumbered.IsZero() || now.Sub(o.renumbered) >= o.cfg.MaxBackoff
	if h := fault.Epoch(a.GetHighestEpoch()); stale && rested && h >= o.epoch && h < MaxEpoch {
		o.becomeEpoch(now, h+1)
		out.NewEpoch = o.epoch
	}
}

func (o *Outbox) becomeReceived(now time.Time, e *entry, path fault.Path) {
	e.received = true
	e.via = path
	e.due = now.Add(e.commitWait)
	e.commitWait = min(2*e.commitWait, max(o.cfg.MaxBackoff, o.cfg.CommitTimeout))
}

// becomeEpoch numbers the whole log anew: the supervisors refuse everything of the old epoch.
func (o *Outbox) becomeEpoch(now time.Time, epoch fault.Epoch) {
	o.epoch, o.renumbered = epoch, now
	o.seq = 0
	o.direct.flights = nil
	for _, e := range o.log {
		o.seq++
		e.report.ID.Epoch, e.report.ID.Seq = epoch, o.seq
		e.received, e.via, e.step, e.due, e.tried = false, 0, 0, now, nil
		e.torusSends, e.torusAt = 0, time.Time{}
		e.commitWait = o.cfg.CommitTimeout
	}
}
