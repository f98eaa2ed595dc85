// Package jobs is what the host half does for the jobs on its node beside telling them of faults: eurekas and barriers
// (seed 003 §4.4.3, §6.1). It bounds what they may do, lets no eureka pass twice, keeps who has arrived at which
// barrier here, and is the codec of what the two halves say to one another about it. It is pure.
//
// How a eureka gets to all nodes, and how the arrivals of nodes meet, is not here but in the DNP half: package express. Nor is who is who:
// the shell (internal/agent/local) asks the kernel.
//
// # Whose a job is
//
// A job is a name and a uid. So nobody can take another's name, nor need own one, and the same name is no quarrel. Between
// nodes the uid stands in what the host half signed, or is part of the barrier's key. Root's eurekas are heard by the jobs of
// that name of all users: they say that they are root's.
package jobs

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds of what jobs may do. They are for each node, all users together; what of it one may have says Room.
const (
	MaxMembers      = 1024 // nodes of a barrier: as many as one node may watch
	MaxParticipants = 256  // processes of one node in a barrier
	MaxParticipant  = 64   // bytes of a participant's name
	MaxBarriers     = 256  // barriers at which somebody of this node waits, or did a minute ago
	MaxWaiting      = 1024 // calls that wait at barriers
)

// CheckName wants a DNS label of at most so many bytes; the error names the field.
func CheckName(field, s string, limit int) error {
	if !servicenet.ValidLabel(s, limit) {
		return fmt.Errorf("%s: given %q: want 1 to %d of a-z, 0-9 and '-', the first and last no '-'", field, s, limit)
	}
	return nil
}

// Room says whether a user may have one more of what all users of a node may have limit of, when all have so many and this one
// has mine. One who is not root has half at most, and the last eighth is root's: nobody can keep all others out, nor who is to
// find out why.
func Room(limit, all int, uid uint32, mine int) bool {
	if uid == 0 {
		return all < limit
	}
	return mine < limit/2 && all < limit-limit/8
}

// Limit is a rate for each user: a bucket of Burst, refilled at Rate a second. The zero value lets nothing pass.
type Limit struct {
	Rate, Burst float64
	users       map[uint32]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// limitUsers bounds the buckets: when there are more users, the full ones are forgotten, which lose nothing by it.
const limitUsers = 1024

// Take says whether a user may do it once more now. With 1,024 users at their limit at a time, others wait for them.
func (l *Limit) Take(now time.Time, uid uint32) bool {
	b, ok := l.users[uid]
	if !ok {
		if len(l.users) >= limitUsers {
			l.sweep(now)
		}
		if len(l.users) >= limitUsers {
			return false
		}
		b = bucket{l.Burst, now}
	}
	b.left = l.filled(b, now)
	b.at = now
	may := b.left >= 1
	if may {
		b.left--
	}
	if l.users == nil {
		l.users = make(map[uint32]bucket)
	}
	l.users[uid] = b
	return may
}

func (l *Limit) filled(b bucket, now time.Time) float64 {
	return min(l.Burst, b.left+max(0, now.Sub(b.at).Seconds())*l.Rate)
}

func (l *Limit) sweep(now time.Time) {
	for uid, b := range l.users {
		if l.filled(b, now) >= l.Burst {
			delete(l.users, uid)
		}
	}
}

// Window lets each eureka pass once. Of every host half it keeps the epoch and the newest numbers; what is of an earlier epoch,
// or older than all that it keeps, does not pass: it may be a replay. The zero value is empty.
type Window struct{ origins map[fault.NodeID]*recent }

type recent struct {
	epoch   fault.Epoch
	numbers []uint64 // ascending, the newest
}

// windowSize is how many numbers of one host half are kept: broadcasts overtake one another by priority, and by other ways.
const windowSize = 256

// Take says whether a eureka is new, and remembers it. Who raises it has been verified: there are no more of them than nodes.
func (w *Window) Take(node fault.NodeID, e fault.Epoch, number uint64) bool {
	if w.origins == nil {
		w.origins = make(map[fault.NodeID]*recent)
	}
	r := w.origins[node]
	if r == nil || e > r.epoch {
		w.origins[node] = &recent{epoch: e, numbers: []uint64{number}}
		return true
	}
	if e < r.epoch {
		return false
	}
	return r.take(number)
}

func (r *recent) take(number uint64) bool {
	i := len(r.numbers)
	for i > 0 && r.numbers[i-1] > number {
		i--
	}
	if i > 0 && r.numbers[i-1] == number || i == 0 && len(r.numbers) == windowSize {
		return false
	}
	r.numbers = append(r.numbers, 0)
	copy(r.numbers[i+1:], r.numbers[i:])
	r.numbers[i] = number
	if len(r.numbers) > windowSize {
		r.numbers = r.numbers[1:]
	}
	return true
}
