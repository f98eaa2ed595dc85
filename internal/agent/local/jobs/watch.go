package jobs

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// watchable reports whether a node may watch these members beside those of all barriers at which callers wait.
func (s *Barriers) watchable(members []fault.NodeID) bool {
	sum := len(members)
	for _, b := range s.waited {
		if slices.Equal(b.members, members) {
			return true
		}
		sum += len(b.members)
	}
	if sum <= MaxMembers {
		return true
	}
	all := s.needed()
	for _, id := range members {
		all[id] = true
	}
	return len(all) <= MaxMembers
}

// needed returns the members of all barriers at which callers wait.
func (s *Barriers) needed() map[fault.NodeID]bool {
	all := make(map[fault.NodeID]bool)
	for _, b := range s.waited {
		for _, id := range b.members {
			all[id] = true
		}
	}
	return all
}

// rewatch gathers the members of the barriers at which callers wait, then of the jobs that had barriers recently, the latest
// first, as many as a node may watch. Entries that expire go at the next step, without a wake-up. rewatch runs with
// every step, hundreds of times a second, and lists are long: it works only when there is a change.
func (s *Barriers) rewatch(now time.Time) {
	if !s.stale && (s.runsOut.IsZero() || now.Before(s.runsOut)) {
		return
	}
	s.stale, s.runsOut = false, time.Time{}
	waits := s.waits()
	jobs := make([]job, 0, len(s.jobs))
	for j, w := range s.jobs {
		switch expired := !now.Before(w.until); {
		case expired && waits[j]:
			w.until = now.Add(watchFor)
			s.jobs[j] = w
		case expired:
			delete(s.jobs, j)
			continue
		}
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b job) int {
		if waits[a] != waits[b] {
			if waits[a] {
				return -1
			}
			return 1
		}
		return cmp.Or(s.jobs[b].until.Compare(s.jobs[a].until), cmp.Compare(a.uid, b.uid), cmp.Compare(a.name, b.name))
	})
	all := s.needed()
	for i, j := range jobs {
		w := s.jobs[j]
		more := 0
		for _, id := range w.members {
			if !all[id] {
				more++
			}
		}
		if i >= MaxBarriers || len(all)+more > MaxMembers {
			delete(s.jobs, j)
			continue
		}
		for _, id := range w.members {
			all[id] = true
		}
		s.runsOut = fault.Earliest(s.runsOut, w.until)
	}
	if watch := slices.Sorted(maps.Keys(all)); !slices.Equal(watch, s.watch) {
		s.watch, s.out.Rewatch = watch, true
	}
}

// waits returns the jobs at whose barriers callers wait.
func (s *Barriers) waits() map[job]bool {
	out := make(map[job]bool)
	for _, b := range s.waited {
		for _, c := range b.waiting { // all of one job
			out[job{c.Name.UID, c.Name.Job}] = true
			break
		}
	}
	return out
}
