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

// What digests say of the halves of a node is volatile, as what they say of deliveries. But of every recovery there is one
// event: a half that was dead for 50 ms has changed no state, or none that hold-off let through, and whoever looks later is
// to find it. What of a half's recoveries was told stands in the node's document, written in the same transaction, so that
// a later leader tells nothing twice and leaves nothing out.

// health is what was last said of one half of a node.
type health struct {
	said  []byte // a marshalled HalfHealth: of many nodes a tenth of the memory
	by    fault.ReportID
	at    time.Time // when it was said in whole
	heard time.Time // when that was last restated
	oldAt time.Time
}

// halfOf is the index of a half in what a node has of each.
func halfOf(h fault.Half) int { return int(h - fault.HalfHost) }

// noteHealth is with restateHealth the only writer of t.health. It says whether there is an event to commit.
func (t *term) noteHealth(now, arrived time.Time, d *fault.Delivery, said servicenet.Health) bool {
	id := d.Report.ID
	if !d.Report.Digest || !t.committed.Has(id.Origin.Node) {
		return false
	}
	changed := false
	for _, half := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		h := said.Of(half)
		if h == nil {
			continue
		}
		n := t.health[id.Origin.Node]
		was := &n[halfOf(half)]
		if was.by.Origin == id.Origin && (id.Epoch < was.by.Epoch || id.Epoch == was.by.Epoch && id.Seq < was.by.Seq) {
			continue // was long on its way
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
			continue // cannot be: it was read
		}
		*was = health{said: b, by: id, at: arrived, heard: arrived, oldAt: oldAt}
		t.health[id.Origin.Node] = n
		changed = t.noteRecovery(now, arrived, d, half, h.GetRecovery()) || changed
	}
	return changed
}

// addsNothing says whether what is said for want of room, state and number of restarts alone as by the torus, is less than
// what was said before and still holds: that stays, with the ages that it had.
func addsNothing(was health, h *lofamov1.HalfHealth) bool {
	if !h.GetCut() || len(h.GetTests()) > 0 || was.said == nil {
		return false
	}
	before := &lofamov1.HalfHealth{}
	if err := proto.Unmarshal(was.said, before); err != nil {
		return false
	}
	a, b := before.GetRecovery(), h.GetRecovery()
	return a.GetState() == b.GetState() && a.GetRestarts() == b.GetRestarts() && (b.GetCause() == "" || b.GetCause() == a.GetCause())
}

// outdated says whether what one half says of half is from before what the other one said: the words of two halves may overtake
// each other, and one may not have been told yet. What is old gives way to anything, for a machine that was booted counts anew.
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

// restateHealth notes that an origin says what it said.
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

// healthOf is what is known of the halves of a node, for readers.
func (t *term) healthOf(node fault.NodeID) (out [2]view.Health) {
	for i, h := range t.health[node] {
		if h.said == nil {
			continue
		}
		said := &lofamov1.HalfHealth{}
		if err := proto.Unmarshal(h.said, said); err == nil {
			out[i] = view.Health{Said: said, At: h.at, Heard: h.heard, OldAt: h.oldAt}
		}
	}
	return out
}

// told is what of one half's recoveries there are events of.
type told struct {
	restarts uint32
	givenUp  bool
}

// recoveries are those of the halves of a node.
type recoveries [2]told

// into puts what was told into a node's document.
func (r recoveries) into(doc *lofamov1.Node) {
	for i, at := range [...]**lofamov1.HalfHealth{&doc.HostHealth, &doc.DnpHealth} {
		if r[i] == (told{}) {
			continue
		}
		state := lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED
		if r[i].givenUp {
			state = lofamov1.RecoveryState_GIVEN_UP
		}
		*at = &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: state, Restarts: r[i].restarts}}
	}
}

// recoveriesOf is the inverse of into.
func recoveriesOf(doc *lofamov1.Node) (r recoveries) {
	for i, h := range [...]*lofamov1.HalfHealth{doc.GetHostHealth(), doc.GetDnpHealth()} {
		s := h.GetRecovery()
		r[i] = told{restarts: s.GetRestarts(), givenUp: s.GetState() == lofamov1.RecoveryState_GIVEN_UP}
	}
	return r
}

// recovered is a recovery of which there is to be an event.
type recovered struct {
	node   fault.NodeID
	half   fault.Half
	status *lofamov1.RecoveryStatus
	was    fault.State // that the half has
	since  uint32      // restarts since the last event; 0: none, it was given up, or started by hand after that
	path   fault.Path
	by     fault.Origin
	age    time.Duration // of the recovery, at the time of the change
}

// noteRecovery is the only writer of t.told. It says whether there is an event to commit: of restarts after which the half
// serves, and of its being given up. While a half is down there is nothing to tell yet that its states do not.
func (t *term) noteRecovery(now, arrived time.Time, d *fault.Delivery, half fault.Half, s *lofamov1.RecoveryStatus) bool {
	node := d.Report.ID.Origin.Node
	all := t.told[node]
	was := all[halfOf(half)]
	age := time.Duration(min(s.GetAgeNs(), uint64(servicenet.MaxAge))) + now.Sub(arrived)
	for _, h := range d.Hops {
		age += h.Held
	}
	is, since, tell := follow(was, s, s.GetAgeNs() > 0 && now.Add(-age).After(t.toldAt(node, half)))
	if is == was {
		return false
	}
	all[halfOf(half)] = is
	t.told[node] = all
	if !tell {
		return false // it is written when there is something to tell
	}
	at := t.toldLast[node]
	at[halfOf(half)] = now
	t.toldLast[node] = at
	t.touch(node)
	r := &recovered{node: node, half: half, status: s, was: fault.Unknown, since: since, path: d.Path, by: d.Report.ID.Origin, age: age}
	if st, ok := t.machine.Node(node); ok {
		for _, c := range st.Components {
			if c.Component == halfComponent(half) {
				r.was = c.State
			}
		}
	}
	t.change(timedChange{recovered: r, at: now})
	return true
}

// toldAt is when the last recovery of a half was told; earlier terms told theirs before this one began.
func (t *term) toldAt(node fault.NodeID, half fault.Half) time.Time {
	if at := t.toldLast[node][halfOf(half)]; !at.IsZero() {
		return at
	}
	return t.began
}

func halfComponent(h fault.Half) fault.Component {
	if h == fault.HalfHost {
		return fault.ComponentHost
	}
	return fault.ComponentDNP
}

// follow says what has been told once it is told what s says, how many restarts that are, and whether there is something
// to tell at all. A count may go back: the machine was booted, or its daemon was killed and had not been able to write. Then it
// is the new base; young says that at least the last restart came after what was told, and it alone is told.
func follow(was told, s *lofamov1.RecoveryStatus, young bool) (is told, since uint32, tell bool) {
	is = was
	if s.GetState() == lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED {
		return is, 0, false // nothing is said
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
		is.givenUp, is.restarts = true, s.GetRestarts() // they are told with it
	case lofamov1.RecoveryState_RUNNING:
		since = s.GetRestarts() - is.restarts
		tell = since > 0 || was.givenUp
		is.givenUp, is.restarts = false, s.GetRestarts()
	default: // under way
	}
	return is, since, tell
}

// words says it to people.
func (r *recovered) words() string {
	s := r.status
	if s.GetState() == lofamov1.RecoveryState_GIVEN_UP {
		if s.GetReason() == "" && s.GetCause() != "" { // there was no room for it
			return fmt.Sprintf("given up after %d restarts, the last cause: %s", s.GetRestarts(), s.GetCause())
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

// outcome is how it ended, as metrics have it.
func (r *recovered) outcome() string {
	if r.status.GetState() == lofamov1.RecoveryState_GIVEN_UP {
		return "given-up"
	}
	return "serving"
}

// event renders it, but for what it is late.
func (r *recovered) event(at time.Time, names *view.Names) *lofamov1.Event {
	ev := &lofamov1.Event{
		Kind: lofamov1.EventKind_RECOVERY_CHANGED, Node: string(r.node), Component: r.half.String(), From: lofamov1.State(r.was), To: lofamov1.State(r.was),
		Cause: lofamov1.Cause_NONE, Path: lofamov1.Path(r.path), Observer: r.by.String(), Reason: r.words(), Recovery: r.status,
		Time: timestamppb.New(at), Labels: names.Labels(r.node),
	}
	if at, ok := names.Coord(r.node); ok { // it may have left its place
		ev.Coord = at.String()
	}
	return ev
}
