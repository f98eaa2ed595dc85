package bulk

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxQueue bounds the chunks of a transfer that wait to be sent: two of the largest windows, so that a pull finds
// room while the previous one is under way. Excess chunks are dropped, and requested again.
const maxQueue = 512

// maxRanges is the wire format's limit for BulkPull.ranges.
const maxRanges = 32

// transfer is one object that a Sender offers.
type transfer struct {
	id         Transfer
	supervisor string
	to         Route     // of the last request, or pull of chunks
	asked      time.Time // when the supervisor last said something
	maxSize    uint64
	key        *Key
	public     []byte

	offered, complete bool
	failure           string
	name              string
	size, sum         uint64

	queue  []uint32 // asked for, in this order
	queued map[uint32]bool
	sent   []bool // by index, at least once
}

func (t *transfer) chunks() uint32 { return chunkCount(t.size, ChunkSize) }

func chunkCount(size uint64, chunkSize uint32) uint32 {
	return uint32((size + uint64(chunkSize) - 1) / uint64(chunkSize))
}

// chunkLength returns the length of chunk i, which must be one of the object.
func chunkLength(size uint64, chunkSize, i uint32) int {
	return int(min(uint64(chunkSize), size-uint64(i)*uint64(chunkSize)))
}

func (t *transfer) valid(ranges []*lofamov1.ChunkRange) bool {
	if len(ranges) > maxRanges {
		return false
	}
	for _, r := range ranges {
		if r.GetCount() < 1 || uint64(r.GetFirst())+uint64(r.GetCount()) > uint64(t.chunks()) {
			return false
		}
	}
	return true
}

// enqueue adds the chunks that are not waiting yet. A pull by another route means that the receiver has given up on
// the previous one: chunks that wait for the old route are dropped.
func (t *transfer) enqueue(ranges []*lofamov1.ChunkRange, to Route) {
	if t.queued == nil || t.to != to {
		t.queue, t.queued = nil, make(map[uint32]bool)
	}
	t.to = to
	for _, r := range ranges {
		for i := r.GetFirst(); i-r.GetFirst() < r.GetCount(); i++ {
			if len(t.queue) >= maxQueue {
				return
			}
			if !t.queued[i] {
				t.queued[i] = true
				t.queue = append(t.queue, i)
			}
		}
	}
}

// pop removes and returns the chunk that has waited longest.
func (t *transfer) pop() Chunk {
	i := t.queue[0]
	t.queue = t.queue[1:]
	delete(t.queued, i)
	return Chunk{
		Transfer: t.id, Index: i,
		Offset: int64(i) * ChunkSize, Length: chunkLength(t.size, ChunkSize, i),
		Supervisor: t.supervisor, To: t.to,
	}
}

// send returns waiting chunks, one of each transfer in turn, as far as the rates allow.
func (s *Sender) send(now time.Time, out *SenderOutput) {
	for idle := 0; idle < len(s.transfers); {
		s.turn = (s.turn + 1) % len(s.transfers)
		t := s.transfers[s.turn]
		if len(t.queue) == 0 || !s.bucket(t).take(now) {
			idle++
			continue
		}
		idle = 0
		c := t.pop()
		s.stats.Chunks++
		if t.sent[c.Index] {
			s.stats.Again++
		}
		t.sent[c.Index] = true
		out.Chunks = append(out.Chunks, c)
	}
}

func (s *Sender) bucket(t *transfer) *bucket {
	if t.to.Via != "" {
		return &s.torus
	}
	return &s.direct
}

// wake returns the next time to send, or to forget.
func (s *Sender) wake(now time.Time) time.Time {
	var at time.Time
	for _, t := range s.transfers {
		at = fault.Earliest(at, t.asked.Add(s.cfg.Life))
		if len(t.queue) > 0 {
			at = fault.Earliest(at, s.bucket(t).next(now, len(t.queue)))
		}
	}
	return at
}

// bucket is a token bucket: rate tokens a second, at most burst.
type bucket struct {
	interval time.Duration // for one token
	burst    int
	full     time.Time // when it will be, or was, full again
}

func newBucket(rate, burst int) bucket {
	return bucket{interval: time.Second / time.Duration(rate), burst: burst}
}

// take spends a token if there is one.
func (b *bucket) take(now time.Time) bool {
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Add(b.interval).Sub(now) > time.Duration(b.burst)*b.interval {
		return false
	}
	b.full = b.full.Add(b.interval)
	return true
}

// next returns when the bucket has an eighth of a burst, or all waiting chunks if these are fewer. That needs fewer
// wake-ups than one for each chunk.
func (b *bucket) next(now time.Time, waiting int) time.Time {
	n := max(1, min(waiting, b.burst/8))
	at := b.full.Add(time.Duration(n-b.burst) * b.interval)
	if !at.After(now) {
		return now.Add(1)
	}
	return at
}
