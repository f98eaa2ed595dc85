package torus

import "github.com/lofamo/lofamo/pkg/fault"

const (
	// replayWindow is how far below the highest sequence number a frame is still accepted.
	replayWindow = 64
	// reorderSlack is the number of later frames after which a missing one counts as lost, so that frames that
	// overtake each other do not make a link sick.
	reorderSlack = 3
)

type seqVerdict uint8

const (
	seqNext      seqVerdict = iota + 1 // the highest so far
	seqLate                            // lower, and not seen before
	seqDuplicate                       // seen before
	seqReplay                          // below the window, or of an earlier session or epoch
)

// sequence follows the peer's sequence numbers within one session: it refuses duplicates and counts missing numbers
// over a sliding window. Sequence numbers begin again with a new session or a higher epoch; the epoch never goes back
// within a session. (Across sessions it may: the handshake is the proof of freshness then, and a half that lost its
// epoch must be able to ask for one through its neighbours.)
type sequence struct {
	started  bool
	session  uint32
	next     uint32 // the session awaited, when awaiting
	awaiting bool
	epoch    fault.Epoch

	high   uint64 // highest accepted
	marked bool   // mark is valid: a silence began in this session and epoch
	mark   uint64 // highest accepted when the last silence began
	came   uint64 // distinct numbers above mark accepted since
	replay uint64 // bit i: high-i was accepted

	// The last numbers, by number modulo len(got): the newest tail of them are within the slack,
	// the count before those are judged.
	got         []bool
	tail, count int
	window      int    // most of count
	errors      int    // judged numbers that are missing
	lost        uint64 // all numbers ever judged missing, less those that came after all
}

func (s *sequence) init(window int) {
	s.window = window
	s.got = make([]bool, window+reorderSlack)
}

// expect says that frames of a new session will come.
func (s *sequence) expect(session uint32) { s.next, s.awaiting = session, true }

// accept judges one number. The gap is the number of skipped ones; forgive says that they are not the link's fault.
func (s *sequence) accept(session uint32, epoch fault.Epoch, n uint64, forgive bool) (gap uint64, v seqVerdict) {
	switch {
	case s.awaiting && session == s.next:
		s.awaiting, s.session = false, session
		s.begin(epoch, n)
		return 0, seqNext
	case !s.started && !s.awaiting:
		s.session = session
		s.begin(epoch, n)
		return 0, seqNext
	case !s.started || session != s.session || epoch < s.epoch:
		return 0, seqReplay
	case epoch > s.epoch:
		s.begin(epoch, n)
		return 0, seqNext
	case n > s.high:
		s.came++
		gap = n - s.high - 1
		s.advance(n, forgive)
		return gap, seqNext
	}
	back := s.high - n
	switch {
	case back >= replayWindow:
		return 0, seqReplay
	case s.replay&(1<<back) != 0:
		return 0, seqDuplicate
	}
	s.replay |= 1 << back
	if n > s.mark {
		s.came++
	}
	s.fill(n, back)
	return 0, seqLate
}

// follows reports whether these are the session and epoch whose numbers are followed.
func (s *sequence) follows(session uint32, epoch fault.Epoch) bool {
	return s.started && !s.awaiting && session == s.session && epoch == s.epoch
}

// fallSilent marks the highest accepted number at the start of a silence.
func (s *sequence) fallSilent() { s.marked, s.mark, s.came = s.started, s.high, 0 }

// lostNothing reports whether the peer has resumed after a silence and no sequence number since mark is missing: it sent
// nothing during the silence.
func (s *sequence) lostNothing() bool { return s.marked && s.came > 0 && s.came == s.high-s.mark }

// ahead reports whether a number is so high that accept would count numbers below it as missing.
func (s *sequence) ahead(session uint32, epoch fault.Epoch, n uint64) bool {
	return s.follows(session, epoch) && n > s.high+1+reorderSlack
}

// begin starts afresh at n. The old content of the window belonged to another sequence.
func (s *sequence) begin(epoch fault.Epoch, n uint64) {
	s.started, s.epoch = true, epoch
	s.high, s.replay, s.marked = n, 1, false
	s.tail, s.count, s.errors = 1, 0, 0
	s.got[s.slot(n)] = true
}

func (s *sequence) slot(n uint64) int { return int(n % uint64(len(s.got))) }

// advance moves the highest number to n. However far that is, it costs no more than the window:
// once all that it holds is alike, more of the same changes nothing.
func (s *sequence) advance(n uint64, forgive bool) {
	jump := n - s.high
	s.replay = s.replay<<jump | 1 // a shift by 64 or more leaves 0
	missing := jump - 1
	for range min(missing, uint64(len(s.got))) {
		s.push(s.high+1, forgive)
	}
	if rest := n - 1 - s.high; rest > 0 {
		if !forgive {
			s.lost += rest
		}
		s.high = n - 1
	}
	s.push(n, true)
}

// push makes m, the next number, the highest: the oldest leaves the window when that is full, and
// the oldest of the tail is judged when that is full.
func (s *sequence) push(m uint64, got bool) {
	full := s.count == s.window
	if full && !s.got[s.slot(m)] {
		s.errors--
	}
	s.got[s.slot(m)] = got
	s.high = m
	if s.tail < reorderSlack {
		s.tail++
		return
	}
	if !full {
		s.count++
	}
	if !s.got[s.slot(m-reorderSlack)] {
		s.errors++
		s.lost++
	}
}

// fill notes that n, back numbers below the highest, has come after all.
func (s *sequence) fill(n, back uint64) {
	if back >= uint64(s.tail+s.count) || s.got[s.slot(n)] {
		return
	}
	s.got[s.slot(n)] = true
	if back >= uint64(s.tail) {
		s.errors--
		s.lost--
	}
}

// judged returns how many numbers the window holds and how many of them are missing.
func (s *sequence) judged() (frames, errors int) { return s.count, s.errors }
