// Package integration has the tests of both halves together, on real sockets, against a fake supervisor.
package integration

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

const testCluster = agenttest.Cluster

// bound is the longest wait for an expected event. It is long because many halves share one process, often with the race detector, on a
// machine that may be busy.
const bound = 3 * agenttest.Bound

// patientLinks is for tests that play a neighbour, or stop and start a DNP half: a link that is silent meanwhile would be
// given a new session.
func patientLinks(cfg *config.Agent) {
	period, misses, grace := config.Duration(100*time.Millisecond), 64, config.Duration(time.Minute)
	cfg.Periods = &config.PeriodsOverride{LinkPeriod: &period, LinkMisses: &misses, LinkGrace: &grace}
}

// testNet is a torus of real halves in one process, with a fake supervisor.
type testNet struct {
	t     *testing.T
	dir   string
	dims  grid.Dims
	cfgs  map[grid.Coord]config.Agent
	super *fakeSupervisor   // sup-0
	more  []*fakeSupervisor // sup-1 and so on
	halts map[fault.Origin]func()
	seam  *half.Seam                    // of halves that start from now on
	apart map[fault.Origin]config.Agent // of halves with a configuration of their own
}

// newTestNet makes the network with one supervisor, sup-0, and as many more as are named.
func newTestNet(t *testing.T, dims grid.Dims, edit func(*config.Agent), more ...string) *testNet {
	t.Helper()
	n := &testNet{t: t, dir: agenttest.Dir(t), dims: dims, cfgs: map[grid.Coord]config.Agent{}, halts: map[fault.Origin]func(){}}
	ca := agenttest.NewCA(t, n.dir)
	n.super = newFakeSupervisor(t, n, ca, "sup-0")
	for _, id := range more {
		n.more = append(n.more, newFakeSupervisor(t, n, ca, id))
	}
	links := agenttest.LinkPorts(t, dims)
	for rank := range dims.Nodes() {
		c := dims.At(rank)
		cfg := n.config(c, ca, links)
		if edit != nil {
			edit(&cfg)
		}
		n.cfgs[c] = cfg
	}
	return n
}

func (n *testNet) config(c grid.Coord, ca *pki.CA, links map[agenttest.LinkEnd]string) config.Agent {
	n.t.Helper()
	cfg := agenttest.Config(n.t, n.dir, ca, n.dims, c, links)
	for _, s := range append([]*fakeSupervisor{n.super}, n.more...) {
		cfg.Supervisors = append(cfg.Supervisors, config.SupervisorAddr{ID: s.id, Report: s.net.LocalAddr().String()})
	}
	return cfg
}

func (n *testNet) path(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// checkedMemory finds code that changes a half's memory without its mutex. Under the race detector a check takes long, so tests of
// timing leave it out.
func checkedMemory(c *config.Agent) { c.CheckMemory = true }

// halfLog is a half's log in a test. A half that finds changed memory then ends the test's process, so its line must be seen first.
type halfLog struct{ agenttest.Writer }

// Write writes one line, and fails the test if it is about changed memory.
func (l halfLog) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(half.MsgMemory)) {
		panic(string(b))
	}
	return l.Writer.Write(b)
}

// start runs one half and registers its end. To the other half, halting it equals a kill: it stops at once and leaves
// behind all that the other would see.
func (n *testNet) start(c grid.Coord, h fault.Half) {
	n.t.Helper()
	cfg := n.cfgs[c]
	if own, ok := n.apart[fault.Origin{Node: cfg.Node, Half: h}]; ok {
		cfg = own
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), half.SeamKey{}, n.seam))
	done := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(halfLog{agenttest.Writer{T: n.t}}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	run := host.Run
	if h == fault.HalfDNP {
		run = dnp.Run
	}
	go func() { done <- run(ctx, cfg, half.SchedulingDefault, log) }()
	halt := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("%s half of %s: %v", h, cfg.Node, err)
		}
	})
	n.halts[fault.Origin{Node: cfg.Node, Half: h}] = halt
	n.t.Cleanup(halt)
}

func (n *testNet) startAll() {
	for rank := range n.dims.Nodes() {
		n.start(n.dims.At(rank), fault.HalfHost)
		n.start(n.dims.At(rank), fault.HalfDNP)
	}
}

func (n *testNet) halt(c grid.Coord, h fault.Half) {
	n.halts[fault.Origin{Node: n.cfgs[c].Node, Half: h}]()
}
