// The course of one attempt at a webhook: the next request to the receiver, and the outcome.
// This file is pure; webhook.go posts and waits. The receiver's side of it is in docs/webhooks.md.
//
//	                 ┌── a tell has left, and there was no answer that says anything ──┐
//	                 │                ┌── not taken yet ──┐                            ▼
//	begin ──► tell the receiver ◄─────┴───────────────────┘                  ask it what became of it ◄── an attempt before
//	                 ▲                                                          │   ▲      │                may have happened
//	                 └───────────────── it knows nothing of it ─────────────────┘   └──────┘ under way, or no answer
//
// To tell again is safe where the receiver knows what it has been told by key and attempt; so nothing that takes something from a
// node is told again before the receiver has been asked.

package webhook

import (
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// verdict is what an answer says.
type verdict uint8

// The verdicts.
const (
	verdictDone      verdict = iota + 1 // it stands
	verdictAccepted                     // it is under way: ask again
	verdictUnchanged                    // it has failed, nothing of it stands, and this attempt never comes to anything any more
	verdictLater                        // it was not taken; the same may be told again
	verdictPartly                       // it has failed, and something stands
	verdictUnknown                      // the receiver does not know
	verdictStale                        // a higher token or a later attempt has been seen
	verdictNone                         // the receiver has never heard of it, or has put it back since
	verdictRefused                      // by what does not read what it is told: nothing was done with it
	verdictGarbled                      // no answer of the contract
)

// reply is an answer.
type reply struct {
	Verdict verdict
	Attempt int           // that the receiver speaks of; 0: it does not say
	After   time.Duration // for which it wants to be left alone; 0: it does not say
	Detail  string        // for people
}

// act is what is to be done.
type act uint8

// The acts.
const (
	actTell act = iota + 1 // post what is to be done
	actAsk                 // post the question what became of it
	actEnd                 // it is over
)

// move is what is to be done next.
type move struct {
	Act     act
	After   time.Duration    // to wait before
	Outcome response.Outcome // of End
	Detail  string           // of End, for people
}

// rules of one attempt.
type rules struct {
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

// attempt is one attempt.
type attempt struct {
	rules  rules
	asking bool
	told   bool   // a tell of this attempt may have been heard
	may    bool   // something may have happened that nobody has spoken for
	tries  int    // without an answer that says anything
	last   string // what went wrong last
}

// begin returns an attempt and what is to be done first.
func begin(r rules) (*attempt, move) {
	t := &attempt{rules: r, may: r.Recheck}
	if r.Recheck && r.Contract {
		return t, t.ask(0)
	}
	return t, t.tell(0)
}

// reply takes the answer to what was posted last.
func (t *attempt) Heard(h reply) move {
	switch h.Verdict {
	case verdictDone:
		return ended(response.Succeeded, h.Detail)
	case verdictStale:
		return ended(response.StaleToken, h.Detail)
	case verdictRefused:
		t.last = h.Detail
		return t.over()
	case verdictAccepted:
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
func (t *attempt) answered(h reply) move {
	switch h.Verdict {
	case verdictUnchanged:
		return ended(response.Unchanged, h.Detail)
	case verdictPartly:
		return ended(response.Partly, h.Detail)
	case verdictUnknown:
		return ended(response.NotKnown, notKnown(h))
	case verdictLater:
		t.last = h.Detail
		return t.tell(bounded(h.After, t.pause()))
	default: // Garbled, and None, which answers no tell
		return t.Failed(true, h.Detail)
	}
}

// asked takes the answer to a question. What is said of an attempt before this one does not end this one: the receiver is told
// of it, and does what is right.
func (t *attempt) asked(h reply) move {
	switch h.Verdict {
	case verdictUnchanged, verdictPartly, verdictUnknown, verdictNone:
		switch {
		case !t.told:
			return t.tell(0)
		case h.Verdict == verdictNone || h.Attempt < t.rules.Attempt:
			return t.tell(t.pause())
		case h.Verdict == verdictUnchanged:
			return ended(response.Unchanged, h.Detail)
		case h.Verdict == verdictPartly:
			return ended(response.Partly, h.Detail)
		default:
			return ended(response.NotKnown, notKnown(h))
		}
	default:
		t.last = h.Detail
		return t.ask(bounded(h.After, t.pause()))
	}
}

// Failed takes that what was posted last has had no answer. left says whether it may have been heard.
func (t *attempt) Failed(left bool, why string) move {
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
func (t *attempt) Cut(left bool, why string) move {
	if t.last != "" {
		why = t.last
	}
	return t.Failed(left, why)
}

// Impossible takes that what was to be posted cannot be, however often it is tried.
func (t *attempt) Impossible(why string) move {
	t.last = why
	return t.over()
}

// Expired takes that the time is over.
func (t *attempt) Expired() move {
	if t.last == "" {
		t.last = "no answer in time"
	}
	return t.over()
}

// over ends what nobody has spoken for.
func (t *attempt) over() move {
	if t.may {
		return ended(response.NotKnown, t.last)
	}
	return ended(response.Unchanged, t.last)
}

func notKnown(h reply) string { return "the receiver does not know: " + h.Detail }

func (t *attempt) tell(after time.Duration) move {
	t.asking = false
	return move{Act: actTell, After: after}
}

func (t *attempt) ask(after time.Duration) move {
	t.asking = true
	return move{Act: actAsk, After: after}
}

func ended(o response.Outcome, detail string) move {
	return move{Act: actEnd, Outcome: o, Detail: detail}
}

// pause doubles with each try.
func (t *attempt) pause() time.Duration {
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
