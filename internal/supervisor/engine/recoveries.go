package engine

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// The status of a node's halves in digests is volatile, as is their delivery status. But every recovery becomes one
// event: a half that was down for 50 ms changed no state, or none that passed hold-off, and operators must still find
// it later. The recoveries already published as events are stored in the node's document, in the same transaction, so
// that a later leader neither repeats nor omits one.

// health is the last reported status of one half of a node.
type health struct {
	said  []byte // a marshalled HalfHealth, which takes a tenth of the memory
	by    fault.ReportID
	at    time.Time // when it was last reported in full
	heard time.Time // when it was last restated
	oldAt time.Time
}

// halfOf returns the index of a half in per-node arrays.
func halfOf(h fault.Half) int { return int(h - fault.HalfHost) }

// noteHealth is, with restateHealth, the only writer of t.health. It reports whether there is an event to commit.
func (t *term) noteHealth(now, arrived time.Time, d *fault.Delivery, said servicenet.Health) bool {
	id := d.Report.ID
	if !t.committed.Has(id.Origin.Node) {
		return false
	}
	if byDaemon(d, said) {
		changed := t.noteRecovery(now, arrived, d, fault.HalfHost, said.Host.GetRecovery())
		return t.noteRecovery(now, arrived, d, fault.HalfDNP, said.DNP.GetRecovery()) || changed
	}
	if !d.Report.Digest { // has nothing but the last words
		words, newest := said.Of(id.Origin.Half).GetLastWords(), t.wordsIn[id.Origin]
		if len(words) == 0 || id.Epoch < newest.Epoch || id.Epoch == newest.Epoch && id.Seq < newest.Seq { // delayed in transit
			return false
		}
		t.wordsIn[id.Origin] = id
		return t.noteLastWords(now, arrived, d, id.Origin.Half, words)
	}
	changed := t.noteWatchdog(now, d, said.Host)
	for _, half := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		h := said.Of(half)
		if h == nil {
			continue
		}
		n := t.health[id.Origin.Node]
		was := &n[halfOf(half)]
		if was.by.Origin == id.Origin && (id.Epoch < was.by.Epoch || id.Epoch == was.by.Epoch && id.Seq < was.by.Seq) {
			continue // delayed in transit
		}
		if outdated(*was, h, half, id.Origin, arrived) {
			continue
		}
		oldAt := arrived.Add(statusMisses * t.e.cfg.Awareness.DigestPeriod)
		if addsNothing(*was, h) {
			was.by, was.oldAt = id, oldAt
			t.health[id.Origin.Node] = n
			continue
		}
		b, err := proto.Marshal(h)
		if err != nil {
			continue // cannot happen: it was unmarshalled before
		}
		*was = health{said: b, by: id, at: arrived, heard: arrived, oldAt: oldAt}
		t.health[id.Origin.Node] = n
		changed = t.noteRecovery(now, arrived, d, half, h.GetRecovery()) || changed
		changed = t.noteLastBoot(now, d, half, h.GetLastBoot()) || changed
		changed = t.noteStarvation(now, d, half, h) || changed
		changed = t.noteLastWords(now, arrived, d, half, h.GetLastWords()) || changed
	}
	return changed
}

// byDaemon reports whether a node's recovery daemon has sent a report in place of the host half, which it has given up along with the DNP
// half. No half lives that could say so of itself.
func byDaemon(d *fault.Delivery, said servicenet.Health) bool {
	return !d.Report.Digest && d.Report.ID.Origin.Half == fault.HalfHost &&
		said.Host.GetRecovery().GetState() == lofamov1.RecoveryState_GIVEN_UP &&
		said.DNP.GetRecovery().GetState() == lofamov1.RecoveryState_GIVEN_UP
}

// addsNothing reports whether a status that was cut to fit, such as the torus's state and number of restarts, adds
// nothing to the stored one. The stored status then stays, with its ages.
func addsNothing(was health, h *lofamov1.HalfHealth) bool {
	if !h.GetCut() || len(h.GetTests()) > 0 || len(h.GetLastWords()) > 0 || was.said == nil {
		return false
	}
	before := &lofamov1.HalfHealth{}
	if err := proto.Unmarshal(was.said, before); err != nil {
		return false
	}
	a, b := before.GetRecovery(), h.GetRecovery()
	if p, q := before.GetProcessor(), h.GetProcessor(); p.GetStarved() != q.GetStarved() || p.GetBudgetLevel() != q.GetBudgetLevel() {
		return false
	}
	return a.GetState() == b.GetState() && a.GetRestarts() == b.GetRestarts() && (b.GetCause() == "" || b.GetCause() == a.GetCause())
}

// outdated reports whether one half's status of half is older than the other half's: their reports may overtake each
// other, and one half may learn of a change later. An expired status gives way to any new one, because a rebooted
// machine counts from zero.
func outdated(was health, h *lofamov1.HalfHealth, half fault.Half, by fault.Origin, arrived time.Time) bool {
	if was.said == nil || h.GetRecovery() == nil || was.by.Origin == by || !arrived.Before(was.oldAt) {
		return false
	}
	before := &lofamov1.HalfHealth{}
	if err := proto.Unmarshal(was.said, before); err != nil {
		return false
	}
	a, b := before.GetRecovery(), h.GetRecovery()
	if a.GetRestarts() != b.GetRestarts() {
		return b.GetRestarts() < a.GetRestarts()
	}
	underWay := b.GetState() == lofamov1.RecoveryState_STARTING || b.GetState() == lofamov1.RecoveryState_RESTARTING
	return was.by.Origin.Half == half && a.GetState() == lofamov1.RecoveryState_RUNNING && underWay
}

// restateHealth records that an origin restated its last status.
func (t *term) restateHealth(id fault.ReportID, arrived time.Time) {
	n, ok := t.health[id.Origin.Node]
	if !ok {
		return
	}
	for i := range n {
		if h := &n[i]; h.by.Origin == id.Origin && h.by.Epoch == id.Epoch {
			h.by, h.heard, h.oldAt = id, arrived, arrived.Add(statusMisses*t.e.cfg.Awareness.DigestPeriod)
		}
	}
	t.health[id.Origin.Node] = n
}

// healthOf returns the known status of a node's halves, for readers.
func (t *term) healthOf(node fault.NodeID) (out [2]view.Health) {
	for i, h := range t.health[node] {
		if h.said == nil {
			continue
		}
		said := &lofamov1.HalfHealth{}
		if err := proto.Unmarshal(h.said, said); err == nil {
			said.LastWords = nil // of other machines
			out[i] = view.Health{Said: said, At: h.at, Heard: h.heard, OldAt: h.oldAt}
		}
	}
	host := t.reported[node][0]
	if out[0].Said == nil && (host.words.GetLine() != "" || host.boot != nil) { // the node has sent nothing since this leader took over
		out[0] = view.Health{Said: &lofamov1.HalfHealth{}, At: t.began, Heard: t.began, OldAt: t.began}
	}
	if host.words.GetLine() != "" {
		out[0].Said.LastWords = []*lofamov1.LastWords{host.words}
	}
	said := out[0].Said.GetLastBoot()
	// The newest digest may have no room for it, or its half has just started.
	if host.boot != nil && (said == nil || said.GetBoot() == host.boot.GetBoot() && said.GetDetail() == "") {
		out[0].Said.LastBoot = host.boot
	}
	return out
}

// publishedHalf is the part of one half's health that was published as events.
type publishedHalf struct {
	restarts uint32
	givenUp  bool
	starved  bool
	boot     *lofamov1.LastBoot         // immutable
	watchdog *lofamov1.HardwareWatchdog // the host half's newest statement; immutable
	// words are the last words of the node's kernel, of the host half only; immutable. Without a line they are over: the machine
	// has booted since.
	words *lofamov1.LastWords
	// repeatedAt is when the DNP half repeated the statement of the boot before the host half made it; zero: the host half was first.
	repeatedAt time.Time
	wordsAt    time.Time // when this leader took them, or began if an earlier one did
}

// recoveries holds the published recoveries and starvations of a node's halves.
type recoveries [2]publishedHalf

// into stores the published recoveries in a node's document.
func (r recoveries) into(doc *lofamov1.Node) {
	for i, at := range [...]**lofamov1.HalfHealth{&doc.HostHealth, &doc.DnpHealth} {
		if r[i] == (publishedHalf{}) {
			continue
		}
		state := lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED
		if r[i].givenUp {
			state = lofamov1.RecoveryState_GIVEN_UP
		}
		*at = &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: state, Restarts: r[i].restarts}}
		(*at).LastBoot, (*at).HardwareWatchdog = r[i].boot, r[i].watchdog
		if r[i].words != nil {
			(*at).LastWords = []*lofamov1.LastWords{r[i].words}
		}
		if r[i].starved {
			(*at).Processor = &lofamov1.ProcessorTime{Starved: true}
		}
	}
}

// recoveriesOf is the inverse of into.
func recoveriesOf(doc *lofamov1.Node) (r recoveries) {
	for i, h := range [...]*lofamov1.HalfHealth{doc.GetHostHealth(), doc.GetDnpHealth()} {
		s := h.GetRecovery()
		r[i] = publishedHalf{restarts: s.GetRestarts(), givenUp: s.GetState() == lofamov1.RecoveryState_GIVEN_UP,
			starved: h.GetProcessor().GetStarved(), boot: h.GetLastBoot(), watchdog: h.GetHardwareWatchdog()}
		if w := h.GetLastWords(); len(w) > 0 {
			r[i].words = w[0]
		}
	}
	return r
}

// recovered is a recovery that needs an event.
type recovered struct {
	node   fault.NodeID
	half   fault.Half
	status *lofamov1.RecoveryStatus
	was    fault.State // the present state of the half
	since  uint32      // restarts since the last event; 0: given up, or started by hand after that
	path   fault.Path
	by     fault.Origin
	age    time.Duration // of the recovery, at the time of the change
	// boot makes the event one about the end of the machine's last boot; nil: it is about the half.
	boot *lofamov1.LastBoot
	// last makes the event one about the last words of the machine's kernel.
	last *lofamov1.LastWords
}

// told reports whether the event repeats text for people, and is about no restart.
func (r *recovered) told() bool { return r.boot != nil || r.last != nil }

// noteRecovery is the only writer of t.reported. It reports whether there is an event to commit: for restarts after which
// the half serves, and for giving the half up. While a half is down, its state changes say enough.
func (t *term) noteRecovery(now, arrived time.Time, d *fault.Delivery, half fault.Half, s *lofamov1.RecoveryStatus) bool {
	node := d.Report.ID.Origin.Node
	all := t.reported[node]
	was := all[halfOf(half)]
	age := time.Duration(min(s.GetAgeNs(), uint64(servicenet.MaxAge))) + onTheWay(now, arrived, d)
	is, since, tell := follow(was, s, s.GetAgeNs() > 0 && now.Add(-age).After(t.publishedAt(node, half)))
	if is == was {
		return false
	}
	all[halfOf(half)] = is
	t.reported[node] = all
	if !tell {
		return false // stored with the next event
	}
	at := t.publishedLast[node]
	at[halfOf(half)] = now
	t.publishedLast[node] = at
	t.touch(node)
	r := &recovered{node: node, half: half, status: s, was: t.halfState(node, half), since: since, path: d.Path, by: d.Report.ID.Origin,
		age: age}
	t.change(timedChange{recovered: r, at: now})
	return true
}

// onTheWay returns the time that a report has spent at relays and replicas.
func onTheWay(now, arrived time.Time, d *fault.Delivery) time.Duration {
	held := now.Sub(arrived)
	for _, h := range d.Hops {
		held += h.Held
	}
	return held
}

// publishedAt returns the time of the last recovery event of a half. Events of earlier terms precede this term.
func (t *term) publishedAt(node fault.NodeID, half fault.Half) time.Time {
	if at := t.publishedLast[node][halfOf(half)]; !at.IsZero() {
		return at
	}
	return t.began
}

// follow returns the published state after s, the number of new restarts, and whether to publish an event. A count
// may decrease: the machine was rebooted, or its daemon was killed before it could write. The new count is then the
// base. If young is true, the last restart came after the last event, and follow publishes that restart alone.
func follow(was publishedHalf, s *lofamov1.RecoveryStatus, young bool) (is publishedHalf, since uint32, tell bool) {
	is = was
	if s.GetState() == lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED {
		return is, 0, false // no status
	}
	if n := s.GetRestarts(); n < was.restarts {
		is.restarts = n
		if young && n > 0 {
			is.restarts--
		}
	}
	switch s.GetState() {
	case lofamov1.RecoveryState_GIVEN_UP:
		tell = !was.givenUp
		is.givenUp, is.restarts = true, s.GetRestarts() // the given-up event covers the restarts
	case lofamov1.RecoveryState_RUNNING:
		since = s.GetRestarts() - is.restarts
		tell = since > 0 || was.givenUp
		is.givenUp, is.restarts = false, s.GetRestarts()
	default: // in progress
	}
	return is, since, tell
}

// words describes the recovery for people.
func (r *recovered) words() string {
	s := r.status
	if r.boot != nil {
		return servicenet.LastBootWords(r.boot)
	}
	if r.last != nil {
		return servicenet.LastWordsText(r.last)
	}
	if s.GetState() == lofamov1.RecoveryState_GIVEN_UP {
		if s.GetReason() == "" && s.GetCause() != "" { // the reason did not fit
			return fmt.Sprintf("given up after %s, the last cause: %s", fault.Plural(s.GetRestarts(), "restart"), s.GetCause())
		}
		return "given up" + behind(": ", s.GetReason())
	}
	var b strings.Builder
	switch r.since {
	case 0:
		b.WriteString("started again after it was given up")
	case 1:
		b.WriteString("restarted")
	default:
		fmt.Fprintf(&b, "restarted %d times since this was last told, the last time", r.since)
	}
	if r.since > 0 && s.GetCause() != "" {
		b.WriteString(" (" + s.GetCause() + ")")
	}
	if us := s.GetServingUs(); us > 0 && r.since > 0 {
		b.WriteString(": serving again after " + microseconds(us))
		if s.GetProvenUs() > 0 {
			b.WriteString(", self-test passed after " + microseconds(s.GetProvenUs()))
		}
	}
	switch s.GetResumption() {
	case lofamov1.Resumption_RESUMED:
		b.WriteString("; it went on where it was")
	case lofamov1.Resumption_COLD:
		b.WriteString("; it began cold" + behind(", its copy: ", s.GetCold()))
	default:
	}
	return b.String()
}

func behind(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

func microseconds(us uint32) string {
	d := time.Duration(us) * time.Microsecond
	if d >= time.Millisecond {
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// outcome returns the outcome as a metric label.
func (r *recovered) outcome() string {
	if r.status.GetState() == lofamov1.RecoveryState_GIVEN_UP {
		return "given-up"
	}
	return "serving"
}

// event renders the event, without its awareness latency.
func (r *recovered) event(at time.Time, names *view.Names) *lofamov1.Event {
	ev := &lofamov1.Event{
		Kind: lofamov1.EventKind_RECOVERY_CHANGED, Node: string(r.node), Component: r.half.String(), From: lofamov1.State(r.was),
		To:    lofamov1.State(r.was),
		Cause: lofamov1.Cause_NONE, Path: lofamov1.Path(r.path), Observer: r.by.String(), Reason: r.words(), Recovery: r.status,
		Time: timestamppb.New(at), Labels: names.Labels(r.node),
	}
	if at, ok := names.Coord(r.node); ok { // the node may have left its place
		ev.Coord = at.String()
	}
	return ev
}
