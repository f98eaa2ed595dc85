package sim

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// fenced is a step that rested on a node's fencing.
type fenced struct {
	node  fault.NodeID
	after time.Duration // since the node was cut off
}

// noteWatchdog keeps the newest statement on a node's hardware watchdog, as in engine. It reports whether that changed.
func (t *term) noteWatchdog(now time.Time, in input, rep *fault.Report) bool {
	if t.r.w.cfg.Fences == nil {
		return false
	}
	node := rep.ID.Origin.Node
	var is *lofamov1.HardwareWatchdog
	var takes bool
	if rep.Digest {
		is, takes = t.watchdogs.Digest(now, rep.ID, in.health.Host)
	} else {
		takes, _ = t.watchdogs.Report(now, rep)
	}
	if t.r.w.cfg.bug == bugStatement && !is.GetArmed() {
		takes = false
	}
	if !takes {
		return false
	}
	was := t.stated[node]
	if is = view.StatedWatchdog(was, t.r.w.withoutMargin(is), now); is == was {
		return false
	}
	t.stated[node] = is
	t.touch(node)
	return true
}

// withoutMargin returns a statement as the leader takes it: if such a bug is planted, shorter by the margin or by one time-out.
func (w *World) withoutMargin(is *lofamov1.HardwareWatchdog) *lofamov1.HardwareWatchdog {
	down := int64(is.GetTimeoutMs()) + int64(is.GetContactWithinMs())
	switch {
	case is != nil && w.cfg.bug == bugMargin:
		down -= w.responses.Limits.FenceMargin.Milliseconds()
	case is != nil && (w.cfg.bug == bugOnce || w.cfg.bug.needsStrictDevice()):
	default:
		return is
	}
	return &lofamov1.HardwareWatchdog{Armed: is.GetArmed(), TimeoutMs: 1, ContactWithinMs: uint32(max(1, down)), Boot: is.GetBoot()}
}

// placeWriters has the workload's scheduler start writers on nodes that a committed map calls NORMAL.
func (w *World) placeWriters(b *batch) {
	if w.cfg.Fences == nil {
		return
	}
	for _, st := range b.statuses {
		m := w.find(st.ID).machine
		if st.State != fault.Normal || !m.on || m.writes {
			continue
		}
		boot := m.boot
		w.after(w.between(writerMin, writerMax), func() {
			if m.on && m.boot == boot && w.store.picture(st.ID).state[fault.ComponentNode] == fault.Normal {
				m.writes = true
			}
		})
	}
}

// checkFenced: when a step begins that rests on a node's fencing, the node's writer is down.
func (w *World) checkFenced(r *response.Response, step int) {
	rests := slices.ContainsFunc(r.Steps[:step], func(s response.StepRecord) bool { return s.Kind == response.NodeFence })
	if w.cfg.Fences == nil || !rests {
		return
	}
	m := w.find(r.Target.Node).machine
	if m.writes {
		w.violate("step %s begins on a node that is not down: %s, boot %d, device armed: %t", r.Steps[step].Name, r.Target.Node, m.boot, m.armed)
	}
	w.fenced = append(w.fenced, fenced{r.Target.Node, w.now.Sub(m.cutAt)})
}
