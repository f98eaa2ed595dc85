package hostcore

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// notices are the reports of restarts and stops that the supervisors have not committed yet: the newest one of each kind. Two daemons, one
// for each half, may wait for their notices at the same time.
type notices []fault.Report

// NoticeKind is the subject of a notice: a restart of that half, or 0: a stop of the node.
type NoticeKind = fault.Half

// announce reports a notice.
func (m *Machine) announce(now time.Time, r fault.Report) {
	r.ID = m.add(now, r)
	m.notices = slices.DeleteFunc(m.notices, func(old fault.Report) bool { return old.Restart.Half == r.Restart.Half })
	m.notices = append(m.notices, r)
}

// settle processes the reports that have left the log, and returns the notices that are now committed. A notice that got another number is
// still awaited.
func (n *notices) settle(o servicenet.SenderEffects) (committed []NoticeKind) {
	*n = slices.DeleteFunc(*n, func(r fault.Report) bool {
		is := slices.Contains(o.Forget, r.ID) && !slices.Contains(o.Replaced, r.ID)
		if is {
			committed = append(committed, r.Restart.Half)
		}
		return is
	})
	for i, r := range *n {
		if !slices.Contains(o.Replaced, r.ID) {
			continue
		}
		for _, kept := range o.Keep {
			if kept.Restart.Half == r.Restart.Half && (kept.Stop != 0) == (r.Stop != 0) {
				(*n)[i].ID = kept.ID
			}
		}
	}
	return committed
}
