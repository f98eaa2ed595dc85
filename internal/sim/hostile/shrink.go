package hostile

import "slices"

// Shrink returns a shorter sequence that breaks the same promise: it drops actions, in halves and then one by one, and
// then other needless parts of the world. plays reports whether a candidate still breaks the promise.
func Shrink(s Sequence, plays func(Sequence) bool) Sequence {
	for size := len(s.Actions); size > 0; size /= 2 {
		for from := 0; from < len(s.Actions); {
			less := s
			less.Actions = slices.Delete(slices.Clone(s.Actions), from, min(from+size, len(s.Actions)))
			if plays(less) {
				s = less
			} else {
				from += size
			}
		}
	}
	for _, drop := range []func(*Sequence){
		func(s *Sequence) { s.Loss = 0 }, func(s *Sequence) { s.Dead = -1 }, func(s *Sequence) { s.Refuses = false },
		func(s *Sequence) { s.Racks = false },
		func(s *Sequence) { s.Shipped = false },
		func(s *Sequence) { s.Kinds = nil },
		func(s *Sequence) { s.Kinds = s.Kinds[:min(1, len(s.Kinds))] },
		func(s *Sequence) { s.Kinds = s.Kinds[min(1, len(s.Kinds)):] },
		func(s *Sequence) { s.Kinds = s.Kinds[min(1, len(s.Kinds)):] },
	} {
		less := s
		drop(&less)
		if plays(less) {
			s = less
		}
	}
	for i := len(s.Liars) - 1; i >= 0 && len(s.Liars) > 1; i-- {
		less := s
		less.Liars = slices.Delete(slices.Clone(s.Liars), i, i+1)
		if plays(less) {
			s = less
		}
	}
	return s
}
