package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/agenttest"
	"github.com/lofamo/lofamo/internal/agent/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// As many eurekas as jobs may raise at once are heard, and make no DNP half call itself sick: many kernels hold ten messages in a mailbox.
func TestManyEurekasAreNoSickness(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, noService)
	n.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), jobBound)
	defer cancel()
	n.togetherAt(ctx, "begin")
	var files []*regfile.File
	var before [][regfile.NumCounters]uint32
	for rank := range n.dims.Nodes() {
		f := n.awaitFile(n.cfgs[n.dims.At(rank)].StateDir + "/" + RegisterFile)
		defer func() { _ = f.Close() }()
		agenttest.Await(n.t, "counters of the beginning", func() bool { return f.Counters()[otherCounters+3] > 0 }) // the barrier
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
	// The half looks at its mailbox once a second, after it has published what it counts.
	for _, f := range files {
		agenttest.Await(n.t, "counters", func() bool {
			c := f.Counters()
			return c[countsOfTopic*int(express.TopicJob)] >= each && c[countsOfTopic*int(express.TopicJob)+1] >= each
		})
	}
	n.togetherAt(ctx, "end")
	for rank, f := range files {
		if v, err := f.Load(watchdog.AddrRDMA); err != nil || v&watchdog.RDMAMailboxFull != 0 {
			t.Errorf("register RDMA of node %d: %#x, %v", rank, v, err)
		}
		for i, c := range counted[:3] { // of the mailbox
			if n, was := f.Counters()[otherCounters+i], before[rank][otherCounters+i]; n > was {
				t.Errorf("node %d: %s %s: %d, %d before", rank, c.metric, c.label, n, was)
			}
		}
	}
}

// What the mailbox has no room for has its turn in milliseconds, though nothing else steps the half, and ever more rarely while the host half reads nothing.
func TestJobMailHasItsTurnSoon(t *testing.T) {
	dir := t.TempDir()
	host, err := mailbox.Open(dir, fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	own, err := mailbox.Open(dir, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	d, now := &dnpHalf{box: own}, time.Unix(1, 0)
	sent := 0
	for ; len(d.jobMail.waiting) == 0; sent++ {
		if sent > 100 {
			t.Fatal("the mailbox takes everything")
		}
		d.mailJobs(now, jobs.Mail{Kind: jobs.Taken, Request: uint64(sent)})
	}
	for _, rest := range []int64{2, 4, 8, 16, 32, 64, 64} {
		if got := d.jobMail.again.Sub(now); got.Milliseconds() != rest {
			t.Errorf("the next turn is %s off, want %dms", got, rest)
		}
		d.mailWaiting(now) // a step before it changes nothing
		now = d.jobMail.again
		d.mailWaiting(now)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*agenttest.Bound)
	defer cancel()
	came := 0
	err = host.Run(ctx, func(mailbox.Message) {
		if d.mailWaiting(now); len(d.jobMail.waiting) > 0 {
			t.Error("it waits, though there is room")
		}
		if came++; came == sent {
			cancel()
		}
	})
	if came != sent {
		t.Errorf("%d of %d came: %v", came, sent, err)
	}
}
