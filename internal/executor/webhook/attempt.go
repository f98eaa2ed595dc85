// The course of one attempt at a webhook: the next request to the receiver, and the outcome. This file is pure;
// webhook.go posts and waits. The receiver's side is described in docs/webhooks.md.
//
//	                 ┌── a tell has left, and there was no answer that says anything ──┐
//	                 │                ┌── not taken yet ──┐                            ▼
//	begin ──► tell the receiver ◄─────┴───────────────────┘                  ask it for the outcome  ◄── an attempt before
//	                 ▲                                                          │   ▲      │                may have happened
//	                 └───────────────── it knows nothing of it ─────────────────┘   └──────┘ under way, or no answer
//
// Repeating a request is safe if the receiver deduplicates by key and attempt. So a request that takes something from a
// node is not repeated before a query for its outcome.

package webhook

import (
	"cmp"
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// verdict is the meaning of an answer.
type verdict uint8

// The verdicts.
const (
	verdictDone      verdict = iota + 1 // the effect is in place
	verdictAccepted                     // in progress: query again
	verdictUnchanged                    // failed without any effect; this attempt will never have one
	verdictLater                        // not accepted; the same request may be repeated
	verdictPartly                       // failed, and a partial effect is in place
	verdictUnknown                      // the receiver does not know
	verdictStale                        // a higher token or a later attempt has been seen
	verdictNone                         // the receiver does not know the request, or has undone it since
	verdictRefused                      // from a server that has not read the message: nothing was done
	verdictGarbled                      // not an answer of the contract
)

// reply is an answer.
type reply struct {
	Verdict verdict
	Attempt int           // the attempt that it refers to; 0 if not stated
	After   time.Duration // how long to wait before the next request; 0 if not stated
	Detail  string        // for display
}

// act is the kind of the next action.
type act uint8

// The acts.
const (
	actTell act = iota + 1 // post the action
	actAsk                 // post a query for the outcome
	actEnd                 // the attempt is over
)

// move is the next action.
type move struct {
	Act     act
	After   time.Duration    // delay before it
	Outcome response.Outcome // for actEnd
	Detail  string           // for actEnd, for display
}

// rules of one attempt.
type rules struct {
	Attempt int
	// Recheck means that an earlier attempt may have taken effect.
	Recheck bool
	// Contract means that the receiver follows the contract and answers queries. Requests to other receivers are simply
	// repeated; policies allow only notifications to those.
	Contract bool
}

// Delays between two requests.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 15 * time.Second
	poll       = 2 * time.Second // for an action in progress, unless the receiver states a delay
	longest    = time.Minute     // maximum delay that a receiver may state
	shortest   = 100 * time.Millisecond
)

// attempt is one attempt.
type attempt struct {
	rules  rules
	asking bool
	told   bool   // the receiver may have got a request of this attempt
	may    bool   // an effect is possible whose outcome is not known
	tries  int    // tries since the last meaningful answer
	last   string // last failure
}

// begin returns an attempt and its first move.
func begin(r rules) (*attempt, move) {
	t := &attempt{rules: r, may: r.Recheck}
	if r.Recheck && r.Contract {
		return t, t.ask(0)
	}
	return t, t.tell(0)
}

// Heard processes the answer to the last request.
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

// answered processes the answer to a do or an undo.
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
	default: // verdictGarbled, or verdictNone, which is no answer to a do or an undo
		return t.Failed(true, h.Detail)
	}
}

// asked processes the answer to a query. The outcome of an earlier attempt does not end this one: the receiver gets
// this attempt's request and decides.
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

// Failed records that the last request had no answer. left says whether the receiver may have got the request.
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

// Cut records that the time ran out during a request. An earlier failure is the better explanation.
func (t *attempt) Cut(left bool, why string) move {
	if t.last != "" {
		why = t.last
	}
	return t.Failed(left, why)
}

// Impossible records that the request can never be sent.
func (t *attempt) Impossible(why string) move {
	t.last = why
	return t.over()
}

// Expired records that the time is over.
func (t *attempt) Expired() move {
	t.last = cmp.Or(t.last, "no answer in time")
	return t.over()
}

// over ends an attempt without an answer about its outcome.
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

// pause returns the backoff, which doubles with each try.
func (t *attempt) pause() time.Duration {
	t.tries++
	return min(firstPause<<min(t.tries-1, 10), lastPause)
}

// bounded returns the delay that a receiver has stated, within limits, or otherwise if it has stated none.
func bounded(asked, otherwise time.Duration) time.Duration {
	if asked <= 0 {
		return otherwise
	}
	return min(max(asked, shortest), longest)
}
