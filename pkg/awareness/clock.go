package awareness

import "time"

// instant is the storage form of a point in time: nanoseconds after the clock's base, 0 for none. A time.Time takes
// three times the space, and a map of 100,000 nodes holds some millions.
type instant int64

// before is how long before a machine's start its base lies: longer than any age.
const before = 100 * 365 * 24 * time.Hour

// clock converts between times and instants. Both directions use the base's monotonic reading, so that steps of the
// wall clock have no effect.
type clock struct{ base time.Time }

func newClock(start time.Time) clock { return clock{base: start.Add(-before)} }

// instant converts t to its storage form. A time before the base counts as just after the base.
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

// age is a duration in ms, limited to some 49 days: a NORMAL state needs no greater age.
type age uint32

func ageOf(d time.Duration) age {
	return age(min(max(0, d/time.Millisecond), 1<<32-1))
}

func (a age) duration() time.Duration { return time.Duration(a) * time.Millisecond }
