package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndOfTermIsTriedUntilTheLeaderReturns: the store cannot end the term at first. endTerm tries again, but only until the leader
// answers, and for a limited time.
func TestEndOfTermIsTriedUntilTheLeaderReturns(t *testing.T) {
	const never, attemptTime = time.Hour, time.Second
	for name, c := range map[string]struct {
		returns  time.Duration // when the leader answers
		fails    int           // attempts that fail
		want     bool
		attempts int // -1: any number
	}{
		"at once":                {returns: never, want: true, attempts: 1},
		"after some attempts":    {returns: never, fails: 3, want: true, attempts: 4},
		"the leader is back":     {returns: 2 * attemptTime, fails: 10, attempts: 2},
		"the store never serves": {returns: never, fails: 1000, attempts: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, attempts := time.Now(), 0
				got := endTerm(t.Context(), func(ctx context.Context) bool {
					pause(ctx, c.returns)
					return ctx.Err() == nil
				}, func(ctx context.Context) (bool, error) {
					if attempts++; attempts > c.fails {
						return true, nil
					}
					pause(ctx, attemptTime)
					return false, errors.New("raft has no leader")
				})
				if took := time.Since(began); got != c.want || took > endWithin || c.attempts >= 0 && attempts != c.attempts {
					t.Errorf("ended %v after %v and %d attempts; want %v within %v and %d attempts", got, took, attempts, c.want, endWithin,
						c.attempts)
				}
			})
		})
	}
}

// TestLeaderThatReturnedIsWatchedAgain: a leader returns before its term may be ended, so it keeps the term. Later in that term it is gone
// for good. The replica ends no term before the earliest time.
func TestLeaderThatReturnedIsWatchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, times := time.Now(), 0
		l := loss{
			lost: func(context.Context) bool { times++; return true },
			end:  func(context.Context) (bool, error) { return true, nil },
		}
		returns := func(ctx context.Context) bool {
			if times == 1 {
				return true
			}
			<-ctx.Done()
			return false
		}
		if !endLost(t.Context(), began.Add(endsEvery), l, returns) || times != 2 {
			t.Errorf("the term was not ended the second time, but after %d", times)
		}
		if took := time.Since(began); took < endsEvery {
			t.Errorf("the term was ended after %s: want %s at least after the one before", took, endsEvery)
		}
	})
}

// TestAnswerAfterTheTermStillCounts: the news of the end of the term ends the attempts before the store answers the last one. A replica
// waits for that answer, and counts it, but only for a short time.
func TestAnswerAfterTheTermStillCounts(t *testing.T) {
	for name, c := range map[string]struct {
		late time.Duration // from the news to the answer
		want bool
	}{
		"in time":  {answerTime / 2, true},
		"too late": {2 * answerTime, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const news = 10 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), news)
				defer cancel()
				began := time.Now()
				ended, _ := answered(ctx, func(ctx context.Context) (bool, error) {
					pause(ctx, news+c.late)
					return ctx.Err() == nil, ctx.Err()
				})
				if took := time.Since(began); ended != c.want || took > news+answerTime {
					t.Errorf("ended %v after %s: want %v within %s", ended, took, c.want, news+answerTime)
				}
			})
		})
	}
}

// change is a change of something at a time.
type change[T any] struct {
	at time.Duration
	to T
}

// story is a replica's view of the leader.
type story struct {
	raft    []change[raftLead] // before: raftUnknown
	answers []change[bool]     // the leader answers questions; before: true
}

// at returns the last change before a time.
func at[T any](changes []change[T], now time.Duration, first T) T {
	for _, c := range changes {
		if c.at <= now {
			first = c.to
		}
	}
	return first
}

// ends returns how long after the beginning this replica ends the term of the leader for a loss, or -1 if it does not.
func (s story) ends(t *testing.T, loss func(raftView, loss) loss, lost func(context.Context) bool) time.Duration {
	t.Helper()
	began := time.Now()
	view := func() (raftLead, <-chan struct{}) {
		changed := make(chan struct{})
		for _, c := range s.raft {
			if c.to != raftUnknown && c.at > time.Since(began) {
				time.AfterFunc(c.at-time.Since(began), func() { close(changed) })
				break
			}
		}
		return at(s.raft, time.Since(began), raftUnknown), changed
	}
	l := loss(view, lossOf(lost))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !endLost(ctx, began, l, s.returns(began)) {
		return -1
	}
	return time.Since(began)
}

// lossOf returns a loss whose term is ended by the first attempt.
func lossOf(lost func(context.Context) bool) loss {
	return loss{lost: lost, end: func(context.Context) (bool, error) { return true, nil }}
}

const questionEvery = 200 * time.Millisecond

// silent stands for replica.Peers.Silent.
func (s story) silent(began time.Time) func(context.Context) bool {
	return func(ctx context.Context) bool {
		for heard, missed := false, 0; ctx.Err() == nil; pause(ctx, questionEvery) {
			switch {
			case at(s.answers, time.Since(began), true):
				heard, missed = true, 0
			case heard:
				missed++
			}
			if missed == 4 { // three questions of 0.2 s each have no answer
				return true
			}
		}
		return false
	}
}

// returns stands for replica.Peers.Returns.
func (s story) returns(began time.Time) func(context.Context) bool {
	return func(ctx context.Context) bool {
		for ; ctx.Err() == nil; pause(ctx, endPause) {
			if at(s.answers, time.Since(began), true) {
				return true
			}
		}
		return false
	}
}

// TestSilentLeaderKeepsItsTermWhileRaftFollowsIt: a leader loses its term only if it is silent for this replica and for a quorum of raft's
// members.
func TestSilentLeaderKeepsItsTermWhileRaftFollowsIt(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	held := change[raftLead]{0, raftHeld}
	dead := []change[bool]{{10 * s, false}}
	for name, c := range map[string]struct {
		story
		want time.Duration // when the term ends; -1: never
	}{
		"its machine dies": {story{
			[]change[raftLead]{held, {10500 * ms, raftUnknown}, {10900 * ms, raftMoved}}, dead,
		}, 10900 * ms},
		"its machine dies, and raft is faster than the questions": {story{
			[]change[raftLead]{held, {10300 * ms, raftMoved}}, dead,
		}, 10600 * ms},
		"raft elects no member":      {story{[]change[raftLead]{held, {11 * s, raftUnknown}}, dead}, -1},
		"it is busy, and raft lives": {story{[]change[raftLead]{held}, dead}, -1},
		"it was busy, and raft elects another one later": {story{
			[]change[raftLead]{held, {20 * s, raftMoved}}, []change[bool]{{10 * s, false}, {13 * s, true}},
		}, -1},
		"raft elects another one, and it answers": {story{[]change[raftLead]{held, {10 * s, raftMoved}}, nil}, -1},
		"it is busy long after raft has elected another one": {story{
			[]change[raftLead]{held, {10 * s, raftMoved}}, []change[bool]{{20 * s, false}, {23 * s, true}},
		}, -1},
		"it never led raft": {story{[]change[raftLead]{{0, raftMoved}}, []change[bool]{{10100 * ms, false}}}, -1},
		"it takes raft's lead back before its machine dies": {story{
			[]change[raftLead]{held, {10 * s, raftMoved}, {30 * s, raftHeld}, {41 * s, raftMoved}}, []change[bool]{{40 * s, false}},
		}, 41 * s},
		"it takes raft's lead late": {story{
			[]change[raftLead]{{5 * s, raftHeld}, {11 * s, raftMoved}}, dead,
		}, 11 * s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := c.ends(t, raftView.confirmed, c.silent(time.Now())); got != c.want {
					t.Errorf("the term ended after %s: want %s (-1ns: never)", got, c.want)
				}
			})
		})
	}
}

// TestGoneLeaderNeedsNoElectionOfRaft: the term of a leader whose process is gone ends when raft has elected another member, because raft
// loses earlier attempts. If raft elects none, it ends all the same.
func TestGoneLeaderNeedsNoElectionOfRaft(t *testing.T) {
	const goneAt = 10 * time.Second
	for name, c := range map[string]struct {
		raft []change[raftLead]
		want time.Duration
	}{
		"raft elects another member":   {[]change[raftLead]{{0, raftHeld}, {goneAt + time.Second, raftMoved}}, goneAt + time.Second},
		"another member leads raft":    {[]change[raftLead]{{0, raftMoved}}, goneAt},
		"raft follows the gone one":    {[]change[raftLead]{{0, raftHeld}}, goneAt + raftWithin},
		"this replica knows no member": {nil, goneAt + raftWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gone := func(ctx context.Context) bool { pause(ctx, goneAt); return ctx.Err() == nil }
				s := story{c.raft, []change[bool]{{goneAt, false}}}
				if got := s.ends(t, raftView.afterElection, gone); got != c.want {
					t.Errorf("the term ended after %s: want %s", got, c.want)
				}
			})
		})
	}
}
