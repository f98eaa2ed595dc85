package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/freeport"
	"github.com/lofamo/lofamo/internal/pki"
)

const testCluster = "test"

// bound is how long a test waits for what must come: far longer than it takes, so that only a
// failure reaches it.
const bound = time.Minute

// testNet is a torus of real halves in one process, with a fake supervisor.
type testNet struct {
	t     *testing.T
	dir   string
	dims  grid.Dims
	cfgs  map[grid.Coord]config.Agent
	super *fakeSupervisor   // sup-0
	more  []*fakeSupervisor // sup-1 and so on
	halts map[fault.Origin]func()
	seam  *seam // of halves that start from now on
}

// newTestNet makes the network with one supervisor, sup-0, and as many more as are named.
func newTestNet(t *testing.T, dims grid.Dims, edit func(*config.Agent), more ...string) *testNet {
	t.Helper()
	n := &testNet{t: t, dir: t.TempDir(), dims: dims, cfgs: map[grid.Coord]config.Agent{}, halts: map[fault.Origin]func(){}}
	ca, err := pki.NewCA(testCluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(n.path("ca.pem"), n.path("ca.key")); err != nil {
		t.Fatal(err)
	}
	n.super = newFakeSupervisor(t, n, ca, "sup-0")
	for _, id := range more {
		n.more = append(n.more, newFakeSupervisor(t, n, ca, id))
	}
	links := n.linkPorts()
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

func (n *testNet) path(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

type linkEnd struct {
	at  grid.Coord
	dir grid.Direction
}

func (n *testNet) linkPorts() map[linkEnd]string {
	out := map[linkEnd]string{}
	for rank := range n.dims.Nodes() {
		for _, d := range n.dims.Links() {
			out[linkEnd{n.dims.At(rank), d}] = freeport.Addr(n.t).String()
		}
	}
	return out
}

func (n *testNet) config(c grid.Coord, ca *pki.CA, links map[linkEnd]string) config.Agent {
	n.t.Helper()
	id := fault.DefaultNodeID(c)
	dir := n.path(string(id))
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	cfg := config.DefaultAgent()
	cfg.Cluster, cfg.Node, cfg.Coord, cfg.Dims = testCluster, id, c.String(), n.dims.String()
	cfg.StateDir = filepath.Join(dir, "state")
	cfg.TLS = config.AgentTLS{
		CA:       n.path("ca.pem"),
		HostCert: filepath.Join(dir, "host.pem"), HostKey: filepath.Join(dir, "host.key"),
		DNPCert: filepath.Join(dir, "dnp.pem"), DNPKey: filepath.Join(dir, "dnp.key"),
	}
	for _, h := range []struct {
		half      fault.Half
		cert, key string
	}{{fault.HalfHost, cfg.TLS.HostCert, cfg.TLS.HostKey}, {fault.HalfDNP, cfg.TLS.DNPCert, cfg.TLS.DNPKey}} {
		if err := ca.IssueTo(h.cert, h.key, pki.NodeIdentity(testCluster, id, h.half), nil, nil); err != nil {
			n.t.Fatal(err)
		}
	}
	cfg.Links = map[string]config.LinkAddr{}
	for _, d := range n.dims.Links() {
		peer, _ := n.dims.Neighbour(c, d)
		cfg.Links[d.String()] = config.LinkAddr{Local: links[linkEnd{c, d}], Peer: links[linkEnd{peer, d.Opposite()}]}
	}
	cfg.Service.Listen = freeport.Addr(n.t).String()
	for _, s := range append([]*fakeSupervisor{n.super}, n.more...) {
		cfg.Supervisors = append(cfg.Supervisors, config.SupervisorAddr{ID: s.id, Report: s.net.LocalAddr().String()})
	}
	return cfg
}

// start runs one half and registers its end. Halting it is what a kill is to the other half: it
// stops at once and cleans nothing up that the other would see.
func (n *testNet) start(c grid.Coord, h fault.Half) {
	n.t.Helper()
	cfg := n.cfgs[c]
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), seamKey{}, n.seam))
	done := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(testWriter{n.t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	run := RunHost
	if h == fault.HalfDNP {
		run = RunDNP
	}
	go func() { done <- run(ctx, cfg, log) }()
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

// testWriter sends logs to the test, until that has ended.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b[:max(0, len(b)-1)]))
	return len(b), nil
}
