package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lofamo/lofamo/bench/compare"
	"github.com/lofamo/lofamo/internal/cluster"
)

// status is the true state of a member.
type status uint8

const (
	starting status = iota + 1 // until all observers know the member alive; nothing counts
	up
	killed
)

// board collects what every observer knows of every member, beside the truth. Observer i belongs to member i. Times are
// CLOCK_MONOTONIC in nanoseconds.
type board struct {
	mu     sync.Mutex
	knows  [][]bool // by observer and member: alive
	status []status
	killAt []int64
	upAt   []int64   // 0: since the first start
	deadAt [][]int64 // by member and observer, since its kill; 0: not yet
	wrong  []bool    // by member: a false death is open
	falses int
	failed error
	change chan struct{} // closed and replaced at every change
}

func newBoard(members int) *board {
	b := &board{
		knows: make([][]bool, members), status: slices.Repeat([]status{starting}, members), killAt: make([]int64, members),
		upAt: make([]int64, members), deadAt: make([][]int64, members), wrong: make([]bool, members), change: make(chan struct{}),
	}
	for i := range members {
		b.knows[i], b.deadAt[i] = make([]bool, members), make([]int64, members)
	}
	return b
}

func (b *board) changed() {
	close(b.change)
	b.change = make(chan struct{})
}

// saw notes that an observer declared a member alive or dead.
func (b *board) saw(observer, member int, alive bool, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.knows[observer][member] == alive {
		return
	}
	b.knows[observer][member] = alive
	switch {
	case alive && b.wrong[member] && b.allKnow(member):
		b.wrong[member] = false
	case !alive && b.status[member] == killed && b.deadAt[member][observer] == 0:
		b.deadAt[member][observer] = at
	case !alive && observer == member && b.killAt[member] > 0: // a restarted member's watch may report its own earlier death late
	case !alive && b.status[member] == up && b.status[observer] == up && !b.wrong[member]:
		b.wrong[member] = true
		b.falses++
	}
	b.changed()
}

// halfGrace is the time in which the second half of a restarted member may still be dead in truth.
const halfGrace = 10 * time.Second

// halfFailed notes that half of a member was declared dead; of a living member, that is a false death.
func (b *board) halfFailed(member int, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status[member] == up && time.Duration(at-b.upAt[member]) > halfGrace {
		b.falses++
	}
}

// fail ends all waits with an error.
func (b *board) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = errors.Join(b.failed, err)
	b.changed()
}

// waitAlive waits until all living observers know a member alive.
func (b *board) waitAlive(ctx context.Context, member int) error {
	return b.wait(ctx, fmt.Sprintf("all observers know member %d alive", member), func() bool { return b.allKnow(member) })
}

// kill notes that a member is killed just after at. It refuses while an observer holds the member dead: the death would
// be known at once.
func (b *board) kill(member int, at int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.allKnow(member) {
		return false
	}
	b.status[member], b.killAt[member], b.wrong[member] = killed, at, false
	clear(b.deadAt[member])
	b.changed()
	return true
}

// restart notes that a killed member begins again. Nothing counts until all know it alive.
func (b *board) restart(member int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status[member] = starting
	b.changed()
}

// forget clears what an observer knows: its process restarts.
func (b *board) forget(observer int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.knows[observer])
	b.changed()
}

// allKnow reports whether all living observers know a member alive. The caller holds the lock.
func (b *board) allKnow(member int) bool {
	for o, k := range b.knows {
		if b.status[o] != killed && !k[member] {
			return false
		}
	}
	return true
}

// complete reports whether all living observers know all living members alive.
func (b *board) complete() bool {
	for m := range b.status {
		if b.status[m] != killed && !b.allKnow(m) {
			return false
		}
	}
	return true
}

// result returns the times of a kill so far, and whether they are final. The caller holds the lock.
func (b *board) result(member int) (k compare.Kill, final bool) {
	k, final = compare.Kill{Member: member, First: compare.Missed, All: compare.Missed}, true
	var last time.Duration
	for o, at := range b.deadAt[member] {
		if b.status[o] == killed {
			continue
		}
		if at == 0 {
			final = false
			continue
		}
		d := time.Duration(at - b.killAt[member])
		if k.First == compare.Missed || d < k.First {
			k.First = d
		}
		last = max(last, d)
	}
	if final {
		k.All = last
	}
	return k, final
}

// wait waits until done, called with the lock held, reports true.
func (b *board) wait(ctx context.Context, what string, done func() bool) error {
	for {
		b.mu.Lock()
		ok, failed, change := done(), b.failed, b.change
		b.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case ok:
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %s", what, context.Cause(ctx), b.missing())
		}
	}
}

// missing describes the first pairs of observer and member that lack.
func (b *board) missing() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var pairs []string
	for o, k := range b.knows {
		for m := range k {
			if b.status[o] != killed && b.status[m] != killed && !k[m] {
				pairs = append(pairs, fmt.Sprintf("%d does not know %d alive", o, m))
			}
		}
	}
	if len(pairs) > 5 {
		pairs = append(pairs[:5], fmt.Sprintf("%d more", len(pairs)-5))
	}
	return fmt.Sprint(pairs)
}

// waitComplete waits until all living observers know all living members alive, and then counts false deaths of all.
func (b *board) waitComplete(ctx context.Context) error {
	return b.wait(ctx, "all observers know all members alive", func() bool {
		if !b.complete() {
			return false
		}
		for m, s := range b.status {
			if s != starting {
				continue
			}
			b.status[m] = up
			if b.killAt[m] > 0 {
				b.upAt[m] = cluster.Monotonic()
			}
		}
		return true
	})
}

// waitKnown waits until all surviving observers know the deaths, or ctx ends, and returns the times.
func (b *board) waitKnown(ctx context.Context, members []int) ([]compare.Kill, error) {
	err := b.wait(ctx, "the kills are known", func() bool {
		return !slices.ContainsFunc(members, func(m int) bool { _, final := b.result(m); return !final })
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && (ctx.Err() == nil || b.failed != nil) {
		return nil, err
	}
	var out []compare.Kill
	for _, m := range members {
		k, _ := b.result(m)
		out = append(out, k)
	}
	return out, nil // a kill that exceeded the limit is a result
}

// falseDeaths returns the number of false deaths.
func (b *board) falseDeaths() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.falses
}
