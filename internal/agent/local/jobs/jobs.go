// Package jobs is the host half's service for the jobs on its node besides fault notification: eurekas and barriers
// (seed 003 §4.4.3, §6.1). It bounds each user's requests, lets no eureka pass twice, tracks the arrivals at each
// barrier here, and is the codec of the mails between the two halves about them. It is pure.
//
// The DNP half spreads eurekas to all nodes and combines the arrivals of nodes: package express. The shell
// (internal/agent/local) asks the kernel for the identity of callers.
//
// # Whose a job is
//
// A job is a name and a uid. So no user can take another's name, nor need own one, and two users may use the same
// name. Between nodes the uid stands in the envelope that the host half signed, or is part of the barrier's key.
// Root's eurekas reach the jobs of that name of all users, and show that they are root's.
package jobs

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds on jobs, for each node, all users together. Room computes the share of one user.
const (
	MaxMembers      = 1024 // nodes of a barrier: as many as one node may watch
	MaxParticipants = 256  // processes of one node in a barrier
	MaxParticipant  = 64   // bytes of a participant's name
	MaxBarriers     = 256  // barriers at which somebody of this node waits, or did a minute ago
	MaxWaiting      = 1024 // calls that wait at barriers
)

// CheckName requires a DNS label of at most limit bytes; the error names the field.
func CheckName(field, s string, limit int) error {
	if !servicenet.ValidLabel(s, limit) {
		return fmt.Errorf("%s: given %q: want 1 to %d of a-z, 0-9 and '-', the first and last no '-'", field, s, limit)
	}
	return nil
}

// Room reports whether a user may have another of a resource of which all users of a node may have limit. all is the
// current total, mine this user's share. A user other than root gets half at most, and the last eighth is reserved
// for root: no user can lock out all others, nor an administrator who investigates.
func Room(limit, all int, uid uint32, mine int) bool {
	if uid == 0 {
		return all < limit
	}
	return mine < limit/2 && all < limit-limit/8
}

// Turns returns at most limit nodes of the lists, each once: one of each list in turn, so that no list takes the room of the others. It
// reports whether all fit.
func Turns(limit int, lists ...[]fault.NodeID) (nodes []fault.NodeID, fits bool) {
	seen := make(map[fault.NodeID]bool)
	for i, more := 0, true; more; i++ {
		more = false
		for _, list := range lists {
			if i >= len(list) {
				continue
			}
			more = true
			if seen[list[i]] {
				continue
			}
			if len(nodes) == limit {
				return nodes, false
			}
			seen[list[i]] = true
			nodes = append(nodes, list[i])
		}
	}
	return nodes, true
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

// limitUsers bounds the buckets: when there are more users, full buckets are dropped, which loses no information.
const limitUsers = 1024

// Take reports whether a user may make another call now, and counts it. While 1,024 users are at their limit, others
// wait.
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

// Window lets each eureka pass once. It keeps the epoch and the newest numbers of every host half. Eurekas of an
// earlier epoch, or older than all that it keeps, do not pass: they may be replays. The zero value is empty.
type Window struct{ origins map[fault.NodeID]*recent }

type recent struct {
	epoch   fault.Epoch
	numbers []uint64 // ascending, the newest
}

// windowSize bounds the numbers kept for one host half: broadcasts overtake one another by priority, and on
// other paths.
const windowSize = 256

// Take reports whether a eureka is new, and records it. Its origin has been verified, so there are no more origins
// than nodes.
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
