package webhook

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// event is a test's input to an attempt.
type event func(t *attempt) move

func says(v verdict) event {
	return func(t *attempt) move { return t.Heard(reply{Verdict: v, Attempt: 2}) }
}

func saysOf(v verdict, number int, after time.Duration) event {
	return func(t *attempt) move { return t.Heard(reply{Verdict: v, Attempt: number, After: after}) }
}

func cut(t *attempt) move     { return t.Failed(true, "cut") }
func refused(t *attempt) move { return t.Failed(false, "refused") }
func expires(t *attempt) move { return t.Expired() }

func TestOutcomeOfEachAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		rules  rules
		events []event
		want   string // the acts, and the outcome
	}{
		"done":      {rules{2, false, true}, []event{says(verdictDone)}, "tell end 1"},
		"unchanged": {rules{2, false, true}, []event{says(verdictUnchanged)}, "tell end 2"},
		"partly":    {rules{2, false, true}, []event{says(verdictPartly)}, "tell end 3"},
		"unknown":   {rules{2, false, true}, []event{says(verdictUnknown)}, "tell end 4"},
		"stale":     {rules{2, false, true}, []event{says(verdictStale)}, "tell end 5"},
		"accepted, and done": {rules{2, false, true},
			[]event{says(verdictAccepted), says(verdictAccepted), says(verdictDone)}, "tell ask ask end 1"},
		"accepted, and never heard of": {rules{2, false, true}, []event{says(verdictAccepted), says(verdictNone), says(verdictDone)},
			"tell ask tell end 1"},
		"accepted, and no more time":     {rules{2, false, true}, []event{says(verdictAccepted), expires}, "tell ask end 4"},
		"never reached":                  {rules{2, false, true}, []event{refused, refused, expires}, "tell tell tell end 2"},
		"cut, and it had arrived":        {rules{2, false, true}, []event{cut, says(verdictDone)}, "tell ask end 1"},
		"cut, and it had failed":         {rules{2, false, true}, []event{cut, says(verdictUnchanged)}, "tell ask end 2"},
		"cut, and it had half failed":    {rules{2, false, true}, []event{cut, says(verdictPartly)}, "tell ask end 3"},
		"cut, and the receiver has died": {rules{2, false, true}, []event{cut, says(verdictUnknown)}, "tell ask end 4"},
		"cut, and it had not arrived":    {rules{2, false, true}, []event{cut, says(verdictNone), says(verdictDone)}, "tell ask tell end 1"},
		"cut, one before is spoken of": {rules{2, false, true}, []event{cut, saysOf(verdictUnchanged, 1, 0), says(verdictDone)},
			"tell ask tell end 1"},
		"cut, and never reached again": {rules{2, false, true}, []event{cut, refused, refused, expires}, "tell ask ask ask end 4"},
		"cut, refused when told again": {rules{2, false, true}, []event{cut, says(verdictNone), says(verdictRefused)}, "tell ask tell end 4"},
		"garbled": {rules{2, false, true}, []event{says(verdictGarbled), says(verdictGarbled), says(verdictDone)},
			"tell ask ask end 1"},
		"a tell is answered with none": {rules{2, false, true}, []event{says(verdictNone), says(verdictDone)}, "tell ask end 1"},
		"refused":                      {rules{2, false, true}, []event{says(verdictRefused)}, "tell end 2"},
		"later, then done": {rules{2, false, true}, []event{says(verdictLater), says(verdictLater), says(verdictDone)},
			"tell tell tell end 1"},
		"later, and no more time":        {rules{2, false, true}, []event{says(verdictLater), expires}, "tell tell end 2"},
		"recheck: it had happened":       {rules{2, true, true}, []event{says(verdictDone)}, "ask end 1"},
		"recheck: it had not":            {rules{2, true, true}, []event{says(verdictNone), says(verdictDone)}, "ask tell end 1"},
		"recheck: it had failed":         {rules{2, true, true}, []event{saysOf(verdictUnchanged, 1, 0), says(verdictDone)}, "ask tell end 1"},
		"recheck: the receiver had died": {rules{2, true, true}, []event{saysOf(verdictUnknown, 1, 0), says(verdictUnknown)}, "ask tell end 4"},
		"recheck: it is under way":       {rules{2, true, true}, []event{says(verdictAccepted), says(verdictDone)}, "ask ask end 1"},
		"recheck: it is stale":           {rules{2, true, true}, []event{says(verdictStale)}, "ask end 5"},
		"recheck: nobody is there":       {rules{2, true, true}, []event{refused, expires}, "ask ask end 4"},
		"recheck: it cannot be asked":    {rules{2, true, true}, []event{says(verdictRefused)}, "ask end 4"},
		"recheck: nobody told it":        {rules{2, true, true}, []event{says(verdictNone), refused, expires}, "ask tell tell end 4"},
		"no contract":                    {rules{2, false, false}, []event{cut, refused, says(verdictDone)}, "tell tell tell end 1"},
		"no contract, recheck":           {rules{2, true, false}, []event{says(verdictDone)}, "tell end 1"},
		"no contract, no answer":         {rules{2, false, false}, []event{cut, refused, expires}, "tell tell tell end 4"},
	} {
		k, m := begin(c.rules)
		var got strings.Builder
		for i := 0; ; i++ {
			got.WriteString(map[act]string{actTell: "tell ", actAsk: "ask ", actEnd: "end "}[m.Act])
			if m.Act == actEnd {
				fmt.Fprint(&got, uint8(m.Outcome))
				break
			}
			if i == len(c.events) {
				break
			}
			m = c.events[i](k)
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got.String(), c.want)
		}
	}
}

// TestTimeoutKeepsEarlierFailure: the timeout does not hide the earlier failure.
func TestTimeoutKeepsEarlierFailure(t *testing.T) {
	k, _ := begin(rules{Attempt: 1, Contract: true})
	k.Failed(false, "no such name")
	k.Cut(false, "deadline")
	if m := k.Expired(); m.Detail != "no such name" || m.Outcome != response.Unchanged {
		t.Errorf("%+v", m)
	}
	k, _ = begin(rules{Attempt: 1, Contract: true})
	k.Cut(true, "deadline")
	if m := k.Expired(); m.Detail != "deadline" || m.Outcome != response.NotKnown {
		t.Errorf("%+v", m)
	}
}

func TestPausesGrowToTheirBound(t *testing.T) {
	k, _ := begin(rules{Attempt: 1, Contract: true})
	last := time.Duration(0)
	for i := range 40 {
		m := k.Failed(false, "refused")
		if m.After < last || m.After < firstPause || m.After > lastPause || i == 0 && m.After != firstPause {
			t.Fatalf("pause %d: %s after %s", i, m.After, last)
		}
		last = m.After
	}
	if last != lastPause {
		t.Errorf("the last pause is %s, want %s", last, lastPause)
	}
	for asked, want := range map[time.Duration]time.Duration{0: poll, 1: shortest, time.Second: time.Second, time.Hour: longest} {
		k, _ := begin(rules{Attempt: 1, Contract: true})
		if m := k.Heard(reply{Verdict: verdictAccepted, After: asked}); m.After != want {
			t.Errorf("asked for %s: %s, want %s", asked, m.After, want)
		}
	}
}

var seeds = flag.Uint64("talk.seeds", 20_000, "histories that TestEachEffectHappensExactlyOnce goes through")

// TestEachEffectHappensExactlyOnce checks the joint promise of attempts and of a receiver that follows the contract. The network loses
// requests and answers and delivers copies late; leaders change, old leaders continue to send, and the receiver dies.
// No effect happens twice, a done effect is in place, and an unchanged one is not.
func TestEachEffectHappensExactlyOnce(t *testing.T) {
	ends := map[response.Outcome]int{}
	for seed := range *seeds {
		w := newWorld(seed)
		w.run()
		if w.wrong != "" {
			t.Fatalf("seed %d: %s\n%v", seed, w.wrong, w.log)
		}
		for o, n := range w.ends {
			ends[o] += n
		}
	}
	for o := response.Succeeded; o <= response.StaleToken; o++ {
		if ends[o] < 10 {
			t.Errorf("outcome %d came %d times only: %v", o, ends[o], ends)
		}
	}
}

// world is one operation, the attempts at it, and the network between.
type world struct {
	r       *rand.Rand
	talks   []*talker
	late    []posted // copies still in flight
	token   uint64   // token of the latest leader
	attempt int
	// State of the receiver.
	highest uint64
	seen    int    // attempt
	state   string // state of that attempt
	stands  bool
	effects int
	ends    map[response.Outcome]int
	log     []string
	wrong   string
}

type talker struct {
	*attempt
	next   move
	token  uint64
	number int // number of the attempt
	over   bool
}

type posted struct {
	token   uint64
	attempt int
}

func newWorld(seed uint64) *world {
	return &world{r: rand.New(rand.NewPCG(seed, 1)), ends: map[response.Outcome]int{}, token: 1}
}

func (w *world) logf(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// run makes up to six attempts, each by the latest leader; some start before the previous one has ended.
func (w *world) run() {
	recheck := false
	for w.attempt < 6 && w.wrong == "" {
		if w.r.IntN(3) == 0 {
			w.token++
		}
		w.attempt++
		k, m := begin(rules{Attempt: w.attempt, Recheck: recheck, Contract: true})
		now := &talker{k, m, w.token, w.attempt, false}
		w.talks = append(w.talks, now)
		recheck = true
		for range w.r.IntN(25) {
			if w.r.IntN(4) == 0 {
				w.deliverLate()
			}
			w.step(w.talks[w.r.IntN(len(w.talks))])
			if w.wrong != "" {
				return
			}
		}
		// The leader learns only the outcome of the latest attempt.
		if now.over && now.next.Outcome == response.Succeeded {
			break
		}
		if now.over && now.next.Outcome == response.Unchanged {
			recheck = false
		}
	}
	for len(w.late) > 0 && w.wrong == "" {
		w.deliverLate()
	}
}

// step lets one talker make its next move.
func (w *world) step(k *talker) {
	if k.over {
		return
	}
	var m move
	switch fate := w.r.IntN(12); {
	case fate == 0:
		m = k.Expired()
	case fate == 1:
		m = k.Failed(false, "refused")
	case fate == 2: // lost, or delivered after all others
		if k.next.Act == actTell && w.r.IntN(2) == 0 {
			w.late = append(w.late, posted{k.token, k.number})
		}
		m = k.Failed(true, "lost")
	case fate == 3: // received, with the answer lost or garbled
		w.receive(k)
		if w.r.IntN(2) == 0 {
			m = k.Failed(true, "answer lost")
		} else {
			m = k.Heard(reply{Verdict: verdictGarbled})
		}
	case fate == 4 && k.next.Act == actTell && k.token >= w.highest: // from a proxy in front of the receiver
		m = k.Heard(reply{Verdict: verdictRefused})
	default:
		m = k.Heard(w.receive(k))
	}
	w.logf("attempt %d token %d: %d → %d %d", k.number, k.token, k.next.Act, m.Act, m.Outcome)
	k.next = m
	if m.Act == actEnd {
		w.over(k)
	}
}

// over compares the outcome with the effect. Only the latest attempt's outcome counts.
func (w *world) over(k *talker) {
	k.over = true
	w.ends[k.next.Outcome]++
	if k.number != w.attempt {
		return
	}
	switch o := k.next.Outcome; {
	case o == response.Succeeded && !w.stands:
		w.wrong = "done is said, and nothing stands"
	case o == response.Unchanged && w.stands:
		w.wrong = "unchanged is said, and something stands"
	case o == response.Unchanged:
		// From here on a further attempt does not recheck, so this one must never take effect.
		for _, l := range w.late {
			if l.attempt == k.number && w.seen < l.attempt && l.token >= w.highest {
				w.wrong = "unchanged is said, and a copy on its way may do it"
			}
		}
	}
}

func (w *world) deliverLate() {
	if len(w.late) == 0 {
		return
	}
	i := w.r.IntN(len(w.late))
	p := w.late[i]
	w.late = append(w.late[:i:i], w.late[i+1:]...)
	h := w.tell(p.token, p.attempt)
	w.logf("late: attempt %d token %d: verdict %d", p.attempt, p.token, h.Verdict)
}

// receive is the receiver's side of the contract.
func (w *world) receive(k *talker) reply {
	if k.next.Act == actTell {
		return w.tell(k.token, k.number)
	}
	if k.token < w.highest {
		return reply{Verdict: verdictStale}
	}
	w.highest = k.token
	if w.state == "" {
		return reply{Verdict: verdictNone}
	}
	if w.state == "accepted" && w.r.IntN(2) == 0 {
		w.act()
	}
	return w.status()
}

func (w *world) status() reply {
	return reply{Verdict: map[string]verdict{"accepted": verdictAccepted, "done": verdictDone, "unchanged": verdictUnchanged,
		"partly": verdictPartly, "unknown": verdictUnknown}[w.state], Attempt: w.seen}
}

func (w *world) tell(token uint64, attempt int) reply {
	switch {
	case token < w.highest || attempt < w.seen:
		return reply{Verdict: verdictStale}
	case attempt == w.seen:
		w.highest = token
		return w.status()
	}
	w.highest = token
	switch {
	case w.state == "accepted":
		w.act() // ends before the next attempt is accepted
		return reply{Verdict: verdictLater}
	case w.r.IntN(8) == 0:
		return reply{Verdict: verdictLater}
	case w.state == "done" || w.state == "unknown": // do not repeat it
		w.seen = attempt
		return w.status()
	}
	w.seen, w.state = attempt, "accepted"
	if w.r.IntN(3) > 0 {
		w.act()
	}
	return w.status()
}

// act ends the action in progress.
func (w *world) act() {
	switch w.r.IntN(6) {
	case 0:
		w.state = "unchanged"
		if w.stands { // from an earlier attempt
			w.state = "partly"
		}
	case 1:
		w.state = "partly"
		w.stands = true
	case 2: // the receiver dies, after the effect or before
		w.state = "unknown"
		if w.r.IntN(2) == 0 {
			w.effect()
		}
	default:
		w.state = "done"
		w.effect()
	}
}

func (w *world) effect() {
	w.stands = true
	if w.effects++; w.effects > 1 {
		w.wrong = "it has happened twice"
	}
}
