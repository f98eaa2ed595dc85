// Package recovery decides about one half of a node for the recovery daemon (lofamo-agent run): when it hangs, when to
// end it, when to start it again, and when to give it up (the fault tolerance daemon of seed 000 §4.2, with a budget). A
// half that is given up is started ever more rarely, but never left for ever. The package is a machine of time and
// events; the daemon in internal/agent handles processes, signals, /proc and files. The package does not decide how a
// half restores its state or how it tests itself.
package recovery

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Config configures a machine.
type Config struct {
	Half   fault.Half
	TRead  time.Duration // period of looks; with Misses it determines when a half hangs
	Misses int
	// StartWithin is how long a process may take until its first word, counting only time in which it could run.
	StartWithin time.Duration
	Budget      int // the most restarts within Window without a long wait
	// Window is the time over which restarts count. Time in which the half is given up does not pass, so a half that ends
	// at every start stays over its budget.
	Window time.Duration
	// Leave says that a half stays down when it ends or hangs, until a person starts it.
	Leave bool
}

// Bounds of the wait before a restart. The first restart does not wait. Later ones wait from MinBackoff up to MaxBackoff
// while the budget lasts. A half that has spent its budget waits for Window, MaxColdWait at most, doubled with each
// further restart that fails, up to coldGrowth times that.
const (
	MinBackoff  = 100 * time.Millisecond
	MaxBackoff  = 5 * time.Second
	MaxColdWait = time.Minute
	coldGrowth  = 10
)

// ServedWait is the interval of checking whether another process still serves the half.
const ServedWait = 100 * time.Millisecond

const (
	// settled is how long a half that has not passed its self-test must have run well for its next end not to count as
	// a failed restart.
	settled = time.Second
	// againLook is the time between looks at a half that is being started again: its first word ends the recovery.
	againLook = 5 * time.Millisecond
	// firstLook is the same for a first start, which ends no fault: looks cost more than the start of a small half.
	firstLook = 25 * time.Millisecond
	// restartTime is the duration of a restart announced to neighbours, in addition to the waiting time. It is many
	// times the real duration, because neighbours call the link broken after it.
	restartTime = time.Second
	// repeatAnnouncement is the time between announcements while a restart waits.
	repeatAnnouncement = 300 * time.Millisecond
	// rest is the time between steps when there is nothing to watch.
	rest = time.Minute
)

// Event is an input about a half.
type Event interface{ recoveryEvent() }

// Look is a look at the running half or, when none runs, says only that time has passed.
type Look struct {
	Stores   uint32 // sequence number of its watchdog word
	Readable bool   // the register file could be read: Stores is valid
	Process  Process
}

// Began says that a process exists: Output.Start requested it, or the daemon adopted it from an earlier daemon or a
// start by hand. Stores is the current sequence number of the watchdog word.
type Began struct {
	PID     int
	Stores  uint32
	Adopted bool
}

// Served takes the place of Began when an unknown process serves the half, or one that must not be touched. The machine
// starts nothing against it, and does not end it. It checks again by Output.Start every ServedWait.
type Served struct{}

// Ended says that the process is certainly dead or, with a cause of NotStarted, that there is none.
type Ended struct{ Cause halfcore.Cause }

// Proven says that the running half has passed its self-test.
type Proven struct{}

// Wrong says that the half fails its self-test in a part that is its own alone, and why. A restart that did not help is
// not repeated: a sick half serves better than one that is given up.
type Wrong struct{ Why string }

// Asked says that a person wants the half to run: a half that does not run is started now, with a fresh budget.
type Asked struct{}

// Closed says that the daemon has stopped the half, on request: the next start has a fresh budget.
type Closed struct{}

func (Look) recoveryEvent()   {}
func (Began) recoveryEvent()  {}
func (Served) recoveryEvent() {}
func (Ended) recoveryEvent()  {}
func (Proven) recoveryEvent() {}
func (Wrong) recoveryEvent()  {}
func (Asked) recoveryEvent()  {}
func (Closed) recoveryEvent() {}

// Output lists the actions for the daemon, in this order. The daemon calls Step again, with a Look, at Wake at the latest.
type Output struct {
	Kill bool // SIGKILL; Ended follows once the process is gone
	// Announce, if above 0, asks the daemon to announce to neighbours that the half will return within this time. Only
	// the daemon writes to the links then, because the half is dead.
	Announce time.Duration
	Start    bool // start the half; Began, Served or Ended follows
	Tell     bool // the record has changed: tell the halves and keep it
	// Recovered says that the half serves again (Record.Last has the details).
	Recovered bool
	Wake      time.Time
}

// phase is the state of a machine.
//
//	          Start              first word
//	waiting ────────► starting ─────────────► running
//	 │  ▲ ▲              │  │ no word in time    │ hangs
//	 │  │ │ ended        │  └─────────┐          │
//	 │  │ └──────────────┘            ▼          ▼ or goes wrong
//	 │  │          ended             killing ◄───┘
//	 │  └──────────────────────────────┘  (and running ──ended──► waiting)
//	                         (starting ──served by another──► waiting)
//	over ──Asked──► waiting
type phase uint8

const (
	waiting phase = iota + 1 // for the end of back-off; there is none at first
	starting
	running
	killing
	over // left
)

// Machine looks after one half.
type Machine struct {
	cfg   Config
	phase phase
	rec   halfcore.RecoveryRecord
	base  time.Time // with mono: converts times to CLOCK_MONOTONIC
	mono  int64

	hang     hang
	passed   time.Duration   // the time of the window, which stands still while the half is given up
	passedAt time.Time       // when passed was last advanced
	restarts []time.Duration // values of passed at the restarts within the window, oldest first
	failures int             // restarts, and starts that could not be made, since the half last ran well
	startAt  time.Time       // when waiting ends
	announce time.Time       // when to announce again
	began    time.Time       // when the process began
	detected time.Time       // Record.Last
	cause    *halfcore.Cause // why it is being killed
}

// New returns a machine. mono is the value of CLOCK_MONOTONIC at now, in ns. old is the history that the previous
// daemon has stored since the machine booted, or nil. If adopted, the half still runs, and Began or Served follows at
// once.
func New(cfg Config, now time.Time, mono int64, old *halfcore.RecoveryHistory, adopted bool) *Machine {
	m := &Machine{
		cfg: cfg, phase: waiting, base: now, mono: mono, startAt: now, passedAt: now, hang: hang{period: cfg.TRead},
		rec: halfcore.RecoveryRecord{Half: cfg.Half, State: halfcore.Stopped, Budget: cfg.Budget, Window: cfg.Window},
	}
	if old == nil {
		return m
	}
	m.rec.Total, m.rec.Causes, m.rec.Last, m.failures = old.Record.Total, old.Record.Causes, old.Record.Last, old.Failures
	m.rec.GaveUp = old.Record.GaveUp
	for _, ago := range old.RestartsAgo {
		m.restarts = append(m.restarts, -min(max(0, ago), cfg.Window))
	}
	if m.rec.Last != nil {
		m.detected = now.Add(time.Duration(m.rec.Last.At - mono))
	}
	m.prune(now)
	last := m.rec.Last
	switch state := old.Record.State; {
	case state == halfcore.GivenUp && last != nil:
		m.rec.State, m.rec.Reason, m.startAt = halfcore.GivenUp, old.Record.Reason, m.detected.Add(m.wait())
	case adopted && (state == halfcore.Starting || state == halfcore.Restarting && last != nil && last.Gone > 0):
		m.rec.State, m.rec.Until = state, old.Record.Until // it was being started, and has not served yet
	case adopted || state == halfcore.Stopped:
	case state == halfcore.Restarting && last != nil && last.Started == 0: // a restart was due already: no further cause
		last.Gone = max(last.Gone, 1)
		m.again(now)
	default: // it ended without a daemon
		m.became(now, halfcore.Cause{Kind: halfcore.Unseen})
	}
	return m
}

// Record returns the half's current record.
func (m *Machine) Record() halfcore.RecoveryRecord {
	r := m.rec
	r.Restarts = min(len(m.restarts), m.cfg.Budget)
	if r.Last != nil {
		last := *r.Last
		r.Last = &last
	}
	return r
}

// History returns the history for the next daemon.
func (m *Machine) History() halfcore.RecoveryHistory {
	h := halfcore.RecoveryHistory{Record: m.Record(), Failures: m.failures}
	for _, at := range m.restarts {
		h.RestartsAgo = append(h.RestartsAgo, m.passed-at)
	}
	return h
}

func (m *Machine) monotonic(t time.Time) int64 { return m.mono + int64(t.Sub(m.base)) }

// Step handles an event.
func (m *Machine) Step(now time.Time, ev Event) Output {
	out := Output{Tell: m.prune(now)}
	switch ev := ev.(type) {
	case Look:
		m.look(now, ev, &out)
	case Began:
		m.begin(now, ev)
		out.Tell = true
	case Served:
		out.Tell = m.served(now) || out.Tell
	case Ended:
		m.ended(now, ev.Cause)
		out.Tell = true
	case Proven:
		out.Tell = m.proven(now) || out.Tell
	case Wrong:
		m.wrong(now, ev.Why, &out)
	case Asked:
		out.Tell = m.asked(now) || out.Tell
	case Closed:
		m.phase, m.rec.State, m.rec.PID, m.rec.Until, m.rec.Reason = over, halfcore.Stopped, 0, 0, ""
		m.restarts, m.failures = nil, 0
		out.Tell = true
	}
	m.start(now, &out)
	out.Wake = m.wake(now)
	return out
}

// look judges a running process.
func (m *Machine) look(now time.Time, l Look, out *Output) {
	switch m.phase {
	case starting, running:
	default:
		return
	}
	if m.hang.look(now, l) {
		if m.phase == starting {
			m.becomeRunning(now, out)
		}
		if (m.failures > 0 || m.rec.GaveUp) && now.Sub(m.began) >= settled {
			m.failures, m.rec.GaveUp, out.Tell = 0, false, true
		}
		return
	}
	bound := watchdog.StaleBound(m.cfg.TRead, m.cfg.Misses)
	if m.phase == starting {
		bound = m.cfg.StartWithin
	}
	if m.hang.chance < bound || m.cfg.Leave {
		return
	}
	m.cause = &halfcore.Cause{Kind: halfcore.Hung, Detail: m.hang.detail(l.Process)}
	m.becomeKilling(now, out)
}

func (m *Machine) becomeRunning(now time.Time, out *Output) {
	again := m.recovering()
	m.phase, m.rec.State, m.rec.Until, m.rec.Reason = running, halfcore.Running, 0, ""
	out.Tell = true
	if again && m.rec.Last != nil && m.rec.Last.Serving == 0 {
		m.rec.Last.Serving = m.after(now)
		out.Recovered = true
	}
}

func (m *Machine) becomeKilling(now time.Time, out *Output) {
	m.note(now, *m.cause)
	m.phase, m.rec.State = killing, halfcore.Restarting
	out.Kill, out.Tell = true, true
}

// recovering reports whether the half is down because of Record.Last.
func (m *Machine) recovering() bool {
	return m.rec.Last != nil && (m.rec.State == halfcore.Restarting || m.rec.State == halfcore.GivenUp)
}

// note begins a recovery.
func (m *Machine) note(now time.Time, c halfcore.Cause) {
	m.detected = now
	m.rec.Causes[c.Kind-1]++
	m.rec.GaveUp = false
	m.rec.Last = &halfcore.Recovery{Cause: c, At: m.monotonic(now), Attempt: m.failures + 1}
}

// after returns the time of a recovery's step: never 0, which would mean not yet.
func (m *Machine) after(now time.Time) time.Duration { return max(now.Sub(m.detected), 1) }

func (m *Machine) begin(now time.Time, ev Began) {
	m.hang.begin(now, ev.Stores)
	m.began, m.rec.PID, m.cause = now, ev.PID, nil
	switch {
	case m.recovering():
		if !ev.Adopted || m.rec.Last.Started == 0 {
			m.rec.Last.Started = m.after(now)
		}
	case ev.Adopted && m.rec.State != halfcore.Starting: // it has been serving, or will report so
		m.phase, m.rec.State = running, halfcore.Running
		return
	default:
		m.rec.State = halfcore.Starting
	}
	m.phase = starting
}

// count counts a restart.
func (m *Machine) count() {
	m.failures++
	m.rec.Total++
	m.restarts = append(m.restarts, m.passed)
	m.restarts = m.restarts[max(0, len(m.restarts)-m.cfg.Budget-1):] // older ones change nothing, even if uncount takes back this one
}

// uncount takes back the restart that start has counted: it was not made.
func (m *Machine) uncount() {
	if m.phase != starting || !m.recovering() {
		return
	}
	m.failures--
	m.rec.Total--
	m.restarts = m.restarts[:max(0, len(m.restarts)-1)] // none, if the daemon paused until it left the window
}

// served handles a half that another process serves: no restart was made. It reports whether that is news.
func (m *Machine) served(now time.Time) bool {
	m.uncount()
	news := m.rec.State != halfcore.Running
	m.phase, m.startAt = waiting, now.Add(ServedWait)
	m.rec.State, m.rec.PID, m.rec.Until, m.rec.Reason = halfcore.Running, 0, 0, ""
	return news
}

// ended handles the end of the process.
func (m *Machine) ended(now time.Time, c halfcore.Cause) {
	m.rec.PID = 0
	if m.phase == over {
		return
	}
	if m.cfg.Leave {
		m.phase, m.rec.State = over, halfcore.Stopped
		m.note(now, c)
		return
	}
	if m.cause != nil { // this machine killed it
		m.cause = nil
		m.rec.Last.Gone = m.after(now)
		m.again(now)
		return
	}
	m.became(now, c)
}

// became begins the recovery of a half that is dead already.
func (m *Machine) became(now time.Time, c halfcore.Cause) {
	if c.Kind == halfcore.NotStarted { // for a shortage on the machine, for example
		m.uncount()
		m.failures++
	}
	m.note(now, c)
	m.rec.Last.Gone = m.after(now)
	m.again(now)
}

// again decides when the half is started again, and whether it is given up until then.
func (m *Machine) again(now time.Time) {
	m.phase, m.startAt, m.rec.Reason = waiting, now.Add(m.wait()), ""
	cause := m.rec.Last.Cause
	switch {
	case len(m.restarts) >= m.cfg.Budget:
		m.rec.State, m.rec.Until, m.rec.GaveUp = halfcore.GivenUp, 0, true
		m.rec.Reason = halfcore.GivenUpReason(m.cfg.Budget, m.cfg.Window, m.wait(), cause)
		return
	case cause.Kind == halfcore.NotStarted:
		m.rec.Reason = cause.String()
	}
	m.rec.State = halfcore.Restarting
	m.announce = now
	m.rec.Until = m.monotonic(m.startAt.Add(restartTime))
}

// wait returns the wait before the next start.
func (m *Machine) wait() time.Duration {
	if len(m.restarts) < m.cfg.Budget || m.rec.Last.Cause.Kind == halfcore.NotStarted {
		return Backoff(m.failures)
	}
	base := min(m.cfg.Window, MaxColdWait)
	return min(base<<min(max(0, m.failures-m.cfg.Budget), coldGrowth), coldGrowth*base)
}

// Backoff returns the wait before a restart after the given number of failures in a row.
func Backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	return min(MinBackoff<<min(failures-1, 20), MaxBackoff)
}

func (m *Machine) proven(now time.Time) bool {
	if m.phase != running || m.rec.Last == nil || m.rec.Last.Serving == 0 || m.rec.Last.Proven != 0 {
		return false
	}
	m.rec.Last.Proven = m.after(now)
	m.failures = 0
	return true
}

func (m *Machine) wrong(now time.Time, why string, out *Output) {
	l := m.rec.Last
	if m.phase != running || m.cfg.Leave || l != nil && l.Cause.Kind == halfcore.FailedTest && l.Proven == 0 {
		return
	}
	if len(m.restarts) >= m.cfg.Budget { // it would be given up
		return
	}
	m.cause = &halfcore.Cause{Kind: halfcore.FailedTest, Detail: why}
	m.becomeKilling(now, out)
}

func (m *Machine) asked(now time.Time) bool {
	if m.phase != over && m.phase != waiting {
		return false
	}
	m.restarts, m.failures = nil, 0
	m.rec.Reason = ""
	m.phase, m.startAt = waiting, now
	if m.rec.State == halfcore.GivenUp {
		m.rec.State = halfcore.Starting
	}
	return true
}

// start starts a half when its time has come, and announces one whose time is still to come.
func (m *Machine) start(now time.Time, out *Output) {
	if m.phase != waiting {
		return
	}
	again := m.rec.State == halfcore.Restarting
	due := !now.Before(m.startAt)
	if again && (due || !now.Before(m.announce)) {
		out.Announce = max(m.startAt.Sub(now), 0) + restartTime
		m.announce = now.Add(repeatAnnouncement)
	}
	if !due {
		return
	}
	out.Start = true
	out.Tell = out.Tell || m.rec.State != halfcore.Running // of a served half, this only checks that it is served
	if m.rec.State == halfcore.Stopped {
		m.rec.State = halfcore.Starting
	}
	if m.recovering() {
		m.count()
	}
	if again {
		m.rec.Until = m.monotonic(now.Add(restartTime))
	}
	m.phase, m.began = starting, now // Began or Ended follows
	m.hang.begin(now, m.hang.stores)
}

// prune forgets restarts that have left the window, and reports whether there were any.
func (m *Machine) prune(now time.Time) bool {
	if m.rec.State != halfcore.GivenUp {
		m.passed += now.Sub(m.passedAt)
	}
	m.passedAt = now
	before := len(m.restarts)
	for len(m.restarts) > 0 && m.passed-m.restarts[0] >= m.cfg.Window {
		m.restarts = m.restarts[1:]
	}
	return len(m.restarts) < before
}

func (m *Machine) wake(now time.Time) time.Time {
	switch m.phase {
	case waiting:
		if m.announce.After(now) && m.announce.Before(m.startAt) {
			return m.announce
		}
		return m.startAt
	case starting:
		look := firstLook
		if m.rec.State == halfcore.Restarting {
			look = againLook
		}
		if now.Sub(m.began) < settled {
			return now.Add(min(look, m.cfg.TRead))
		}
		return now.Add(m.cfg.TRead)
	case running:
		return now.Add(m.cfg.TRead)
	default:
		return now.Add(rest)
	}
}
