package awareness

import "time"

// instant is a point in time as it is stored: nanoseconds after the clock's base, 0 for none. A
// time.Time is three times as long, and a map of 100,000 nodes holds some millions of them.
type instant int64

// before is how long before a machine's start its base lies: longer than anything is old.
const before = 100 * 365 * 24 * time.Hour

// clock turns times into instants and back. Both ways go by the base's monotonic reading, so that a step of
// the wall clock moves nothing.
type clock struct{ base time.Time }

func newClock(start time.Time) clock { return clock{base: start.Add(-before)} }

// instant returns t as it is stored. What lies before the base counts as just after it.
func (c clock) instant(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return max(1, instant(t.Sub(c.base)))
}

// time is the inverse of instant.
func (c clock) time(i instant) time.Time {
	if i == 0 {
		return time.Time{}
	}
	return c.base.Add(time.Duration(i))
}

// age is a duration in ms, cut off after some 49 days: what is normal need not be known to be older.
type age uint32

func ageOf(d time.Duration) age {
	return age(min(max(0, d/time.Millisecond), 1<<32-1))
}

func (a age) duration() time.Duration { return time.Duration(a) * time.Millisecond }
