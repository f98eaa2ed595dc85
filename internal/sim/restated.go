package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// wholeEvery is the number of restatements after which a digest is sent whole in any case.
const wholeEvery = 20

// spoken identifies a digest's content by a number; zero: none, or a digest that must be sent in full.
type spoken struct {
	epoch fault.Epoch
	words uint64
}

func spokenIn(rep *fault.Report, h servicenet.Health) spoken {
	if !rep.Digest || rep.Partial || len(rep.Readings) > 0 {
		return spoken{}
	}
	return spoken{rep.ID.Epoch, max(1, fault.Words(*rep)^h.Words())}
}

// given is the whole digest that a supervisor has passed on of a half.
type given struct {
	spoken
	left int // restatements until it goes whole again
}

// restates reports whether the message is a digest that the leader already knows from this supervisor: then only a note
// of that is forwarded, as in internal/supervisor/ingest.
func (r *replica) restates(in *input) bool {
	if in.answer != nil || len(in.reports) != 1 {
		return false
	}
	rep := &in.reports[0]
	o, says := rep.ID.Origin, spokenIn(rep, in.health)
	g := r.said[o]
	if says.words == 0 || g.spoken != says || g.left == 0 {
		r.said[o] = given{says, wholeEvery}
		return false
	}
	g.left--
	r.said[o] = g
	return true
}

// takeRestated handles a digest without news, or asks for the whole digest if this term has none.
func (t *term) takeRestated(now time.Time, in input) {
	rep := &in.reports[0]
	o := rep.ID.Origin
	known := t.words[o] == spokenIn(rep, in.health)
	if known {
		verdict := t.inbox.Accept(rep.ID, true)
		if verdict == servicenet.Fresh {
			t.witness.hears(o.Node)
			held := in.held + t.r.w.now.Sub(in.arrived)
			for _, h := range in.hops {
				held += h.Held
			}
			changed, unknown := t.step(now, awareness.Restated{Origin: o, Epoch: rep.ID.Epoch, Seq: rep.ID.Seq, Path: in.path, Held: held})
			if known = !unknown; changed {
				t.open.origins[o] = true
				t.launch()
			}
		}
		t.plant(now, verdict, rep, in)
	}
	if known {
		return
	}
	delete(t.words, o)
	if by := in.to.by; t.r.w.store.connected(t.r, by) {
		by.deliver(t.r.w.between(serviceDelayMin, serviceDelayMax), func() { delete(by.said, o) })
	}
}
