package awareness

import (
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// voice is one half's statements and signs of life.
//
// Nearly all statements report that a component is NORMAL. Such a plain statement (see plain) takes one bit in the
// telling, the report that contained it, and an age; only other statements have a record each.
type voice struct {
	half     fault.Half
	path     fault.Path     // of the newest report
	platform fault.Platform // platform of its node's halves; 0: not stated
	cut      bool           // statements of the newest digest were dropped: it cannot be restated
	epoch    fault.Epoch    // the highest heard
	shown    fault.Epoch    // the highest in an answer: a copy of that answer shows no other boot
	floor    fault.Epoch    // reports of older epochs are replays from before this leader's time
	newest   stamp          // report
	digest   telling        // the newest full statement: it withdraws everything older that it does not contain
	more     []telling      // other reports with plain statements that still count
	others   []record       // statements that are not plain
	ages     *[maxSlots]age // of the plain statements, when their telling first arrived

	registers fault.Registers // of the newest report

	met        instant   // when the first report was made; 0 if the epoch was restored
	booted     instant   // when the first report of an epoch higher than the known one was made
	started    instant   // when the half's process started, by the uptime in its reports
	heard      time.Time // when the newest sign of life was made, by the hops' clocks; zero for none
	direct     instant   // the same for the newest report that came directly from the half
	reported   instant   // when the newest report was made: its statements count from then on; Machine.respite moves it
	respite    instant   // it counts as heard at least until then: see Machine.respite
	answered   uint64    // the newest challenge it answered, by serial number
	asked      instant   // when that challenge was sent
	answeredAt instant   // when its answer arrived
}

// telling is a report with the set of its plain statements that still count.
type telling struct {
	stamp
	path  fault.Path
	said  instant // when it was made, by the hops' clocks
	came  instant // when it arrived here
	first instant // first arrival of its content: Restated moves the other times
	plain uint64
}

// plain reports whether the statement is the usual one: NORMAL, of the usual kind, without detail.
func (v *voice) plain(s slot, o fault.Observation) bool {
	return o.State == fault.Normal && o.Detail == "" && o.Kind == v.usual(s)
}

// usual returns the kind of a plain statement in the slot.
func (v *voice) usual(s slot) fault.Kind {
	about, c := s.about()
	switch {
	case about >= 0:
		return fault.KindDescriptor
	case c == v.half.Other().Component():
		return fault.KindWatchdog
	}
	return fault.KindSelf
}

// arrival is a report that a voice is about to process.
type arrival struct {
	fault.Delivery
	clock   clock
	now     time.Time
	made    time.Time
	window  time.Duration // see outdated
	placed  time.Time     // when a joiner got its place; zero: the node is none
	changed func(slot)    // called for every statement whose state or kind changed
}

// outdated reports whether a report of a change is no longer news, because later digests describe the present. After a
// time without a reachable supervisor, a half replays its log from the beginning. Those changes may be long past;
// taking them for the newest statements would make working components FAILED. So are failures from before a joiner got its
// place: it may have had a place earlier, and its log still has them.
func (a arrival) outdated(o fault.Observation) bool {
	if a.Report.Digest {
		return false
	}
	age := a.Age(o)
	return age > a.window || !a.placed.IsZero() && o.State == fault.Failed && a.now.Add(-age).Before(a.placed)
}

// received returns when the report counts as received. A report may wait at a supervisor that cannot reach the leader. After a wait
// longer than the window, its statements have expired, and its half has lived at the wait's beginning, but perhaps not since.
func (a arrival) received() time.Time {
	if a.Waited > a.window {
		return a.now.Add(-a.Waited)
	}
	return a.now
}

// take stores a report and returns whether it is newer than all earlier reports of this half. about finds the neighbour
// that an observation refers to; -1 is the half's own node.
func (v *voice) take(a arrival, about func(fault.NodeID) (int, bool)) (fresh bool) {
	at := stampOf(a.Report.ID)
	if at.epoch < v.floor || v.digest.newer(at) {
		return false
	}
	received := a.received()
	a.made = made(a.Delivery, received)
	said := a.clock.instant(a.made)
	if fresh = at.newer(v.newest); fresh {
		if !a.Report.Digest && v.reported != 0 && said-v.reported >= instant(a.window) {
			v.withdraw(at, a.changed) // after such a silence, only the next digest shows which of the earlier statements still hold
		}
		v.reach(at.epoch, said)
		v.live(at, a.Path, a.made, a.clock)
		if up := a.Report.Uptime; up > 0 {
			v.started = max(v.started, said-instant(up))
		}
		v.registers = a.Report.Registers
		if a.Report.Platform != 0 {
			v.platform = a.Report.Platform
		}
	}
	v.heardDirect(at, a.Path, said)
	if v.ages == nil {
		v.ages = new([maxSlots]age)
	}
	came := a.clock.instant(a.now)
	t := telling{stamp: at, path: a.Path, said: said, came: came, first: came}
	for s, i := range worstOf(a.Report.Observations, about) {
		if i >= 0 && !a.outdated(a.Report.Observations[i]) {
			v.state(slot(s), a.Report.Observations[i], a, &t)
		}
	}
	if a.Report.Digest && !a.Report.Partial && at.newer(v.digest.stamp) {
		v.withdraw(at, a.changed)
		v.digest, v.cut = t, false
	} else if t.plain != 0 {
		v.more = append(v.more, t)
	}
	if v.more = slices.DeleteFunc(v.more, func(t telling) bool { return t.plain == 0 }); len(v.more) == 0 {
		v.more = nil
	}
	return fresh
}

func slotOf(neighbour int, c fault.Component) slot {
	if neighbour < 0 {
		return ownSlot(c)
	}
	i, _ := describedIndex(c)
	return aboutSlot(neighbour, i)
}

// worstOf returns, for each slot, the first observation with the worst state: two links to the same neighbour may yield
// different observations.
func worstOf(obs []fault.Observation, about func(fault.NodeID) (int, bool)) (at [maxSlots]int16) {
	for i := range at {
		at[i] = -1
	}
	for i, o := range obs {
		if n, ok := about(o.Node); ok && wellFormed(n, o) {
			if w := &at[slotOf(n, o.Component)]; *w < 0 || o.State > obs[*w].State {
				*w = int16(i)
			}
		}
	}
	return at
}

// reach records the boot epoch of a report that was made at said.
func (v *voice) reach(e fault.Epoch, said instant) {
	if v.epoch == 0 {
		v.met = said
	} else if e > v.epoch && v.met < said {
		v.booted = said
	}
	v.epoch = max(v.epoch, e)
}

// live records a report newer than all before.
func (v *voice) live(at stamp, p fault.Path, said time.Time, c clock) {
	v.newest, v.path = at, p
	v.heard, v.reported = fault.Later(v.heard, said), max(v.reported, c.instant(said))
}

// heardDirect records a report that came directly from the half.
func (v *voice) heardDirect(at stamp, p fault.Path, said instant) {
	if at == v.newest && p == fault.PathDirect {
		v.direct = max(v.direct, said)
	}
}

// state stores one observation, unless there is a newer statement of the half on the same component.
func (v *voice) state(s slot, o fault.Observation, a arrival, t *telling) {
	was, at, known := v.last(s)
	if known && (at.newer(t.stamp) || (at == t.stamp && was.state >= o.State)) {
		return
	}
	began := a.now.Add(-max(0, a.Age(o)))
	if v.plain(s, o) {
		if old := v.telling(s); old != nil && old.epoch == t.epoch {
			if was := v.beganPlain(s, old, a.clock); was.Before(began) {
				began = was // digests do not contain its age
			}
		}
		v.remove(s)
		t.plain |= s.bit()
		v.ages[s] = ageOf(a.now.Sub(began).Round(time.Millisecond)) // each digest rounds it: no drift
	} else {
		r := record{
			slot: s, state: o.State, kind: o.Kind, path: pathOf(s, a.Path), detail: o.Detail, ended: o.Ended, stamp: t.stamp,
			said: a.made, came: a.now, began: began, since: a.now,
		}
		if old := v.other(s); old != nil && old.state == r.state && old.kind == r.kind {
			r.since = old.since
		}
		v.remove(s)
		v.others = append(v.others, r)
	}
	if !known || was.state != o.State || was.kind != o.Kind {
		a.changed(s)
	}
}

// pathOf returns the path of a statement in a report: statements about neighbours reached the observer over the torus,
// whatever way they took from there.
func pathOf(s slot, p fault.Path) fault.Path {
	if int(s) >= fault.NumComponents {
		return fault.PathTorus
	}
	return p
}

// remove deletes the slot's statement.
func (v *voice) remove(s slot) {
	v.digest.plain &^= s.bit()
	for i := range v.more {
		v.more[i].plain &^= s.bit()
	}
	v.others = slices.DeleteFunc(v.others, func(r record) bool { return r.slot == s })
	if len(v.others) == 0 {
		v.others = nil
	}
}

// withdraw deletes all older statements that a new digest does not repeat.
func (v *voice) withdraw(digest stamp, changed func(slot)) {
	forget := func(set uint64) {
		for ; set != 0; set &= set - 1 {
			s := slot(bits.TrailingZeros64(set))
			v.remove(s)
			changed(s)
		}
	}
	forget(v.digest.plain)
	for i := range v.more {
		if digest.newer(v.more[i].stamp) {
			forget(v.more[i].plain)
		}
	}
	for i := len(v.others) - 1; i >= 0; i-- {
		if r := v.others[i]; digest.newer(r.stamp) {
			v.remove(r.slot)
			changed(r.slot)
		}
	}
}

// unknown reports whether a restated digest cannot be matched: the half's newest report is not a whole digest, or there
// is none of that epoch.
func (v *voice) unknown(at stamp) bool {
	return at.newer(v.digest.stamp) && (v.cut || v.digest.seq == 0 || v.digest.epoch != at.epoch || v.digest.stamp != v.newest)
}

// restate records the newest digest as repeated by the report at, unless the voice already knows it. It returns whether
// the repetition is new.
func (v *voice) restate(at stamp, p fault.Path, said, came time.Time, c clock) (fresh bool) {
	if d := &v.digest; at.newer(d.stamp) {
		fresh = true
		for i := range v.others {
			r := &v.others[i]
			r.stamp, r.path, r.said, r.came = at, pathOf(r.slot, p), said, came
		}
		d.stamp, d.path, d.said, d.came = at, p, c.instant(said), c.instant(came)
		v.live(at, p, said, c)
	}
	v.heardDirect(at, p, c.instant(said))
	return fresh
}

// brief is the part of a statement needed to compare it with the next one.
type brief struct {
	state fault.State
	kind  fault.Kind
}

// last returns the statement in the slot, the report that contained it, and whether there is one.
func (v *voice) last(s slot) (brief, stamp, bool) {
	if t := v.telling(s); t != nil {
		return brief{fault.Normal, v.usual(s)}, t.stamp, true
	}
	if r := v.other(s); r != nil {
		return brief{r.state, r.kind}, r.stamp, true
	}
	return brief{}, stamp{}, false
}

// telling returns the report with the slot's plain statement; nil if there is none.
func (v *voice) telling(s slot) *telling {
	if v.digest.plain&s.bit() != 0 {
		return &v.digest
	}
	for i := range v.more {
		if v.more[i].plain&s.bit() != 0 {
			return &v.more[i]
		}
	}
	return nil
}

// other returns the slot's statement if it is not plain.
func (v *voice) other(s slot) *record {
	for i := range v.others {
		if v.others[i].slot == s {
			return &v.others[i]
		}
	}
	return nil
}

// beganPlain returns when the plain statement in the slot, contained in t, began.
func (v *voice) beganPlain(s slot, t *telling, c clock) time.Time {
	return c.time(t.first - instant(v.ages[s].duration()))
}

// recall builds a record of the plain statement in the slot. Its since is when it began.
func (v *voice) recall(s slot, t *telling, c clock, r *record) {
	r.slot, r.state, r.kind, r.path, r.stamp = s, fault.Normal, v.usual(s), pathOf(s, t.path), t.stamp
	r.said, r.came = c.time(t.said), c.time(t.came)
	r.began = v.beganPlain(s, t, c)
	r.since = r.began
}
