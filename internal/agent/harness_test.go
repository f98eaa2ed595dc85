package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

const testCluster = "test"

// bound is how long a test waits for what must come: far longer than it takes, so that only a
// failure reaches it.
const bound = 20 * time.Second

// testNet is a torus of real halves in one process, with a fake supervisor.
type testNet struct {
	t     *testing.T
	dir   string
	dims  grid.Dims
	cfgs  map[grid.Coord]config.Agent
	super *fakeSupervisor
	halts map[fault.Origin]func()
}

func newTestNet(t *testing.T, dims grid.Dims, edit func(*config.Agent)) *testNet {
	t.Helper()
	n := &testNet{t: t, dir: t.TempDir(), dims: dims, cfgs: map[grid.Coord]config.Agent{}, halts: map[fault.Origin]func(){}}
	ca, err := pki.NewCA(testCluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(n.path("ca.pem"), n.path("ca.key")); err != nil {
		t.Fatal(err)
	}
	n.super = newFakeSupervisor(t, n, ca)
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
			out[linkEnd{n.dims.At(rank), d}] = freePort(n.t)
		}
	}
	return out
}

// freePort returns an address of which nobody holds the UDP or the TCP port now.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		u, err := net.ListenPacket("udp4", addr)
		if cerr := l.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil {
			continue
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	t.Fatal("no free port")
	return ""
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
	cfg.Service.Listen = freePort(n.t)
	cfg.Supervisors = []config.SupervisorAddr{{ID: "sup-0", Report: n.super.net.LocalAddr().String()}}
	return cfg
}

// start runs one half and registers its end. Halting it is what a kill is to the other half: it
// stops at once and cleans nothing up that the other would see.
func (n *testNet) start(c grid.Coord, h fault.Half) {
	n.t.Helper()
	cfg := n.cfgs[c]
	ctx, cancel := context.WithCancel(context.Background())
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

// said is one observation that reached the supervisor.
type said struct {
	by   fault.Origin
	path fault.Path
	hops []fault.Hop
	obs  fault.Observation
}

func (s said) String() string {
	return fmt.Sprintf("%s says by %s (%d hops): %s %s %s %s", s.by, s.path, len(s.hops), s.obs.Node, s.obs.Component, s.obs.State, s.obs.Kind)
}

// fakeSupervisor acknowledges everything and remembers what it heard.
type fakeSupervisor struct {
	t        *testing.T
	net      *direct.Socket
	signer   *pki.Signer
	verifier *pki.Verifier

	mu      sync.Mutex
	news    *sync.Cond
	heard   []said
	answers map[string]fault.Origin // by nonce
}

func newFakeSupervisor(t *testing.T, n *testNet, ca *pki.CA) *fakeSupervisor {
	t.Helper()
	f := &fakeSupervisor{t: t, answers: map[string]fault.Origin{}}
	f.news = sync.NewCond(&f.mu)
	err := ca.IssueTo(n.path("sup.pem"), n.path("sup.key"), pki.SupervisorIdentity(testCluster, "sup-0"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.signer, err = pki.LoadSigner(n.path("sup.pem"), n.path("sup.key")); err != nil {
		t.Fatal(err)
	}
	if f.verifier, err = pki.LoadVerifier(n.path("ca.pem"), testCluster); err != nil {
		t.Fatal(err)
	}
	if f.net, err = direct.Listen("127.0.0.1:0", direct.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.net.Run(ctx, f.onDatagram) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("fake supervisor: %v", err)
		}
	})
	return f
}

func (f *fakeSupervisor) onDatagram(from netip.AddrPort, b []byte) {
	d, err := servicenet.Unwrap(b, fault.PathDirect, f.verifier)
	if err != nil {
		f.t.Errorf("supervisor refuses a message: %v", err)
		return
	}
	f.mu.Lock()
	if a := d.Msg.GetAnswer(); a != nil {
		f.answers[string(a.GetNonce())] = fault.Origin{Node: fault.NodeID(a.GetNode()), Half: fault.Half(a.GetHalf())}
	}
	for _, r := range d.Reports {
		for _, o := range r.Observations {
			f.heard = append(f.heard, said{r.ID.Origin, d.Path, d.Hops, o})
		}
	}
	f.news.Broadcast()
	f.mu.Unlock()
	for _, r := range d.Reports {
		for _, s := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
			acks := servicenet.NewAcks(s, r.ID)
			acks[0].Leader = "sup-0"
			f.send(from, r.ID.Origin.Node, d.Path, &lofamov1.Message{Acks: acks})
		}
	}
}

// send sends a message to a node: straight, or as a downcall by the host that is at from.
func (f *fakeSupervisor) send(to netip.AddrPort, node fault.NodeID, path fault.Path, m *lofamov1.Message) {
	b, err := servicenet.Seal(m, f.signer)
	if err == nil && path == fault.PathTorus {
		b, err = servicenet.SealDowncall(node, b, f.signer)
	}
	if err != nil {
		f.t.Errorf("fake supervisor: %v", err)
		return
	}
	if err := f.net.Send(to, b); err != nil && !errors.Is(err, servicenet.ErrClosed) { // the test is over
		f.t.Errorf("fake supervisor: %v", err)
	}
}

// forget makes await look only at what comes from now on.
func (f *fakeSupervisor) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = nil
}

// await waits until something was heard that fits.
func (f *fakeSupervisor) await(what string, fits func(said) bool) said {
	f.t.Helper()
	return f.awaitLocked(what, func() (said, bool) {
		for _, s := range f.heard {
			if fits(s) {
				return s, true
			}
		}
		return said{}, false
	})
}

func (f *fakeSupervisor) awaitAnswer(nonce string) fault.Origin {
	f.t.Helper()
	s := f.awaitLocked("an answer", func() (said, bool) { o, ok := f.answers[nonce]; return said{by: o}, ok })
	return s.by
}

func (f *fakeSupervisor) awaitLocked(what string, look func() (said, bool)) said {
	f.t.Helper()
	late := false
	stop := time.AfterFunc(bound, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		late = true
		f.news.Broadcast()
	})
	defer stop.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if s, ok := look(); ok {
			return s
		}
		if late {
			for _, s := range f.heard[max(0, len(f.heard)-60):] {
				f.t.Log(s)
			}
			f.t.Fatalf("not heard within %s: %s", bound, what)
		}
		f.news.Wait()
	}
}

// awaitState waits for a statement on a component of a node by anybody whose word fits.
func (f *fakeSupervisor) awaitState(by fault.Origin, node fault.NodeID, c fault.Component, s fault.State, k fault.Kind) said {
	f.t.Helper()
	return f.await(fmt.Sprintf("%s: %s %s %s %s", by, node, c, s, k), func(x said) bool {
		return x.by == by && x.obs.Node == node && x.obs.Component == c && x.obs.State == s && x.obs.Kind == k
	})
}
