package hostcore

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// notices holds, for each kind, the newest notice that the supervisors have not committed yet. Two daemons, one for each half, may wait for
// their notices at the same time.
type notices []fault.Report

// NoticeKind is the half whose restart a notice announces or ends; 0: the notice is about a stop of the node, or its end.
type NoticeKind = fault.Half

// Notice is an event that announces a restart of a half or a stop of the node, or ends that.
type Notice interface {
	Event
	Kind() NoticeKind
}

// Kind is the half that is restarted.
func (r Restart) Kind() NoticeKind { return r.Notice.Half }

// Kind is 0.
func (Stop) Kind() NoticeKind { return 0 }

// announce reports a notice. It replaces the pending notice of the same kind.
func (m *Machine) announce(now time.Time, r fault.Report) {
	r.ID = m.add(now, r)
	m.notices = slices.DeleteFunc(m.notices, func(old fault.Report) bool { return old.Restart.Half == r.Restart.Half })
	m.notices = append(m.notices, r)
}

// settle updates the pending notices after reports have left the log, and returns the kinds that are now committed. A notice whose report
// got a new number stays pending.
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
