package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// The largest burst of eurekas that jobs may raise reaches all nodes, and no DNP half calls itself sick: many kernels
// hold ten messages in a mailbox.
func TestManyEurekasAreNoSickness(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, noService)
	n.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	n.togetherAt(ctx, "begin")
	var files []*regfile.File
	var before [][regfile.NumCounters]uint32
	for rank := range n.dims.Nodes() {
		f := n.awaitFile(n.cfgs[n.dims.At(rank)].StateDir + "/" + half.RegisterFile)
		defer func() { _ = f.Close() }()
		agenttest.Await(n.t, "counters of the beginning", func() bool { return f.Counters()[half.OtherCounters+3] > 0 }) // the barrier
		files, before = append(files, f), append(before, f.Counters())
	}
	heard := n.heardAt(ctx, at0)
	const each = 20
	done := make(chan error, 2*each)
	for rank := range n.dims.Nodes() {
		m := n.job(n.dims.At(rank))
		for i := range each {
			go func() { done <- m.Raise(ctx, "found", fmt.Append(nil, i)) }()
		}
	}
	for range 2 * each {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for i := range 2 * each {
		select {
		case <-heard:
		case <-ctx.Done():
			t.Fatalf("%d are heard", i)
		}
	}
	// The half checks its mailbox once a second, after it has published its counts.
	for _, f := range files {
		agenttest.Await(n.t, "counters", func() bool {
			c := f.Counters()
			return c[half.CountsOfTopic*int(express.TopicJob)] >= each && c[half.CountsOfTopic*int(express.TopicJob)+1] >= each
		})
	}
	n.togetherAt(ctx, "end")
	for rank, f := range files {
		if v, err := f.Load(watchdog.AddrRDMA); err != nil || v&watchdog.RDMAMailboxFull != 0 {
			t.Errorf("register RDMA of node %d: %#x, %v", rank, v, err)
		}
		// Of the mailbox. A report that finds no room (the first counter), while its host half waits for a processor, is sent again.
		for i, c := range half.Counted[:3] {
			most := uint32(0)
			if i == 0 {
				most = each / 4
			}
			if n, was := f.Counters()[half.OtherCounters+i], before[rank][half.OtherCounters+i]; n > was+most {
				t.Errorf("node %d: %s %s: %d, %d before", rank, c.Metric, c.Label, n, was)
			}
		}
	}
}
