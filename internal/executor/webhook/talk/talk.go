// Package talk is the course of one attempt at a webhook: what is said next to its receiver, and what may be said of the outcome.
// It is pure: whoever posts and waits is elsewhere. The receiver's side of it is in docs/webhooks.md.
//
//	                 ┌── a tell has left, and there was no answer that says anything ──┐
//	                 │                ┌── not taken yet ──┐                            ▼
//	begin ──► tell the receiver ◄─────┴───────────────────┘                  ask it what became of it ◄── an attempt before
//	                 ▲                                                          │   ▲      │                may have happened
//	                 └───────────────── it knows nothing of it ─────────────────┘   └──────┘ under way, or no answer
//
// To tell again is safe where the receiver knows what it has been told by key and attempt; so nothing that takes something from a
// node is told again before the receiver has been asked.
package talk

import (
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// Verdict is what an answer says.
type Verdict uint8

// The verdicts.
const (
	Done      Verdict = iota + 1 // it stands
	Accepted                     // it is under way: ask again
	Unchanged                    // it has failed, nothing of it stands, and this attempt never comes to anything any more
	Later                        // it was not taken; the same may be told again
	Partly                       // it has failed, and something stands
	Unknown                      // the receiver does not know
	Stale                        // a higher token or a later attempt has been seen
	None                         // the receiver has never heard of it, or has put it back since
	Refused                      // by what does not read what it is told: nothing was done with it
	Garbled                      // no answer of the contract
)

// Heard is an answer.
type Heard struct {
	Verdict Verdict
	Attempt int           // that the receiver speaks of; 0: it does not say
	After   time.Duration // for which it wants to be left alone; 0: it does not say
	Detail  string        // for people
}

// Act is what is to be done.
type Act uint8

// The acts.
const (
	Tell Act = iota + 1 // post what is to be done
	Ask                 // post the question what became of it
	End                 // it is over
)

// Move is what is to be done next.
type Move struct {
	Act     Act
	After   time.Duration    // to wait before
	Outcome response.Outcome // of End
	Detail  string           // of End, for people
}

// Rules of one attempt.
type Rules struct {
	Attempt int
	// Recheck: an attempt before may have happened.
	Recheck bool
	// Contract: the receiver keeps to it, and can be asked. One that does not is told again, as only notifications are.
	Contract bool
}

// How long is waited, between two requests.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 15 * time.Second
	poll       = 2 * time.Second // of what is under way, where the receiver does not say
	longest    = time.Minute     // that a receiver may ask for
	shortest   = 100 * time.Millisecond
)

// Talk is one attempt.
type Talk struct {
	rules  Rules
	asking bool
	told   bool   // a tell of this attempt may have been heard
	may    bool   // something may have happened that nobody has spoken for
	tries  int    // without an answer that says anything
	last   string // what went wrong last
}

// Begin returns an attempt and what is to be done first.
func Begin(r Rules) (*Talk, Move) {
	t := &Talk{rules: r, may: r.Recheck}
	if r.Recheck && r.Contract {
		return t, t.ask(0)
	}
	return t, t.tell(0)
}

// Heard takes the answer to what was posted last.
func (t *Talk) Heard(h Heard) Move {
	switch h.Verdict {
	case Done:
		return end(response.Succeeded, h.Detail)
	case Stale:
		return end(response.StaleToken, h.Detail)
	case Refused:
		t.last = h.Detail
		return t.over()
	case Accepted:
		t.last, t.tries = "under way: "+h.Detail, 0
		if !t.asking {
			t.told, t.may = true, true
		}
		return t.ask(bounded(h.After, poll))
	default:
	}
	if t.asking {
		return t.asked(h)
	}
	return t.answered(h)
}

// answered takes the answer to a tell.
func (t *Talk) answered(h Heard) Move {
	switch h.Verdict {
	case Unchanged:
		return end(response.Unchanged, h.Detail)
	case Partly:
		return end(response.Partly, h.Detail)
	case Unknown:
		return end(response.NotKnown, notKnown(h))
	case Later:
		t.last = h.Detail
		return t.tell(bounded(h.After, t.pause()))
	default: // Garbled, and None, which answers no tell
		return t.Failed(true, h.Detail)
	}
}

// asked takes the answer to a question. What is said of an attempt before this one does not end this one: the receiver is told
// of it, and does what is right.
func (t *Talk) asked(h Heard) Move {
	switch h.Verdict {
	case Unchanged, Partly, Unknown, None:
		switch {
		case !t.told:
			return t.tell(0)
		case h.Verdict == None || h.Attempt < t.rules.Attempt:
			return t.tell(t.pause())
		case h.Verdict == Unchanged:
			return end(response.Unchanged, h.Detail)
		case h.Verdict == Partly:
			return end(response.Partly, h.Detail)
		default:
			return end(response.NotKnown, notKnown(h))
		}
	default:
		t.last = h.Detail
		return t.ask(bounded(h.After, t.pause()))
	}
}

// Failed takes that what was posted last has had no answer. left says whether it may have been heard.
func (t *Talk) Failed(left bool, why string) Move {
	t.last = why
	switch {
	case t.asking:
		return t.ask(t.pause())
	case !left:
		return t.tell(t.pause())
	}
	t.told, t.may = true, true
	if t.rules.Contract {
		return t.ask(t.pause())
	}
	return t.tell(t.pause())
}

// Cut takes that the time was over while something was under way. What went wrong before that says more.
func (t *Talk) Cut(left bool, why string) Move {
	if t.last != "" {
		why = t.last
	}
	return t.Failed(left, why)
}

// Impossible takes that what was to be posted cannot be, however often it is tried.
func (t *Talk) Impossible(why string) Move {
	t.last = why
	return t.over()
}

// Expired takes that the time is over.
func (t *Talk) Expired() Move {
	if t.last == "" {
		t.last = "no answer in time"
	}
	return t.over()
}

// over ends what nobody has spoken for.
func (t *Talk) over() Move {
	if t.may {
		return end(response.NotKnown, t.last)
	}
	return end(response.Unchanged, t.last)
}

func notKnown(h Heard) string { return "the receiver does not know: " + h.Detail }

func (t *Talk) tell(after time.Duration) Move {
	t.asking = false
	return Move{Act: Tell, After: after}
}

func (t *Talk) ask(after time.Duration) Move {
	t.asking = true
	return Move{Act: Ask, After: after}
}

func end(o response.Outcome, detail string) Move { return Move{Act: End, Outcome: o, Detail: detail} }

// pause doubles with each try.
func (t *Talk) pause() time.Duration {
	t.tries++
	return min(firstPause<<min(t.tries-1, 10), lastPause)
}

// bounded is what a receiver asks for, within reason; where it does not ask, otherwise.
func bounded(asked, otherwise time.Duration) time.Duration {
	if asked <= 0 {
		return otherwise
	}
	return min(max(asked, shortest), longest)
}
