package dnpcore

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A supervisor orders this half to test its links (seed 003 §5.2.2). Probes travel as test frames along the real route,
// and the findings go up in the same way as an answer. Heartbeats, messages and challenges continue meanwhile. Only a
// supervisor can begin a diagnosis, and at most one run begins per second, so that it exhausts neither the neighbours'
// echo budgets nor the links.
//
//	none ──order──► waiting ──Every since the last──► running ──done──► said
//	                   ▲                                 │               │
//	                   └──────────── newer order ────────┴───────────────┘
//
// Repeating an order makes the half repeat its findings. Within order.RunsLast the half refuses an older order, as that
// of a former leader. Later, an older order comes from a store that was created again, with lower terms, or from a
// forger, and then its only effect is a run.

const (
	// diagnoseEvery is the least time between the beginnings of two runs.
	diagnoseEvery = time.Second
	// settleFor is how long after the beginning of a run the half may still read frames that arrived before it. Such
	// frames do not show that the link works now. If no probe is answered, a run lasts at least diagnosis.Timeout.
	settleFor = diagnosis.LateAfter
	// ownProbes is the number of probes to this node's host half, by mailbox, one each ownPace.
	ownProbes = 6
	ownPace   = 2 * diagnosis.Pace
)

// ownMark is the prefix of a probe to this node's host half; the run and a number follow.
var ownMark = [...]byte{'L', 'F', 'D', 'O'}

// diagnosisState holds the state of the latest diagnosis order.
type diagnosisState struct {
	order   *lofamov1.DiagnosisOrder // nil: none yet
	runs    order.Runs
	machine *diagnosis.Machine // nil: not running
	run     uint64
	beginAt time.Time // while waiting; zero: not waiting
	began   time.Time // the last run
	wake    time.Time // while waiting or running

	before  [grid.NumDirections]torus.LinkStats // when it began; what heardBy counts: settleFor later
	settled bool                                // settleFor has passed
	own     diagnosis.Test                      // the test of this node's host half
	ownHas  uint64                              // bit i: own probe i was answered
	ownAt   time.Time                           // the next own probe

	quiet   bool                // run without an order: the findings are for this half alone
	found   []diagnosis.Finding // the findings of the order, once done
	refused string              // why it tested nothing; empty: it did test
	say     uint32              // bit i: the findings for the direction of Index i are still to be sent
	sayAt   time.Time           // when to send the next findings
	attempt int                 // the attempt number of these messages
}

func same(a, b *lofamov1.OrderNumber) bool {
	return a.GetTerm() == b.GetTerm() && a.GetCount() == b.GetCount()
}

// onDiagnosisOrder handles a verified order of a supervisor.
func (m *Machine) onDiagnosisOrder(now time.Time, o *lofamov1.DiagnosisOrder, by string) {
	x := &m.diagnosis
	switch verdict := x.runs.Judge(now, o.GetNumber()); verdict {
	case order.Known:
		switch {
		case x.say != 0: // it is being sent already
		case x.found != nil:
			m.sayFindings(now, 2, o.GetKnown())
		case x.refused != "":
			m.sayRefused(2)
		}
	case order.New:
		x.runs.Take(now, o.GetNumber())
		x.order, x.machine, x.found, x.refused, x.say, x.quiet = o, nil, nil, "", 0, false
		x.beginAt = now
		if next := x.began.Add(diagnoseEvery); !x.began.IsZero() && next.After(now) {
			x.beginAt = next
		}
		x.wake = x.beginAt
		m.note(NoteDiagnosis, "diagnosis %d of term %d, ordered by %s", o.GetNumber().GetCount(), o.GetNumber().GetTerm(), by)
		m.tickDiagnosis(now)
	default:
		m.refuseRun("diagnosis", o.GetNumber(), by, verdict)
	}
}

// tickDiagnosis does the due work of a diagnosis.
func (m *Machine) tickDiagnosis(now time.Time) {
	x := &m.diagnosis
	m.sayNext(now)
	if !x.beginAt.IsZero() && !now.Before(x.beginAt) {
		m.beginDiagnosis(now)
	}
	if x.machine == nil {
		return
	}
	if !x.settled && now.Sub(x.began) >= settleFor {
		x.settled = true
		m.settleHeard()
	}
	if x.own.Sent < ownProbes && !now.Before(x.ownAt) {
		m.probeOwn(now)
	}
	m.stepDiagnosis(now, diagnosis.Tick{})
}

// beginDiagnosis begins the run of the latest order.
func (m *Machine) beginDiagnosis(now time.Time) {
	x := &m.diagnosis
	x.beginAt, x.began, x.own, x.ownHas, x.ownAt = time.Time{}, now, diagnosis.Test{}, 0, now
	x.run++
	x.settled = false
	cfg := diagnosis.Config{Sizes: m.probeSizes(), Rounds: int(x.order.GetRounds()), Run: m.runName()}
	for i, l := range m.links {
		if l != nil && x.order.GetLinks()>>i&1 == 1 {
			cfg.Links = append(cfg.Links, diagnosis.LinkConfig{Dir: l.dir, Knows: l.peer.Diagnosis, Able: l.session})
			x.before[i] = l.machine.Stats()
		}
	}
	if err := cfg.Validate(); err != nil { // this node has none of these links: the order may be of an older topology
		x.wake = time.Time{}
		x.refused = err.Error()
		if !x.quiet {
			m.sayRefused(1)
		}
		return
	}
	x.machine = diagnosis.New(cfg, now)
}

// settleHeard makes heardBy count from now on.
func (m *Machine) settleHeard() {
	for i, l := range m.links {
		if l != nil {
			is, before := l.machine.Stats(), &m.diagnosis.before[i]
			before.Received, before.Restarting = is.Received, is.Restarting
		}
	}
}

// heardBy returns the number of frames that the neighbour's half itself sent. The recovery daemon announces a half that
// is absent, so its announcements are no sign of life.
func heardBy(s torus.LinkStats) uint64 { return s.Received - s.Restarting }

// runName distinguishes this run's probes from late probes of other runs.
func (m *Machine) runName() uint64 {
	n := m.diagnosis.order.GetNumber()
	return max(1, n.GetTerm()<<20^n.GetCount()<<8^m.diagnosis.run^uint64(m.Epoch())<<40)
}

// probeSizes returns the sizes of a small frame, a medium one, and the largest that fits a link when wrapped.
func (m *Machine) probeSizes() []int {
	largest := torus.MaxPayload(m.cfg.MaxFrame) - 1 - diagnosis.Overhead
	return []int{64, min(512, largest), min(1200, largest)}
}

// probeOwn tests the mailbox of this node's host half.
func (m *Machine) probeOwn(now time.Time) {
	x := &m.diagnosis
	data := binary.BigEndian.AppendUint64(ownMark[:len(ownMark):len(ownMark)], m.runName())
	m.out.TestMail = append(m.out.TestMail, TestMail{Data: append(data, byte(x.own.Sent))})
	x.own.Sent++
	x.ownAt = now.Add(ownPace)
}

// onOwnEcho takes a probe that this node's host half sent back, and reports whether the data is such a probe.
func (m *Machine) onOwnEcho(data []byte) bool {
	x := &m.diagnosis
	rest, ok := bytes.CutPrefix(data, ownMark[:])
	if !ok {
		return false
	}
	if len(rest) == 9 && x.machine != nil && binary.BigEndian.Uint64(rest) == m.runName() {
		if bit := uint64(1) << (rest[8] & 63); uint32(rest[8]) < x.own.Sent && x.ownHas&bit == 0 {
			x.ownHas |= bit
			x.own.Answered++
		}
	}
	return true
}

// stepDiagnosis steps the run.
func (m *Machine) stepDiagnosis(now time.Time, ev diagnosis.Event) {
	x := &m.diagnosis
	if x.machine == nil {
		return
	}
	out := x.machine.Step(now, ev)
	x.wake = out.Wake
	for _, s := range out.Send {
		l := m.links[s.Dir.Index()]
		if l == nil || !l.session {
			continue
		}
		what := testAsks
		if s.Kind != diagnosis.DNP {
			what = testPass
		}
		m.sendTest(l, what, s.Data)
	}
	if out.Done {
		m.endDiagnosis(now)
	}
}

// endDiagnosis sends the findings.
func (m *Machine) endDiagnosis(now time.Time) {
	x := &m.diagnosis
	x.found = x.machine.Findings()
	x.machine, x.wake = nil, time.Time{}
	for i := range x.found {
		f := &x.found[i]
		is, was := m.links[f.Dir.Index()].machine.Stats(), x.before[f.Dir.Index()]
		f.Heard = uint32(heardBy(is) - heardBy(was))
		f.Missed = uint32(is.Lost - min(was.Lost, is.Lost)) // fewer, if frames that counted as lost arrived late
		f.Damaged = uint32(is.CRC - was.CRC)
	}
	for i := range x.found {
		if v := diagnosis.Judge(x.found[i], x.found); v != diagnosis.Good {
			m.note(NoteDiagnosis, "diagnosis: link %s: %s", x.found[i].Dir, v)
		}
	}
	m.maskDead(now)
	if !x.quiet {
		m.sayFindings(now, 1, 0)
	}
}

// examineAll begins a run on all links for the fault management procedure (§4.5.4), as if a supervisor had ordered a
// diagnosis with the same number. No supervisor waits for the findings of a procedure that a node began by itself, so a
// running diagnosis suffices.
func (m *Machine) examineAll(now time.Time) {
	x, of := &m.diagnosis, m.procedure.machine.Order()
	number, ordered := &lofamov1.OrderNumber{Term: of.Term, Count: of.Count}, of.Term != 0
	switch {
	case ordered && x.order != nil && same(number, x.order.GetNumber()): // it was done already
		return
	case !ordered && (x.machine != nil || !x.beginAt.IsZero()):
		return
	}
	x.order = &lofamov1.DiagnosisOrder{Number: number, Node: string(m.self), Links: 1<<grid.NumDirections - 1, Rounds: 1}
	if x.runs.Forget(); ordered { // findings without an order answer no order
		x.runs.Take(now, number)
	}
	x.machine, x.found, x.refused, x.say, x.quiet = nil, nil, "", 0, !ordered
	x.beginAt, x.wake = now, now
	m.tickDiagnosis(now)
}

// maskDead masks dead links by this node's own mask, and restores the links that work again, if configured to do so
// (§4.5.4). If no link answers, this half itself may be faulty, and nothing changes. A neighbour that is being
// restarted is not dead.
func (m *Machine) maskDead(now time.Time) {
	if !m.cfg.Procedure.MaskDead {
		return
	}
	x, own, answers := &m.diagnosis, m.mask.State.Own, false
	for i := range x.found {
		f := &x.found[i]
		v := diagnosis.Judge(*f, x.found)
		answers = answers || v != diagnosis.NothingAnswers
		switch v {
		case diagnosis.Good, diagnosis.Slow, diagnosis.HostSilent:
			own = own.With(f.Dir, true)
		case diagnosis.NothingAnswers:
			if m.inhibited() && !m.links[f.Dir.Index()].detail.Restarting {
				own = own.With(f.Dir, false)
			}
		default: // bad, but not dead
		}
	}
	if answers {
		m.setOwn(now, own)
	}
}

// sayFindings starts sending the findings, except for the links that are already known. It sends them one after the
// other, because a mailbox cannot hold all at once, together with those of a neighbour that has no other route
// (net.unix.max_dgram_qlen).
func (m *Machine) sayFindings(now time.Time, attempt int, known uint32) {
	x := &m.diagnosis
	x.say, x.sayAt, x.attempt = x.links()&^known, now, attempt
	m.sayNext(now)
}

// sayNext sends the findings for the next link when they are due.
func (m *Machine) sayNext(now time.Time) {
	x := &m.diagnosis
	if x.say == 0 || now.Before(x.sayAt) {
		return
	}
	next := bits.TrailingZeros32(x.say)
	x.say, x.sayAt = x.say&^(1<<next), now.Add(diagnosis.Pace)
	for i := range x.found {
		if f := &x.found[i]; f.Dir.Index() == next {
			m.sayFinding(x.attempt, &lofamov1.DiagnosisFindings{Links: x.links(), OwnHost: encodeTest(&x.own), Link: encodeFinding(f)})
		}
	}
}

// sayRefused sends up the reason why nothing was tested.
func (m *Machine) sayRefused(attempt int) {
	m.sayFinding(attempt, &lofamov1.DiagnosisFindings{Error: m.diagnosis.refused})
}

// links returns the links that were tested.
func (x *diagnosisState) links() (mask uint32) {
	for i := range x.found {
		mask |= 1 << x.found[i].Dir.Index()
	}
	return mask
}

func (m *Machine) sayFinding(attempt int, f *lofamov1.DiagnosisFindings) {
	f.Number, f.Node, f.Half, f.Epoch = m.diagnosis.order.GetNumber(), string(m.self), lofamov1.Half_HALF_DNP, uint64(m.Epoch())
	m.answerOrder(attempt, &lofamov1.Message{Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: f}})
}

func encodeFinding(f *diagnosis.Finding) *lofamov1.LinkFinding {
	return &lofamov1.LinkFinding{
		Direction: uint32(f.Dir), Dnp: encodeTest(&f.DNP), Host: encodeTest(&f.Host), Through: encodeTest(&f.Through),
		Heard: f.Heard, Missed: f.Missed, Damaged: f.Damaged,
	}
}

func encodeTest(t *diagnosis.Test) *lofamov1.DiagnosisTest {
	if t.Sent == 0 {
		return nil
	}
	return &lofamov1.DiagnosisTest{
		Sent: t.Sent, Answered: t.Answered, Altered: t.Altered, Late: t.Late,
		MinUs: uint32(t.Min.Microseconds()), MedianUs: uint32(t.Median.Microseconds()), MaxUs: uint32(t.Max.Microseconds()),
	}
}

// onPass forwards a neighbour's probe: to this node's host half, or through this half to the node behind it in the same
// dimension. It keeps no state, because the wrapper holds the route of the echo.
func (m *Machine) onPass(now time.Time, l *link, probe []byte) {
	kind, ok := diagnosis.KindOf(probe)
	if !ok || !m.selfTest.echoes[l.dir.Index()].take(now) {
		return
	}
	switch kind {
	case diagnosis.Host:
		if m.verdict != watchdog.Stale {
			m.out.TestMail = append(m.out.TestMail, TestMail{Data: diagnosis.Wrap(nil, kind, l.dir, probe)})
		}
	case diagnosis.Through:
		if on := m.links[l.dir.Opposite().Index()]; on != nil && on.session {
			m.sendTest(on, testAsks, diagnosis.Wrap(nil, kind, l.dir, probe))
		}
	default: // a DNP half answers that itself
	}
}

// onDiagnosisEcho takes a test frame that came back, of a run of this half or one that it forwarded. It reports whether
// the frame is either; otherwise it belongs to the self-test.
func (m *Machine) onDiagnosisEcho(now time.Time, l *link, data []byte) bool {
	if kind, back, probe, ok := diagnosis.Unwrap(data); ok {
		if to := m.links[back.Index()]; kind == diagnosis.Through && back == l.dir.Opposite() && to != nil && to.session &&
			m.selfTest.echoes[l.dir.Index()].take(now) {
			m.sendTest(to, testEcho, probe)
		}
		return true
	}
	if !diagnosis.IsProbe(data) {
		return false
	}
	m.stepDiagnosis(now, diagnosis.Answer{Dir: l.dir, Data: data})
	return true
}

// onDiagnosisMail takes a probe that this node's host half sent back, a neighbour's or this half's own. It reports
// whether the data is either; otherwise it belongs to the self-test.
func (m *Machine) onDiagnosisMail(data []byte) bool {
	if kind, back, probe, ok := diagnosis.Unwrap(data); ok {
		if to := m.links[back.Index()]; kind == diagnosis.Host && to != nil && to.session {
			m.sendTest(to, testEcho, probe)
		}
		return true
	}
	return m.onOwnEcho(data)
}
