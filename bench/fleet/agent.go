package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Agent is an emulated agent that enrols, waits as a spare for its place, and follows the supervisors' orders of its
// peers. Its links are not sockets: a frame passes while both ends live and lead to each other, and the cable is whole.
//
//	waits ──order: a place──► in place ──order: no place──► waits
//	                            │  ▲
//	                       Kill │  │ Revive
//	                            ▼  │
//	                            dead
//
// The fleet's air guards all fields that may change.
type Agent struct {
	*Node
	f    *Fleet
	rank int
	dnp  *pki.Signer

	cfg    halfcore.PeersConfig
	word   peers.State
	life   uint64 // while it waits
	killed bool
	links  [grid.NumDirections]linkEnd
	led    [grid.NumDirections][]fault.NodeID // the newest peers of each link
	sayAt  time.Time                          // of the next unasked status of its peers
	pause  time.Duration                      // until the one after
	digest time.Time                          // when the next one is due
	askAt  time.Time                          // when a path is asked for again
	news   []fault.Observation
}

// Times of agents.
const (
	agentStep = 5 * time.Millisecond
	// spareSays and spareSaysFirst are the intervals of a waiting spare's statuses, placedSays that of a node in place.
	spareSays, spareSaysFirst, placedSays = 10 * time.Second, 500 * time.Millisecond, 30 * time.Second
	// halvesStart is the time from a place to the first word of the halves.
	halvesStart = 100 * time.Millisecond
	// pathAgain is the pause between two requests for a path.
	pathAgain = 200 * time.Millisecond
)

func newAgent(f *Fleet, id fault.NodeID, rank int) *Agent {
	a := &Agent{Node: newSilent(id, rank), f: f, rank: rank, life: max(1, rand.Uint64())}
	a.agent, a.count = a, f.cfg.Replicas
	a.target.Store(int32(rank % f.cfg.Replicas))
	a.dead.Store(true) // it answers no challenge before it has a place
	a.cfg.Spare = true
	for i := range a.cfg.Ends {
		a.cfg.Ends[i].Address = netip.AddrPortFrom(address(rank), uint16(7001+i))
	}
	return a
}

// running reports whether the halves run.
func (a *Agent) running() bool { return a.word.Placed && !a.killed }

// statuses returns the signed statuses of its peers.
func (a *Agent) statuses() (out [][]byte, err error) {
	a.mu.Lock()
	e := a.epoch
	a.mu.Unlock()
	if !a.running() {
		e = 0
	}
	for _, st := range halfcore.PeerStatuses(a.id, e, "", a.word, a.cfg, false) {
		if e == 0 {
			st.Life = a.life
		}
		b, err := half.SealPeers(st, a.dnp)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// ordered handles an order of peers, and answers it.
func (a *Agent) ordered(from netip.AddrPort, o *lofamov1.PeerOrder) error {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	if a.killed {
		return nil
	}
	next, err := peers.FromOrder(o)
	if err != nil {
		return err
	}
	own := a.life
	if a.running() {
		own = uint64(a.epoch)
	}
	if !halfcore.PeersOfAnotherLife(a.word, o, own) {
		if next, verdict := a.word.Order(next); verdict == chanmask.Taken {
			a.take(time.Now(), next)
		}
	}
	all, err := a.statuses()
	for _, b := range all {
		if err := a.f.wire.send(a.Node, from, b); err != nil {
			return err
		}
	}
	return err
}

// take follows an order.
func (a *Agent) take(now time.Time, next peers.State) {
	was := a.word
	a.word = next
	switch {
	case !next.Placed && was.Placed:
		a.stop()
		a.life, a.sayAt, a.pause = max(1, rand.Uint64()), now, spareSaysFirst
	case next.Placed && (!was.Placed || next.Coord != was.Coord):
		a.stop()
		a.begin(now.Add(halvesStart))
	case next.Placed:
		for i := range a.links {
			if next.Peers[i] != was.Peers[i] {
				a.relink(now, i, next.Peers[i].Node)
			}
		}
		a.neighbours()
	}
}

// stop ends the halves. Their peers hear that they leave.
func (a *Agent) stop() {
	a.dead.Store(true)
	a.f.wire.forget(a.Node)
	clear(a.links[:])
	a.news = nil
}

// begin starts the halves in the present place, in a new boot epoch.
func (a *Agent) begin(at time.Time) {
	a.mu.Lock()
	a.epoch++
	a.seq, a.session, a.key, a.path, a.view = 0, nil, nil, 1, 0
	clear(a.states)
	a.order, a.started = nil, at
	a.coord, a.peers = a.word.Coord, nil
	a.healthy()
	a.mu.Unlock()
	a.news = nil
	for i := range a.links {
		a.relink(at, i, a.word.Peers[i].Node)
	}
	a.neighbours()
	a.digest, a.askAt, a.sayAt = at, at, at.Add(a.f.periods.DigestPeriod)
}

// Kill makes the agent silent at once.
func (a *Agent) Kill() {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	a.killed = true
	a.dead.Store(true)
	a.f.wire.forget(a.Node)
}

// Revive starts a dead agent again.
func (a *Agent) Revive() {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	if !a.killed {
		return
	}
	if a.killed = false; a.word.Placed {
		a.begin(time.Now())
	}
}

// Remove ends an agent for good.
func (f *Fleet) Remove(a *Agent) {
	a.Kill()
	f.mu.Lock()
	delete(f.byID, string(a.id))
	f.mu.Unlock()
	f.air.Lock()
	defer f.air.Unlock()
	delete(f.agents, a.id)
}

// leaveReplica moves the nodes and agents of a replica to the next one, and drops their sessions.
func (f *Fleet) leaveReplica(i int) {
	next := int32((i + 1) % f.cfg.Replicas)
	for _, n := range f.nodes {
		if int(n.target.Load()) == i {
			n.turnTo(next)
		}
	}
	f.air.Lock()
	defer f.air.Unlock()
	for _, a := range f.agents {
		if int(a.target.Load()) == i {
			a.turnTo(next)
			a.askAt = time.Now()
		}
	}
}

// Agents runs all agents until it is stopped.
func (f *Fleet) Agents(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		t := time.NewTicker(agentStep)
		defer t.Stop()
		last := time.Now()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
				now := time.Now()
				f.stalled(last, now)
				last = now
				if err := f.step(now); err != nil {
					return unlessOver(ctx, err)
				}
			}
		}
	})
	return func() error {
		cancel()
		return g.Wait()
	}
}

// stalled notes a time in which the agents did not run.
func (f *Fleet) stalled(from, to time.Time) {
	if to.Sub(from) < stallNoted {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalls = append(f.stalls, stall{from, to})
}

// stall is a time in which the agents did not run, because the machine gave this process no processor.
type stall struct{ from, to time.Time }

// stallNoted is the shortest noted stall.
const stallNoted = 50 * time.Millisecond

// Stalled returns the longest stall of the agents since a time.
func (f *Fleet) Stalled(since time.Time) (longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.stalls {
		if s.to.After(since) {
			longest = max(longest, s.to.Sub(s.from))
		}
	}
	return longest
}

// step gives each agent its turn.
func (f *Fleet) step(now time.Time) error {
	f.air.Lock()
	defer f.air.Unlock()
	for _, a := range f.agents {
		if a.killed {
			continue
		}
		if err := a.step(now); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) step(now time.Time) error {
	if !now.Before(a.sayAt) {
		if err := a.say(now); err != nil {
			return err
		}
	}
	if !a.running() || now.Before(a.started) {
		return nil
	}
	a.dead.Store(false)
	for i := range a.links {
		a.stepLink(now, i)
	}
	if err := a.report(); err != nil {
		return err
	}
	if !now.Before(a.askAt) {
		a.askAt = now.Add(pathAgain)
		if err := a.f.ask([]*Node{a.Node}); err != nil {
			return err
		}
	}
	if now.Before(a.digest) {
		return nil
	}
	a.digest = now.Add(a.f.periods.DigestPeriod)
	return a.f.speak(a.Node)
}

// say sends the status of its peers unasked: a spare to all supervisors, a half to its own.
func (a *Agent) say(now time.Time) error {
	all, err := a.statuses()
	if err != nil {
		return err
	}
	to := a.f.targets
	if a.sayAt = now.Add(placedSays); a.running() {
		to = to[a.target.Load():][:1]
	} else {
		a.pause = min(max(2*a.pause, spareSaysFirst), spareSays)
		a.sayAt = now.Add(a.pause)
	}
	for _, at := range to {
		for _, b := range all {
			if err := a.f.wire.send(a.Node, at, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// report sends the changes.
func (a *Agent) report() error {
	if len(a.news) == 0 {
		return nil
	}
	a.mu.Lock()
	b, err := a.seal([]fault.Report{a.Node.report(false, a.news)}, len(a.news))
	a.mu.Unlock()
	if a.news = nil; err != nil {
		return err
	}
	return a.f.wire.launch(b, func(time.Duration) {})
}

// AllNormal waits until the map calls so many nodes NORMAL.
func (f *Fleet) AllNormal(ctx context.Context, nodes int) error {
	for {
		r, err := f.client.GetSummary(ctx, &lofamov1.GetSummaryRequest{})
		if err == nil && int(r.GetNodes().GetNormal()) == nodes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("of %d nodes only %d are NORMAL: %w", nodes, r.GetNodes().GetNormal(), errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
