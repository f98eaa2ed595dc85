package jobs

import "slices"

// maxQueue bounds a Queue: as many as wait at barriers, and a burst of eurekas.
const maxQueue = 512

// Queue are mails to the other half that its mailbox had no room for: many kernels hold ten datagrams there. What is said again anyway
// stands in it once. The zero value is empty.
type Queue struct {
	mails   []Mail
	dropped uint64
}

// Add puts a mail behind those that wait, unless it says what one of them says, or takes its place; false: there is no room, and
// it is counted.
func (q *Queue) Add(m Mail) bool {
	for i := range slices.Backward(q.mails) {
		if w := &q.mails[i]; w.about(m) {
			if !w.Flag || m.Flag { // that the node has arrived is said in any case
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

// about says whether two mails to the DNP half are of the same eureka or barrier.
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
