package alertmanager

import (
	"context"
	"sync"
	"time"
)

// event is a message to the keeper's goroutine.
type event any

type (
	// asked is a call of Do. It gets one answer, when an Alertmanager has the alert or its end.
	asked struct {
		alert   alert
		resolve bool
		answer  chan<- delivery
	}
	// givenUp is a Do that has timed out. Its alert is dropped unless an Alertmanager has it.
	givenUp struct {
		key    alertKey
		asked  chan<- delivery // the answer channel of the Do
		answer chan<- delivery
	}
	sent struct {
		post     post
		ok, left bool
		why      string
	}
	stands struct {
		alerts []alert
		leads  bool
	}
)

// tell passes an event to the keeper's goroutine and reports whether it was accepted before ctx ended.
func (x *Executor) tell(ctx context.Context, e event) bool {
	select {
	case x.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// Run keeps alerts firing until ctx ends. It returns when all its requests have ended.
func (x *Executor) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	if x.standing != nil {
		work.Go(func() { x.ask(ctx) })
	}
	l := loop{x: x, keep: newKeeper(keeperConfig{Targets: len(x.calls), Resend: x.cfg.Resend.D(), Hold: x.cfg.Hold.D(), Batch: batch}),
		waiting: map[alertKey]chan<- delivery{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		posts, wake := l.keep.Next(time.Now())
		for _, p := range posts {
			work.Go(func() { x.tell(ctx, x.post(ctx, p)) })
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
		select {
		case e := <-x.events:
			l.take(time.Now(), e)
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// loop is the state of Run's goroutine.
type loop struct {
	x       *Executor
	keep    *keeper
	waiting map[alertKey]chan<- delivery
	down    []bool // by target: its requests fail, and this has been logged
}

func (l *loop) take(now time.Time, e event) {
	switch e := e.(type) {
	case asked:
		// An earlier waiter for the same step belongs to an attempt that has timed out.
		l.waiting[e.alert.Key] = e.answer
		if e.resolve {
			l.keep.Resolve(now, e.alert)
		} else {
			l.keep.Fire(now, e.alert)
		}
	case givenUp:
		s := l.keep.State(e.key)
		if l.waiting[e.key] == e.asked { // else a later attempt waits by now, or the Do was answered just before
			delete(l.waiting, e.key)
			l.keep.Release(e.key, s.Done > 0)
		}
		e.answer <- s
	case stands:
		l.keep.Stand(now, e.alerts, e.leads)
	case sent:
		l.heard(e)
		for _, key := range l.keep.Sent(now, e.post, e.ok, e.left, e.why) {
			if w := l.waiting[key]; w != nil {
				w <- l.keep.State(key)
				delete(l.waiting, key)
				l.keep.Release(key, true)
			}
		}
	}
}

// heard logs once when an Alertmanager starts to fail and once when it answers again.
func (l *loop) heard(e sent) {
	if l.down == nil {
		l.down = make([]bool, len(l.x.calls))
	}
	if l.down[e.post.Target] == !e.ok {
		return
	}
	l.down[e.post.Target] = !e.ok
	if url := l.x.names[e.post.Target]; e.ok {
		l.x.log.Info("alertmanager answers again", "url", url)
	} else {
		l.x.log.Warn("Alertmanager does not accept alerts", "url", url, "err", e.why)
	}
}

// ask polls the standing alerts. On a replica that does not lead it polls more often, which costs nothing, so that a
// new leader takes over soon.
func (x *Executor) ask(ctx context.Context) {
	for {
		jobs, leads, err := x.standing(ctx, Kinds()...)
		e := stands{leads: leads}
		for _, j := range jobs {
			e.alerts = append(e.alerts, x.alert(j))
		}
		if err != nil {
			x.log.Debug("the standing alerts are unknown", "err", err)
		} else if !x.tell(ctx, e) {
			return
		}
		again := x.settle
		if !leads {
			again /= 10
		}
		t := time.NewTimer(again)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
