package order

import "time"

// Retry is how long the leader waits for an answer before it sends an order again.
type Retry struct {
	First  time.Duration // after the first send
	Most   time.Duration // limit of the wait, which doubles with each send; 0: the wait stays First
	Steady int           // number of sends that wait for First before the wait doubles; 0 and 1: one
}

// After returns the wait after the given send, counted from 1.
func (r Retry) After(try int) time.Duration {
	if r.Most <= r.First {
		return r.First
	}
	doublings := min(max(try-max(r.Steady, 1), 0), 16)
	return min(r.First<<doublings, r.Most)
}

// Timer schedules the sends of one order. Its zero value is due at once.
type Timer struct {
	Try int       // sends so far
	At  time.Time // next send
}

// Due reports whether to send the order now. If so, it counts the send and sets the time of the next one.
func (t *Timer) Due(now time.Time, r Retry) bool {
	if now.Before(t.At) {
		return false
	}
	t.Try++
	t.At = now.Add(r.After(t.Try))
	return true
}

// Restart forgets the sends so far: the next one is due at the given time.
func (t *Timer) Restart(at time.Time) { *t = Timer{At: at} }
