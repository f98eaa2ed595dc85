package hostile

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// act carries out one action.
func (w *world) act(a Action) {
	h := &w.nodes[a.Node].halves[a.Half-1]
	switch a.Do {
	case Say, Claim:
		w.lie(a, h)
	case Withdraw:
		w.recant(h)
	case Replay:
		if i := len(w.heard) - 1 - a.Index; i >= 0 {
			d := w.heard[i]
			d.Path, d.Hops = a.Path, nil
			if a.Path != fault.PathDirect {
				d.Hops = []fault.Hop{{Node: w.ids[a.Node], Half: fault.HalfDNP, Held: a.Held}}
			}
			w.takes(d)
			w.judgeNotices()
		}
	case Answer:
		if i := len(w.given) - 1 - a.Index; i >= 0 {
			w.step(w.given[i])
		}
	case Usurp:
		if i := len(w.asked) - 1 - a.Index; i >= 0 {
			w.step(awareness.Answered{Nonce: w.asked[i].Nonce, Origin: h.origin, Epoch: h.epoch, Path: fault.PathTorus})
		}
	case Mode:
		w.behave(a.Node, a.Direction, a.Link)
	case Mute:
		h.mute, h.late = true, a.Held
	case Speak:
		h.mute = false
	case Hush:
		h.hushed = w.now.Add(a.Held)
	case Boot:
		h.epoch, h.seq, h.whole = h.epoch+fault.Epoch(a.Index), 0, true
	case Trend:
		h.trends = a.Component
	case Announce:
		w.out.Notices++
		w.hears(w.notice(h, fault.RestartNotice{Half: a.Of, Within: a.Held}, a.Digest), true)
		w.judgeNotices()
	default:
		w.happen(a)
	}
}

// happen carries out an event around the liars.
func (w *world) happen(a Action) {
	switch a.Do {
	case Gossip:
		w.step(awareness.GossipOpinion{Node: w.ids[a.About]})
	case Lose:
		w.lostBy = a.About
		w.nodes[a.About].cut = w.now.Add(a.Held)
	case Plan:
		w.plan(a.About, a.Held)
	case Refuse:
		w.out.Hints++
		w.nodes[a.About].forged = w.now.Add(a.Held)
		if i := len(w.asked) - 1 - a.Index; i >= 0 {
			w.step(awareness.Refused{Node: w.ids[a.About], Nonce: w.asked[i].Nonce})
		}
	case Lead:
		m, err := awareness.New(w.cfg, w.now, w.m.Nodes())
		if err != nil {
			w.violate(Wedged, "the committed map cannot be restored: %v", err)
			return
		}
		w.m, w.wake, w.led = m, w.now.Add(1), true
		for i := range w.nodes {
			w.nodes[i].asked = time.Time{} // it must ask for itself
		}
		if err := w.lead(w.now); err != nil {
			w.violate(Wedged, "%v", err)
		}
	default:
	}
}

// lie makes a liar's half state something, once or from now on.
func (w *world) lie(a Action, h *half) {
	s := statement{lie: true, Observation: fault.Observation{
		Node: w.ids[a.About], Component: a.Component, State: a.State, Kind: a.Kind, Age: a.Age, Ended: a.Ended,
	}}
	if a.Ended {
		w.out.Hints++
	}
	if a.Kind == fault.KindAbsent {
		w.out.Absent++
	}
	if a.Do == Claim {
		same := func(o statement) bool { return o.Node == s.Node && o.Component == s.Component }
		h.says = append(slices.DeleteFunc(h.says, same), s)
	}
	h.whole = true
	h.seq++
	d := w.report(h, false, s)
	if a.Digest {
		d.Report.Digest, d.Report.Partial = true, true
	}
	w.hears(d, true)
	if a.Half == fault.HalfDNP && a.Do == Claim { // as if the host were dead
		w.digest(a.Node, 1)
	}
}

// recant makes a half state the truth from its next digest on.
func (w *world) recant(h *half) {
	h.says, h.whole, h.trends = nil, true, 0
	if h.origin.Half == fault.HalfHost {
		h.says = w.truths(h.origin.Node)
	}
}

// repent ends all lies.
func (w *world) repent() {
	for _, rank := range w.s.Liars {
		for i := range w.nodes[rank].halves {
			h := &w.nodes[rank].halves[i]
			h.mute, h.hushed = false, w.now
			if !w.plants.Restless {
				w.recant(h)
			}
		}
		for _, d := range w.s.Dims.Links() {
			if w.nodes[rank].links[d.Index()] != Works {
				w.behave(rank, d, Works)
			}
		}
		// Its honest view is bad only of the dead.
		for _, d := range w.s.Dims.Links() {
			if far := w.peer(rank, d); w.nodes[far].dead {
				w.state(rank, w.ids[rank], fault.Link(d), fault.Failed, fault.KindSilence)
			}
		}
	}
}
