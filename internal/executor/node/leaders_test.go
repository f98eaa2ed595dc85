package node

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// This test covers everything between a leader and an effect: leaders that are killed, or paused until another one
// leads; messages that are lost, late, duplicated and out of order; an agent whose daemon is killed at any step. The
// exchange, the ledger and the recheck of a restart are the real ones.

// world is one step of a response, a restart of a half, from its first attempt to its end.
type world struct {
	t    *testing.T
	r    *rand.Rand
	now  time.Time
	log  strings.Builder
	mail []mail

	// The committed state: it outlives leaders.
	token    uint64
	attempt  int
	unsure   bool // an earlier attempt may have taken effect
	done     bool
	outcomes map[int]response.Outcome // by attempt, as committed by a leader

	leaders []*leader // the last one leads; earlier ones may continue late
	// window is the longest time after an election at which an order of the previous leader was still begun.
	window time.Duration

	// The node.
	disk    []byte
	daemon  bool      // it is running
	back    time.Time // time of its restart
	act     *running  // nil if none
	pid     int       // pid of the half: grows with each restart
	begun   map[int]uint64
	effects map[int]int
}

type mail struct {
	at     time.Time
	order  *lofamov1.ActOrder  // to the node
	status *lofamov1.ActStatus // to all leaders; each picks out its own
}

type leader struct {
	token   uint64
	attempt int
	x       *exchange
	elected time.Time
	frozen  time.Time // it does nothing until then
	busy    time.Time // until then it is busy with other nodes, which see its token
	over    bool
}

type running struct {
	order actions.Order
	step  int
	next  time.Time
}

func newLeadersWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), now: begin, daemon: true, pid: 100, begun: map[int]uint64{}, effects: map[int]int{},
		outcomes: map[int]response.Outcome{},
	}
	l := actions.Ledger{Life: 9}
	w.save(&l)
	return w
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%6d ms  %s\n", w.now.Sub(begin).Milliseconds(), fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s:\n%s", fmt.Sprintf(format, args...), w.log.String())
}

func (w *world) ledger() *actions.Ledger {
	l, err := actions.Decode(w.disk)
	if err != nil {
		w.fail("%v", err)
	}
	return l
}

func (w *world) save(l *actions.Ledger) {
	b, err := l.Encode()
	if err != nil {
		w.fail("%v", err)
	}
	w.disk = b
}

// send loses one message in five, duplicates another one in five, and delays some by seconds.
func (w *world) send(m mail) {
	if w.r.IntN(5) == 0 {
		return
	}
	for range 1 + w.r.IntN(5)/4 {
		m.at = w.now.Add(time.Duration(w.r.IntN(20)) * time.Millisecond)
		if w.r.IntN(20) == 0 {
			m.at = m.at.Add(time.Duration(w.r.IntN(8000)) * time.Millisecond)
		}
		w.mail = append(w.mail, m)
	}
}

// elect starts another leader from the committed state.
func (w *world) elect() {
	w.token++
	w.attempt++
	l := &leader{token: w.token, attempt: w.attempt, elected: w.now}
	l.x = newExchange(w.now, &lofamov1.ActOrder{
		Node: "n0", Token: l.token, Response: "r1-1", Attempt: uint32(l.attempt), Kind: actions.KindRestartHalf, Recheck: w.unsure,
		Parameters: []*lofamov1.ActParameter{{Name: "half", Value: "dnp"}},
	}, 2*time.Second, 10*time.Second)
	w.unsure = true // until the outcome is known
	w.leaders = append(w.leaders, l)
	w.say("leader %d: attempt %d, recheck %t", l.token, l.attempt, l.x.order.GetRecheck())
}

func (l *leader) awake(now time.Time) bool { return !now.Before(l.frozen) && !now.Before(l.busy) }

// clock returns the agent's clock: its machine started an hour ago.
func (w *world) clock() uint64 { return uint64((time.Hour + w.now.Sub(begin)).Milliseconds()) }

func (w *world) leading() *leader { return w.leaders[len(w.leaders)-1] }

// step advances the time by 10 ms.
func (w *world) step() {
	w.now = w.now.Add(10 * time.Millisecond)
	if !w.daemon && !w.now.Before(w.back) {
		w.daemon = true
		l := w.ledger()
		l.Interrupt(fault.HalfDNP)
		w.save(l)
		w.say("the daemon runs again")
	}
	due := w.mail
	w.mail = nil
	w.r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		switch {
		case m.at.After(w.now):
			w.mail = append(w.mail, m)
		case m.order != nil:
			w.ordered(m.order)
		default:
			for _, l := range w.leaders {
				if !l.over && l.awake(w.now) && int(m.status.GetAttempt()) == l.attempt {
					l.x.heard(w.now, m.status)
				}
			}
		}
	}
	if w.act != nil && !w.now.Before(w.act.next) {
		w.makes()
	}
	for _, l := range w.leaders {
		if l.over || !l.awake(w.now) {
			continue
		}
		switch out, _ := l.x.tick(w.now); {
		case out == nil:
		case l.x.mayBegin(out.order) && l != w.leading(): // the answer of executor.Fenced
			l.x.fenced(executor.ErrStale)
		default:
			l.x.said = l.x.said || !out.order.GetAsk()
			w.send(mail{order: proto.CloneOf(out.order)}) // the message may be delayed, as if its leader were paused here
		}
		if l.x.over() {
			l.over = true
			w.ended(l)
		}
	}
}

// ended commits an outcome if the leader still leads, and continues.
func (w *world) ended(l *leader) {
	w.say("attempt %d of leader %d: %+v", l.attempt, l.token, l.x.result)
	if l != w.leading() {
		return
	}
	w.outcomes[l.attempt] = l.x.result.Outcome
	switch l.x.result.Outcome {
	case response.Succeeded:
		w.done = true
	case response.Unchanged:
		w.unsure = l.x.order.GetRecheck()
		w.elect()
	default:
		w.elect()
	}
}

// ordered delivers an order to the daemon.
func (w *world) ordered(m *lofamov1.ActOrder) {
	o, l := actions.FromWire(m), w.ledger()
	fresh := w.clock()
	var s actions.Status
	switch {
	case !w.daemon && !o.Ask:
		return
	case !w.daemon: // a half answers, without a clock
		s, fresh = actions.Status{State: actions.Unchanged, Detail: "nobody makes acts"}, 0
	case o.Ask:
		var keep bool
		if s, keep = l.Look(w.both(), &o); keep {
			w.save(l)
		}
		s.Allowed = []string{actions.KindRestartHalf}
	case w.act != nil && w.act.order.Attempt != o.Attempt && l.Token <= o.Token:
		s = actions.Status{State: actions.Unchanged, Detail: "busy", Ledger: l.Life, Token: l.Token}
	default:
		s = w.admit(l, &o)
	}
	w.send(mail{status: &lofamov1.ActStatus{
		Node: "n0", Response: o.Response, Attempt: uint32(o.Attempt.Attempt), State: s.State, Detail: s.Detail, Ledger: s.Ledger, Token: s.Token,
		Allowed: s.Allowed,
		Fresh:   fresh,
	}})
}

// both is the time by both clocks of a node.
func (w *world) both() actions.Now { return actions.Now{Wall: w.now, Fresh: w.clock()} }

// admit starts an act if the ledger admits it.
func (w *world) admit(l *actions.Ledger, o *actions.Order) actions.Status {
	seen, n := l.Token, o.Attempt.Attempt
	o.Late = actions.Late(o.Fresh, w.clock())
	s, begin := l.Admit(w.both(), o)
	if !begin {
		return s
	}
	for i, next := range w.leaders {
		if i > 0 && w.leaders[i-1].token == o.Token {
			w.window = max(w.window, w.now.Sub(next.elected))
		}
	}
	if o.Token < seen || w.begun[n] != 0 {
		w.fail("attempt %d is begun under token %d, %d has been seen, begun before under %d", n, o.Token, seen, w.begun[n])
	}
	w.begun[n] = o.Token
	w.save(l)
	w.say("attempt %d is begun", n)
	w.act = &running{order: *o, next: w.now.Add(time.Duration(w.r.IntN(300)) * time.Millisecond)}
	return s
}

// makes advances the act: it reads and notes the pid, ends the half, and stores the result.
func (w *world) makes() {
	a := w.act
	a.next = w.now.Add(time.Duration(w.r.IntN(800)) * time.Millisecond)
	l, result := w.ledger(), actions.Result{}
	switch a.step++; a.step {
	case 1:
		if earlier := l.Earlier(&a.order); a.order.Recheck {
			for _, e := range earlier {
				if e.Note != "" && e.Note != fmt.Sprint(w.pid) {
					result = actions.Result{State: actions.Done, Detail: "it was"}
				}
				if e.Note != "" {
					break
				}
			}
		}
		if result.State == 0 {
			l.Note(a.order.Attempt, fmt.Sprint(w.pid))
		}
	case 2:
		w.pid++
		w.effects[a.order.Attempt.Attempt]++
		w.say("the half is restarted by attempt %d", a.order.Attempt.Attempt)
	case 3:
		result = actions.Result{State: actions.Done, Detail: "it is"}
	}
	if result.State != 0 {
		l.End(a.order.Attempt, result)
		w.act = nil
	}
	w.save(l)
}

// disturb kills and pauses.
func (w *world) disturb() {
	switch w.r.IntN(250) {
	case 0, 1:
		w.say("the leader is killed")
		w.leading().over = true
		w.elect()
	case 2, 3:
		w.leading().frozen = w.now.Add(time.Duration(w.r.IntN(8000)) * time.Millisecond)
		w.say("the leader is paused, and another one is elected")
		w.elect()
		if w.r.IntN(2) == 0 {
			w.leading().busy = w.now.Add(time.Duration(w.r.IntN(9000)) * time.Millisecond)
		}
	case 4:
		if w.daemon {
			w.say("the daemon is killed")
			w.daemon, w.act, w.back = false, nil, w.now.Add(time.Duration(w.r.IntN(2000))*time.Millisecond)
		}
	}
}

// TestLeadersAreKilled: the half restarts exactly once. No act begins under a token that the node knows to be stale, or
// later after another election than documented. No attempt that restarted the half has the outcome Unchanged.
func TestLeadersAreKilled(t *testing.T) {
	killed, late := 0, 0
	var window time.Duration
	for seed := range uint64(1500) {
		w := newLeadersWorld(t, seed)
		w.elect()
		for i := 0; !w.done && i < 12_000; i++ {
			if i < 1000 { // then the disturbances end
				w.disturb()
			}
			w.step()
		}
		if !w.done {
			w.fail("seed %d: it never ends", seed)
		}
		for range 1000 { // late messages arrive
			w.step()
		}
		total := 0
		for attempt, n := range w.effects {
			total += n
			if w.outcomes[attempt] == response.Unchanged {
				w.fail("seed %d: attempt %d was called none, and has restarted the half", seed, attempt)
			}
		}
		if total != 1 {
			w.fail("seed %d: %d restarts", seed, total)
		}
		killed += len(w.leaders) - 1
		if window = max(window, w.window); w.window > actions.FreshFor {
			w.fail("seed %d: begun %s after another leader was elected: want at most %s", seed, w.window, actions.FreshFor)
		}
		for _, l := range w.leaders {
			if !l.frozen.IsZero() {
				late++
			}
		}
	}
	t.Logf("%d leaders were killed or followed, %d went on late; begun under the token of a leader before at most %s after the next was "+
		"elected",
		killed, late, window)
	if killed < 1000 || late < 500 || window < time.Second {
		t.Error("too few for the test to say anything")
	}
}
