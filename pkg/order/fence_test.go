package order

import (
	"errors"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func number1(term, count uint64) *lofamov1.OrderNumber {
	return &lofamov1.OrderNumber{Term: term, Count: count}
}

// TestRunsAreCarriedOutOnce: a run is executed once. The last one is answered again; orders of a deposed leader and
// copies do nothing.
func TestRunsAreCarriedOutOnce(t *testing.T) {
	var r Runs
	at := begin
	judge := func(what string, term, count uint64, want Verdict) {
		t.Helper()
		if got := r.Judge(at, number1(term, count)); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	judge("the first", 5, 1, New)
	r.Take(at, number1(5, 1))
	judge("again", 5, 1, Known)
	judge("the next", 5, 2, New)
	r.Take(at, number1(5, 2))
	judge("the one before", 5, 1, Older)
	judge("of a deposed leader", 4, 9, Older)
	judge("of the next leader", 6, 1, New)
	at = at.Add(RunsLast)
	judge("a copy, later", 5, 1, Copy)
	judge("of a store that began anew", 2, 1, New)
	r.Take(at, number1(2, 1))
	judge("the last before the store began anew", 5, 2, Copy)
	r.Forget()
	judge("the last run, forgotten", 2, 1, Copy)
	judge("a lower number", 1, 1, New)
	for i := range uint64(runsKept) {
		r.Take(at, number1(2, 2+i))
	}
	at = at.Add(RunsLast)
	judge("a copy that is forgotten", 5, 2, New)
}

// TestOrderForAnotherLifeIsRefused: a node that holds nothing accepts orders for its present life only. A leader of an
// earlier version names no life.
func TestOrderForAnotherLifeIsRefused(t *testing.T) {
	for _, tc := range []struct {
		life    uint64
		unknown bool
		want    bool
	}{{3, false, false}, {0, false, false}, {2, false, true}, {0, true, true}} {
		if got := OtherLife(tc.life, tc.unknown, 3); got != tc.want {
			t.Errorf("life %d, unknown %t: %t", tc.life, tc.unknown, got)
		}
	}
}

// TestLeaderHearsOnlyStoredContent: the leader gets a report on a content once that content is on disk, and not when an
// earlier one is.
func TestLeaderHearsOnlyStoredContent(t *testing.T) {
	h := Holder[int]{State: 1}
	if h.Tells(begin) {
		t.Error("there is nothing to tell")
	}
	h.Change(2)
	h.Tell(begin)
	if h.Tells(begin) || !h.Storing() {
		t.Error("told before it is on disk")
	}
	if h.Stored(begin, 1, nil) || h.Tells(begin) {
		t.Error("an earlier content is on disk")
	}
	if !h.Stored(begin, 2, nil) || !h.Tells(begin) || h.Tells(begin.Add(-time.Second)) {
		t.Error("not told when it is on disk")
	}
}

// TestRefusedContentIsStoredAgain: a content that the disk refuses is stored again, one attempt at a time, until it is on disk. The leader
// gets no report before. A newer content is a new attempt.
func TestRefusedContentIsStoredAgain(t *testing.T) {
	full := errors.New("no space left on device")
	h := Holder[int]{State: 1}
	h.Tell(begin)
	h.Change(2)
	again := begin.Add(storeAgain)
	if h.StoresAgain(again) {
		t.Error("stored again while the disk has not answered")
	}
	if h.Stored(begin, 2, full) || h.Tells(again) || h.StoresAgain(again.Add(-1)) {
		t.Error("told, or stored again at once")
	}
	if !h.StoresAgain(again) || h.StoresAgain(again.Add(storeAgain)) {
		t.Error("want one more attempt")
	}
	if h.Stored(again, 2, full) || !h.StoresAgain(again.Add(storeAgain)) {
		t.Error("want an attempt after the second refusal too")
	}
	if !h.Stored(again, 2, nil) || !h.Tells(again) || h.StoresAgain(again.Add(time.Hour)) {
		t.Error("not told when it is on disk, or stored once more")
	}
	h.Change(3)
	h.Stored(begin, 3, full)
	h.Change(4)
	if h.Stored(begin, 3, full); h.StoresAgain(again) {
		t.Error("the refusal of an earlier content has an effect on the present one")
	}
}
