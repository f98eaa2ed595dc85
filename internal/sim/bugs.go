package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// bug is a planted defect of a world. Only the tests of the checks plant one.
type bug string

const (
	bugFence    bug = "fence-ignored"         // the store takes commits of leaders that were replaced
	bugInbox    bug = "inbox-not-stored"      // positions are not committed with the reports that they cover
	bugGrace    bug = "grace-skipped"         // a new leader judges at once
	bugEarlyAck bug = "ack-before-commit"     // COMMITTED goes out before the store has it
	bugVotes    bug = "votes-counted-twice"   // one neighbour's silence counts for another's too
	bugReplay   bug = "replay-is-an-answer"   // a copy of an old report passes for the answer to a challenge
	bugAge      bug = "relays-age-is-trusted" // a relay's claim of a young message passes for an answer too
	bugNoNews   bug = "no-news-is-good-news"  // missing digests lead to NORMAL
	bugRestore  bug = "map-not-restored"      // a new leader begins with an empty map
	bugRelinked bug = "relinked-links-judged" // a link that leads to another node is judged at once
)

// plant lets reports pass for answers where such a defect is planted.
func (t *term) plant(now time.Time, v servicenet.Verdict, rep *fault.Report, in input) {
	switch t.r.w.cfg.bug {
	case bugReplay:
		if v == servicenet.Fresh {
			return
		}
	case bugAge:
		held := time.Duration(0)
		for _, h := range in.hops {
			held += h.Held
		}
		if v != servicenet.Fresh || len(in.hops) == 0 || held > 100*time.Millisecond {
			return
		}
	default:
		return
	}
	o := rep.ID.Origin
	c, ok := t.witness.asked[o.Node]
	if ok && (c.Half == 0 || c.Half == o.Half) {
		t.step(now, awareness.Answered{Nonce: c.Nonce, Origin: o, Epoch: rep.ID.Epoch, Path: in.path})
	}
}

// doubleVotes has a second neighbour repeat one neighbour's report of a silent link, if this bug is planted.
func (t *term) doubleVotes(now time.Time, in input, rep *fault.Report) {
	if t.r.w.cfg.bug != bugVotes || rep.ID.Origin.Half != fault.HalfHost {
		return
	}
	by := t.r.w.find(rep.ID.Origin.Node)
	for _, o := range rep.Observations {
		d, ok := o.Component.LinkDirection()
		if !ok || o.State != fault.Failed || o.Kind != fault.KindSilence {
			continue
		}
		accused := by.neighbour(d)
		if accused == nil {
			continue
		}
		for _, nb := range accused.topo.Neighbours {
			if nb.ID == by.id() {
				continue
			}
			fake := *rep
			fake.ID.Origin.Node, fake.Digest, fake.Observations = nb.ID, false, nil
			p := t.inbox.Position(fake.ID.Origin)
			fake.ID.Epoch, fake.ID.Seq = p.Epoch, max(p.Highest, p.Digest)+1 // newer than the node's own messages
			for _, back := range nb.Dirs {
				fake.Observations = append(fake.Observations, fault.Observation{
					Node: nb.ID, Component: fault.Link(back.Opposite()), State: fault.Failed, Kind: fault.KindSilence, Age: o.Age,
				})
			}
			t.step(now, awareness.Evidence{Delivery: fault.Delivery{Report: fake, Path: in.path}})
		}
	}
}

// rosy turns changes to UNKNOWN into changes to NORMAL, if this bug is planted.
func (t *term) rosy(c *awareness.Change) {
	if t.r.w.cfg.bug != bugNoNews {
		return
	}
	p := part{c.Node, c.Component}
	if t.witness.rosy[p] {
		c.From = fault.Normal
	}
	if t.witness.rosy[p] = c.To == fault.Unknown; t.witness.rosy[p] {
		c.To = fault.Normal
	}
}

// rosyStatus does the same to stored statuses.
func (t *term) rosyStatus(st *awareness.NodeStatus) {
	if t.witness.rosy[part{st.ID, fault.ComponentNode}] {
		st.State = fault.Normal
	}
	for i := range st.Components {
		if c := &st.Components[i]; t.witness.rosy[part{st.ID, c.Component}] {
			c.State = fault.Normal
		}
	}
}
