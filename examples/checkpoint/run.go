package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/jobs"
)

// run is this process's part in the job.
//
// The members are the nodes whose processes continue, in order; a lost node is no longer a member. All names of files
// and barriers contain the list of members, so that files from before a loss are never mistaken for later ones.
type run struct {
	options
	client *jobs.Client
	disk   disk
	log    *log.Logger
	words  chan word // received from the others

	member *jobs.Member
	name   string // of the list of members
	part   part
	last   mark // the last complete checkpoint known to this process
}

// mark identifies a checkpoint.
type mark struct {
	Step int    `json:"step"` // -1: none yet
	Run  string `json:"run"`
}

// word is a process's message after a loss: its last checkpoint known to be complete.
type word struct {
	mark
	For  string `json:"for"` // the remaining members
	node string
}

// topicHave is the topic of a eureka with a word.
const topicHave = "have"

func (r *run) join(members []string) {
	r.name = fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(strings.Join(members, ","))))
	r.member = r.client.Job(jobs.Job{Name: r.job, Members: members, Participant: "worker"})
	r.last = mark{Step: -1}
}

// listen receives the others' words.
func (r *run) listen(ctx context.Context, listening chan<- struct{}) error {
	return r.client.WatchEureka(ctx, r.job, func(h jobs.Heard) error {
		switch {
		case h.Eureka == nil && !h.Again:
			close(listening)
		case h.Eureka != nil && h.Eureka.Topic == topicHave:
			w := word{node: h.Eureka.Node}
			if err := json.Unmarshal(h.Eureka.Body, &w); err != nil {
				r.log.Printf("%s says %q: %v", w.node, h.Eureka.Body, err)
				return nil
			}
			select {
			case r.words <- w:
			default: // it will be sent again
			}
		}
		return nil
	})
}

// compute continues until the result is complete. The result is nil at all members but the first.
func (r *run) compute(ctx context.Context) ([]uint64, error) {
	r.start()
	for {
		result, err := r.finish(ctx)
		if err == nil {
			return result, nil
		}
		gone := new(jobs.GoneError)
		if !errors.As(err, &gone) {
			return nil, err
		}
		if err := r.rollBack(ctx, gone.Nodes); err != nil {
			return nil, err
		}
	}
}

// start initialises this member's share.
func (r *run) start() {
	from, to := share(r.cells, r.index(), len(r.member.Members))
	r.part = part{Members: r.member.Members, From: from}
	for i := from; i < to; i++ {
		r.part.Cells = append(r.part.Cells, begin(i))
	}
}

func (r *run) index() int { return slices.Index(r.member.Members, r.node) }

// at returns the member that many places further in the ring.
func (r *run) at(places int) string {
	n := len(r.member.Members)
	return r.member.Members[(r.index()+places+n)%n]
}

func (r *run) barrier(ctx context.Context, name string, generation int) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	return r.member.BarrierAt(ctx, name, uint64(generation))
}

// finish computes from the present part to the end.
func (r *run) finish(ctx context.Context) ([]uint64, error) {
	for r.part.Step < r.steps {
		if r.part.Step%r.every == 0 {
			if err := r.checkpoint(ctx); err != nil {
				return nil, err
			}
		}
		if err := r.step(ctx); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(r.pause):
		}
	}
	return r.gather(ctx)
}

// step exchanges the cells at the borders, and computes one step.
func (r *run) step(ctx context.Context) error {
	p, k := &r.part, r.part.Step
	edges := part{Step: k, Cells: []uint64{p.Cells[0], p.Cells[len(p.Cells)-1]}}
	if err := write(r.disk.path(r.node, "edges", r.node, r.name, k), edges); err != nil {
		return err
	}
	if err := r.barrier(ctx, "step", k+1); err != nil {
		return err
	}
	left, err := read(r.disk.path(r.at(-1), "edges", r.at(-1), r.name, k))
	if err != nil {
		return r.orGone(ctx, err)
	}
	right, err := read(r.disk.path(r.at(1), "edges", r.at(1), r.name, k))
	if err != nil {
		return r.orGone(ctx, err)
	}
	p.Cells = advance(p.Cells, left.Cells[1], right.Cells[0])
	p.Step++
	// All members have read the edges of the previous step: they have reached this step's barrier.
	_ = os.Remove(r.disk.path(r.node, "edges", r.node, r.name, k-1))
	return nil
}

// checkpoint writes this member's part to its own disk and to the next member's. It is complete when all members have
// done so: a member that returns from the barrier knows that (seed 003 §6.1).
func (r *run) checkpoint(ctx context.Context) error {
	k := r.part.Step
	if err := write(r.disk.path(r.node, "part", r.node, r.name, k), r.part); err != nil {
		return err
	}
	if err := write(r.disk.path(r.at(1), "copy", r.node, r.name, k), r.part); err != nil {
		return err
	}
	if err := r.barrier(ctx, "checkpoint", k+1); err != nil {
		return err
	}
	r.log.Printf("checkpoint at step %d is complete", k)
	// Checkpoints before the previous one are obsolete: no member can be further behind.
	if old := k - 2*r.every; old >= 0 {
		_ = os.Remove(r.disk.path(r.node, "part", r.node, r.name, old))
		_ = os.Remove(r.disk.path(r.at(1), "copy", r.node, r.name, old))
	}
	r.last = mark{k, r.name}
	return nil
}

// rollBack agrees with the remaining members on the last complete checkpoint, and takes this member's share.
func (r *run) rollBack(ctx context.Context, gone []string) error {
	last := r.last
	for {
		left := slices.DeleteFunc(slices.Clone(r.member.Members), func(m string) bool { return slices.Contains(gone, m) })
		r.log.Printf("gone: %s; left: %s", strings.Join(gone, ", "), strings.Join(left, ", "))
		if !slices.Contains(left, r.node) {
			return errors.New("the fault map says that this node is dead")
		}
		r.join(left)
		found, err := r.agree(ctx, last)
		more := new(jobs.GoneError)
		if errors.As(err, &more) { // lost in the meantime
			gone = more.Nodes
			continue
		}
		if err != nil {
			return err
		}
		r.last, last = found, found
		if found.Step < 0 {
			r.log.Print("no checkpoint was complete: from the beginning")
			r.start()
			return nil
		}
		r.log.Printf("roll back to step %d", found.Step)
		if err = r.restore(found); err == nil || errors.Is(err, errLost) {
			return err
		}
		if err = r.orGone(ctx, err); !errors.As(err, &more) {
			return err
		}
		gone = more.Nodes
	}
}

// errLost reports that a part and its copy are gone.
var errLost = errors.New("the checkpoint is lost")

// orGone finds out why another's disk was unreadable: its node died after it had reached the barrier. It waits until
// the map reports that.
func (r *run) orGone(ctx context.Context, why error) error {
	err := r.watchMembers(ctx)
	if gone := new(jobs.GoneError); errors.As(err, &gone) {
		return err
	}
	return why
}

// agree returns the latest checkpoint that any member knows to be complete: then all have written it. Every member
// repeats its word until all have reached the barrier, so that no word is lost for good.
func (r *run) agree(ctx context.Context, own mark) (mark, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := json.Marshal(word{mark: own, For: r.name})
	if err != nil {
		return mark{}, err
	}
	done := make(chan error, 2)
	go func() { done <- r.watchMembers(ctx) }()
	latest, heard := own, map[string]bool{}
	for tick := time.NewTimer(0); ; {
		select {
		case err := <-done:
			return latest, err
		case w := <-r.words:
			if w.For != r.name || heard[w.node] {
				continue
			}
			if w.Step > latest.Step {
				latest = w.mark
			}
			if heard[w.node] = true; len(heard) == len(r.member.Members) {
				go func() { done <- r.barrier(ctx, "rollback", 1) }()
			}
		case <-tick.C:
			if err := r.member.Raise(ctx, topicHave, body); err != nil {
				r.log.Print(err) // try again
			}
			tick.Reset(500 * time.Millisecond)
		}
	}
}

// watchMembers returns a GoneError when the map calls members FAILED: a process that dies before it has sent its word
// reaches no barrier.
func (r *run) watchMembers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	return r.client.WatchFaults(ctx, r.member.Members, func(f jobs.Faults) error {
		var gone []string
		for _, n := range f.Nodes {
			if n.State == jobs.Failed && !f.Stale {
				gone = append(gone, n.ID)
			}
		}
		if gone == nil {
			return nil
		}
		return &jobs.GoneError{Nodes: gone, Err: fmt.Errorf("FAILED in the fault map: %s", strings.Join(gone, ", "))}
	})
}

// restore reads this member's share of a checkpoint from the disks of its writers or, if these are dead, of their
// neighbours.
func (r *run) restore(c mark) error {
	mine, err := read(r.disk.path(r.node, "part", r.node, c.Run, c.Step))
	if err != nil {
		return err
	}
	from, to := share(r.cells, r.index(), len(r.member.Members))
	p := part{Step: c.Step, Members: r.member.Members, From: from}
	for i, owner := range mine.Members {
		if a, b := share(r.cells, i, len(mine.Members)); b <= from || a >= to {
			continue
		}
		path := r.disk.path(owner, "part", owner, c.Run, c.Step)
		if !slices.Contains(r.member.Members, owner) {
			keeper := mine.Members[(i+1)%len(mine.Members)]
			if !slices.Contains(r.member.Members, keeper) {
				return fmt.Errorf("step %d: %s and %s, which had the copy, are both gone: %w", c.Step, owner, keeper, errLost)
			}
			path = r.disk.path(keeper, "copy", owner, c.Run, c.Step)
			r.log.Printf("using the part of %s from %s", owner, keeper)
		}
		q, err := read(path)
		if err != nil {
			return err
		}
		a, b := max(from, q.From), min(to, q.From+len(q.Cells))
		p.Cells = append(p.Cells, q.Cells[a-q.From:b-q.From]...)
	}
	r.part = p
	return nil
}

// gather assembles the result at the first member.
func (r *run) gather(ctx context.Context) ([]uint64, error) {
	if err := write(r.disk.path(r.member.Members[0], "result", r.node, r.name, r.part.Step), r.part); err != nil {
		return nil, err
	}
	if err := r.barrier(ctx, "end", 1); err != nil {
		return nil, err
	}
	if r.index() != 0 {
		return nil, nil
	}
	var ring []uint64
	for _, m := range r.member.Members {
		p, err := read(r.disk.path(r.node, "result", m, r.name, r.part.Step))
		if err != nil {
			return nil, err
		}
		ring = append(ring, p.Cells...)
	}
	return ring, nil
}
