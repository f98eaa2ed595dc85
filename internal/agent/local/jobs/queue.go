package jobs

import "slices"

// maxQueue bounds a Queue: room for all barriers with waiting callers, and a burst of eurekas.
const maxQueue = 512

// Queue holds mails to the other half for which its mailbox had no room: many kernels hold ten datagrams there. A
// mail that its sender repeats anyway stands in the queue once. The zero value is empty.
type Queue struct {
	mails   []Mail
	dropped uint64
}

// Add appends a mail to the queue. A mail that repeats or supersedes a queued one takes its place. Add returns false,
// and counts the mail as dropped, if there is no room.
func (q *Queue) Add(m Mail) bool {
	for i := range slices.Backward(q.mails) {
		if w := &q.mails[i]; w.about(m) {
			if !w.Flag || m.Flag { // never drop an arrival
				*w = m
				return true
			}
			break // the order counts
		}
	}
	if len(q.mails) >= maxQueue {
		q.dropped++
		return false
	}
	q.mails = append(q.mails, m)
	return true
}

// about reports whether two mails to the DNP half concern the same eureka or barrier.
func (m *Mail) about(o Mail) bool {
	ofBarrier := func(k Kind) bool { return k == Arrive || k == Leave }
	return m.Kind == Raise && o.Kind == Raise && m.Request == o.Request || ofBarrier(m.Kind) && ofBarrier(o.Kind) && m.Key == o.Key
}

// Send has mails taken in order, as long as they are.
func (q *Queue) Send(take func(Mail) bool) {
	n := 0
	for n < len(q.mails) && take(q.mails[n]) {
		n++
	}
	q.mails = slices.Delete(q.mails, 0, n)
}

// Len is how many wait.
func (q *Queue) Len() int { return len(q.mails) }

// Dropped is how many found no room.
func (q *Queue) Dropped() uint64 { return q.dropped }
