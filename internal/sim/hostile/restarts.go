package hostile

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// longestAway bounds the planned restart of an honest half: a half that is away for longer misses digests.
const longestAway = time.Second

// notice makes a report of a half with a restart notice.
func (w *world) notice(h *half, r fault.RestartNotice, digest bool) fault.Delivery {
	h.seq++
	d := w.report(h, false)
	d.Report.Restart, d.Report.Digest, d.Report.Partial = r, digest, digest
	return d
}

// plan restarts the host half of an honest node. The restart begins when the notice has arrived.
func (w *world) plan(rank int, within time.Duration) {
	h := &w.nodes[rank].halves[0]
	if !h.alive || w.now.Before(h.away) {
		return
	}
	w.plans = rank
	d := w.notice(h, fault.RestartNotice{Half: fault.HalfHost, Within: min(within, fault.MaxRestart)}, false)
	if w.loses(rank) {
		w.heard = push(w.heard, d) // a liar on its way may have stored it
		w.after(resendTime, func() { w.plan(rank, within) })
		return
	}
	w.hears(d, false)
	h.away = w.now.Add(min(within/2, longestAway))
	w.at(h.away, func() {
		h.epoch, h.seq, h.whole = h.epoch+1, 0, true
		over := w.notice(h, fault.RestartNotice{Half: fault.HalfHost}, false)
		w.over = over.Report.ID
		w.deliver(rank, over)
		w.digest(rank, 0)
	})
}

// holds reports whether a liar's notice may keep the state of a component. These are the liar's own components and the
// links that lead there.
func (w *world) holds(rank int, c fault.Component) bool {
	if d, link := c.LinkDirection(); link && !w.s.liar(rank) {
		rank = w.peer(rank, d)
	}
	st, _ := w.m.Node(w.ids[rank])
	return w.s.liar(rank) && st.Restart.Half != 0
}

// judgeNotices checks the announced restarts in the map.
func (w *world) judgeNotices() {
	for rank, id := range w.ids {
		st, _ := w.m.Node(id)
		r := st.Restart
		switch {
		case r.Half == 0:
		case r.Until.Sub(w.now) > fault.MaxRestart+2*digestPeriod:
			w.violate(Held, "%s is held as restarting until %s from now", id, r.Until.Sub(w.now))
		case w.s.liar(rank):
		case rank != w.plans:
			w.violate(Held, "%s is held as restarting, and has announced nothing", id)
		case w.led: // a supervisor's inbox drops replays of notices from before its term; this world has none
		case !w.overAt.IsZero():
			w.violate(Held, "%s is back from its restart, and shown as restarting until %s from now", id, r.Until.Sub(w.now))
		}
	}
}
