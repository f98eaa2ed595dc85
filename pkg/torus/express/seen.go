package express

import "time"

const (
	// generation is the number of IDs that a node remembers before it forgets older ones early. It exceeds the number
	// that all links' budgets admit within Life, so that a node never forgets a broadcast that is still in the
	// network.
	generation = 16384
	// keptIDs is the number of the last IDs that are kept in the copy.
	keptIDs = 128
)

// seen remembers IDs for Remember at least, and at most twice that.
type seen struct {
	since    time.Time // of cur
	cur, old map[ID]struct{}
	last     []ID // the last keptIDs IDs, for the copy
	next     int  // in last, where the oldest is once it is full
	changed  bool
}

func (s *seen) has(id ID) bool {
	if _, ok := s.cur[id]; ok {
		return true
	}
	_, ok := s.old[id]
	return ok
}

func (s *seen) add(now time.Time, id ID) {
	if s.has(id) {
		return
	}
	if len(s.cur) > 0 && (now.Sub(s.since) >= Remember || len(s.cur) >= generation) {
		s.old, s.cur = s.cur, nil
		if now.Sub(s.since) >= 2*Remember {
			s.old = nil
		}
	}
	if s.cur == nil {
		s.cur, s.since = map[ID]struct{}{}, now
	}
	s.cur[id] = struct{}{}
	if len(s.last) < keptIDs {
		s.last = append(s.last, id)
	} else {
		s.last[s.next] = id
		s.next = (s.next + 1) % keptIDs
	}
	s.changed = true
}

// changes returns the record for the copy, or nil if it has not changed.
func (s *seen) changes() []byte {
	if !s.changed {
		return nil
	}
	s.changed = false
	b := make([]byte, 0, len(s.last)*idSize)
	for i := range s.last {
		b = appendID(b, s.last[(s.next+i)%len(s.last)])
	}
	return b
}

func (s *seen) restore(now time.Time, b []byte) {
	for ; len(b) >= idSize; b = b[idSize:] {
		s.add(now, idAt(b))
	}
	s.changed = false
}
