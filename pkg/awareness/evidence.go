package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// record is the newest statement of one half on one component of its node or of a neighbour.
type record struct {
	state  fault.State
	kind   fault.Kind
	path   fault.Path
	detail string
	epoch  fault.Epoch
	seq    fault.Seq
	said   time.Time // when the report was made, by the hops' clocks
	came   time.Time // when it arrived here
	began  time.Time // when the state began, by the observer's and the hops' clocks
	since  time.Time // when this state first arrived here: restating does not move it
}

// silent says that the observer hears no authentic frame on the link.
func (r *record) silent() bool {
	return r != nil && r.state == fault.Failed && r.kind == fault.KindSilence
}

// described are the components on which a neighbour has a word: those of the remote fault
// descriptor (seed 001, Table V) and the host itself.
var described = [...]fault.Component{
	fault.ComponentHost, fault.ComponentServiceNetwork, fault.ComponentMemory,
	fault.ComponentPeripheral0, fault.ComponentPeripheral1,
}

func describedIndex(c fault.Component) (int, bool) {
	for i, d := range described {
		if c == d {
			return i, true
		}
	}
	return 0, false
}

// voice is one half as a speaker: what it last said, and the signs of its life.
type voice struct {
	epoch  fault.Epoch // the highest heard
	met    time.Time   // when the first was heard; zero if it was restored
	booted time.Time   // when a higher one than was known before was heard
	newest fault.ReportID
	digest fault.ReportID // the newest full statement: what is older than it and not in it is withdrawn
	floor  fault.Epoch    // reports of older epochs are replays from before this leader's time

	path   fault.Path // of the newest report
	heard  time.Time  // when the newest sign of life was made, by the hops' clocks; zero for none
	direct time.Time  // the same for the newest report that came straight from the half

	respite time.Time // its word counts at least until then: see Machine.respite

	answered   uint64    // the newest challenge it answered, by serial number
	answeredAt time.Time // when that one was sent

	own   [fault.NumComponents]*record // on its own node
	about [][len(described)]*record    // on each distinct neighbour, in the order of node.neighbours
}

// take stores a report and returns whether it is newer than everything heard from this half.
// changed is called for every statement whose state or kind changed: about is -1 for the half's own
// node and else the index of the neighbour.
func (v *voice) take(d fault.Delivery, index func(fault.NodeID) (int, bool), now time.Time, changed func(about int, c fault.Component)) (fresh bool) {
	id := d.Report.ID
	if id.Epoch < v.floor || v.digest.Newer(id) {
		return false
	}
	if fresh = id.Newer(v.newest); fresh {
		v.newest, v.path = id, d.Path
		v.reach(id.Epoch, now)
		v.heard = later(v.heard, made(d, now))
	}
	if id == v.newest && d.Path == fault.PathDirect {
		v.direct = later(v.direct, made(d, now))
	}
	for i, o := range d.Report.Observations {
		if about, ok := index(o.Node); ok && wellFormed(about, o) && !outdone(d.Report.Observations, i) {
			v.state(about, o, d, now, changed)
		}
	}
	if d.Report.Digest && !d.Report.Partial && id.Newer(v.digest) {
		v.digest = id
		v.withdraw(changed)
	}
	return fresh
}

// reach notes a boot epoch.
func (v *voice) reach(e fault.Epoch, now time.Time) {
	if v.epoch == 0 {
		v.met = now
	} else if e > v.epoch && v.met.Before(now) {
		v.booted = now
	}
	v.epoch = max(v.epoch, e)
}

// made returns when the report was made, by the hops' clocks.
func made(d fault.Delivery, now time.Time) time.Time {
	for _, h := range d.Hops {
		now = now.Add(-max(0, h.Held))
	}
	return now
}

// outdone says that the same report says worse of the same component: of a neighbour at the end of
// two links, each link may tell another story.
func outdone(obs []fault.Observation, i int) bool {
	for j, o := range obs {
		if j != i && o.Component == obs[i].Component && o.Node == obs[i].Node &&
			(o.State > obs[i].State || (o.State == obs[i].State && j < i)) {
			return true
		}
	}
	return false
}

// wellFormed says whether the observation is one that its observer can make: of its own node
// anything but the node as such, of a neighbour what the descriptor can say.
func wellFormed(about int, o fault.Observation) bool {
	if !o.Component.Valid() || o.Component == fault.ComponentNode || !o.State.Valid() {
		return false
	}
	if about >= 0 {
		_, ok := describedIndex(o.Component)
		return ok && o.Kind == fault.KindDescriptor
	}
	return slices.Contains(ownKinds[:], o.Kind)
}

// ownKinds are the kinds of what a half may say of its own node. Gossip, votes, challenges and
// missing digests are the supervisor's to say.
var ownKinds = [...]fault.Kind{fault.KindSelf, fault.KindWatchdog, fault.KindSilence, fault.KindHandshake, fault.KindErrorRatio}

// state stores one observation, unless the half has said something newer on the same component.
func (v *voice) state(about int, o fault.Observation, d fault.Delivery, now time.Time, changed func(int, fault.Component)) {
	at := v.at(about, o.Component)
	old := *at
	path := d.Path
	if about >= 0 {
		path = fault.PathTorus // a neighbour's fate came to the observer by the torus, however it went on
	}
	r := &record{
		state: o.State, kind: o.Kind, path: path, detail: o.Detail,
		epoch: d.Report.ID.Epoch, seq: d.Report.ID.Seq,
		said: made(d, now), came: now, began: now.Add(-max(0, d.Age(o))), since: now,
	}
	if old != nil {
		if old.newer(r) || (old.same(r) && (old.state >= r.state)) {
			return
		}
		if old.state == r.state && old.kind == r.kind {
			r.since = old.since
		}
	}
	*at = r
	if old == nil || old.state != r.state || old.kind != r.kind {
		changed(about, o.Component)
	}
}

// withdraw forgets what the newest digest does not mention.
func (v *voice) withdraw(changed func(int, fault.Component)) {
	stale := func(r *record) bool {
		return r != nil && (r.epoch < v.digest.Epoch || (r.epoch == v.digest.Epoch && r.seq < v.digest.Seq))
	}
	for c := range v.own {
		if stale(v.own[c]) {
			v.own[c] = nil
			changed(-1, fault.Component(c))
		}
	}
	for i := range v.about {
		for j := range v.about[i] {
			if stale(v.about[i][j]) {
				v.about[i][j] = nil
				changed(i, described[j])
			}
		}
	}
}

func (v *voice) at(about int, c fault.Component) **record {
	if about < 0 {
		return &v.own[c]
	}
	i, _ := describedIndex(c)
	return &v.about[about][i]
}

func (r *record) newer(than *record) bool {
	return r.epoch > than.epoch || (r.epoch == than.epoch && r.seq > than.seq)
}

func (r *record) same(as *record) bool { return r.epoch == as.epoch && r.seq == as.seq }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
