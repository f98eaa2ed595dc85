package federation

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// committer writes the changes of a term. Its fields belong to the goroutine of run.
type committer struct {
	cfg   ParentConfig
	store ParentStore
	w     store.Committer
	heads map[string]head            // committed
	began *atomic.Pointer[time.Time] // see Parent

	cur   store.Batch // of several regions' writes
	bytes int
	out   result
}

// result is the outcome of some jobs.
type result struct {
	revision  uint64
	heads     map[string]head // changed ones
	documents []document
	back      map[string][]*lofamov1.Node // of regions that are present again: all their nodes
	err       error
}

func newCommitter(cfg ParentConfig, st ParentStore, w store.Committer, began *atomic.Pointer[time.Time]) *committer {
	return &committer{cfg: cfg, store: st, w: w, began: began, heads: make(map[string]head)}
}

func (c *committer) run(ctx context.Context, work <-chan []job, results chan<- result) {
	for jobs := range work {
		c.out = result{heads: make(map[string]head), back: make(map[string][]*lofamov1.Node)}
		start := time.Now()
		c.began.Store(&start)
		c.out.err = c.commit(ctx, jobs)
		c.began.Store(nil)
		c.cfg.Metrics.Commit.Observe(time.Since(start).Seconds())
		results <- c.out
	}
}

// commit writes jobs in order, as many as fit together in one transaction.
func (c *committer) commit(ctx context.Context, jobs []job) error {
	for len(jobs) > 0 {
		n := 1
		for n < len(jobs) && together(jobs[0], jobs[n]) {
			n++
		}
		var err error
		switch {
		case jobs[0].unit == nil:
			err = c.presence(ctx, jobs[0])
		case jobs[0].unit.Snapshot:
			err = c.snapshot(ctx, jobs[0])
		default:
			err = c.units(ctx, jobs[:n])
		}
		if err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return c.flush(ctx)
}

// together reports whether two jobs are changes of one region, which are packed together.
func together(a, b job) bool {
	return a.region == b.region && a.unit != nil && b.unit != nil && !a.unit.Snapshot && !b.unit.Snapshot
}

func (c *committer) units(ctx context.Context, jobs []job) error {
	units := make([]Unit, len(jobs))
	for i, j := range jobs {
		units[i] = *j.unit
	}
	return c.pack(ctx, jobs[0].region.name, units)
}

// snapshot commits the difference from the stored state, and first records any loss.
func (c *committer) snapshot(ctx context.Context, j job) error {
	name := j.region.name
	if err := c.flush(ctx); err != nil { // compare with the stored state
		return err
	}
	entries, _, err := c.store.Tree(ctx, prefix+name+"/", false)
	if err != nil {
		return err
	}
	have := make(map[string][]byte, len(entries))
	for _, e := range entries {
		if e.Key != keyHead {
			have[e.Key] = e.Value
		}
	}
	u := *j.unit
	was := c.heads[name].Position
	if err := u.Complete(have); err != nil {
		return fmt.Errorf("snapshot of region %s: %w", name, err)
	}
	var notices []*lofamov1.Event
	another := was.Store != "" && was.Store != u.After.Store
	if another {
		notices = append(notices, c.regionEvent(name, j.at,
			"the region has another store, restored from a snapshot or newly made; its whole content is here, and nothing else"))
	}
	if first := u.First - u.Lost; u.Lost > 0 && was.NextEvent > 0 {
		notices = append(notices, c.regionEvent(name, j.at,
			fmt.Sprintf("the region no longer keeps %d events, from %d on: their effects are here", u.Lost, first)))
	}
	return c.pack(ctx, name, []Unit{u}, notices...)
}

// regionEvent returns an event about a region whose state does not change.
func (c *committer) regionEvent(name string, at time.Time, reason string) *lofamov1.Event {
	state := c.heads[name].state()
	return &lofamov1.Event{Kind: lofamov1.EventKind_REGION_CHANGED, Region: name, From: state, To: state, Reason: reason,
		Time: timestamppb.New(at)}
}

// pack writes units of one region; the notices go before them.
func (c *committer) pack(ctx context.Context, name string, units []Unit, notices ...*lofamov1.Event) error {
	h := c.heads[name]
	writes, err := packUnits(units, h.Position, writeLimits{Ops: c.cfg.Ops, Bytes: c.cfg.Bytes})
	if err != nil {
		return fmt.Errorf("region %s: %w", name, err)
	}
	for i, w := range writes {
		if i == 0 {
			w.Events = append(notices, w.Events...)
		}
		h.Position = w.After
		if err := c.add(ctx, name, h, w); err != nil {
			return err
		}
	}
	return nil
}

// add puts a write to the transaction that is being gathered, or to the next.
func (c *committer) add(ctx context.Context, name string, h head, w packedWrite) error {
	size := 0
	for _, ev := range w.Events {
		adopt(name, ev)
		size += proto.Size(ev)
	}
	for _, d := range w.Documents {
		size += proto.Size(d)
	}
	overlaps := slices.ContainsFunc(c.cur.Puts, func(kv store.KV) bool { return kv.Key == key(name, keyHead) })
	if overlaps || c.cur.Ops()+len(w.Events)+len(w.Documents)+1 > c.cfg.Ops || c.bytes+size > c.cfg.Bytes {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	c.bytes += size
	c.cur.Events = append(c.cur.Events, w.Events...)
	for _, d := range w.Documents {
		if d.GetDeleted() {
			c.cur.Deletes = append(c.cur.Deletes, key(name, d.GetKey()))
		} else {
			c.cur.Puts = append(c.cur.Puts, store.KV{Key: key(name, d.GetKey()), Value: d.GetValue()})
		}
		c.out.documents = append(c.out.documents, document{region: name, Document: d})
	}
	return c.head(name, h)
}

func (c *committer) head(name string, h head) error {
	kv, err := h.kv(name)
	if err != nil {
		return err
	}
	c.cur.Puts = append(c.cur.Puts, kv)
	c.heads[name], c.out.heads[name] = h, h
	return nil
}

// adopt turns a region's event into one of the parent's.
func adopt(name string, ev *lofamov1.Event) {
	ev.Region, ev.Revision, ev.AsSeen = name, 0, false
	if g := ev.GetGroup(); g != nil {
		g.Id, g.Region = groupID(name, g.GetId()), name
	}
}

// flush commits the gathered changes.
func (c *committer) flush(ctx context.Context) error {
	if c.cur.Ops() == 0 {
		return nil
	}
	rev, err := c.w.Commit(ctx, c.cur)
	if err != nil {
		return err
	}
	c.out.revision = rev
	for i := len(c.out.documents) - 1; i >= 0 && c.out.documents[i].revision == 0; i-- {
		c.out.documents[i].revision = rev
	}
	c.cur, c.bytes = store.Batch{}, 0
	return nil
}

// presence commits that a region is cut off, or present again.
func (c *committer) presence(ctx context.Context, j job) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	name := j.region.name
	h := c.heads[name]
	from := h.state()
	h.Cut, h.Since = j.cut, j.at
	reason := "heard again, and all that it had to tell is here"
	if j.cut {
		reason = fmt.Sprintf("no message for %s: its nodes are UNKNOWN until the next message", time.Duration(c.cfg.Misses)*c.cfg.Beat)
	}
	c.cur.Events = append(c.cur.Events, &lofamov1.Event{
		Kind: lofamov1.EventKind_REGION_CHANGED, Region: name, From: from, To: h.state(), Reason: reason, Time: timestamppb.New(j.at),
	})
	if err := c.head(name, h); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil || j.cut {
		delete(c.out.back, name)
		return err
	}
	entries, rev, err := c.store.Tree(ctx, prefix+name+"/"+KindNodes, false)
	if err != nil {
		return err
	}
	for _, e := range entries {
		e.Key = name + "/" + KindNodes + e.Key
		have, err := read([]store.Entry{e}, rev)
		if err != nil {
			return err
		}
		c.out.back[name] = append(c.out.back[name], have.nodes...)
	}
	return nil
}
