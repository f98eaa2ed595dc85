package servicenet

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// crowd is many host halves and supervisors that share a machine, and so handle only a limited number of datagrams a
// second in total; datagrams that find the queue full are lost. Six neighbours carry a datagram by the torus to two
// supervisors each.
type crowd struct {
	t        *testing.T
	now      time.Time
	random   *rand.Rand
	halves   []*crowdHalf
	todo     crowdQueue
	seq      int
	perUnit  time.Duration // the supervisors' time for one datagram; 0: they are gone
	busy     time.Time     // until when they are
	backlog  time.Duration // of work in their queue, at most
	dropped  int
	handled  int
	byTorus  int
	requests int
}

type crowdHalf struct {
	o      *Outbox
	node   fault.NodeID
	wake   time.Time
	digest fault.ReportID
	heard  bool // the last digest was answered
	asked  int  // digests so far
	ok     int  // of these, answered before the next one
}

type crowdEvent struct {
	at  time.Time
	seq int
	do  func()
}

type crowdQueue []crowdEvent

func (q crowdQueue) Len() int { return len(q) }
func (q crowdQueue) Less(i, k int) bool {
	return q[i].at.Before(q[k].at) || q[i].at.Equal(q[k].at) && q[i].seq < q[k].seq
}
func (q crowdQueue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q *crowdQueue) Push(x any)   { *q = append(*q, x.(crowdEvent)) } //nolint:forcetypeassert // heap's
func (q *crowdQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

const (
	crowdPeriod = 500 * time.Millisecond
	crowdNet    = 200 * time.Microsecond
)

func newCrowd(t *testing.T, halves int, seed uint64) *crowd {
	t.Helper()
	c := &crowd{t: t, now: time.Unix(1000, 0), random: rand.New(rand.NewPCG(seed, 1))}
	for i := range halves {
		h := &crowdHalf{node: fault.NodeID(fmt.Sprintf("n%d", i))}
		o, err := NewOutbox(fault.Origin{Node: h.node, Half: fault.HalfHost}, 1,
			DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus))
		if err != nil {
			t.Fatal(err)
		}
		h.o = o
		c.halves = append(c.halves, h)
		c.take(h, o.Step(c.now, Supervisors{Targets: []string{"s0", "s1", "s2"}}))
		c.after(time.Duration(c.random.Int64N(int64(crowdPeriod))), func() { c.period(h) })
	}
	return c
}

func (c *crowd) after(d time.Duration, do func()) {
	c.seq++
	heap.Push(&c.todo, crowdEvent{c.now.Add(d), c.seq, do})
}

// run continues until no event is left before the end.
func (c *crowd) run(d time.Duration) {
	for end := c.now.Add(d); ; {
		var next *crowdHalf
		at := end
		for _, h := range c.halves {
			if !h.wake.IsZero() && h.wake.Before(at) {
				next, at = h, h.wake
			}
		}
		if len(c.todo) > 0 && !c.todo[0].at.After(at) {
			e := heap.Pop(&c.todo).(crowdEvent) //nolint:forcetypeassert // of nothing else
			c.now = maxTime(c.now, e.at)
			e.do()
			continue
		}
		if next == nil {
			c.now = end
			return
		}
		c.now = maxTime(c.now, at)
		c.take(next, next.o.Step(c.now, Tick{}))
	}
}

func (c *crowd) period(h *crowdHalf) {
	if h.heard {
		h.ok++
	}
	h.asked++
	h.heard = false
	id, out := h.o.Add(c.now, crowdReport(true))
	h.digest = id
	c.take(h, out)
	c.after(crowdPeriod, func() { c.period(h) })
}

func crowdReport(digest bool) fault.Report {
	return fault.Report{Digest: digest, Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Normal,
		Kind: fault.KindSelf}}}
}

func (c *crowd) take(h *crowdHalf, out Output) {
	h.wake = out.Wake
	for _, s := range out.Send {
		ack := &lofamov1.Ack{Node: string(h.node), Half: lofamov1.Half_HALF_HOST, Epoch: 1, Status: lofamov1.Ack_COMMITTED}
		for _, r := range s.Reports {
			ack.Seqs = append(ack.Seqs, uint64(r.ID.Seq))
			if r.Digest {
				ack.Status = lofamov1.Ack_RECEIVED // as supervisors answer digests: the half learns how long that takes
			}
		}
		answer := func() {
			c.take(h, h.o.Step(c.now, Acked{Ack: ack, Supervisor: s.Target, Path: s.Path, Interface: s.Interface}))
			h.note(ack)
		}
		switch s.Path {
		case fault.PathDirect:
			c.handle(answer)
		case fault.PathTorus:
			c.byTorus++
			for range 12 {
				c.handle(answer)
			}
		case fault.PathGossip:
			c.handle(answer)
		}
	}
	for _, p := range out.Paths {
		if r := p.Request; r != nil {
			c.requests++
			reply := &lofamov1.PathReply{Node: r.GetNode(), Half: r.GetHalf(), Epoch: r.GetEpoch(), Id: r.GetId()}
			c.handle(func() {
				c.take(h, h.o.Step(c.now, Replied{Reply: reply, Supervisor: p.Path.Supervisor, Interface: p.Path.Interface}))
			})
		} else {
			c.handle(func() {})
		}
	}
}

func (h *crowdHalf) note(ack *lofamov1.Ack) {
	for _, seq := range ack.GetSeqs() {
		h.heard = h.heard || seq == uint64(h.digest.Seq)
	}
}

// handle gives the supervisors one datagram.
func (c *crowd) handle(answer func()) {
	c.busy = maxTime(c.busy, c.now)
	if c.perUnit == 0 || c.busy.Sub(c.now) >= c.backlog {
		c.dropped++
		return
	}
	c.handled++
	c.busy = c.busy.Add(c.perUnit)
	c.after(c.busy.Sub(c.now)+crowdNet, answer)
}

// count resets the counters, lets time pass, and returns the share of digests that were answered in time.
func (c *crowd) count(d time.Duration) float64 {
	for _, h := range c.halves {
		h.asked, h.ok = 0, 0
	}
	c.dropped, c.handled, c.byTorus, c.requests = 0, 0, 0, 0
	c.run(d)
	asked, ok := 0, 0
	for _, h := range c.halves {
		asked, ok = asked+h.asked, ok+h.ok
	}
	share := float64(ok) / float64(asked)
	c.t.Logf("%.1f%% of digests answered; %.0f datagrams/s handled, %.0f/s lost, %.1f/s by the torus, %.1f requests/s", 100*share,
		float64(c.handled)/d.Seconds(), float64(c.dropped)/d.Seconds(), float64(c.byTorus)/d.Seconds(), float64(c.requests)/d.Seconds())
	return share
}

// TestOverloadEndsByItself begins with supervisors that are gone, or short of time, and then gives them a little more
// than the digests alone need. The halves' reactions to missing answers must not keep the answers away.
func TestOverloadEndsByItself(t *testing.T) {
	const halves = 27
	for _, capacity := range []int{80, 100, 150, 300} { // datagrams a second; the digests are 54
		for _, backlog := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond} {
			t.Run(fmt.Sprintf("capacity%d,%v", capacity, backlog), func(t *testing.T) {
				c := newCrowd(t, halves, uint64(capacity))
				c.backlog = backlog
				c.run(20 * time.Second) // no supervisor is running
				c.perUnit = time.Second / 20
				for _, h := range c.halves {
					for range 3 {
						_, out := h.o.Add(c.now, crowdReport(false))
						c.take(h, out)
					}
				}
				c.count(20 * time.Second)
				c.perUnit = time.Second / time.Duration(capacity)
				c.count(30 * time.Second)
				c.count(30 * time.Second)
				if share := c.count(20 * time.Second); share < 0.98 {
					t.Errorf("%.1f%% of the digests are answered a minute after the shortage: want 98%%", 100*share)
				}
				if sent := float64(c.handled+c.dropped) / 20; sent > 1.2*2*halves {
					t.Errorf("%.0f datagrams/s a minute after the shortage: want at most 1.2 times the %d digests/s", sent, 2*halves)
				}
			})
		}
	}
}

// TestCrowdWithoutSupervisorsSendsNoMore counts the traffic of 27 halves by all rails while supervisors answer at
// once, and while they are gone. Neighbours of silent halves do not pass digests on, so a message by the torus counts
// once. Path requests are bounded separately.
func TestCrowdWithoutSupervisorsSendsNoMore(t *testing.T) {
	const halves, window = 27, time.Minute
	c := newCrowd(t, halves, 1)
	c.backlog, c.perUnit = 100*time.Millisecond, 10*time.Microsecond
	perSecond := func() (sent, requests float64) {
		c.run(20 * time.Second)
		c.count(window)
		return float64(c.handled+c.dropped-11*c.byTorus-c.requests) / window.Seconds(), float64(c.requests) / window.Seconds()
	}
	with, _ := perSecond()
	if with < 0.99*2*halves {
		t.Fatalf("%.0f datagrams/s with supervisors: want the %d digests at least", with, 2*halves)
	}
	c.perUnit = 0
	without, requests := perSecond()
	t.Logf("%.1f datagrams/s with supervisors, %.1f and %.1f path requests/s without", with, without, requests)
	if without > 1.2*with {
		t.Errorf("%.1f datagrams/s without supervisors, %.1f with: want at most 1.2 times as many", without, with)
	}
	if most := 0.5 * halves; requests > most {
		t.Errorf("%.1f path requests/s without supervisors: want at most %.1f", requests, most)
	}
}
