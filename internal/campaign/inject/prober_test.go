package inject

import (
	"context"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/status"
	"github.com/lofamo/lofamo/internal/localcluster"
)

// probe is the application-level prober of a node: it asks the status socket, as `lofamo-agent status` does. What the map
// says is looked up afterwards (noticed).
func (f *field) probe(ctx context.Context, n localcluster.NodeInfo) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		at := localcluster.Monotonic()
		bound, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		_, err := status.Ask(bound, n.StateDir)
		cancel()
		if err != nil && ctx.Err() == nil {
			f.proberMu.Lock()
			f.unwell[string(n.ID)] = append(f.unwell[string(n.ID)], at)
			f.proberMu.Unlock()
		}
	}
}

// noticed says whether the prober found the node unwell between two times: its host half did not answer, or the map called
// one of its halves or of its links something else than NORMAL.
func (f *field) noticed(n localcluster.NodeInfo, mark int, from, to int64) bool {
	f.proberMu.Lock()
	for _, at := range f.unwell[string(n.ID)] {
		if at >= from && at <= to {
			f.proberMu.Unlock()
			return true
		}
	}
	f.proberMu.Unlock()
	for _, s := range f.Since(mark) {
		c := s.GetComponent()
		half := c == "host" || c == "dnp" || c == "dnp-core" || c == "node" && s.GetTo() == lofamov1.State_FAILED
		if s.GetNode() == string(n.ID) && half && s.GetTo() != lofamov1.State_NORMAL && s.At <= to {
			return true
		}
	}
	return false
}
