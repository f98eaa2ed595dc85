package engine

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

type mark = *lofamov1.Maintenance

// expiry tracks when maintenance marks expire. A mark states its end by the wall clock, for people. A leader converts
// that to its own monotonic clock once, when it first sees the mark. A clock that is set back or forth then neither
// ends a mark early nor keeps it for ever.
type expiry struct{ ends map[string]end }

type end struct {
	until time.Time // as marked
	at    time.Time // by this leader's monotonic clock
}

// step returns the expired marks and the time of the next expiry; zero: no mark expires.
func (x *expiry) step(now time.Time, marks []mark) (over []mark, wake time.Time) {
	ends := make(map[string]end, len(x.ends))
	for _, m := range marks {
		if m.GetUntil() == nil {
			continue
		}
		until := m.GetUntil().AsTime()
		e, ok := x.ends[m.GetNode()]
		if !ok || !e.until.Equal(until) {
			e = end{until, now.Add(until.Sub(now))} // until has no monotonic reading, so Sub compares wall clocks
		}
		ends[m.GetNode()] = e
		if now.Before(e.at) {
			wake = fault.Earliest(wake, e.at)
		} else {
			over = append(over, m)
		}
	}
	x.ends = ends
	return over, wake
}
