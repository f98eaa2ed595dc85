package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMain(m *testing.M) {
	os.Exit(leaks.Main(func() int { return fixedseed.Main(m) },
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).monitorDowngrade")))
}

const (
	wait   = time.Minute
	beat   = 100 * time.Millisecond // of the regions
	misses = 4                      // beats of the parent
	limit  = time.Minute            // no load cuts a connected region off. Parent.cutOff moves the clock.
	move   = limit / misses / 2     // of the clock: the parent takes more than a beat for a pause of its own
)

var (
	dims = grid.Dims{X: 4, Y: 1, Z: 1}
	meta = store.Meta{Cluster: "test", Dims: dims.String()}
)

func regionOfTest(id fault.NodeID) string {
	switch id {
	case "n0-0-0", "n1-0-0":
		return "west"
	case "n2-0-0", "n3-0-0":
		return "east"
	}
	return ""
}

// etcd starts a member of its own.
func etcd(t *testing.T) *clientv3.Client {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(path("ca.pem"), path("ca.key")); err != nil {
		t.Fatal(err)
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), freeport.IP().AsSlice()}
	if err := ca.IssueTo(path("s.pem"), path("s.key"), pki.SupervisorIdentity("test", "s"), ips, nil); err != nil {
		t.Fatal(err)
	}
	port := func() string { return "https://" + freeport.Addr(t).String() }
	peer := port()
	m, err := embedded.Start(embedded.Config{
		DataDir: path("data"), Name: "s", PeerURL: peer, ClientURL: port(), InitialCluster: "s=" + peer, ClusterState: "new", Token: "test",
		CertFile: path("s.pem"), KeyFile: path("s.key"), CAFile: path("ca.pem"),
		Retention: time.Hour, QuotaBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m.Client()
}

// campaign makes the caller the leader in a store, in place of the former leader.
func campaign(t *testing.T, c *clientv3.Client) store.Fence {
	t.Helper()
	if _, err := c.Delete(t.Context(), store.ElectionPrefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Put(t.Context(), store.ElectionPrefix+"/x", "test")
	if err != nil {
		t.Fatal(err)
	}
	return store.Fence{Key: store.ElectionPrefix + "/x", Rev: resp.Header.Revision}
}

// child is a region: a store, and whoever leads it.
type child struct {
	t      *testing.T
	name   string
	c      *clientv3.Client
	store  *store.Etcd
	fence  store.Fence
	w      store.Committer
	n      int // events so far
	states map[string]lofamov1.State
	stop   func()
}

func newChild(t *testing.T, name string, keep uint64) *child {
	c := etcd(t)
	r := &child{t: t, name: name, c: c, store: store.NewEtcd(c, store.Options{MaxOps: embedded.MaxTxnOps, KeepEvents: keep}),
		states: make(map[string]lofamov1.State), stop: func() {}}
	r.lead()
	return r
}

func (r *child) lead() {
	r.t.Helper()
	r.fence = campaign(r.t, r.c)
	snap, err := r.store.Load(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if r.w, err = r.store.Writer(r.fence, meta, snap); err != nil {
		r.t.Fatal(err)
	}
}

// change commits a new state of a node.
func (r *child) change(id string, to lofamov1.State) {
	r.t.Helper()
	from := max(r.states[id], lofamov1.State_UNKNOWN)
	r.states[id] = to
	r.n++
	at, _ := names().Coord(fault.NodeID(id))
	st := awareness.NodeStatus{ID: fault.NodeID(id), Coord: at, State: fault.State(to), Cause: fault.CauseNone, Since: time.Unix(1000, 0)}
	if to > lofamov1.State_NORMAL {
		st.Cause = fault.CauseNode
	}
	_, err := r.w.Commit(r.t.Context(), store.Batch{
		Events: []*lofamov1.Event{{
			Node: id, Component: "node", Kind: lofamov1.EventKind_COMPONENT_CHANGED, From: from, To: to, Reason: fmt.Sprint(r.n),
		}},
		Nodes: []*lofamov1.Node{view.Stored(st)},
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// connect has the region's leader pass on.
func (r *child) connect(p *parent) {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(r.name))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	u := NewUplink(UplinkConfig{
		Region: r.name, Dims: dims.String(), Store: r.store, Parents: []string{"p"}, Conn: func(string) *grpc.ClientConn { return conn },
		Beat: beat, Logger: slog.New(slog.DiscardHandler),
	})
	var wg sync.WaitGroup
	wg.Go(func() { u.Run(ctx, r.fence) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		_ = conn.Close()
	})
	r.t.Cleanup(r.stop)
}

// parent is the parent: a store, an engine and its service.
type parent struct {
	t      *testing.T
	c      *clientv3.Client
	store  *store.Etcd
	engine *Parent
	addr   string
	stop   func()       // the term
	ahead  atomic.Int64 // nanoseconds by which the engine's clock leads the real one

	mu      sync.Mutex
	streams map[string]int // open ones, by region
}

func names() *view.Names {
	ids := make(map[grid.Coord]fault.NodeID)
	for rank := range dims.Nodes() {
		ids[dims.At(rank)] = fault.DefaultNodeID(dims.At(rank))
	}
	return view.NewNames(dims, ids)
}

func newParent(t *testing.T) *parent {
	c := etcd(t)
	p := &parent{t: t, c: c, store: store.NewEtcd(c, store.Options{MaxOps: embedded.MaxTxnOps}), stop: func() {},
		streams: make(map[string]int)}
	p.engine = NewParent(ParentConfig{
		Regions: []string{"west", "east"}, Region: regionOfTest, Names: names(), Meta: meta, Beat: limit / misses, Misses: misses, Ops: 20,
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	}, p.store)
	p.engine.now = func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = ln.Addr().String()
	srv := grpc.NewServer(grpc.StreamInterceptor(p.count))
	stopping := make(chan struct{})
	lofamov1.RegisterUpstreamServer(srv, &Server{
		Parent: p.engine, Speakers: map[string]string{"west": "west", "east": "east"}, Stopping: stopping,
		Caller: func(ctx context.Context) (pki.Identity, error) {
			return pki.SupervisorIdentity("test", userAgent(ctx)), nil
		},
	})
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() {
		close(stopping)
		srv.GracefulStop()
	})
	p.lead()
	return p
}

// count keeps streams up to date.
func (p *parent) count(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	name := userAgent(stream.Context())
	add := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.streams[name] += n
	}
	add(1)
	defer add(-1)
	return handle(srv, stream)
}

// lead begins a term, as another leader or the same one again.
func (p *parent) lead() {
	p.t.Helper()
	p.stop()
	fence := campaign(p.t, p.c)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.engine.Lead(ctx, fence) })
	p.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	p.t.Cleanup(p.stop)
	eventually(p.t, "the parent's leader", p.engine.Leading)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(wait)
	for !cond() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited %s for %s", wait, what)
		}
	}
}

func (p *parent) states() map[string]lofamov1.State {
	p.t.Helper()
	out := make(map[string]lofamov1.State)
	m, err := p.engine.Map(p.t.Context())
	if err != nil {
		return nil
	}
	for rank := range m.Len() {
		out[string(m.ID(rank))] = lofamov1.State(m.State(rank))
	}
	return out
}

// shows waits until the map matches the regions' state.
func (p *parent) shows(regions ...*child) {
	p.t.Helper()
	var got map[string]lofamov1.State
	defer func() {
		if p.t.Failed() {
			p.t.Logf("the map is %v", got)
		}
	}()
	eventually(p.t, "the map to be that of the regions", func() bool {
		got = p.states()
		for _, r := range regions {
			for id, want := range r.states {
				if got[id] != want {
					return false
				}
			}
		}
		return got != nil
	})
}

func (p *parent) region(name string) *lofamov1.Region {
	for _, r := range p.engine.Regions() {
		if r.GetName() == name {
			return r
		}
	}
	return nil
}

// cutOff moves the engine's clock until the parent cuts a stopped region off, once the parent has read all of its stream. Before
// each move the parent has heard every other present region, so that it cuts off none of these.
func (p *parent) cutOff(name string) {
	p.t.Helper()
	eventually(p.t, "the stream of "+name+" to end", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.streams[name] == 0
	})
	eventually(p.t, name+" to be cut off", func() bool {
		silent := false
		for _, r := range p.engine.Regions() {
			switch {
			case r.GetName() == name && r.GetState() == lofamov1.State_UNKNOWN:
				return true
			case r.GetName() != name && r.GetState() == lofamov1.State_NORMAL && (r.GetAge() == nil || r.GetAge().AsDuration() >= move):
				silent = true
			}
		}
		if !silent {
			p.ahead.Add(int64(move))
			p.engine.Relabel(p.t.Context()) // the engine reads its clock when an input arrives
		}
		return false
	})
}

func (p *parent) present(name string) {
	p.t.Helper()
	eventually(p.t, name+" to be present", func() bool { return p.region(name).GetState() == lofamov1.State_NORMAL })
}

// events returns the parent's events of a region, and checks that those of components form a chain of states.
func (p *parent) events(name string) (reasons []string) {
	p.t.Helper()
	list, _, err := p.store.Events(p.t.Context(), 0, 0, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	at := make(map[string]lofamov1.State)
	for _, ev := range list {
		if ev.GetRegion() != name {
			continue
		}
		if ev.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED {
			if was := max(at[ev.GetNode()], lofamov1.State_UNKNOWN); ev.GetFrom() != was {
				p.t.Errorf("%s jumps from %s: %v", ev.GetNode(), was, ev)
			}
			at[ev.GetNode()] = ev.GetTo()
		}
		if ev.GetKind() == lofamov1.EventKind_REGION_CHANGED {
			reasons = append(reasons, fmt.Sprintf("%s>%s", ev.GetFrom(), ev.GetTo()))
			if ev.GetFrom() == ev.GetTo() {
				reasons[len(reasons)-1] = ev.GetReason()
			}
		} else {
			reasons = append(reasons, ev.GetReason())
		}
	}
	return reasons
}

func numbers(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func userAgent(ctx context.Context) string {
	md := grpcMetadata(ctx)
	if len(md) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(md[0], " ")
	return name
}

// TestCutOffRegionContinuesAndReturns: two regions connect to the parent; one is cut off, continues by itself, and returns.
func TestCutOffRegionContinuesAndReturns(t *testing.T) {
	p, west, east := newParent(t), newChild(t, "west", 0), newChild(t, "east", 0)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	west.connect(p)
	east.connect(p)
	west.change("n1-0-0", lofamov1.State_SICK)
	east.change("n2-0-0", lofamov1.State_FAILED)
	p.shows(west, east)
	p.present("west")
	p.present("east")

	west.stop()
	p.cutOff("west")
	if got := p.states(); got["n0-0-0"] != lofamov1.State_UNKNOWN || got["n1-0-0"] != lofamov1.State_UNKNOWN ||
		got["n2-0-0"] != lofamov1.State_FAILED {
		t.Errorf("with west cut off: %v", got)
	}
	list, err := p.engine.Detail(t.Context(), []fault.NodeID{"n0-0-0", "n2-0-0"})
	if err != nil || len(list) != 2 || list[0].Status.Life.IsZero() || !list[1].Status.Life.IsZero() {
		t.Errorf("ages: %v, %v", list, err)
	}
	docs, _, err := Copy{p.store}.Nodes(t.Context())
	if err != nil || len(docs) != 3 || docs[0].GetState() != lofamov1.State_FAILED || docs[1].GetState() != lofamov1.State_UNKNOWN ||
		docs[1].GetRegion() != "west" {
		t.Errorf("the copy: %v, %v", docs, err)
	}
	snap, err := Copy{p.store}.MapNow(t.Context())
	if err != nil || len(snap.Nodes) != 3 || len(snap.Groups)+len(snap.Warnings) != 0 {
		t.Errorf("the copy: %v, %v", snap, err)
	}
	if n, err := (Copy{p.store}).Kept(t.Context(), "west", "n1-0-0"); err != nil || n.GetState() != lofamov1.State_SICK {
		t.Errorf("kept: %v, %v", n, err)
	}
	if n, err := (Copy{p.store}).Kept(t.Context(), "west", "n1-0"); err != nil || n != nil {
		t.Errorf("kept of a node that there is not: %v, %v", n, err)
	}
	x, err := p.engine.Explain(t.Context(), "n1-0-0", fault.ComponentNode)
	if err != nil || x.State != fault.Unknown || x.Rule != "cut-off" || !strings.Contains(x.Summary, "no message arrives from region west") {
		t.Errorf("explained: %+v, %v", x, err)
	}
	if x, err = p.engine.Explain(t.Context(), "n2-0-0", fault.ComponentNode); err != nil || x.State != fault.Failed ||
		!strings.Contains(x.Summary, "own supervisors") {
		t.Errorf("explained: %+v, %v", x, err)
	}
	if _, err = p.engine.Explain(t.Context(), "nobody", fault.ComponentNode); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("nobody explained: %v", err)
	}
	if n, ok := find(docs, "n1-0-0"); !ok || n.GetReason() != "cut-off" {
		t.Errorf("the copy: %v", n)
	}
	// Another leader of the parent still has the region cut off.
	p.lead()
	if got := p.states(); got["n1-0-0"] != lofamov1.State_UNKNOWN || p.region("west").GetState() != lofamov1.State_UNKNOWN {
		t.Errorf("with another leader: %v", got)
	}
	west.change("n0-0-0", lofamov1.State_FAILED)
	west.connect(p)
	p.shows(west, east)
	p.present("west")
	want := []string{"1", "2", "UNKNOWN>NORMAL", "NORMAL>UNKNOWN", "3", "UNKNOWN>NORMAL"}
	got := p.events("west")
	if i := slices.Index(got, "2"); i > 0 && got[i-1] == "UNKNOWN>NORMAL" { // heard before it had more to tell
		got[i-1], got[i] = got[i], got[i-1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func find(docs []*lofamov1.Node, id string) (*lofamov1.Node, bool) {
	i := slices.IndexFunc(docs, func(n *lofamov1.Node) bool { return n.GetId() == id })
	if i < 0 {
		return nil, false
	}
	return docs[i], true
}

// TestRemovedRegionLeavesMap: the parent forgets a region that left the configuration, and another region may then
// have its nodes.
func TestRemovedRegionLeavesMap(t *testing.T) {
	p, west, east := newParent(t), newChild(t, "west", 0), newChild(t, "east", 0)
	west.change("n0-0-0", lofamov1.State_SICK)
	east.change("n2-0-0", lofamov1.State_FAILED)
	west.connect(p)
	east.connect(p)
	p.shows(west, east)
	p.present("east")
	west.stop()
	p.stop()
	p.engine.cfg.Regions = []string{"east"}
	p.lead()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	if _, err := p.engine.Map(ctx); err != nil {
		t.Fatalf("the map waits for what was forgotten: %v", err)
	}
	p.shows(east)
	if got := p.states()["n0-0-0"]; got != lofamov1.State_UNKNOWN {
		t.Errorf("n0-0-0 is %s: want UNKNOWN", got)
	}
	entries, _, err := p.store.Tree(t.Context(), prefix+"west/", false)
	if err != nil || len(entries) != 0 {
		t.Errorf("of the region there is still %d keys, %v", len(entries), err)
	}
	if reasons := p.events("west"); !strings.HasPrefix(reasons[len(reasons)-1], "no longer in the configuration") {
		t.Errorf("events %q", reasons)
	}
}

// brokenAfter commits so often, and then fails.
type brokenAfter struct {
	commits int
	deleted []string
}

func (b *brokenAfter) Commit(_ context.Context, batch store.Batch) (uint64, error) {
	if b.commits == 0 {
		return 0, errors.New("broken")
	}
	b.commits--
	b.deleted = append(b.deleted, batch.Deletes...)
	return 1, nil
}

// TestInterruptedRemovalOfRegionIsRepeated: a term ends while it removes a region, and the next term has the region again. The head is
// deleted first, so the region sends its whole map again.
func TestInterruptedRemovalOfRegionIsRepeated(t *testing.T) {
	var entries []store.Entry
	for _, below := range []string{"groups/a", "groups/b", "groups/c", keyHead, "nodes/n0-0-0", "nodes/n1-0-0"} {
		entries = append(entries, store.Entry{Key: "west/" + below})
	}
	e := NewParent(ParentConfig{Regions: []string{"east"}, Region: regionOfTest, Ops: 3, Logger: slog.New(slog.DiscardHandler)}, nil)
	w := &brokenAfter{commits: 1}
	if _, _, err := e.forget(t.Context(), w, entries); err == nil {
		t.Fatal("no error")
	}
	if !slices.Contains(w.deleted, key("west", keyHead)) || len(w.deleted) != 2 {
		t.Errorf("deleted %q: want two keys, the head among them", w.deleted)
	}
}

// TestNodeMovesBetweenRegions: a node moves to another region. Both regions begin with new stores. The one that lost the node
// comes last, and does not remove it from the map.
func TestNodeMovesBetweenRegions(t *testing.T) {
	p, west, east := newParent(t), newChild(t, "west", 0), newChild(t, "east", 0)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	west.change("n1-0-0", lofamov1.State_SICK)
	east.change("n2-0-0", lofamov1.State_NORMAL)
	west.connect(p)
	east.connect(p)
	p.shows(west, east)
	west.stop()
	east.stop()
	p.stop()
	p.engine.cfg.Region = func(id fault.NodeID) string {
		if id == "n1-0-0" {
			return "east"
		}
		return regionOfTest(id)
	}
	west, east = newChild(t, "west", 0), newChild(t, "east", 0)
	east.change("n1-0-0", lofamov1.State_FAILED)
	east.change("n2-0-0", lofamov1.State_NORMAL)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	p.lead()
	east.connect(p)
	p.present("east")
	p.shows(east)
	west.connect(p)
	west.change("n0-0-0", lofamov1.State_SICK)
	p.shows(west)
	if got := p.states()["n1-0-0"]; got != lofamov1.State_FAILED {
		t.Errorf("n1-0-0 is %s: want FAILED", got)
	}
	if docs, _, err := (Copy{p.store}).Nodes(t.Context()); err != nil || len(docs) != 3 {
		t.Errorf("the copy: %v, %v", docs, err)
	}
}

// TestSilentSinceBeforeTerm: the parent's next leader cuts off a region that fell silent under the former one.
func TestSilentSinceBeforeTerm(t *testing.T) {
	p, west := newParent(t), newChild(t, "west", 0)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	west.connect(p)
	p.shows(west)
	p.present("west")
	west.stop()
	p.lead()
	p.cutOff("west")
}

// TestNewLeaderLetsRegionsReconnect: a region that is still connected to the parent's earlier leader, which hangs, has the time to notice
// that.
func TestNewLeaderLetsRegionsReconnect(t *testing.T) {
	p, west, east := newParent(t), newChild(t, "west", 0), newChild(t, "east", 0)
	p.engine.cfg.Reconnect = 2 * limit
	west.connect(p)
	p.present("west")
	west.stop()
	p.lead()
	for begin := p.ahead.Load(); p.ahead.Load()-begin <= int64(limit); p.engine.Relabel(t.Context()) {
		p.ahead.Add(int64(move))
	}
	east.connect(p)
	east.change("n2-0-0", lofamov1.State_SICK)
	p.shows(east) // an earlier cut-off is committed by now
	if got := p.events("west"); slices.Contains(got, "NORMAL>UNKNOWN") {
		t.Errorf("west: events %v: want no cut-off before %s", got, p.engine.cfg.Reconnect)
	}
	p.present("east")
	p.cutOff("west")
}

// TestPausedParentCutsNoRegionOff: the parent's leader is paused for longer than a region may be silent, and continues before it reads the
// regions' messages.
func TestPausedParentCutsNoRegionOff(t *testing.T) {
	p, west, east := newParent(t), newChild(t, "west", 0), newChild(t, "east", 0)
	west.connect(p)
	east.connect(p)
	p.present("west")
	p.present("east")
	p.ahead.Add(int64(2 * limit))
	p.engine.Relabel(t.Context()) // the engine reads its clock when an input arrives
	west.change("n0-0-0", lofamov1.State_SICK)
	east.change("n2-0-0", lofamov1.State_SICK)
	p.shows(west, east) // an earlier cut-off is committed by now
	for _, name := range []string{"west", "east"} {
		if got := p.events(name); slices.Contains(got, "NORMAL>UNKNOWN") {
			t.Errorf("%s: events %v: the region was never silent", name, got)
		}
	}
}

// TestCompactedRegionSendsWholeMap: the region's store has compacted the changes from the time it was cut off, and in one case
// trimmed its history.
func TestCompactedRegionSendsWholeMap(t *testing.T) {
	p, west := newParent(t), newChild(t, "west", 10)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	west.connect(p)
	p.shows(west)
	p.present("west")
	west.stop()
	p.cutOff("west")
	compact := func() {
		rev, err := west.store.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := west.c.Compact(t.Context(), int64(rev)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		west.change("n0-0-0", lofamov1.State_SICK)
		west.change("n0-0-0", lofamov1.State_NORMAL)
	}
	compact()
	west.connect(p)
	p.shows(west)
	p.present("west")
	if got, want := p.events("west"), slices.Concat([]string{"1", "UNKNOWN>NORMAL", "NORMAL>UNKNOWN"}, numbers(2, 7),
		[]string{"UNKNOWN>NORMAL"}); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	west.stop()
	p.cutOff("west")
	for range 200 {
		west.change("n1-0-0", lofamov1.State_FAILED)
		west.change("n1-0-0", lofamov1.State_NORMAL)
	}
	west.change("n1-0-0", lofamov1.State_SICK)
	compact()
	bounds, err := west.store.Bounds(t.Context())
	if err != nil || bounds.Oldest < 9 {
		t.Fatalf("%+v, %v: nothing is lost", bounds, err)
	}
	west.connect(p)
	p.shows(west)
	p.present("west")
	got := p.events("west")[10:]
	if !strings.HasPrefix(got[1], fmt.Sprintf("the region no longer keeps %d events", bounds.Oldest-8)) {
		t.Errorf("the loss is reported as %q of %v", got[1], got[:5])
	}
	if i := slices.Index(got, fmt.Sprint(bounds.Oldest)); i < 0 || !slices.Equal(got[i:len(got)-1], numbers(int(bounds.Oldest), west.n)) {
		t.Errorf("events %v, want those from %d to %d", got, bounds.Oldest, west.n)
	}
}

// TestRecreatedRegionStoreIsNoticed: a region with a recreated store is not mistaken for the old one, though its revisions and
// events are further on. The map is that of the new store, and no component jumps.
func TestRecreatedRegionStoreIsNoticed(t *testing.T) {
	p, was := newParent(t), newChild(t, "west", 0)
	was.change("n0-0-0", lofamov1.State_SICK)
	was.change("n1-0-0", lofamov1.State_FAILED)
	was.connect(p)
	p.shows(was)
	p.present("west")
	was.stop()

	is := newChild(t, "west", 0)
	is.change("n0-0-0", lofamov1.State_NORMAL)
	for range 4 {
		is.change("n0-0-0", lofamov1.State_FAILED)
		is.change("n0-0-0", lofamov1.State_NORMAL)
	}
	is.connect(p)
	p.shows(is)
	if got := max(p.states()["n1-0-0"], lofamov1.State_UNKNOWN); got != lofamov1.State_UNKNOWN {
		t.Errorf("n1-0-0, of which the store knows nothing, is %s", got)
	}
	is.change("n1-0-0", lofamov1.State_NORMAL)
	p.shows(is)
	p.present("west")
	made := "passed on as a whole: what led there is no longer kept"
	var got []string
	for _, r := range p.events("west") {
		if !strings.Contains(r, ">") {
			got = append(got, r)
		}
	}
	want := slices.Concat([]string{"1", "2", "the region has another store, restored from a snapshot or newly made; its " +
		"whole content is here, and nothing else", made, made}, numbers(1, 10))
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestNewLeadersRepeatNoEvent: whoever leads, on either side, is replaced again and again while the region changes; in the end
// the parent has every event once, in order, and the region's map.
func TestNewLeadersRepeatNoEvent(t *testing.T) {
	p, west := newParent(t), newChild(t, "west", 0)
	west.connect(p)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		west.change([]string{"n0-0-0", "n1-0-0"}[rng.IntN(2)], lofamov1.State(1+i%4))
		switch rng.IntN(30) {
		case 0:
			west.stop()
			west.lead()
			west.connect(p)
		case 1:
			p.lead()
		case 2:
			west.stop()
			west.connect(p)
		}
	}
	// The map alone does not prove that all events have arrived: it was the same before.
	eventually(t, "the region's last event", func() bool { return slices.Contains(p.events("west"), "300") })
	p.shows(west)
	p.present("west")
	var got []string
	for _, r := range p.events("west") {
		if !strings.Contains(r, ">") {
			got = append(got, r)
		}
	}
	if !slices.Equal(got, numbers(1, 300)) {
		t.Errorf("%d events: %v", len(got), got)
	}
}

// TestInconsistentMessageIsRefused: a forbidden or inconsistent message is refused with a reason.
func TestInconsistentMessageIsRefused(t *testing.T) {
	p := newParent(t)
	hello := func(region, dims string, term uint64) *lofamov1.UpstreamReportRequest {
		return &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Hello{Hello: &lofamov1.UpstreamHello{Region: region,
			Dims: dims, Term: term, Revision: 5, NextEvent: 1}}}
	}
	change := &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Change{Change: &lofamov1.UpstreamChange{Previous: 1,
		Revision: 2, FirstEvent: 1}}}
	for _, tc := range []struct {
		name string
		who  string
		send []*lofamov1.UpstreamReportRequest
		code codes.Code
		text string
	}{
		{"a stranger", "stranger", nil, codes.PermissionDenied, "is no supervisor of a region"},
		{"another region", "west", []*lofamov1.UpstreamReportRequest{hello("east", "4x1x1", 1)}, codes.PermissionDenied, "speaks for west"},
		{"no hello", "west", []*lofamov1.UpstreamReportRequest{change}, codes.InvalidArgument, "want a hello"},
		{"two hellos", "west", []*lofamov1.UpstreamReportRequest{hello("west", "4x1x1", 7), hello("west", "4x1x1", 7)},
			codes.InvalidArgument, "neither a change nor a beat"},
		{"another torus", "west", []*lofamov1.UpstreamReportRequest{hello("west", "2x1x1", 8)}, codes.InvalidArgument, "dims"},
		{"an older term", "west", []*lofamov1.UpstreamReportRequest{hello("west", "4x1x1", 3)}, codes.FailedPrecondition,
			"term 7 has spoken since"},
		{"out of order", "west", []*lofamov1.UpstreamReportRequest{hello("west", "4x1x1", 9), change}, codes.OutOfRange, "before any snapshot"},
	} {
		conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithUserAgent(tc.who))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := lofamov1.NewUpstreamClient(conn).Report(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range tc.send {
			_ = stream.Send(proto.CloneOf(m))
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %s with %q", tc.name, err, tc.code, tc.text)
		}
		_ = conn.Close()
	}
	p.stop()
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("west"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := lofamov1.NewUpstreamClient(conn).Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a leader: %v", err)
	}
	if _, err := p.engine.Map(t.Context()); err == nil {
		t.Error("a map without a leader")
	}
}

func grpcMetadata(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, "user-agent")
}
