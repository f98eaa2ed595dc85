package hostcore

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// notices are the reports of restarts and stops that the supervisors have not committed yet: the newest one on a stop, and on a restart of
// each half. Two daemons, one for each half, may wait for their notices at the same time.
type notices []fault.Report

// sameNotice reports whether two notices are both on a stop, or both on a restart of the same half.
func sameNotice(a, b fault.Report) bool {
	return a.Restart.Half == b.Restart.Half && (a.Stop == 0) == (b.Stop == 0)
}

// announce reports a notice.
func (m *Machine) announce(now time.Time, r fault.Report) {
	r.ID = m.add(now, r)
	m.notices = slices.DeleteFunc(m.notices, func(old fault.Report) bool { return sameNotice(old, r) })
	m.notices = append(m.notices, r)
}

// settle processes the reports that have left the log, and reports whether no notice is awaited any more. A notice that got another number
// is still awaited.
func (n *notices) settle(o servicenet.SenderEffects) bool {
	waited := len(*n) > 0
	*n = slices.DeleteFunc(*n, func(r fault.Report) bool {
		return slices.Contains(o.Forget, r.ID) && !slices.Contains(o.Replaced, r.ID)
	})
	for i, r := range *n {
		if !slices.Contains(o.Replaced, r.ID) {
			continue
		}
		for _, kept := range o.Keep {
			if sameNotice(kept, r) {
				(*n)[i].ID = kept.ID
			}
		}
	}
	return waited && len(*n) == 0
}
