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
	bugNoStop   bug = "stop-not-excused"      // the time of every stop is over after a second
	bugHoldOff  bug = "hold-off-forgotten"    // the leader does not know how long a returned link stays bad

	bugMargin    bug = "fence-without-margin"     // a node counts as down as soon as its own times have passed
	bugOnce      bug = "fed-once-less"            // the leader does not know that a device is fed when its daemon dies
	bugGossip    bug = "gossip-is-contact"        // another node's gossip keeps the device fed
	bugFed       bug = "fed-without-contact"      // the daemon does not look for contact
	bugOneWay    bug = "deaf-link-is-contact"     // so does a link on which only this node hears the other
	bugStatement bug = "statement-not-taken-back" // an armed device counts as armed for good
	bugStop      bug = "disarmed-unannounced"     // a daemon that stops always disarms the device
	bugForgotten bug = "contact-forgotten"        // a daemon that replaces a dead one forgets the last contact
	bugSettings  bug = "settings-replaced"        // it takes its own settings, which the supervisors may not know
	bugPause     bug = "fed-after-a-pause"        // the daemon feeds the device because of what held before it was paused
)

// needsStrictDevice reports whether the defect shows only with a device that the kernel does not feed when the daemon ends. The bound
// of real devices counts the time-out twice, and that slack hides most stories of such a defect. So device and leader both count it
// once.
func (b bug) needsStrictDevice() bool { return b == bugStop || b == bugForgotten || b == bugPause }

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
