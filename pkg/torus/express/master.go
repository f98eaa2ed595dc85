package express

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Selection of a master (seed 003 §4.4.4). Each node has a rank of its own; 0 is the highest priority. In a round the
// periods of the ranks come one after the other. A node whose period comes, and that has received no higher claim,
// claims mastership. A node that has received a claim by the end of its period has its master. Where the torus has
// fallen apart each part finds its own.
//
// The paper has a period for each node. Here each period covers eight times as many ranks as the one before (rank 0;
// 1 to 7; 8 to 63 …), so that the rounds of a large cluster are short. If several nodes claim in a period, the
// highest counts. They do not claim at once but within a Network Delay, the highest first, so that most have received
// a higher claim by then and are silent. A period is two settle times, four Network Delays, so it also covers claims
// of nodes that begin their period one delay later. A node that receives a higher claim even later, since the guessed
// delay was too short, accepts that claim. So all connected nodes come to agree on the highest claimant.
//
// A node that begins a round announces that to all, so that they are in step.
//
// Numbers distinguish rounds, and of several rounds the highest counts. That holds only for a while (roundMemory)
// after the last message of a round, longer than a late message may take. So a number that is forged, or comes from a
// wrong clock, keeps no later round from beginning.

// masterBody is the body of a broadcast of TopicMaster: round 8 bytes, rank 4 bytes, big endian.
const masterBody = 8 + 4

// roundMemory is how long lower rounds are refused after the last message of a round: no broadcast is in the network
// for longer than Life.
const roundMemory = 4 * Life

// noRank is the rank in a message that only announces a round.
const noRank = ^uint32(0)

// MasterPeriod returns in which period of a round a rank speaks, from 0.
func MasterPeriod(rank uint32) int {
	if rank == 0 {
		return 0
	}
	return 1 + (bits.Len32(rank)-1)/3
}

// Master is a node's part in the selection. One goroutine owns it.
//
//	Idle ──Begin, or a message of a new round──► Listening ──own period, no higher rank seen──► claims
//	Listening ──end of the period of the highest rank seen───────► Chosen ──a higher rank is seen──► Chosen
type Master struct {
	rank   uint32
	delay  time.Duration // Network Delay
	period time.Duration

	round   uint64
	began   time.Time // zero: in no round
	last    time.Time // word of the round, or its beginning here
	claimed bool
	heard   bool
	best    uint32 // of those heard, the own one among them
	chosen  bool
}

// Set changes the node's rank, which is below 2^32-1, and the delay, for the rounds that begin from now on.
func (m *Master) Set(rank uint32, networkDelay time.Duration) {
	m.rank, m.delay, m.period = min(rank, noRank-1), max(0, networkDelay), max(1, 2*Settle(networkDelay))
}

// Round returns the longest duration of a round at this node: until the end of the period in which it speaks itself.
func (m *Master) Round() time.Duration { return time.Duration(MasterPeriod(m.rank)+1) * m.period }

// at returns the time in a round at which the node speaks: within its period, by the order of the ranks of that
// period.
func (m *Master) at() time.Duration {
	p := MasterPeriod(m.rank)
	at := time.Duration(p) * m.period
	if p > 0 {
		first := uint64(1) << (3 * (p - 1)) // 1, 8, 64 …: of seven times as many
		at += time.Duration(float64(m.delay) * float64(uint64(m.rank)-first) / float64(7*first))
	}
	return at
}

// MasterOutput lists the actions of a step: broadcast Claim on TopicMaster, if there is one; note the master, if it
// is new; and call Tick at Wake.
type MasterOutput struct {
	Claim  []byte
	Chosen bool
	Rank   uint32 // of the master, if Chosen
	Wake   time.Time
}

// Begin begins a round here. It refuses a round that is not above the earlier ones while their messages may still
// come: its claims could not be distinguished from theirs.
func (m *Master) Begin(now time.Time, round uint64) (MasterOutput, error) {
	if least := m.least(now); round <= least || round == m.round {
		return MasterOutput{}, fmt.Errorf("begin a selection of a master: round %d, want more than %d, and another than the last: %w",
			round, least, ErrInvalid)
	}
	m.begin(now, round)
	out := m.Tick(now)
	if out.Claim == nil {
		out.Claim = appendMaster(round, noRank)
	}
	return out, nil
}

func appendMaster(round uint64, rank uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, round), rank)
}

// least is the round that others must be above; the one before is forgotten when no word of it comes any more.
func (m *Master) least(now time.Time) uint64 {
	if now.Sub(m.last) >= roundMemory {
		return 0
	}
	return m.round
}

func (m *Master) begin(now time.Time, round uint64) {
	m.round, m.began, m.last = round, now, now
	m.claimed, m.heard, m.chosen, m.best = false, false, false, 0
}

// Heard handles the body of another node's broadcast. A new round begins here too.
func (m *Master) Heard(now time.Time, body []byte) (MasterOutput, error) {
	if len(body) != masterBody {
		return MasterOutput{}, fmt.Errorf("claim of mastership of %d bytes, want %d: %w", len(body), masterBody, ErrPayload)
	}
	round, rank := binary.BigEndian.Uint64(body), binary.BigEndian.Uint32(body[8:])
	if round < m.least(now) || round == 0 {
		return m.Tick(now), nil // of a round that is over
	}
	if m.last = now; round != m.round {
		m.begin(now, round)
		if rank != noRank {
			m.began = now.Add(-time.Duration(MasterPeriod(rank)) * m.period) // it speaks in its period: this node is not behind it
		}
	}
	if rank == noRank {
		return m.Tick(now), nil
	}
	out := m.take(rank)
	next := m.Tick(now)
	if out.Chosen && !next.Chosen {
		next.Chosen, next.Rank = true, out.Rank
	}
	return next, nil
}

// take handles a claim of a rank. After the choice a higher one is the new master at once.
func (m *Master) take(rank uint32) MasterOutput {
	if m.heard && rank >= m.best {
		return MasterOutput{}
	}
	m.heard, m.best = true, rank
	return MasterOutput{Chosen: m.chosen, Rank: rank}
}

// Tick performs the actions that are due.
func (m *Master) Tick(now time.Time) (out MasterOutput) {
	if m.began.IsZero() {
		return out
	}
	own := m.began.Add(m.at())
	if !m.claimed && !now.Before(own) && (!m.heard || m.rank < m.best) {
		m.claimed, m.last = true, now
		out.Claim = appendMaster(m.round, m.rank)
		if told := m.take(m.rank); told.Chosen {
			out.Chosen, out.Rank = true, told.Rank
		}
	}
	if m.heard && !m.chosen {
		if end := m.began.Add(time.Duration(MasterPeriod(m.best)+1) * m.period); !now.Before(end) {
			m.chosen, out.Chosen, out.Rank = true, true, m.best
		} else {
			out.Wake = end
		}
	}
	if !m.claimed && !m.heard {
		out.Wake = fault.Earliest(out.Wake, own)
	}
	return out
}
