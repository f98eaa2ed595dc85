package gossip

import (
	"bytes"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// delegate holds memberlist's callbacks. None of them may block: they run in memberlist's packet loop or under its
// lock.
type delegate Net

// message is one broadcast; all are distinct, so none replaces another.
type message []byte

func (m message) Invalidates(memberlist.Broadcast) bool { return false }
func (m message) Message() []byte                       { return m }
func (m message) Finished()                             {}
func (m message) UniqueBroadcast()                      {}

// NodeMeta implements memberlist.Delegate. It is never longer than limit: see Meta.encode.
func (d *delegate) NodeMeta(int) []byte { return *d.meta.Load() }

// NotifyMsg implements memberlist.Delegate: it keeps messages that it has not seen, and passes them on. After Close it does nothing.
func (d *delegate) NotifyMsg(b []byte) {
	n := (*Net)(d)
	n.handling.RLock()
	defer n.handling.RUnlock()
	if n.closed.Load() {
		return
	}
	if data, own := bytes.CutPrefix(b, loopMark[:]); own {
		if n.cfg.OnLoop != nil {
			n.cfg.OnLoop(slices.Clone(data))
		}
		return
	}
	n.heard()
	if len(b) == 0 || len(b) > servicenet.MaxDatagram {
		n.stats.dropped.Add(1)
		return
	}
	if !n.seen.add(b) {
		n.stats.duplicate.Add(1)
		return
	}
	n.stats.received.Add(1)
	select {
	case n.received <- slices.Clone(b):
	default:
		n.stats.dropped.Add(1)
	}
	switch {
	case !n.passOn.Load():
	case n.relay.Allow():
		n.enqueue(slices.Clone(b))
	default:
		n.stats.limited.Add(1)
	}
}

// GetBroadcasts implements memberlist.Delegate.
func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.queue.GetBroadcasts(overhead, limit)
}

// LocalState implements memberlist.Delegate: there is no state to exchange.
func (d *delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d *delegate) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements memberlist.AliveDelegate: memberlist keeps nothing of a member that it refuses.
// Memberlist itself announces the own name, so that does not count as heard.
func (d *delegate) NotifyAlive(node *memberlist.Node) error {
	n := (*Net)(d)
	if err := n.check(node); err != nil {
		return err
	}
	if node.Name != n.cfg.Name {
		n.heard()
	}
	n.membersMu.Lock()
	defer n.membersMu.Unlock()
	return n.names.add(node.Name, time.Now(), n.members)
}

// AckPayload implements memberlist.PingDelegate. memberlist calls it before it answers another member's probe.
func (d *delegate) AckPayload() []byte {
	(*Net)(d).heard()
	return nil
}

// NotifyPingComplete implements memberlist.PingDelegate: an answer to a probe of ours.
func (d *delegate) NotifyPingComplete(*memberlist.Node, time.Duration, []byte) { (*Net)(d).heard() }

// heard notes that an authentic packet came from another member. It does not call OnHeard: memberlist may hold its lock.
func (n *Net) heard() {
	if n.cfg.OnHeard == nil {
		return
	}
	now := time.Now()
	since, last := int64(now.Sub(n.born)), n.heardAt.Load()
	if since-last < int64(heardEvery) || !n.heardAt.CompareAndSwap(last, since) {
		return
	}
	select {
	case n.toTell <- now:
	default: // OnHeard has not begun to handle an earlier packet: that one counts as well
	}
}

// tellHeard calls OnHeard.
func (n *Net) tellHeard(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-n.toTell:
			n.cfg.OnHeard(now)
		}
	}
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(node *memberlist.Node) { d.notify(EventJoin, node) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(node *memberlist.Node) { d.notify(EventUpdate, node) }

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(node *memberlist.Node) {
	d.notify(EventFail, node) // or EventLeave, by its metadata
}

func (d *delegate) notify(k EventKind, node *memberlist.Node) {
	m, leaving := memberOf(node)
	if k == EventFail && leaving {
		k = EventLeave
	}
	d.membersMu.Lock()
	if k == EventFail || k == EventLeave {
		delete(d.members, m.Name)
	} else {
		d.members[m.Name] = m
		if d.transport.refuses(m.Addr) {
			(*Net)(d).refuseAddresses()
		}
	}
	d.membersMu.Unlock()
	select {
	case d.joined <- struct{}{}:
	default:
	}
	if m.Name != d.cfg.Name && (k != EventUpdate || !leaving) {
		d.events.add(Event{k, m})
	}
}

// eventLog is the queue between memberlist's lock and OnMember. When it is full the oldest event
// is dropped and counted.
type eventLog struct {
	mu      sync.Mutex
	waiting []Event
	limit   int
	dropped uint64
	wake    chan struct{}
}

func newEventLog(limit int) *eventLog {
	return &eventLog{limit: limit, wake: make(chan struct{}, 1)}
}

func (l *eventLog) add(e Event) {
	l.mu.Lock()
	if len(l.waiting) == l.limit {
		l.waiting = slices.Delete(l.waiting, 0, 1)
		l.dropped++
	}
	l.waiting = append(l.waiting, e)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *eventLog) droppedCount() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

func (l *eventLog) run(ctx context.Context, f func(Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		events := l.waiting
		l.waiting = nil
		l.mu.Unlock()
		for _, e := range events {
			if f != nil && ctx.Err() == nil {
				f(e)
			}
		}
	}
}

// remembered holds the hashes of the last broadcasts. The oldest half is forgotten when it is
// full; a broadcast that comes again after that is a duplicate for the inbox to drop.
type remembered struct {
	mu        sync.Mutex
	seed      maphash.Seed // so that an attacker cannot aim at a collision
	now, past map[uint64]struct{}
	half      int
}

func newRemembered(limit int) *remembered {
	return &remembered{seed: maphash.MakeSeed(), now: make(map[uint64]struct{}), half: limit / 2}
}

// add remembers b and reports whether it is new.
func (r *remembered) add(b []byte) bool {
	h := maphash.Bytes(r.seed, b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.past[h]; ok {
		return false
	}
	if _, ok := r.now[h]; ok {
		return false
	}
	if len(r.now) == r.half {
		r.past, r.now = r.now, make(map[uint64]struct{})
	}
	r.now[h] = struct{}{}
	return true
}
