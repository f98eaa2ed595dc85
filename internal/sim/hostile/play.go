package hostile

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Promise is a property that must hold against any liars.
type Promise uint8

// The promises.
const (
	// Spared: one liar causes no step that takes capacity away or ends work on a healthy reachable node.
	Spared Promise = iota + 1
	// Alive: fewer liars than the quorum make no healthy node, host or DNP FAILED.
	Alive
	// Well: one liar makes no healthy node SICK while no honest message is lost.
	Well
	// Shut: one liar does not open the circuit breaker.
	Shut
	// Wedged is the promise that nothing wedges: timers, challenges and open responses stay bounded, and the map shows
	// the truth at most ReturnBound after the last lie.
	Wedged
	// Held: a restart notice concerns only the node that signed it, for at most fault.MaxRestart. An honest node that
	// is back from a planned restart is not held any longer, whatever liars replay.
	Held
	// Patient: fewer liars than the quorum shorten no wait for an answer. Only the node's own kernel does, and only if
	// honest neighbours' frames come back too.
	Patient
	numPromises
)

var promiseNames = [...]string{"", "spared", "alive", "well", "shut", "wedged", "held", "patient"}

// String returns a short name.
func (p Promise) String() string {
	if p == 0 || p >= numPromises {
		return fmt.Sprintf("Promise(%d)", uint8(p))
	}
	return promiseNames[p]
}

// Outcome is the result of a sequence.
type Outcome struct {
	Broken  string // how a promise was broken; empty: none was
	Promise Promise

	Events, Wakes, Challenges, Refused int
	Notices                            int // restart notices of liars
	Hints                              int // false hints that processes have ended
	Waits                              int // verdicts on nodes that had the whole time to answer
	Absent                             int // statements of liars that a part is absent
	Failed                             int // FAILED verdicts on any node
	Notified, Reduced, Destroyed       int // steps begun on any node
	// LinkSteps counts masks of an honest node's link to a liar. The liar's end caused the fault, and the honest end
	// measured it.
	LinkSteps int
	Returned  time.Duration // time from the last lie until the map showed the truth
}

// violate records the first violation of a promise.
func (w *world) violate(p Promise, format string, args ...any) {
	if w.out.Broken == "" {
		w.out.Promise, w.out.Broken = p, fmt.Sprintf(format, args...)
	}
}

// Player plays sequences. The zero Player is not ready: see NewPlayer.
type Player struct {
	shipped []*response.Policy // in mode enforce, without approvals
	plants  Plants
}

// NewPlayer returns a player. plants are faults that a test plants; the zero value plants none.
func NewPlayer(plants Plants) (*Player, error) {
	docs, err := policy.Default()
	if err != nil {
		return nil, err
	}
	p := &Player{plants: plants}
	for _, one := range policy.Policies(docs) {
		enforced := *one
		enforced.Mode, enforced.Guards.Approvals = response.Enforce, 0
		p.shipped = append(p.shipped, &enforced)
	}
	return p, nil
}

// Play plays a sequence. It returns an error if the sequence is invalid.
func (p *Player) Play(s Sequence) (Outcome, error) {
	if err := s.check(); err != nil {
		return Outcome{}, err
	}
	pols, err := p.policies(&s)
	if err != nil {
		return Outcome{}, err
	}
	w, err := newWorld(&s, &p.plants, pols)
	if err != nil {
		return Outcome{}, err
	}
	w.limits = limits()
	if p.plants.Limits != nil {
		p.plants.Limits(&w.limits)
	}
	w.start()
	w.run(w.begun)
	if err := w.lead(w.now.Add(-w.limits.Grace)); err != nil {
		return Outcome{}, err
	}
	w.lies = true
	if s.Dead >= 0 {
		w.die(s.Dead)
	}
	for _, a := range s.Actions {
		w.at(w.begun.Add(a.At), func() { w.act(a) })
	}
	end := w.begun.Add(digestPeriod)
	if n := len(s.Actions); n > 0 {
		end = end.Add(s.Actions[n-1].At)
	}
	w.run(end)
	w.repent()
	w.returns()
	w.judgeNotices()
	return w.out, nil
}

// check returns an error that names the invalid part of a sequence.
func (s *Sequence) check() error {
	if err := s.Dims.Validate(); err != nil {
		return err
	}
	n := s.Dims.Nodes()
	for _, l := range s.Liars {
		if l < 0 || l >= n || l == s.Dead {
			return fmt.Errorf("liars: given %d: want 0 to %d, and not the dead node", l, n-1)
		}
	}
	for i, a := range s.Actions {
		switch {
		case a.Node < 0 || a.Node >= n || a.About < 0 || a.About >= n:
			return fmt.Errorf("action %d: given nodes %d and %d: want 0 to %d", i, a.Node, a.About, n-1)
		case a.Do == Lose && s.liar(a.About):
			return fmt.Errorf("action %d: given a loss of liar %d: want an honest node", i, a.About)
		case a.Do != Lose && a.Do != Lead && !s.liar(a.Node):
			return fmt.Errorf("action %d: given node %d: want a liar", i, a.Node)
		case !a.Half.Valid():
			return fmt.Errorf("action %d: given half %s: want host or dnp", i, a.Half)
		case i > 0 && a.At < s.Actions[i-1].At:
			return fmt.Errorf("action %d: given %s after %s: want the order of time", i, a.At, s.Actions[i-1].At)
		case a.At < 0 || a.At >= lieTime:
			return fmt.Errorf("action %d: given %s: want 0s or more, and less than %s", i, a.At, lieTime)
		}
	}
	return nil
}

// limits returns the limits of an operator who has opened every gate except the evidence gates and the breaker.
func limits() response.Config {
	c := response.Default()
	c.MaxNodes, c.MaxPercent, c.MaxPerDomain, c.MaxPerPlane, c.Rate, c.NotifyRate = 1<<20, 100, 1<<20, 1<<20, 1<<20, 1<<20
	c.Grace, c.StormDelay, c.Cooldown = engineGrace, 0, 0
	return c
}

// everything is a condition that matches every fault.
type everything struct{}

func (everything) Match(*response.Subject) (bool, error) { return true, nil }
func (everything) May(c fault.Component, s fault.State) bool {
	return c != 0 && (s == fault.Sick || s == fault.Failed)
}
func (everything) Thresholds() []time.Duration { return nil }

// policies returns the sequence's policies: one per kind, for every fault, without delay.
func (p *Player) policies(s *Sequence) ([]*response.Policy, error) {
	var out []*response.Policy
	for _, k := range s.Kinds {
		if !k.Valid() {
			return nil, fmt.Errorf("kinds: given %q: want one of %v", k, response.Kinds())
		}
		out = append(out, &response.Policy{
			Name: "any-" + string(k), Digest: "1", Mode: response.Enforce, Match: everything{},
			Steps: []response.Step{{Name: "act", Kind: k, Timeout: time.Minute, OnFailure: response.Stop}},
			Undo:  response.Undo{OnRecovery: true},
		})
	}
	if s.Shipped {
		out = append(out, p.shipped...)
	}
	return out, nil
}

// healthy reports whether a node has no fault and its answers arrive.
func (w *world) healthy(rank int) bool {
	return !w.s.liar(rank) && !w.nodes[rank].dead && rank != w.lostBy
}

// judgeChanges checks changes of the map against the promises.
func (w *world) judgeChanges(out awareness.Output) {
	if !w.lies {
		return
	}
	for _, c := range out.Changes {
		if c.To == fault.Failed && c.Component <= fault.ComponentDNP {
			w.out.Failed++
		}
		rank := w.rank(c.Node)
		w.judgePatience(rank, &c)
		if !w.healthy(rank) || c.Component > fault.ComponentDNP {
			continue
		}
		switch {
		case c.To == fault.Failed:
			w.violate(Alive, "healthy %s: %s is FAILED at %s: %s", c.Node, c.Component, w.now.Sub(w.begun), c.Reason)
		case c.To == fault.Sick && len(w.s.Liars) == 1 && w.s.Loss == 0 && w.s.Dead < 0 && w.lostBy < 0:
			w.violate(Well, "healthy %s: %s is SICK at %s: %s", c.Node, c.Component, w.now.Sub(w.begun), c.Reason)
		}
	}
	for _, g := range out.Groups {
		for _, id := range g.Members {
			if g.State == fault.Failed && g.Cause == fault.CauseNode && w.healthy(w.rank(id)) {
				w.violate(Alive, "healthy %s is in the group %s at %s", id, g.ID, w.now.Sub(w.begun))
			}
		}
	}
}

// judgePatience checks that a verdict by votes left the node its whole time to answer, if the node is honest and its
// kernel refuses nothing: this leader has challenged it by all rails since its last answer, and has then waited as long
// as the number of its witnesses demands. An earlier challenge that the node has answered does not count.
func (w *world) judgePatience(rank int, c *awareness.Change) {
	n := &w.nodes[rank]
	if c.To != fault.Failed || c.Component != fault.ComponentNode || c.Kind != fault.KindVotes || w.s.liar(rank) || n.dead && w.s.Refuses {
		return
	}
	wait := challengeNode
	if c.SingleWitness {
		wait = challengeSingle
	}
	w.out.Waits++
	switch took := w.now.Sub(n.asked); {
	case n.asked.IsZero():
		w.violate(Patient, "%s is FAILED at %s, and was not asked since its last answer: %s", c.Node, w.now.Sub(w.begun), c.Reason)
	case took < wait:
		w.violate(Patient, "%s is FAILED at %s, %s after its first challenge without an answer, want %s: %s", c.Node, w.now.Sub(w.begun), took,
			wait, c.Reason)
	}
}

// judgeEffect checks a new step against the promises.
func (w *world) judgeEffect(f response.Effect) {
	if w.by[f.Attempt] {
		w.violate(Wedged, "attempt %+v is made twice", f.Attempt)
	}
	w.by[f.Attempt] = true
	if f.Undo {
		return
	}
	class := f.Kind.Traits().Class
	switch class {
	case response.Notify:
		w.out.Notified++
		return
	case response.Reduce:
		w.out.Reduced++
	default:
		w.out.Destroyed++
	}
	rank := w.rank(f.Target.Node)
	if rank < 0 || !w.healthy(rank) || len(w.s.Liars) > 1 {
		return
	}
	if d, ok := f.Target.Component.LinkDirection(); ok && f.Kind == response.NodeMaskChannel && w.measured(rank, d) {
		w.out.LinkSteps++
		return
	}
	st, _ := w.m.Node(f.Target.Node)
	w.violate(Spared, "%s for %s of healthy %s at %s: node is %s, cause %s", f.Kind, f.Target.Component, f.Target.Node,
		w.now.Sub(w.begun), st.State, st.Cause)
}

// measured reports whether an honest node itself finds its link broken, or did until just now.
func (w *world) measured(rank int, d grid.Direction) bool {
	if at := w.nodes[rank].ailing[d.Index()]; !at.IsZero() && w.now.Sub(at) < 2*digestPeriod {
		return true
	}
	h := &w.nodes[rank].halves[0]
	i := slices.IndexFunc(h.says, func(s statement) bool { return s.Component == fault.Link(d) && s.Node == w.ids[rank] })
	return i >= 0 && h.says[i].State != fault.Normal
}

// judgeBreaker checks the breaker against the promises.
func (w *world) judgeBreaker() {
	if b := w.e.Breaker(); b.Open && len(w.s.Liars) == 1 && w.s.Dead < 0 && w.lostBy < 0 {
		w.violate(Shut, "the breaker is open at %s: %s", w.now.Sub(w.begun), b.Detail)
	}
}

// returns waits until the map shows the truth.
func (w *world) returns() {
	from := w.now
	for w.out.Broken == "" {
		lie := w.untrue()
		switch {
		case lie == "":
			w.out.Returned = w.now.Sub(from)
			return
		case w.now.Sub(from) >= ReturnBound:
			w.violate(Wedged, "%s after the last lie: %s", ReturnBound, lie)
			return
		}
		w.run(w.now.Add(digestPeriod / 2))
	}
}

// untrue returns the first untrue entry of the map, or "". It checks the changes that the machine emitted and, in every
// sixteenth sequence, also the machine's own view.
func (w *world) untrue() string {
	for rank, id := range w.ids {
		is := &w.shown[rank]
		node := is[fault.ComponentNode]
		if w.nodes[rank].dead {
			if node.state == fault.Normal || node.state == fault.Sick {
				return fmt.Sprintf("dead %s is %s", id, node.state)
			}
			continue
		}
		if node.state != fault.Normal && !w.beside(rank) && !w.holds(rank, fault.ComponentNode) {
			return fmt.Sprintf("%s is %s, cause %s", id, node.state, node.cause)
		}
		for c := fault.ComponentHost; c.Valid(); c++ {
			if s := is[c].state; s != fault.Sick && s != fault.Failed {
				continue
			}
			if d, link := c.LinkDirection(); (!link || !w.nodes[w.peer(rank, d)].dead) && !w.holds(rank, c) {
				return fmt.Sprintf("%s of %s is %s, cause %s", c, id, is[c].state, is[c].cause)
			}
		}
	}
	if w.s.Seed%16 == 0 {
		if differs := w.differs(); differs != "" {
			return differs
		}
	}
	if w.e.Breaker().Open {
		return "" // an open response waits for a person, as it must
	}
	for _, r := range w.e.Responses() {
		if r.Reason == response.ReasonOutcome || r.Reason == response.ReasonUnseen {
			continue // no boot has proved this reset: a person decides
		}
		if rank := w.rank(r.Target.Node); rank >= 0 && !w.nodes[rank].dead && !w.s.liar(rank) && !w.beside(rank) &&
			w.senses(rank, r.Target.Component) {
			return fmt.Sprintf("a response on %s is open: %s, %s", r.Target, r.State, r.Reason)
		}
	}
	return ""
}

// differs returns a state of the machine for which it emitted no change.
func (w *world) differs() string {
	for rank, st := range w.m.Nodes() {
		if is := w.shown[rank][fault.ComponentNode]; is != (shown{st.State, st.Cause}) {
			return fmt.Sprintf("%s is %s, cause %s, and by the changes %s, cause %s", st.ID, st.State, st.Cause, is.state, is.cause)
		}
		for _, c := range st.Components {
			if is := w.shown[rank][c.Component]; is != (shown{c.State, c.Cause}) {
				return fmt.Sprintf("%s of %s is %s, cause %s, and by the changes %s, cause %s", c.Component, st.ID, c.State, c.Cause, is.state,
					is.cause)
			}
		}
	}
	return ""
}

// senses reports whether the node itself ever states anything about a component. A component that it does not sense was
// UNKNOWN before the lies and is UNKNOWN again. That ends no response; a person must.
func (w *world) senses(rank int, c fault.Component) bool {
	return c == fault.ComponentNode || slices.ContainsFunc(w.nodes[rank].halves[0].says,
		func(s statement) bool { return s.Component == c && s.Node == w.ids[rank] })
}

// beside reports whether a neighbour of the node is dead.
func (w *world) beside(rank int) bool {
	for _, c := range w.s.Dims.Neighbours(w.s.Dims.At(rank)) {
		if w.nodes[w.s.Dims.Rank(c)].dead {
			return true
		}
	}
	return false
}
