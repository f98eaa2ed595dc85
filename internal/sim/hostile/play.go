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

// Promise is something that must hold whatever liars do.
type Promise uint8

// The promises.
const (
	// Spared: one liar causes no step that takes capacity away or ends work on a healthy reachable node.
	Spared Promise = iota + 1
	// Alive: fewer liars than the quorum have no healthy node, host or DNP called FAILED.
	Alive
	// Well: one liar makes no healthy node SICK, where nothing that honest nodes send is lost.
	Well
	// Shut: one liar does not open the circuit breaker.
	Shut
	// Wedged is the promise that nothing wedges: timers, challenges and open responses stay bounded, and ReturnBound after the last lie
	// the map shows the truth.
	Wedged
	numPromises
)

var promiseNames = [...]string{"", "spared", "alive", "well", "shut", "wedged"}

// String returns a short name.
func (p Promise) String() string {
	if p == 0 || p >= numPromises {
		return fmt.Sprintf("Promise(%d)", uint8(p))
	}
	return promiseNames[p]
}

// Outcome is what became of a sequence.
type Outcome struct {
	Broken  string // what happened against a promise; empty: nothing
	Promise Promise

	Events, Wakes, Challenges, Refused int
	Failed                             int // verdicts of FAILED, of whomever
	Notified, Reduced, Destroyed       int // steps begun, of whomever
	// LinkSteps are steps on an honest node for a fault of its link to a liar, which the liar's end caused and the honest end measured.
	LinkSteps int
	Returned  time.Duration // from the last lie until the map showed the truth
}

// violate notes what happened against a promise, once.
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

// NewPlayer returns a player. plants are what a test plants; the zero Plants are none.
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

// Play plays a sequence. The error says what of the sequence makes no sense.
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
	return w.out, nil
}

// check names what of a sequence makes no sense.
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

// limits are those of an operator who has opened every gate but those that look at the evidence and the breaker.
func limits() response.Config {
	c := response.Default()
	c.MaxNodes, c.MaxPercent, c.MaxPerDomain, c.MaxPerPlane, c.Rate, c.NotifyRate = 1<<20, 100, 1<<20, 1<<20, 1<<20, 1<<20
	c.Grace, c.StormDelay, c.Cooldown = engineGrace, 0, 0
	return c
}

// everything is a condition that every fault fulfils.
type everything struct{}

func (everything) Match(*response.Subject) (bool, error) { return true, nil }
func (everything) May(c fault.Component, s fault.State) bool {
	return c != 0 && (s == fault.Sick || s == fault.Failed)
}
func (everything) Thresholds() []time.Duration { return nil }

// policies are those of the sequence: one for each kind, for every fault, at once.
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

// healthy says whether nothing is wrong with a node, and whether its answers arrive.
func (w *world) healthy(rank int) bool {
	return !w.s.liar(rank) && !w.nodes[rank].dead && rank != w.lostBy
}

// judgeChanges holds the changes of the map against the promises.
func (w *world) judgeChanges(out awareness.Output) {
	if !w.lies {
		return
	}
	for _, c := range out.Changes {
		if c.To == fault.Failed && c.Component <= fault.ComponentDNP {
			w.out.Failed++
		}
		rank := w.rank(c.Node)
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

// judgeEffect holds a step that begins against the promises.
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
	if d, ok := f.Target.Component.LinkDirection(); ok && w.measured(rank, d) {
		w.out.LinkSteps++
		return
	}
	st, _ := w.m.Node(f.Target.Node)
	w.violate(Spared, "%s for %s of healthy %s at %s: node is %s, cause %s", f.Kind, f.Target.Component, f.Target.Node, w.now.Sub(w.begun), st.State, st.Cause)
}

// measured says whether an honest node itself finds that its link does not work, or did until just now.
func (w *world) measured(rank int, d grid.Direction) bool {
	if at := w.nodes[rank].ailing[d.Index()]; !at.IsZero() && w.now.Sub(at) < 2*digestPeriod {
		return true
	}
	h := &w.nodes[rank].halves[0]
	i := slices.IndexFunc(h.says, func(s statement) bool { return s.Component == fault.Link(d) && s.Node == w.ids[rank] })
	return i >= 0 && h.says[i].State != fault.Normal
}

// judgeBreaker holds the breaker against the promises.
func (w *world) judgeBreaker() {
	if b := w.e.Breaker(); b.Open && len(w.s.Liars) == 1 && w.s.Dead < 0 && w.lostBy < 0 {
		w.violate(Shut, "the breaker is open at %s: %s", w.now.Sub(w.begun), b.Detail)
	}
}

// returns waits for the truth.
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

// untrue says what of the map is not as it is; empty: all is true. By the changes that were given out; of every sixteenth sequence also by what the
// machine itself shows.
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
		if node.state != fault.Normal && !w.beside(rank) {
			return fmt.Sprintf("%s is %s, cause %s", id, node.state, node.cause)
		}
		for c := fault.ComponentHost; c.Valid(); c++ {
			if s := is[c].state; s != fault.Sick && s != fault.Failed {
				continue
			}
			if d, link := c.LinkDirection(); !link || !w.nodes[w.peer(rank, d)].dead {
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
		return "" // what is open waits for a person, as it has to
	}
	for _, r := range w.e.Responses() {
		if r.Reason == response.ReasonOutcome || r.Reason == response.ReasonUnseen {
			continue // a reset that no boot has proved: a person has to say
		}
		if rank := w.rank(r.Target.Node); rank >= 0 && !w.nodes[rank].dead && !w.s.liar(rank) && !w.beside(rank) && w.senses(rank, r.Target.Component) {
			return fmt.Sprintf("a response on %s is open: %s, %s", r.Target, r.State, r.Reason)
		}
	}
	return ""
}

// differs says what the machine shows that it gave out no change of.
func (w *world) differs() string {
	for rank, st := range w.m.Nodes() {
		if is := w.shown[rank][fault.ComponentNode]; is != (shown{st.State, st.Cause}) {
			return fmt.Sprintf("%s is %s, cause %s, and by the changes %s, cause %s", st.ID, st.State, st.Cause, is.state, is.cause)
		}
		for _, c := range st.Components {
			if is := w.shown[rank][c.Component]; is != (shown{c.State, c.Cause}) {
				return fmt.Sprintf("%s of %s is %s, cause %s, and by the changes %s, cause %s", c.Component, st.ID, c.State, c.Cause, is.state, is.cause)
			}
		}
	}
	return ""
}

// senses says whether the node itself ever says anything of a component. What it does not sense was UNKNOWN before the lies and is
// again, which ends no response: a person has to.
func (w *world) senses(rank int, c fault.Component) bool {
	return c == fault.ComponentNode || slices.ContainsFunc(w.nodes[rank].halves[0].says, func(s statement) bool { return s.Component == c && s.Node == w.ids[rank] })
}

// beside says whether a neighbour of the node is dead.
func (w *world) beside(rank int) bool {
	for _, c := range w.s.Dims.Neighbours(w.s.Dims.At(rank)) {
		if w.nodes[w.s.Dims.Rank(c)].dead {
			return true
		}
	}
	return false
}
