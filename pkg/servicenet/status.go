package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// isolation tracks whether any rail at all brings answers.
type isolation struct {
	isolated bool
	said     bool      // the last reported value of isolated
	since    time.Time // of the first send since the last answer; zero: none
	rails    [numPaths]bool
}

func (i *isolation) sent(now time.Time, rail fault.Path) {
	if i.since.IsZero() {
		i.since = now
	}
	i.rails[rail] = true
}

// doubt forgets unanswered sends, but not a standing verdict.
func (i *isolation) doubt() {
	if !i.isolated {
		i.since = time.Time{}
	}
}

// Answers returns the number of answers that the outbox waited for. A replayed answer is none of these.
func (o *Outbox) Answers() uint64 { return o.answers }

// noteAnswer ends the isolation and the silence.
func (o *Outbox) noteAnswer(now time.Time) {
	o.answers++
	i := &o.isolation
	i.isolated, i.since, i.rails = false, time.Time{}, [numPaths]bool{}
	o.endSilence(now)
}

// judgeIsolation: nothing was answered for NetworkDeadAfter although every rail was tried, or is known
// to be down.
func (o *Outbox) judgeIsolation(now time.Time, out *Output) {
	i := &o.isolation
	is := !i.since.IsZero() && now.Sub(i.since) >= o.cfg.NetworkDeadAfter
	for _, p := range o.cfg.Rails {
		is = is && (i.rails[p] || !o.usable(p))
	}
	i.isolated = i.isolated || is
	out.Isolated, out.IsolatedChanged = i.isolated, i.isolated != i.said
	i.said = i.isolated
}

func (o *Outbox) isolationDeadline(now time.Time) time.Time {
	i := &o.isolation
	if at := i.since.Add(o.cfg.NetworkDeadAfter); !i.since.IsZero() && !i.isolated && at.After(now) {
		return at
	}
	return time.Time{}
}

// PathName writes a path as users see it; empty for the zero value.
func (o *Outbox) PathName(id PathID) string {
	if id.Supervisor == "" || int(id.Interface) >= len(o.cfg.Interfaces) {
		return ""
	}
	return o.cfg.Interfaces[id.Interface] + ">" + id.Supervisor
}

// Status says how the reports of this half fare.
func (o *Outbox) Status(now time.Time) *lofamov1.DeliveryStatus {
	s := &o.paths
	st := &lofamov1.DeliveryStatus{
		State:      lofamov1.PathState(s.state),
		Logged:     uint32(o.reports),
		Migrations: o.stats.Migrations, Retries: o.stats.Retries, Shortened: o.stats.Shortened,
		Spool: fault.Clean(o.spool, fault.MaxDetail),
	}
	if s.primary != nil {
		st.Primary = s.primary.name
	}
	if s.alternate != nil {
		st.Alternate = s.alternate.name
	}
	if o.isolation.isolated {
		st.IsolatedNs = encodeDuration(now.Sub(o.isolation.since))
	}
	var oldest time.Time
	for _, e := range o.log {
		if e.report.Digest {
			continue
		}
		oldest = fault.Earliest(oldest, e.added)
		if e.via == 0 {
			st.Unanswered++
		}
	}
	if !oldest.IsZero() {
		st.OldestNs = encodeDuration(now.Sub(oldest))
	}
	st.Rails = o.railStatus()
	return st
}

// railStatus counts by rail; each service interface is one.
func (o *Outbox) railStatus() []*lofamov1.RailStatus {
	all := make([]lofamov1.RailStatus, len(o.interfaces)+2) // one allocation for all
	out := make([]*lofamov1.RailStatus, 0, len(all))
	add := func() *lofamov1.RailStatus {
		out = append(out, &all[len(out)])
		return out[len(out)-1]
	}
	for i := range o.interfaces {
		at, r := &o.interfaces[i], add()
		r.Name, r.Down, r.Sent, r.Answered = at.rail, at.down || o.direct.dead, at.sent, at.answered
		for _, p := range o.paths.all {
			if int(p.id.Interface) == i && (p == o.paths.primary || r.RttNs == 0) {
				r.RttNs = encodeDuration(p.rtt.srtt)
			}
		}
	}
	direct := len(out)
	for _, p := range []fault.Path{fault.PathGossip, fault.PathTorus} {
		if !o.have[p] {
			continue
		}
		r := add()
		r.Name, r.Down, r.Sent, r.Answered = "gossip", o.down[p], o.stats.Sent[p], o.answeredBy[p]
		if p == fault.PathTorus {
			r.Name, r.RttNs = "torus", encodeDuration(o.torusRTT.srtt)
		}
	}
	for _, e := range o.log {
		if !e.pending() {
			continue
		}
		switch {
		case e.rail == fault.PathDirect && e.path != nil:
			out[e.path.id.Interface].InFlight++
		case e.rail != 0:
			out[o.railIndex(e.rail, direct)].InFlight++
		}
	}
	return out
}

// railIndex is where a rail other than the direct one stands behind the interfaces.
func (o *Outbox) railIndex(p fault.Path, direct int) int {
	if p == fault.PathTorus && o.have[fault.PathGossip] {
		return direct + 1
	}
	return direct
}

// countAnswer counts a first RECEIVED for the rail that brought it.
func (o *Outbox) countAnswer(ev Acked) {
	switch {
	case ev.Path == fault.PathDirect && int(ev.Interface) < len(o.interfaces):
		o.interfaces[ev.Interface].answered++
	case ev.Path.Valid():
		o.answeredBy[ev.Path]++
	}
}
