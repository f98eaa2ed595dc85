package netfaults

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

const (
	// maxQueued is the maximum number of packets in transit in one direction of one flow. Further packets are lost.
	maxQueued = 1024
	// holdBack is the maximum time for which a packet waits to be overtaken.
	holdBack = 50 * time.Millisecond
)

// parcel is a packet on its way.
type parcel struct {
	due   time.Time
	order uint64 // order among packets due at one time
	waits bool   // to be overtaken
	b     []byte
}

// lane holds the packets in transit in one direction of one flow. It is a function of its inputs, without a clock. The
// zero lane is empty.
type lane struct {
	queue []parcel // by due, then by order
	added uint64
	last  time.Time // when the last of those is due that keep their order
}

// add adds a packet with its fate, and returns the number of its copies that found no room.
func (l *lane) add(now time.Time, f udplink.Fate, jitter bool, b []byte) (overflow int) {
	due := now.Add(f.Delay)
	if !jitter { // even a packet without delay does not overtake a delayed one
		if due.Before(l.last) {
			due = l.last
		}
		l.last = due
	}
	for range f.Copies {
		if len(l.queue) >= maxQueued {
			overflow++
			continue
		}
		if f.Overtaken {
			l.insert(parcel{due: due.Add(holdBack), waits: true, b: b})
			continue
		}
		l.insert(parcel{due: due, b: b})
		l.release(due)
	}
	slices.SortFunc(l.queue, func(a, b parcel) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.order, b.order))
	})
	return overflow
}

func (l *lane) insert(p parcel) {
	l.added++
	p.order = l.added
	l.queue = append(l.queue, p)
}

// release lets waiting packets continue behind the newest one.
func (l *lane) release(due time.Time) {
	for i := range l.queue {
		if p := &l.queue[i]; p.waits {
			l.added++
			p.waits, p.due, p.order = false, due, l.added
		}
	}
}

// take returns the packets that are due, in their order.
func (l *lane) take(now time.Time) (out [][]byte) {
	n := 0
	for n < len(l.queue) && !l.queue[n].due.After(now) {
		out = append(out, l.queue[n].b)
		n++
	}
	l.queue = slices.Delete(l.queue, 0, n)
	return out
}

// wake returns the time of the next due packet, and false if there is none.
func (l *lane) wake() (time.Time, bool) {
	if len(l.queue) == 0 {
		return time.Time{}, false
	}
	return l.queue[0].due, true
}
