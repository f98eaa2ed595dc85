package engine

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

type mark = *lofamov1.Maintenance

// expiry knows when the time of maintenance marks is over. A mark tells it by a wall clock, which people
// read; a leader turns that into its own steady clock once, when it first sees the mark, so that a clock
// that is set back or forth ends nothing early and keeps nothing for ever.
type expiry struct{ ends map[string]end }

type end struct {
	until time.Time // as marked
	at    time.Time // by this leader's steady clock
}

// step returns the marks whose time is over, and when the next one's is; zero: none has a time.
func (x *expiry) step(now time.Time, marks []mark) (over []mark, wake time.Time) {
	ends := make(map[string]end, len(x.ends))
	for _, m := range marks {
		if m.GetUntil() == nil {
			continue
		}
		until := m.GetUntil().AsTime()
		e, ok := x.ends[m.GetNode()]
		if !ok || !e.until.Equal(until) {
			e = end{until, now.Add(until.Sub(now))} // until has no steady clock: the walls are compared
		}
		ends[m.GetNode()] = e
		switch {
		case !now.Before(e.at):
			over = append(over, m)
		case wake.IsZero() || e.at.Before(wake):
			wake = e.at
		}
	}
	x.ends = ends
	return over, wake
}
