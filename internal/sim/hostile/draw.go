package hostile

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// shapes are the tori, the cheap ones more often.
var shapes = []grid.Dims{
	{X: 2, Y: 2, Z: 2}, {X: 2, Y: 2, Z: 2}, {X: 2, Y: 2, Z: 2}, {X: 2, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 1}, {X: 3, Y: 3, Z: 1}, {X: 3,
		Y: 3, Z: 1}, {X: 3, Y: 3, Z: 1}, {X: 3, Y: 3, Z: 3},
}

const (
	// lieTime is the time by which all lies have begun.
	lieTime = 3 * time.Second
	// drawTime is the time by which the lies of a drawn sequence have begun: more lies in less time interfere more and
	// cost less.
	drawTime = 1500 * time.Millisecond
)

// Draw returns the sequence of a seed.
func Draw(seed uint64) Sequence {
	r := rand.New(rand.NewPCG(seed, 0x10fa30)) //nolint:gosec // repeatable on purpose
	s := Sequence{Dims: shapes[r.IntN(len(shapes))], Racks: r.IntN(3) == 0, Dead: -1, Seed: seed}
	nodes := s.Dims.Nodes()
	f := 1
	if most := awareness.Quorum(len(s.Dims.Neighbours(grid.Coord{}))) - 1; most > 1 && r.IntN(2) == 0 {
		f = 2 + r.IntN(most-1)
	}
	s.Liars = r.Perm(nodes)[:f]
	if r.IntN(4) == 0 { // neighbours of one victim
		near := s.Dims.Neighbours(s.Dims.At(r.IntN(nodes)))
		for i, k := range r.Perm(len(near))[:f] {
			s.Liars[i] = s.Dims.Rank(near[k])
		}
	}
	slices.Sort(s.Liars)
	if r.IntN(8) == 0 {
		if d := r.IntN(nodes); !s.liar(d) {
			s.Dead, s.Refuses = d, r.IntN(2) == 0
		}
	}
	s.Loss = [...]int{0, 0, 5, 10}[r.IntN(4)]
	if f == 1 || r.IntN(2) == 0 { // promises about the engine assume one liar
		s.Kinds = drawKinds(r)
		s.Shipped = r.IntN(8) == 0
	}
	loses, plans := false, false
	for range 1 + r.IntN(14) {
		a := drawAction(r, &s)
		if a.Do == Lose {
			if loses || s.Dead >= 0 {
				continue
			}
			loses = true
		}
		if a.Do == Plan {
			if plans || a.About == s.Dead {
				continue
			}
			plans = true
		}
		s.Actions = append(s.Actions, a)
	}
	slices.SortStableFunc(s.Actions, func(a, b Action) int { return int(a.At - b.At) })
	return s
}

// drawKinds returns a step of every class.
func drawKinds(r *rand.Rand) []response.Kind {
	var out []response.Kind
	for class := response.Notify; class <= response.Destroy; class++ {
		var of []response.Kind
		for _, k := range response.Kinds() {
			if k.Traits().Class == class {
				of = append(of, k)
			}
		}
		out = append(out, of[r.IntN(len(of))])
	}
	return out
}

// weights of the verbs, in their order.
var weights = [numVerbs]int{Say: 8, Claim: 16, Withdraw: 2, Replay: 6, Answer: 2, Usurp: 1, Mode: 10, Mute: 3, Speak: 1, Hush: 2,
	Boot: 2, Gossip: 2, Trend: 1, Lose: 1, Lead: 1, Announce: 6, Plan: 2, Refuse: 6}

func drawVerb(r *rand.Rand) Verb {
	all := 0
	for _, w := range weights {
		all += w
	}
	n := r.IntN(all)
	for v, w := range weights {
		if n -= w; n < 0 {
			return Verb(v)
		}
	}
	return Claim
}

// ages that a liar states: none, plausible ones, and absurd ones.
var ages = []time.Duration{0, time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond, 1900 * time.Millisecond,
	3 * time.Second, time.Hour, 9 * 365 * 24 * time.Hour}

// notices are the times that a restart notice states: 0 ends the restart, and the last one is over the limit.
var notices = []time.Duration{0, 100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second, fault.MaxRestart, time.Hour}

func drawAction(r *rand.Rand, s *Sequence) Action {
	liar := s.Liars[r.IntN(len(s.Liars))]
	a := Action{At: time.Duration(r.Int64N(int64(drawTime/time.Millisecond))) * time.Millisecond, Do: drawVerb(r), Node: liar}
	if r.IntN(3) == 0 { // together with others
		a.At -= a.At % (250 * time.Millisecond)
	}
	a.Half = fault.Half(1 + r.IntN(2))
	if r.IntN(3) > 0 {
		a.Half = fault.HalfHost
	}
	near := s.Dims.Neighbours(s.Dims.At(liar))
	a.About = s.Dims.Rank(near[r.IntN(len(near))])
	switch a.Do {
	case Say, Claim:
		drawObservation(r, s, &a)
	case Replay:
		a.Index, a.Path, a.Held = r.IntN(40), fault.Path(1+r.IntN(3)), ages[r.IntN(len(ages)-1)]
	case Answer, Usurp:
		a.Index = r.IntN(8)
	case Mode:
		links := s.Dims.Links()
		a.Direction, a.Link = links[r.IntN(len(links))], LinkMode(1+r.IntN(int(numLinkModes)-1))
	case Mute:
		a.Held = [...]time.Duration{0, 0, 15 * time.Millisecond, 55 * time.Millisecond, 250 * time.Millisecond}[r.IntN(5)]
	case Hush:
		a.Held = time.Duration(1+r.IntN(6)) * 500 * time.Millisecond
	case Boot:
		a.Index = [...]int{1, 1, 1, 2, 1000}[r.IntN(5)]
	case Gossip:
		a.About = r.IntN(s.Dims.Nodes())
	case Trend:
		a.Component = [...]fault.Component{fault.ComponentTemperature, fault.ComponentPower, fault.ComponentMemory}[r.IntN(3)]
	case Lose:
		if a.About = r.IntN(s.Dims.Nodes()); s.liar(a.About) {
			a.Do = Lead
		}
		a.Held = time.Duration(50+r.IntN(2000)) * time.Millisecond
	case Announce:
		a.Of, a.Held, a.Digest = fault.Half(1+r.IntN(2)), notices[r.IntN(len(notices))], r.IntN(4) == 0
	case Plan:
		if a.About = r.IntN(s.Dims.Nodes()); s.liar(a.About) {
			a.Do = Announce
			a.Of = fault.HalfDNP
		}
		a.Held = notices[1+r.IntN(len(notices)-1)]
	case Refuse:
		drawRefusal(r, s, &a)
	default:
	}
	return a
}

// drawObservation draws any component, state and kind, of the liar or of another node. The important cases are more
// likely.
func drawObservation(r *rand.Rand, s *Sequence, a *Action) {
	a.Component = fault.Component(1 + r.IntN(fault.NumComponents-1))
	a.State = [...]fault.State{fault.Unknown, fault.Normal, fault.Sick, fault.Failed, fault.Failed, fault.Failed}[r.IntN(6)]
	a.Kind = fault.Kind(1 + r.IntN(int(fault.KindDigest)))
	a.Age = ages[r.IntN(len(ages))]
	a.Digest = r.IntN(8) == 0
	a.Ended = a.State == fault.Failed && r.IntN(3) == 0
	links := s.Dims.Links()
	switch r.IntN(9) {
	case 0, 1, 2: // one of its own links
		a.About, a.Component = a.Node, fault.Link(links[r.IntN(len(links))])
	case 3, 4: // a descriptor of a neighbour
		a.Kind = fault.KindDescriptor
		a.Component = [...]fault.Component{fault.ComponentHost, fault.ComponentServiceNetwork, fault.ComponentMemory,
			fault.ComponentPeripheral0}[r.IntN(4)]
	case 5:
		a.About = a.Node
	case 6:
		a.About = r.IntN(s.Dims.Nodes())
	case 7:
		a.Kind = fault.KindAbsent
		if r.IntN(4) > 0 { // otherwise no half may state it
			a.About, a.State = a.Node, fault.Unknown
			a.Component = fault.ComponentMemory + fault.Component(r.IntN(int(fault.ComponentVoltage-fault.ComponentMemory)+1))
		}
	}
}

// drawRefusal draws forged answers of kernels: about any node, and about a dead one more often and from its death on.
func drawRefusal(r *rand.Rand, s *Sequence, a *Action) {
	a.Index, a.Held = r.IntN(8), time.Duration(r.IntN(2000))*time.Millisecond
	if a.About = r.IntN(s.Dims.Nodes()); s.Dead >= 0 && r.IntN(2) == 0 {
		a.About, a.At = s.Dead, 0
	}
}
