package respond

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// batch collects the engine's output over some steps: committed in one transaction, and carried out after it.
type batch struct {
	records map[string]response.Record // the newest of each key; nil: to be forgotten
	order   []string                   // the keys of records
	out     store.ResponseBatch        // without records and without keys to forget
	effects []response.Effect
	unknown []response.Effect // former leaders' attempts, whose outcomes the engine asks for
	stops   []response.Attempt
	look    []response.Target
	asked   map[response.Target]bool // the targets in look
	results bool                     // the commit includes an executor's result
	replies []reply
}

func newBatch() *batch {
	return &batch{records: map[string]response.Record{}, asked: map[response.Target]bool{}}
}

type reply struct {
	to  chan<- error
	err error
}

// maxBatch is the number of steps after which their output is committed, so that a storm's first fault does not wait
// for its last.
const maxBatch = 512

// turn processes all queued inputs. replicas says that it is time to check where the replicas run.
func (r *Responder) turn(replicas bool) {
	list, maps := r.queue.take()
	r.now = time.Now()
	b := newBatch()
	steps := 0
	step := func(ev response.Event) {
		r.step(b, ev)
		if steps++; steps%maxBatch == 0 {
			r.flush(b)
		}
	}
	for _, m := range maps {
		for _, ev := range r.feed.changes(m, r.engine) {
			step(ev)
		}
	}
	for _, in := range list {
		switch {
		case in.lead != nil:
			r.flush(b)
			r.begin(b, in.lead)
		case in.lose != nil:
			if r.term == in.lose {
				r.lose(nil)
			}
		case in.reply != nil && r.term == nil:
			in.reply <- ErrNotLeader
		case in.reply != nil:
			b.replies = append(b.replies, reply{in.reply, r.try(b, in.event)})
		case in.of != nil && in.of != r.term: // of a term that has ended
		case in.set != nil && !r.take(in): // the engine has a newer version
		default:
			if _, ok := in.event.(response.Result); ok {
				b.results = true
			}
			step(in.event)
		}
	}
	if r.term != nil {
		if replicas {
			r.supervisors(b)
			r.cfg.Metrics.stands(r.engine)
		}
		if r.now = time.Now(); !r.wake.IsZero() && !r.now.Before(r.wake) {
			r.step(b, response.Tick{})
		}
	}
	r.settle(b)
}

// flush settles a batch and empties it for the next events.
func (r *Responder) flush(b *batch) {
	r.settle(b)
	*b = *newBatch()
	r.now = time.Now()
}

// step feeds the engine an event that it cannot refuse.
func (r *Responder) step(b *batch, ev response.Event) {
	if err := r.try(b, ev); err != nil {
		r.cfg.Logger.Error("the engine of responses refuses an event", "event", fmt.Sprintf("%T", ev), "err", err)
	}
}

// try feeds the engine an event and collects its output. Events that arrive together have the same time: if time passed
// between them, each of hundreds of steps could repeat the requests for evidence of all targets.
func (r *Responder) try(b *batch, ev response.Event) error {
	out := r.engine.Step(r.now, ev)
	b.keep(out)
	b.out.Decisions = append(b.out.Decisions, out.Decisions...)
	b.effects = append(b.effects, out.Effects...)
	b.unknown = append(b.unknown, out.Unsettled...)
	b.stops = append(b.stops, out.Stops...)
	for _, t := range out.Look {
		if !b.asked[t] {
			b.asked[t] = true
			b.look = append(b.look, t)
		}
	}
	r.wake = out.Wake
	return out.Err
}

// keep collects the records of a step. The last step that writes or forgets a record decides.
func (b *batch) keep(out response.Output) {
	set := func(key string, rec response.Record) {
		if _, ok := b.records[key]; !ok {
			b.order = append(b.order, key)
		}
		b.records[key] = rec
	}
	for _, rec := range out.Records {
		set(rec.Key(), rec)
	}
	for _, key := range out.Forget {
		set(key, nil)
	}
}

// render returns the batch for the store.
func (b *batch) render() store.ResponseBatch {
	out := b.out
	for _, key := range b.order {
		if rec := b.records[key]; rec != nil {
			out.Records = append(out.Records, rec)
		} else {
			out.Forget = append(out.Forget, key)
		}
	}
	return out
}

// supervisors reports the replicas to the engine if they have changed.
func (r *Responder) supervisors(b *batch) {
	now := r.cfg.Supervisors()
	if !slices.Equal(now, r.told) {
		r.told = now
		r.step(b, response.SupervisorsChanged{Supervisors: now})
	}
}

// saltSize is the number of letters and digits of a term's salt: one of 33 million.
const saltSize = 5

// begin makes the engine lead.
func (r *Responder) begin(b *batch, t *term) {
	r.lose(nil) // of the term before, if its end was missed
	if t.ctx.Err() != nil {
		close(t.ended)
		return
	}
	led := r.feed.reset(t.begin.at, OpenTargets(t.begin.committed.Records))
	r.told = r.cfg.Supervisors()
	for _, in := range t.begin.sets {
		r.take(in)
	}
	for _, ev := range []response.Event{
		topologyOf(r.feed.newest), r.policies.event, r.marks.event, response.SupervisorsChanged{Supervisors: r.told},
	} {
		r.step(b, ev)
	}
	led.Token, led.Salt, led.Records = uint64(t.fence.Rev), strings.ToLower(rand.Text()[:saltSize]), t.begin.committed.Records
	if len(t.begin.committed.Unread) > 0 {
		t.brought = errors.Join(t.begin.committed.Unread...)
	} else {
		t.brought = r.try(b, led)
	}
	t.begin = beginning{}
	if t.brought != nil {
		r.complain(t.brought)
		r.engine.Step(time.Now(), response.Lost{})
		close(t.ended)
		return
	}
	r.recovered()
	r.term = t
	r.leads.Store(true)
	r.cfg.Metrics.Leading.Set(1)
	r.cfg.Logger.Info("responses are decided here", "token", led.Token, "records", len(led.Records), "faults", len(led.Faults))
}

// lose ends the term, if there is one. It asks running attempts to end.
func (r *Responder) lose(why error) {
	t := r.term
	if t == nil {
		return
	}
	r.term = nil
	r.leads.Store(false)
	r.breaker.Store(nil)
	r.cfg.Metrics.lost()
	r.engine.Step(time.Now(), response.Lost{})
	r.wake = time.Time{}
	r.runner.stopAll()
	if why != nil {
		r.cfg.Logger.Warn("this supervisor no longer decides on responses", "token", t.fence.Rev, "err", why)
	}
	close(t.ended)
}

// lookTime bounds the wait for evidence. The engine requests missing evidence again.
const lookTime = 250 * time.Millisecond

// maxLooks bounds how often evidence is gathered before a commit.
const maxLooks = 3

// settle gathers the evidence that the engine requests, commits its output, and starts the committed effects.
func (r *Responder) settle(b *batch) {
	defer r.measure(b)
	for n := 0; r.term != nil && len(b.look) > 0 && n < maxLooks; n++ {
		r.look(b)
	}
	t := r.term
	if t == nil {
		b.answer(ErrNotLeader)
		return
	}
	for _, e := range b.unknown {
		r.runner.ask(t, executor.Job{Effect: e, Cluster: r.cfg.Cluster})
	}
	if out := b.render(); !out.Empty() {
		if b.results {
			r.at(failpoint.ResponderResult)
		}
		r.at(failpoint.ResponderDecided)
		start, begun := time.Now(), false
		err := t.writer.Commit(t.ctx, out, func(records []response.Record, sent time.Time) {
			begun = true
			r.at(failpoint.ResponderCommitted)
			r.start(t, b, records, sent)
		})
		if err != nil {
			answer := ErrUnsettled
			if !begun && (errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrRefused)) {
				b.out.Decisions = nil // nothing is committed: the next term decides again
				answer = fmt.Errorf("%w: %w", ErrNotLeader, errLost)
			}
			r.lose(fmt.Errorf("commit of %d records: %w", len(out.Records), err))
			b.answer(answer)
			return
		}
		r.cfg.Metrics.Commit.Observe(time.Since(start).Seconds())
	}
	for _, a := range b.stops {
		r.runner.stop(a)
	}
	b.answer(nil)
}

// look gathers evidence and feeds it to the engine.
func (r *Responder) look(b *batch) {
	ctx, cancel := context.WithTimeout(r.term.ctx, lookTime)
	defer cancel()
	targets := b.look
	b.look = nil
	clear(b.asked)
	found := r.cfg.Awareness.Evidence(ctx, targets)
	r.now = time.Now()
	for _, target := range targets {
		if seen, ok := found[target]; ok {
			r.step(b, seen)
		}
	}
}

// start begins the effects of committed responses. sent is when their transaction was sent; zero: see
// store.Committed.
func (r *Responder) start(t *term, b *batch, records []response.Record, sent time.Time) {
	of := make(map[string][]response.Effect, len(b.effects))
	for _, e := range b.effects {
		of[e.Response] = append(of[e.Response], e)
	}
	if len(of) == 0 {
		return
	}
	standing := r.standing()
	for _, rec := range records {
		if res, ok := rec.(*response.Response); ok {
			for _, e := range of[res.ID] {
				r.runner.start(t, executor.Job{Effect: e, Cluster: r.cfg.Cluster, Policy: res.Policy,
					Fault: faultOf(res, deathOf(standing, res.Target))}, sent)
			}
		}
	}
}

// faultOf describes the fault of a response, with the traces of its machine's death.
func faultOf(r *response.Response, death string) executor.Fault {
	return described(executor.Fault{State: r.FaultState, Cause: r.FaultCause, Since: r.FaultSince}, r.Target, death)
}

// maxFaultDetail limits the text of a fault for executors, in bytes.
const maxFaultDetail = 1024

// described adds the text for people to a fault.
func described(f executor.Fault, t response.Target, death string) executor.Fault {
	f.Detail = fmt.Sprintf("%s is %s since %s (%s)", t, f.State, f.Since.UTC().Format(time.RFC3339), f.Cause)
	if death != "" {
		f.Detail += "; " + death
	}
	f.Detail = fault.Cut(f.Detail, maxFaultDetail)
	return f
}

// answer replies to people's requests.
func (b *batch) answer(err error) {
	for _, p := range b.replies {
		if p.err != nil {
			p.to <- p.err
		} else {
			p.to <- err
		}
	}
	b.replies = nil
}

// measure records the decisions.
func (r *Responder) measure(b *batch) {
	if r.term != nil {
		if now := r.engine.Breaker(); r.breaker.Load() == nil || *r.breaker.Load() != now {
			r.breaker.Store(&now)
		}
	}
	r.cfg.Metrics.decided(b.out.Decisions)
	for _, d := range b.out.Decisions {
		r.log(d)
	}
}

// routine lists the acts that are logged at debug level, unless the reason is ReasonOutcome.
var routine = []response.Act{response.Refuses, response.Proposes, response.Observes, response.Closes, response.Expires}

// log writes a decision to the log.
func (r *Responder) log(d response.Decision) {
	args := []any{"act", d.Act.String(), "response", d.Response, "policy", d.Policy, "target", d.Target.String(), "step", d.Step, "attempt",
		d.Attempt, "subject", d.Subject, "detail", d.Detail}
	if d.Reason != 0 {
		args = append(args, "reason", d.Reason.String())
	}
	switch {
	case d.Act == response.Opens, d.Act == response.Fails, d.Reason == response.ReasonOutcome:
		r.cfg.Logger.Warn("response", args...)
	case slices.Contains(routine, d.Act):
		r.cfg.Logger.Debug("response", args...)
	default:
		r.cfg.Logger.Info("response", args...)
	}
}

// topologyOf returns the topology in the form that the engine takes.
func topologyOf(m view.Map) response.TopologyChanged {
	t := m.Topology()
	out := response.TopologyChanged{Dims: t.Dims, Nodes: make([]response.NodeInfo, len(t.Nodes))}
	for i, n := range t.Nodes {
		out.Nodes[i] = response.NodeInfo{ID: n.ID, Coord: n.Coord, Spare: n.Spare, Labels: n.Labels}
	}
	return out
}
