package response

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// block is the reason why an action is not allowed now; without a reason it is allowed. Until is when to look again, if
// time alone opens the gate.
type block struct {
	reason Reason
	detail string
	until  time.Time
	quiet  bool // undecided yet: neither audited nor committed
}

// UntilLayout is the format of the time after "until" in the detail of a response that waits.
const UntilLayout = "2006-01-02 15:04:05 UTC"

// timed reports whether it is known when the wait ends at the latest.
func (b block) timed() bool {
	switch b.reason {
	case ReasonGrace, ReasonStormDelay, ReasonApproval, ReasonCooldown, ReasonRestarting, ReasonEscalationWait, ReasonRetryWait,
		ReasonRecoveryWait, ReasonUnseen, ReasonNotFenced:
		return !b.until.IsZero()
	default:
		return false // another event opens the gate, or the time moves: with the rate limit, each step that begins moves it
	}
}

// text returns the detail for people, including the latest end of the wait if it is known.
func (b block) text() string {
	if !b.timed() {
		return b.detail
	}
	until := "until " + b.until.UTC().Format(UntilLayout)
	if b.detail == "" {
		return until
	}
	return b.detail + ", " + until
}

func (e *Engine) graceEnds() time.Time { return e.led.Add(e.cfg.Grace) }

func (e *Engine) inGrace() bool { return e.now.Before(e.graceEnds()) }

// policyOf returns the policy of a response, if it is still the version that proposed the response.
func (e *Engine) policyOf(r *Response) *Policy {
	if p := e.byName[r.Policy]; p != nil && p.Digest == r.Digest {
		return p
	}
	return nil
}

// gate returns the reason why a step may not begin, or be repeated, at this moment. Gates that time does not open come
// first. The gate for approval by people follows only if these are open. Gates for scarce capacity come last.
func (e *Engine) gate(r *Response, s *StepRecord) block {
	for _, g := range [...]func(*Response, *StepRecord) block{
		e.gateStart, e.gateMatch, e.gateOutside, e.gateBreaker, e.gateNode, e.gateYoung, e.gateApproval, e.gateCooldown, e.gateAge,
		e.gateWitnesses, e.gateRestart, e.gateLife, e.gateFence, e.gateEpoch, e.gateQuorum, e.gateCaps, e.gateRate,
	} {
		if b := g(r, s); b.reason != 0 {
			return b
		}
	}
	return block{}
}

// notifies reports whether the step takes nothing from a node.
func notifies(s *StepRecord) bool { return s.Kind.Traits().Class == Notify }

func (e *Engine) gateStart(*Response, *StepRecord) block {
	if e.inGrace() {
		return block{reason: ReasonGrace, until: e.graceEnds()}
	}
	return block{}
}

// gatePolicy requires that the policy is still in force. A policy that this version cannot read may still be.
func (e *Engine) gatePolicy(r *Response) block {
	switch {
	case e.policyOf(r) != nil:
		return block{}
	case e.unread[r.Policy]:
		return block{reason: ReasonMatchError, detail: "this leader cannot read the policy"}
	default:
		return block{reason: ReasonPolicyChanged}
	}
}

// gateMatch requires that the policy is still in force, and still matches the fault.
func (e *Engine) gateMatch(r *Response, _ *StepRecord) block {
	if b := e.gatePolicy(r); b.reason != 0 {
		return b
	}
	p := e.policyOf(r)
	s, ok := e.subject(r.Target)
	if !ok {
		return block{reason: ReasonUnmatched}
	}
	c, state := s.state()
	if !bad(state) || !p.Match.May(c, state) {
		return block{reason: ReasonUnmatched, detail: state.String()}
	}
	match, err := p.Match.Match(&s)
	switch {
	case err != nil:
		return block{reason: ReasonMatchError, detail: err.Error()}
	case !match:
		return block{reason: ReasonUnmatched, detail: state.String()}
	}
	return block{}
}

func (e *Engine) gateBreaker(_ *Response, s *StepRecord) block {
	if e.breaker.Open && !notifies(s) {
		return block{reason: ReasonBreaker, detail: e.breaker.Detail}
	}
	return block{}
}

// gateNode requires that the node is known and managed, and neither in maintenance nor opted out. A notification of people needs none of
// that.
func (e *Engine) gateNode(r *Response, s *StepRecord) block {
	p, known := e.cluster.nodes[r.Target.Node]
	switch {
	case !e.cluster.managed(r.Target.Node) && (!notifies(s) || s.Kind.Traits().Object):
		return block{reason: ReasonNotManaged, detail: Unmanaged(r.Target.Node)}
	case notifies(s):
		return block{}
	case !known:
		return block{reason: ReasonUnknownNode}
	case e.marked[r.Target.Node]:
		return block{reason: ReasonMaintenance}
	case p.Labels[e.cfg.OptOutLabel] == "true":
		return block{reason: ReasonOptOut, detail: e.cfg.OptOutLabel}
	}
	return block{}
}

// Unmanaged returns the reason why executors leave a node alone, and the command that changes that.
func Unmanaged(id fault.NodeID) string {
	return fmt.Sprintf("the node chose its name, and nobody has confirmed it: if it is right, run 'lofamoctl label %s %s=true'", id,
		fault.ManagedLabel)
}

// gateYoung delays steps, so that a storm can become visible first.
func (e *Engine) gateYoung(r *Response, s *StepRecord) block {
	if at := e.world.since[r.Target].Add(e.cfg.StormDelay); !notifies(s) && at.After(e.now) {
		return block{reason: ReasonStormDelay, until: at}
	}
	return block{}
}

// approvals returns the number of subjects that must approve a response.
func (e *Engine) approvals(r *Response) int {
	if r.destroys() {
		return max(r.Guards.Approvals, e.cfg.Approvals)
	}
	return r.Guards.Approvals
}

// gateApproval requires approval before the first step that is more than a notification, once per response.
func (e *Engine) gateApproval(r *Response, s *StepRecord) block {
	need := e.approvals(r)
	if notifies(s) || r.Mode == ObserveOnly || len(r.Approvals) >= need {
		return block{}
	}
	if r.Asked.IsZero() {
		r.Asked = e.now // committed together with the state Waiting
	}
	until := e.approvalEnds(r)
	if !until.After(e.now) {
		return block{reason: ReasonNotApproved, detail: fmt.Sprintf("%d of %d approvals within %s", len(r.Approvals), need, e.cfg.ApprovalTime)}
	}
	return block{reason: ReasonApproval, detail: approved(len(r.Approvals), need), until: until}
}

// approvalEnds returns when a response that waits for approvals expires.
func (e *Engine) approvalEnds(r *Response) time.Time {
	return e.sinceLed(r.Asked).Add(e.cfg.ApprovalTime)
}

// approved formats the number of approvals and the number required.
func approved(have, need int) string { return fmt.Sprintf("%d of %d", have, need) }

// gateCooldown separates responses on one node. A response that has begun continues.
func (e *Engine) gateCooldown(r *Response, s *StepRecord) block {
	var until time.Time
	after := func(policy string, d time.Duration) {
		if at, ok := e.rest[restKey{r.Target.Node, policy}]; ok {
			until = fault.Later(until, at.Add(d))
		}
	}
	if !r.begun() {
		after(r.Policy, r.Guards.Cooldown)
	}
	if !notifies(s) && !r.acted() {
		after("", e.cfg.Cooldown)
	}
	if until.After(e.now) {
		return block{reason: ReasonCooldown, detail: "the node had a response shortly before", until: until}
	}
	return block{}
}

// evidence returns the evidence for the fault of a target.
func (e *Engine) evidence(t Target) Evidence {
	if g, ok := e.world.groups[t.Group]; ok {
		return Evidence{At: g.At}
	}
	return e.world.faults[t].Evidence
}

// gateAge blocks a step whose evidence is too old, and requests newer evidence. A step that may end work needs evidence
// of this very moment, except for the accused's own: the accused may have reported since.
func (e *Engine) gateAge(r *Response, s *StepRecord) block {
	limit := e.cfg.MaxEvidenceAge
	if r.Guards.MaxEvidenceAge > 0 {
		limit = min(limit, r.Guards.MaxEvidenceAge)
	}
	ev := e.evidence(r.Target)
	if !ev.At.IsZero() && e.now.Sub(ev.At) <= limit && !e.outdated(r.Target, s, ev) {
		delete(e.look, r.ID)
		return block{}
	}
	l, most := e.look[r.ID], min(lookQuiet, e.cfg.LookAgain)
	if !l.at.Add(l.wait).After(e.now) {
		l = look{at: e.now, wait: min(max(2*l.wait, lookFirst), e.cfg.LookAgain), overdue: l.wait >= most}
		e.look[r.ID] = l
		e.out.Look = append(e.out.Look, r.Target)
	}
	// Nothing is decided until the answer arrives or is overdue, nor while the deciding evidence may be only a moment
	// behind.
	quiet := !l.overdue && (!l.answered || l.wait < most) && r.Reason != ReasonEvidenceAge
	return block{reason: ReasonEvidenceAge, detail: fmt.Sprintf("more than %s", limit), until: l.at.Add(l.wait), quiet: quiet}
}

// lookLife is the maximum age of the evidence that shows the accused silent.
const lookLife = time.Second

// outdated reports whether the accused of a step that may end work could have reported since the evidence was gathered.
func (e *Engine) outdated(t Target, s *StepRecord, ev Evidence) bool {
	return s.Kind.Traits().Class >= Destroy && !ev.Own && t.Group == "" && e.now.Sub(e.world.gathered[t]) > min(lookLife, e.cfg.MaxEvidenceAge)
}

// The source of evidence may be a moment ahead of the committed map, or behind it: a change arrives by the store's
// watch, and the answer to its commit by another path. So the engine repeats its request after lookFirst at the latest,
// and then less and less often. Until the pause has grown to lookQuiet, it neither audits nor commits the wait.
const (
	lookFirst = 2 * time.Millisecond
	lookQuiet = 128 * time.Millisecond
)

// gateWitnesses blocks a step that takes capacity away or ends work on the word of one witness or of one failure
// domain. The accused is the best witness of its own measurements, if it signed them. A missing answer needs two
// witnesses, and the supervisors' unanswered challenge may be one. The other half of the node is a witness in any rack.
// Required outside conditions are one witness beside neighbours, for steps that end no work (vouched).
func (e *Engine) gateWitnesses(r *Response, s *StepRecord) block {
	if notifies(s) {
		return block{}
	}
	ev := e.evidence(r.Target)
	nodes, own, all := e.cluster.witnesses(ev, r.Target.Node)
	vouched := s.Kind.Traits().Class == Reduce && len(nodes) > 0 && e.vouched(r)
	if ev.SingleWitness && !vouched {
		return block{reason: ReasonSingleWitness, detail: "the verdict is marked so"}
	}
	if _, link := r.Target.Component.LinkDirection(); link {
		return gateLink(s, own && ev.Port)
	}
	if own && ev.Own {
		return block{}
	}
	if vouched { // by a program on the node itself: that is one more witness, in the failure domains of the node
		nodes, all = append(slices.Clone(nodes), r.Target.Node), all+1
	}
	if all < 2 {
		return block{reason: ReasonSingleWitness, detail: fmt.Sprintf("%d witnesses, want 2", all)}
	}
	if domain, shared := e.cluster.shared(nodes); shared && !own {
		return block{reason: ReasonSingleDomain, detail: domain}
	}
	return block{}
}

// gateLink refuses steps that act on a whole node for the fault of one link: either end can cause it, and both then
// measure it. A mask takes only that link out of use, so the statement of the masked end suffices.
func gateLink(s *StepRecord, measured bool) block {
	switch {
	case s.Kind != NodeMaskChannel:
		return block{reason: ReasonSingleWitness, detail: "either end may cause the fault of one link"}
	case !measured:
		return block{reason: ReasonSingleWitness, detail: "the node itself does not measure it"}
	default:
		return block{}
	}
}

// gateRestart blocks a step that may end the work of a node that restarts one of its halves, as it announced.
func (e *Engine) gateRestart(r *Response, s *StepRecord) block {
	if s.Kind.Traits().Class < Destroy || r.Target.Group != "" {
		return block{}
	}
	if at := e.evidence(r.Target).Restarting; at.After(e.now) {
		return block{reason: ReasonRestarting, until: at}
	}
	return block{}
}

// gateLife blocks a step that may end the work of a node that still signs fresh reports, unless these reports state the
// fault itself.
func (e *Engine) gateLife(r *Response, s *StepRecord) block {
	if s.Kind.Traits().Class < Destroy || r.Target.Group != "" {
		return block{}
	}
	if at, alive := e.evidence(r.Target).Alive(e.now, e.cfg.Silence); alive {
		return block{reason: ReasonAlive, until: at}
	}
	return block{}
}

// Alive reports whether the accused has signed anything within the given time before now, and until when that blocks a
// step that may end its work. A report in which the accused itself states the fault does not count.
func (ev Evidence) Alive(now time.Time, within time.Duration) (until time.Time, alive bool) {
	until = ev.Life.Add(within)
	return until, !ev.Own && !ev.Life.IsZero() && until.After(now)
}

// witnesses returns the other managed nodes among the witnesses, whether the node itself is one, and how many there are: a node
// counts once, and so do all supervisors together.
func (c *cluster) witnesses(ev Evidence, accused fault.NodeID) (nodes []fault.NodeID, own bool, all int) {
	seen := map[fault.NodeID]bool{}
	for _, w := range ev.Witnesses {
		who := c.witness(w)
		if seen[who] || !c.managed(who) {
			continue
		}
		seen[who] = true
		switch who {
		case "": // the supervisors
		case accused:
			own = true
		default:
			nodes = append(nodes, who)
		}
	}
	return nodes, own, len(seen)
}

// witness returns the node of a witness "node/half", and "" for "supervisor/ID". A node may be called supervisor.
func (c *cluster) witness(name string) fault.NodeID {
	who, of, _ := strings.Cut(name, "/")
	if who != "supervisor" {
		return fault.NodeID(who)
	}
	if _, err := fault.ParseHalf(of); err != nil {
		return ""
	}
	return c.nodes["supervisor"].ID // "" without such a node: the supervisor is called like a half
}

// gateEpoch refuses a step that only a boot epoch can settle if no earlier epoch is known for comparison.
func (e *Engine) gateEpoch(r *Response, s *StepRecord) block {
	if s.Kind.Traits().BootSettles && e.epochs[r.Target.Node] == 0 {
		return block{reason: ReasonNoEpoch}
	}
	return block{}
}

// gateQuorum requires that a majority of the supervisors remains without this node and all nodes that are dead or under
// response.
func (e *Engine) gateQuorum(r *Response, s *StepRecord) block {
	if notifies(s) {
		return block{}
	}
	if len(e.quorum) == 0 {
		return block{reason: ReasonQuorum, detail: "it is not known where the supervisors are"}
	}
	lost, here, unknown := 0, false, 0
	for _, sup := range e.quorum {
		on := sup.Node != "" && sup.Node == r.Target.Node
		here = here || on
		switch {
		case on || !sup.Alive || sup.Node != "" && (e.held[sup.Node] || e.dead(sup.Node)):
			lost++
		case sup.Unknown:
			unknown++
		}
	}
	may := canLose(len(e.quorum))
	if here && lost > may {
		return block{reason: ReasonQuorum, detail: fmt.Sprintf("%d of %d supervisors would be lost, want at most %d", lost, len(e.quorum), may)}
	}
	// Each supervisor with an unknown location may run on this node, or on a node under response.
	nodes := len(e.held)
	if !e.held[r.Target.Node] {
		nodes++
	}
	if could := min(unknown, nodes); could > 0 && lost+could > may {
		return block{reason: ReasonQuorum, detail: fmt.Sprintf("%d of %d supervisors could be lost, want at most %d: of %d it is not known on "+
			"which nodes they run", lost+could, len(e.quorum), may, unknown)}
	}
	return block{}
}

// dead reports whether programs on a node cannot be relied on.
func (e *Engine) dead(id fault.NodeID) bool {
	for _, c := range [...]fault.Component{fault.ComponentNode, fault.ComponentHost} {
		if s := e.world.faults[Target{Node: id, Component: c}].State; s == fault.Failed || s == fault.Unknown {
			return true
		}
	}
	return false
}

// gateCaps limits the nodes under response. A node that already is under response does not count again.
func (e *Engine) gateCaps(r *Response, s *StepRecord) block {
	id := r.Target.Node
	if notifies(s) {
		return block{}
	}
	if most := r.Guards.MaxNodes; most > 0 && !r.holds() && e.heldBy(r.Policy, id) >= most {
		return block{reason: ReasonMaxPolicy, detail: fmt.Sprintf("%d", most)}
	}
	if e.held[id] {
		return block{}
	}
	p := e.cluster.nodes[id]
	n, share := len(e.held), percentOf(e.cfg.MaxPercent, e.cluster.inUse)
	switch {
	case n >= e.cfg.MaxNodes:
		return block{reason: ReasonMaxNodes, detail: fmt.Sprintf("%d", n)}
	case n >= share: // in a small cluster one node, which the percentage alone would not tell
		are := "is"
		if n > 1 {
			are = "are"
		}
		return block{reason: ReasonMaxPercent, detail: fmt.Sprintf("%d of %d %s under response, and %d%% allow %d: waits for the undo there, or "+
			"for a larger responses.maxPercent", n, e.cluster.inUse, are, e.cfg.MaxPercent, share)}
	}
	for k, v := range p.values {
		if v > 0 && e.byValue[k][v] >= e.cfg.MaxPerDomain {
			return block{reason: ReasonMaxPerDomain, detail: fmt.Sprintf("%d in %s=%s", e.byValue[k][v], e.cluster.keys[k], e.cluster.names[k][v])}
		}
	}
	for axis := range e.byPlane {
		at := plane(p.Coord, axis)
		if n := e.byPlane[axis][at]; !p.Spare && n >= e.cfg.MaxPerPlane {
			return block{reason: ReasonMaxPerPlane, detail: fmt.Sprintf("%d in %c=%d", n, "XYZ"[axis], at)}
		}
	}
	return block{}
}

// heldBy returns how many other nodes the responses of the policy hold.
func (e *Engine) heldBy(policy string, but fault.NodeID) int {
	n := 0
	for id := range e.held {
		if id == but {
			continue
		}
		for _, r := range e.ofNode(id) {
			if r.Policy == policy && r.holds() {
				n++
				break
			}
		}
	}
	return n
}

// window returns the rate window for steps of a kind.
func (e *Engine) window(k Kind) *window {
	if k.Traits().Class == Notify {
		return &e.starts[1]
	}
	return &e.starts[0]
}

// began counts a step for the rate limits at its First. A First in the future counts as now: see bury.
func (e *Engine) began(s *StepRecord) {
	if !s.Kind.Traits().Always {
		w := e.window(s.Kind)
		*w = append(*w, fault.Earlier(s.First, e.now))
	}
}

// gateRate limits the steps that begin within a time. The retries of a step limit its repetitions.
func (e *Engine) gateRate(_ *Response, s *StepRecord) block {
	if !s.First.IsZero() || s.Kind.Traits().Always {
		return block{}
	}
	limit := e.cfg.Rate
	if notifies(s) {
		limit = e.cfg.NotifyRate
	}
	if ok, at := e.window(s.Kind).room(e.now, limit, e.cfg.RateWindow); !ok {
		return block{reason: ReasonRate, detail: fmt.Sprintf("%d within %s", limit, e.cfg.RateWindow), until: at}
	}
	return block{}
}
