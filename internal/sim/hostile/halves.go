package hostile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// statement is a half's statement about one component.
type statement struct {
	fault.Observation

	began time.Time
	lie   bool
}

// half is one half of a node.
type half struct {
	origin  fault.Origin
	alive   bool
	epoch   fault.Epoch
	seq     fault.Seq
	says    []statement
	whole   bool           // the next digest must be whole, because a statement has changed
	sent    fault.ReportID // the newest whole digest
	noted   fault.ReportID // the whole digest that the leader took last
	mute    bool
	late    time.Duration // to answer, when mute; 0: never
	hushed  time.Time     // no digests until then
	away    time.Time     // it restarts until then
	trends  fault.Component
	reading float32
}

// nodeState is one node.
type nodeState struct {
	halves [2]half
	links  [grid.NumDirections]LinkMode  // behaviour of its own end
	ailing [grid.NumDirections]time.Time // last time that an honest end found its link broken
	cut    time.Time                     // all its messages are lost until then
	dead   bool
	forged time.Time // until then each challenge comes back, as if its kernel refused it
	asked  time.Time // the first challenge of the whole node by all rails since its last answer; zero: none
}

// build makes the nodes.
func (w *world) build() {
	n := w.s.Dims.Nodes()
	w.cfg.IDs = make(map[grid.Coord]fault.NodeID, n)
	w.ids, w.nodes, w.shown, w.ranks = make([]fault.NodeID, n), make([]nodeState, n), make([]states, n), make(map[fault.NodeID]int, n)
	for rank := range n {
		at := w.s.Dims.At(rank)
		id := fault.DefaultNodeID(at)
		w.cfg.IDs[at], w.ids[rank], w.ranks[id] = id, id, rank
		for c := range w.shown[rank] {
			w.shown[rank][c] = shown{fault.Unknown, fault.CauseNone}
		}
		if w.s.Racks {
			if w.cfg.Labels == nil {
				w.cfg.Labels, w.cfg.DomainLabels = map[fault.NodeID]map[string]string{}, []string{"rack"}
			}
			w.cfg.Labels[id] = map[string]string{"rack": fmt.Sprintf("r%d", at.X)}
		}
		for i := range w.nodes[rank].halves {
			h := &w.nodes[rank].halves[i]
			h.origin, h.alive, h.epoch = fault.Origin{Node: id, Half: fault.Half(i + 1)}, true, 1
		}
		for d := range w.nodes[rank].links {
			w.nodes[rank].links[d] = Works
		}
	}
}

// rank returns the rank of a node, or -1 for an unknown ID.
func (w *world) rank(id fault.NodeID) int {
	if rank, ok := w.ranks[id]; ok {
		return rank
	}
	return -1
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// truths returns the statements of a healthy node's host half. It has one peripheral, and senses neither power nor
// voltage.
func (w *world) truths(id fault.NodeID) []statement {
	var out []statement
	set := func(c fault.Component, k fault.Kind) {
		out = append(out, statement{Observation: fault.Observation{Node: id, Component: c, State: fault.Normal, Kind: k}, began: w.now})
	}
	set(fault.ComponentHost, fault.KindSelf)
	set(fault.ComponentDNP, fault.KindWatchdog)
	for _, c := range [...]fault.Component{fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
		fault.ComponentDNPCore, fault.ComponentTemperature} {
		set(c, fault.KindSelf)
	}
	for _, d := range w.s.Dims.Links() {
		set(fault.Link(d), fault.KindSelf)
	}
	return out
}

// start boots all nodes and spreads their digests over a period.
func (w *world) start() {
	for rank := range w.nodes {
		h := &w.nodes[rank].halves[0]
		h.says, h.whole = w.truths(h.origin.Node), true
		w.digest(rank, 0)
		w.after(time.Duration(1+rank*7%10)*digestPeriod/10, func() { w.beat(rank, 0) })
	}
}

// beat sends a half's digests, one per period.
func (w *world) beat(rank, i int) {
	h := &w.nodes[rank].halves[i]
	if !h.alive {
		return
	}
	w.after(digestPeriod, func() { w.beat(rank, i) })
	if w.now.Before(h.hushed) || w.now.Before(h.away) {
		return
	}
	w.digest(rank, i)
}

// digest sends a digest, in short form if nothing has changed.
func (w *world) digest(rank, i int) {
	h := &w.nodes[rank].halves[i]
	h.seq++
	if w.loses(rank) && !w.s.liar(rank) {
		if h.whole {
			w.heard = push(w.heard, w.report(h, true, h.says...)) // a liar on its way may have stored it
		}
		return
	}
	if !h.whole && h.noted == h.sent { // a leader that accepted another one, such as a replay, needs a whole one
		out := w.step(awareness.Restated{Origin: h.origin, Epoch: h.epoch, Seq: h.seq, Path: fault.PathDirect})
		if !out.Unknown {
			return
		}
	}
	h.whole = false
	d := w.report(h, true, h.says...)
	h.sent = d.Report.ID
	w.hears(d, slices.ContainsFunc(h.says, func(s statement) bool { return s.lie }))
}

// report makes a report with the half's next number.
func (w *world) report(h *half, digest bool, says ...statement) fault.Delivery {
	d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{ID: fault.ReportID{Origin: h.origin, Epoch: h.epoch, Seq: h.seq},
		Digest: digest}}
	d.Report.Observations = make([]fault.Observation, 0, len(says))
	for _, s := range says {
		o := s.Observation
		if !s.lie {
			o.Age = w.now.Sub(s.began)
		}
		d.Report.Observations = append(d.Report.Observations, o)
	}
	if h.trends != 0 {
		h.reading++
		d.Report.Readings = trend(h.trends, h.reading)
	}
	return d
}

func trend(c fault.Component, v float32) []fault.Reading {
	q := map[fault.Component]fault.Quantity{
		fault.ComponentTemperature: fault.QuantityTemperature, fault.ComponentPower: fault.QuantityPower,
		fault.ComponentMemory: fault.QuantityCorrectedErrors,
	}[c]
	return []fault.Reading{{Component: c, Quantity: q, Value: 50 + v, Threshold: 90}}
}

// state makes an honest half state a new state of a component.
func (w *world) state(rank int, about fault.NodeID, c fault.Component, s fault.State, k fault.Kind) {
	w.observe(rank, fault.Observation{Node: about, Component: c, State: s, Kind: k})
}

// observe makes an honest half state an observation, and repeats the report until it arrives.
func (w *world) observe(rank int, obs fault.Observation) {
	h := &w.nodes[rank].halves[0]
	if !h.alive {
		return
	}
	if w.now.Before(h.away) { // the new process notices
		w.after(h.away.Sub(w.now), func() { w.observe(rank, obs) })
		return
	}
	next := statement{Observation: obs, began: w.now}
	i := slices.IndexFunc(h.says, func(o statement) bool { return o.Node == obs.Node && o.Component == obs.Component && !o.lie })
	if i >= 0 && h.says[i].State == obs.State && h.says[i].Kind == obs.Kind {
		return
	}
	if d, link := obs.Component.LinkDirection(); link && i >= 0 && h.says[i].State != fault.Normal {
		w.nodes[rank].ailing[d.Index()] = w.now
	}
	if i >= 0 {
		h.says[i] = next
	} else {
		h.says = append(h.says, next)
	}
	h.whole = true
	h.seq++
	w.deliver(rank, w.report(h, false, next))
}

// deliver delivers an honest report unless it is lost.
func (w *world) deliver(rank int, d fault.Delivery) {
	if w.loses(rank) {
		w.heard = push(w.heard, d)
		w.after(resendTime, func() { w.deliver(rank, d) })
		return
	}
	w.hears(d, false)
}

// peer returns the node at the other end of a link.
func (w *world) peer(rank int, d grid.Direction) int {
	at, _ := w.s.Dims.Neighbour(w.s.Dims.At(rank), d)
	return w.s.Dims.Rank(at)
}

// behave changes the behaviour of a node's end of a link. An honest other end notices and reports it.
func (w *world) behave(rank int, d grid.Direction, mode LinkMode) {
	w.nodes[rank].links[d.Index()] = mode
	far := w.peer(rank, d)
	if w.s.liar(far) || far == rank {
		return
	}
	notice := noticeTime
	switch mode {
	case Silent:
		notice = silenceTime
	case Refusing:
		notice = refusedTime
	default:
	}
	w.after(notice, func() {
		if w.nodes[rank].links[d.Index()] != mode {
			return
		}
		c, id := fault.Link(d.Opposite()), w.ids[far]
		switch mode {
		case Works:
			w.state(far, id, c, fault.Normal, fault.KindSelf)
		case Silent, Refusing:
			w.observe(far, fault.Observation{Node: id, Component: c, State: fault.Failed, Kind: fault.KindSilence,
				Ended: mode == Refusing || w.plants.Ended})
		case Deaf:
			w.state(far, id, c, fault.Failed, fault.KindHandshake)
		case Noisy:
			w.state(far, id, c, fault.Sick, fault.KindErrorRatio)
		case Restarts:
			w.state(far, id, c, fault.Sick, fault.KindDescriptor)
		default:
		}
		state := fault.Normal
		if mode == HostDead {
			state = fault.Failed
		}
		w.state(far, w.ids[rank], fault.ComponentHost, state, fault.KindDescriptor)
	})
}

// die ends an honest node.
func (w *world) die(rank int) {
	n := &w.nodes[rank]
	n.dead = true
	for i := range n.halves {
		n.halves[i].alive = false
	}
	mode := Silent
	if w.s.Refuses {
		mode = Refusing
	}
	for _, d := range w.s.Dims.Links() {
		w.behave(rank, d, mode)
	}
}
