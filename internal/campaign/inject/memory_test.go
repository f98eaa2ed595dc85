package inject

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// unloaded reports whether a component keeps its state under the load.
func unloaded(component string) bool { return component != "temperature" && component != "node" }

// watchFor is the observation time of a flip in live data before the half is restarted.
const watchFor = 1200 * time.Millisecond

// tryFlip flips one bit in the live data of a half, observes it, and restarts the half, as the paper reloads the
// network processor after each run.
func (f *field) tryFlip(n cluster.NodeInfo, w who, seed uint64) (sample, error) {
	s := sample{applied: true, touched: true, category: catNoImpact}
	before, err := f.beforeFlip(n, w)
	if err != nil {
		return s, err
	}
	var hit struct {
		Path    string
		Bit, Of int
	}
	mark, at := f.Mark(), cluster.Monotonic()
	if err := f.ask(n, w, "POST", "/flip", map[string]uint64{"Seed": seed}, &hit); err != nil {
		return s, err
	}
	s.what = fmt.Sprintf("%s, bit %d (of %d scalars)", hit.Path, hit.Bit, hit.Of)
	f.observeFlip(n, w, before, at, &s)
	f.judgeFlip(n, mark, at, &s)
	return s, f.restartAfterFlip(n, w, &s)
}

// beforeFlip waits until no trace of an earlier sample is left, and returns the half's record.
func (f *field) beforeFlip(n cluster.NodeInfo, w who) (halfcore.RecoveryRecord, error) {
	before, err := f.await(n, w.half(), func(x halfcore.RecoveryRecord) bool { // no recovery is in progress
		return x.State == halfcore.Running && x.PID != 0 && (x.Last == nil || x.Last.Proven > 0 || x.Last.Serving == 0)
	})
	if err != nil {
		return before, err
	}
	return before, f.wellAgain(n, unloaded)
}

// observeFlip watches a half after a flip, and records whether its daemon restarted it.
func (f *field) observeFlip(n cluster.NodeInfo, w who, before halfcore.RecoveryRecord, at int64, s *sample) {
	time.Sleep(watchFor)
	if r, err := f.running(n, w.half()); err != nil {
		s.what += ": " + err.Error()
	} else if r.Total > before.Total && r.Last != nil {
		s.found(*r.Last, at)
		if s.category = catCrash; s.ours == byWatchdog {
			s.category = catHang
		}
	}
}

// restartAfterFlip kills a half, and records whether it and its node recover.
func (f *field) restartAfterFlip(n cluster.NodeInfo, w who, s *sample) error {
	h := w.half()
	r, err := f.running(n, h)
	if err != nil {
		return nil //nolint:nilerr // it is not healed, which the sample says
	}
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		return err
	}
	_, err = f.await(n, h, func(x halfcore.RecoveryRecord) bool {
		return x.State == halfcore.Running && x.PID != r.PID && x.PID != 0 && x.Last != nil && x.Last.Proven > 0
	})
	if err == nil {
		err = f.wellAgain(n, unloaded)
	}
	if err != nil {
		s.what += ": " + err.Error()
		return nil //nolint:nilerr // see above
	}
	s.healed = true
	return nil
}

// judgeFlip records both observers' findings on a flip that did not end the half.
func (f *field) judgeFlip(n cluster.NodeInfo, mark int, at int64, s *sample) {
	var said []string
	for _, e := range f.Since(mark) {
		if e.GetNode() != string(n.ID) || !unloaded(e.GetComponent()) || e.GetTo() == lofamov1.State_NORMAL {
			continue
		}
		said = append(said, e.String())
		if ownFault(e) && s.ours == "" {
			s.ours, s.detect = bySelfTest, time.Duration(e.At-at) // a half reports a fault of its own
		}
		if e.GetComponent() == "dnp" && s.ours == "" {
			s.ours, s.detect = byWatchdog, time.Duration(e.At-at)
		}
	}
	s.prober = len(said) > 0 || f.noticed(n, mark, at, cluster.Monotonic()).certain()
	if s.prober {
		s.what += ": " + strings.Join(said[:min(2, len(said))], "; ")
		if s.category == catNoImpact {
			s.category = catControl
		}
	}
}

// ownFault reports whether a half reports a fault of its own: its host or its DNP core is SICK, or its DNP core broken.
// Only others call a host
// FAILED.
func ownFault(e lab.Seen) bool {
	return e.GetTo() == lofamov1.State_SICK && (e.GetComponent() == "host" || e.GetComponent() == "dnp-core") ||
		e.GetTo() == lofamov1.State_FAILED && e.GetComponent() == "dnp-core"
}

// wellAgain waits until the map shows the counted components of a node as NORMAL.
func (f *field) wellAgain(n cluster.NodeInfo, counts func(component string) bool) error {
	deadline := time.Now().Add(patience)
	for {
		node, err := f.Client.GetNode(f.t.Context(), string(n.ID))
		bad := ""
		if err == nil {
			for _, c := range node.GetComponents() {
				if counts(c.GetName()) && c.GetState() != lofamov1.State_NORMAL && !strings.HasPrefix(c.GetName(), "peripheral/") {
					bad = c.GetName() + " is " + c.GetState().String()
				}
			}
			if bad == "" {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not well again: %s %w", n.ID, bad, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// liveData flips bits in the live state of running halves: counters, states, times, buffers. The paper left data
// structures out; here they are reported separately, and the requirement is that a restart heals any fault. Nodes tried
// at the same time are never neighbours, because the restart of a neighbour shows in the links.
func liveData(t *testing.T, fields []*field) {
	flips := 6
	if *full {
		flips = 900
	}
	c, begin := newClass("live data, random flips", *seed), time.Now()
	c.apart = true
	var mu sync.Mutex
	var all sync.WaitGroup
	left := flips
	for i, f := range fields {
		f.startLoad()
		nodes := f.nodes
		for j, n := range []cluster.NodeInfo{nodes[0], nodes[3]} { // (0,0) and (1,1)
			r := rand.New(rand.NewPCG(*seed, uint64(i*10+j)))
			all.Go(func() {
				for {
					mu.Lock()
					left--
					stop := left < 0
					mu.Unlock()
					if stop {
						return
					}
					s, err := f.tryFlip(n, []who{host, dnp}[r.IntN(2)], r.Uint64())
					mu.Lock()
					if err != nil {
						t.Error(err)
						s.applied = false
					}
					c.add(s)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	c.took = time.Since(begin)
	for _, f := range fields {
		kept, replaced, lost, doubled := f.settle(t)
		c.lost += len(lost)
		c.doubled += len(doubled)
		c.notes = append(c.notes, fmt.Sprintf("%d reports were kept, earlier ones included; other reports replace %d", kept, replaced))
	}
	finish(t, c)
}
