package servicenet

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// take carries out an outbox' output, in the order of Output; the half may die in between.
func (w *world) take(out Output) {
	w.wake = -1
	if !out.Wake.IsZero() {
		if w.wake = out.Wake.Sub(epochStart); w.wake <= w.now {
			w.failf("the wake at %v is not in the future", w.wake)
		}
	}
	w.note(out)
	if out.NewEpoch != 0 {
		w.epoch = out.NewEpoch
	}
	if w.crashed(1) {
		return
	}
	w.copied = w.o.Snapshot()
	for _, r := range out.Keep {
		w.spool[r.ID] = kept{r, w.now}
		w.wanted[number(r)] = true
		w.recent = append(w.recent, r.ID)
	}
	if len(w.recent) > 8 {
		w.recent = w.recent[len(w.recent)-8:]
	}
	if w.crashed(2) {
		return
	}
	for _, id := range out.Forget {
		delete(w.spool, id)
	}
	if w.crashed(3) {
		return
	}
	for _, m := range out.Paths {
		w.sendPath(m)
	}
	for _, s := range out.Send {
		w.checkNumbers(s)
		w.send(s)
	}
	w.crashed(4)
}

// checkNumbers ensures that a half that resumes in its epoch never uses one number for two reports.
func (w *world) checkNumbers(s Send) {
	if !w.warm {
		return
	}
	for _, r := range s.Reports {
		what := "digest " + strconv.Itoa(w.life)
		if !r.Digest {
			what = strconv.Itoa(number(r))
		}
		if was, ok := w.told[r.ID]; ok && was != what {
			w.failf("%s was %s and is %s", r.ID, was, what)
		}
		w.told[r.ID] = what
	}
}

func (w *world) note(out Output) {
	for _, m := range out.Migrations {
		if m.From != m.To {
			w.count.migrations++
		}
		if m.State == PathReestablishing {
			w.count.reestablished++
		}
	}
	if out.Changed && w.changed != nil {
		w.changed(out.ServiceNetwork)
	}
	if out.Changed && out.ServiceNetwork == fault.Failed {
		w.count.dead++
	}
	if out.IsolatedChanged && out.Isolated {
		w.count.isolated++
	}
}

func number(r fault.Report) int {
	n, _ := strconv.Atoi(r.Observations[0].Detail)
	return n
}

// route is the way of a datagram: by an interface, or another rail.
type route struct {
	path  fault.Path
	iface uint8
	sup   int
}

// transmit runs f once, never or twice, after a while. For a packet damaged on the way it runs harm instead.
func (w *world) transmit(r route, f, harm func()) {
	w.count.sent++
	n := 1
	if w.rng.Float64() < w.loss && (r.path == fault.PathDirect || !w.clean) || r.path == fault.PathDirect && w.cut[r.iface] || w.down[r.sup] {
		w.count.lost++
		n = 0
	} else if w.rng.Float64() < w.dup {
		n = 2
	}
	for range n {
		do := f
		if w.rng.Float64() < w.corrupt {
			w.count.damaged++
			do = harm
		}
		w.after(time.Duration(1+w.rng.IntN(w.delay*1000))*time.Microsecond, do)
	}
}

// toHalf delivers an event to the half, or damage.
func (w *world) toHalf(r route, ev func() Event) {
	w.transmit(r, func() { w.step(ev()) }, func() {
		if !w.silent {
			w.step(Damaged{Path: r.path, Interface: r.iface, Supervisor: modelSupervisors[r.sup]})
		}
	})
}

func (w *world) send(s Send) {
	switch s.Path {
	case fault.PathDirect:
		w.sendTo(s, route{s.Path, s.Interface, slices.Index(modelSupervisors, s.Target)})
	case fault.PathTorus:
		w.sendTo(s, route{s.Path, 0, int(s.Reports[0].ID.Seq) % 3})
	case fault.PathGossip:
		for i := range modelSupervisors {
			w.sendTo(s, route{s.Path, 0, i})
		}
	}
}

func (w *world) sendTo(s Send, r route) {
	w.transmit(r, func() { w.arrive(s, r) }, func() {
		if !w.silent {
			w.toHalf(w.back(r), func() Event {
				return Damaged{Path: r.path, Interface: r.iface, Supervisor: modelSupervisors[r.sup]}
			})
		}
	})
}

// back is the route of an answer: a message that came by gossip is answered directly.
func (w *world) back(r route) route {
	if r.path == fault.PathGossip {
		r.path, r.iface = fault.PathDirect, uint8(w.rng.IntN(2))
	}
	return r
}

func (w *world) sendPath(m PathMessage) {
	r := route{fault.PathDirect, m.Path.Interface, slices.Index(modelSupervisors, m.Path.Supervisor)}
	if m.Request == nil {
		return
	}
	req := m.Request
	w.transmit(r, func() {
		w.count.replies++
		w.after(w.slowness(r.sup), func() {
			w.toHalf(r, func() Event {
				return Replied{Interface: r.iface, Supervisor: m.Path.Supervisor, Reply: &lofamov1.PathReply{
					Node: req.GetNode(), Half: req.GetHalf(), Epoch: req.GetEpoch(), Id: req.GetId()}}
			})
		})
	}, func() {})
}

// arrive is a supervisor's part: RECEIVED at once, the rest is the leader's.
func (w *world) arrive(s Send, r route) {
	if w.down[r.sup] {
		return
	}
	ids := make([]fault.ReportID, 0, len(s.Reports))
	for _, rep := range s.Reports {
		ids = append(ids, rep.ID)
		w.checkAge(rep)
	}
	w.after(w.slowness(r.sup), func() { w.ack(r, lofamov1.Ack_RECEIVED, ids) })
	w.after(w.slowness(w.leader)+time.Millisecond, func() {
		if w.down[w.leader] {
			return
		}
		var again []fault.ReportID
		for _, rep := range s.Reports {
			again = w.evidence(rep, again)
		}
		w.ack(route{w.back(r).path, r.iface, w.leader}, lofamov1.Ack_COMMITTED, again)
		w.flush(r)
	})
}

// slowness is how long a supervisor waits before it answers.
func (w *world) slowness(supervisor int) time.Duration {
	if w.slow == nil {
		return 0
	}
	return w.slow(supervisor)
}

// checkAge: the age is that at the time of sending, over all restarts.
func (w *world) checkAge(rep fault.Report) {
	if rep.Digest {
		return
	}
	since := w.now - w.created[number(rep)] - rep.Observations[0].Age
	if since < 0 || since > time.Duration(w.delay)*time.Millisecond {
		w.failf("%s was sent %v ago by its age of %v", rep.ID, since, rep.Observations[0].Age)
	}
}

func (w *world) ack(r route, st lofamov1.Ack_Status, ids []fault.ReportID) {
	if len(ids) == 0 {
		return
	}
	r = w.back(r)
	leader := modelSupervisors[w.leader]
	for _, a := range NewAcks(st, ids...) {
		a.Leader = leader
		w.toHalf(r, func() Event {
			return Acked{Ack: a, Supervisor: modelSupervisors[r.sup], Path: r.path, Interface: r.iface}
		})
	}
}

// evidence judges one report, and returns with the others those that were committed long ago.
func (w *world) evidence(rep fault.Report, again []fault.ReportID) []fault.ReportID {
	id := rep.ID
	switch v := w.inbox.Accept(id, rep.Digest); {
	case rep.Digest && v != EpochJump:
	case v == Fresh:
		w.pending[id] = rep
	case v == Duplicate:
		w.count.duplicates++
		if _, ok := w.pending[id]; !ok {
			if w.committed[number(rep)] == 0 {
				w.failf("%s is a duplicate that was never committed: a lost report", id)
			}
			again = append(again, id)
		}
	case v == StaleEpoch && (w.committed[number(rep)] > 0 || !w.wanted[number(rep)]):
		// A late copy: the half knows better, or has forgotten it.
		w.ackStale(id)
	default:
		w.failf("%s: %s", id, v)
	}
	return again
}

func (w *world) ackStale(id fault.ReportID) {
	a := NewAcks(lofamov1.Ack_STALE_EPOCH, id)[0]
	a.HighestEpoch = uint64(w.inbox.Position(id.Origin).Epoch)
	r := route{path: fault.PathDirect, sup: w.leader}
	w.toHalf(r, func() Event {
		return Acked{Ack: a, Supervisor: modelSupervisors[r.sup], Path: r.path, Interface: r.iface}
	})
}

// flush commits everything pending in one transaction, one at a time.
func (w *world) flush(r route) {
	if w.committing || len(w.pending) == 0 {
		return
	}
	w.committing = true
	batch := slices.SortedFunc(maps.Values(w.pending), func(a, b fault.Report) int {
		return cmp.Or(cmp.Compare(a.ID.Epoch, b.ID.Epoch), cmp.Compare(a.ID.Seq, b.ID.Seq))
	})
	positions, term := w.inbox.positions(), w.term
	var commit func()
	commit = func() {
		if term != w.term {
			return // fenced
		}
		if w.storeDown {
			w.after(100*time.Millisecond, commit)
			return
		}
		w.saved, w.committing = positions, false
		ids := make([]fault.ReportID, 0, len(batch))
		for _, rep := range batch {
			delete(w.pending, rep.ID)
			w.commitOne(rep)
			ids = append(ids, rep.ID)
		}
		w.ack(route{w.back(r).path, r.iface, w.leader}, lofamov1.Ack_COMMITTED, ids)
		w.flush(r)
	}
	w.after(time.Duration(1+w.rng.IntN(w.commit))*time.Millisecond, commit)
}

// commitOne checks that the stored report equals the original.
func (w *world) commitOne(rep fault.Report) {
	n := number(rep)
	o := rep.Observations[0]
	if len(rep.Observations) != 1 || o.Node != "n0-0-0" || o.Component != modelComponent(n) || o.State != fault.Sick ||
		o.Kind != fault.KindSelf || o.Age < 0 || o.Detail != strconv.Itoa(n) {
		w.failf("report %d was altered: %+v", n, rep)
	}
	if w.committed[n]++; w.committed[n] > 1 {
		w.failf("report %d was committed twice, the second time as %s", n, rep.ID)
	}
}
