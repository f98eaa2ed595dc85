package supervisor

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
)

// again repeats do until the context ends, with a pause after each failure.
func (s *Supervisor) again(ctx context.Context, what string, do func() error) {
	for ctx.Err() == nil {
		err := do()
		s.logger.Debug(what+" ended", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(publishRetry):
		}
	}
}

// followTopology keeps this replica's topology up to date with its copy of the store.
func (s *Supervisor) followTopology(ctx context.Context) {
	compared := false
	s.again(ctx, "following the topology", func() error {
		return s.store.FollowTopology(ctx, func(t *topology.Topology) {
			if !compared {
				compared = true
				s.compare(t)
			}
			if s.names.Set(t) {
				s.logger.Info("the topology has changed", "revision", t.Revision, "dims", t.Dims.String(), "nodes", len(t.Nodes))
			}
			s.metrics.Topology.Set(float64(s.names.Topology().Revision))
		})
	})
}

// maxDifferences bounds the logged differences.
const maxDifferences = 20

// compare logs once if the configuration differs from the stored topology, which takes precedence.
func (s *Supervisor) compare(t *topology.Topology) {
	changes := topology.Diff(s.seed, t)
	if len(changes) == 0 {
		return
	}
	texts := make([]string, 0, maxDifferences)
	for _, c := range changes[:min(len(changes), maxDifferences)] {
		texts = append(texts, c.String())
	}
	s.logger.Warn("the topology in the configuration is not the stored one, which counts: from the file to the store",
		"revision", t.Revision, "differences", len(changes), "first", texts)
}

// followMaintenance keeps this replica's maintenance marks up to date with its copy of the store.
func (s *Supervisor) followMaintenance(ctx context.Context) {
	s.again(ctx, "following maintenance marks", func() error {
		return s.store.FollowMaintenance(ctx, func(marks []store.Mark, revision uint64) {
			s.marks.Replace(store.Marks(marks), revision)
			s.metrics.Maintenance.Set(float64(s.marks.Len()))
		})
	})
}

// maxOps returns the most operations in one transaction of the store. For an external etcd it is etcd's default.
func (s *Supervisor) maxOps() int {
	if s.store.member == nil {
		return store.DefaultMaxOps
	}
	return embedded.MaxTxnOps
}
