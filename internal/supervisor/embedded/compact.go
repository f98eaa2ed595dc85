package embedded

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Early compaction. etcd keeps all revisions of a key in memory until a compaction, some 300 bytes for an event that the history no
// longer has. When all nodes of a large torus start, that is more than the rest of the member, and Retention is up to two hours away.
const (
	// manyPuts is the number of keys written through this member that make a compaction due before Retention.
	manyPuts = 300_000
	// calmPuts is the maximum number of keys written since the last check if a compaction is to begin: a compaction delays the commits
	// of a busy store.
	calmPuts = 10_000
	// lookPeriod is the interval between looks. Revisions younger than that stay, for watches that are behind.
	lookPeriod = time.Minute
)

// compaction decides when the member compacts early. One goroutine looks.
type compaction struct {
	many int64        // manyPuts, fewer in tests
	puts atomic.Int64 // keys written through this member since its start

	before struct{ revision, puts int64 } // at the last look
	done   int64                          // puts up to the last early compaction
}

// look returns the revision to compact now and the number of keys written up to that revision. It returns 0 if no compaction is due.
func (c *compaction) look(revision int64) (compact, puts int64) {
	before, now := c.before, c.puts.Load()
	c.before.revision, c.before.puts = revision, now
	if before.puts-c.done < c.many || now-before.puts > calmPuts {
		return 0, 0
	}
	return before.revision, before.puts
}

// putsIn returns the number of keys that the operations of a transaction write.
func putsIn(ops []*etcdserverpb.RequestOp) (n int64) {
	for _, op := range ops {
		if op.GetRequestPut() != nil {
			n++
		}
	}
	return n
}

// compactEarly checks every lookPeriod whether a compaction is due, until the member stops.
func (m *Member) compactEarly() {
	t := time.NewTicker(lookPeriod)
	defer t.Stop()
	for {
		select {
		case <-m.stopping:
			return
		case <-m.etcd.Server.StoppingNotify():
			return
		case <-t.C:
			m.lookAtPuts()
		}
	}
}

// lookAtPuts compacts if that is due. After a failure the next look repeats it.
func (m *Member) lookAtPuts() {
	revision, puts := m.compaction.look(m.etcd.Server.KV().Rev())
	if revision == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	if _, err := m.client.Compact(ctx, revision); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		m.logger.Info("early compaction of the store failed: retrying within a minute", "revision", revision, "err", err)
		return
	}
	m.compaction.done = puts
	m.logger.Debug("compacted the store early, after many changes", "revision", revision)
}
