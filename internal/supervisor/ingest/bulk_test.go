package ingest

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// bulkBound is the time limit of a test's waits.
const bulkBound = time.Minute

const bulkCluster = "test"

var (
	node    = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	gateway = fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}
)

// bulkWorld is a manager, a node whose half has an object, and a neighbour, on real sockets. The torus between
// the two nodes is a function call.
type bulkWorld struct {
	t       *testing.T
	m       *BulkManager
	half    *bulkHalf
	sup     *direct.Socket
	direct  *direct.Socket // the node's
	through *direct.Socket // the neighbour's
	verify  *pki.Verifier
	reg     *prometheus.Registry
}

// bulkHalf is a node's half with a bulk.Sender over an object in memory.
type bulkHalf struct {
	w      *bulkWorld
	object []byte
	signer *pki.Signer // its own
	relay  *pki.Signer // the neighbour's

	mu     sync.Mutex
	sender *bulk.Sender
	wakes  *time.Timer
	chunks atomic.Int64            // sent
	onSend func(n int64, via bool) // before each chunk
}

func newBulkWorld(t *testing.T, object []byte, edit func(*BulkConfig)) *bulkWorld {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.NewCA(bulkCluster)
	mustBulk(t, err)
	mustBulk(t, ca.Save(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")))
	signer := func(id pki.Identity, name string) *pki.Signer {
		mustBulk(t, ca.IssueTo(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"), id, nil, nil))
		s, err := pki.LoadSigner(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
		mustBulk(t, err)
		return s
	}
	w := &bulkWorld{t: t, reg: prometheus.NewRegistry()}
	w.verify, err = pki.LoadVerifier(filepath.Join(dir, "ca.pem"), bulkCluster)
	mustBulk(t, err)
	w.half = &bulkHalf{
		w: w, object: object, signer: signer(pki.NodeIdentity(bulkCluster, node.Node, node.Half), "node"),
		relay: signer(pki.NodeIdentity(bulkCluster, gateway.Node, gateway.Half), "gateway"),
	}
	w.half.restart()
	w.half.wakes = time.AfterFunc(time.Hour, func() { w.half.step(bulk.Tick{}) })
	t.Cleanup(func() { w.half.wakes.Stop() })
	w.sup = w.listen(w.atSupervisor)
	w.direct = w.listen(func(_ netip.AddrPort, b []byte) { w.half.take(b) })
	w.through = w.listen(w.atGateway)
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	cfg := BulkConfig{
		Self: "s1", ReplyTo: w.sup.LocalAddr().String(), DirectAddr: w.addrOf, Signer: signer(pki.SupervisorIdentity(bulkCluster, "s1"), "s1"),
		Names: &placedNodes{
			view.NewNames(dims, map[grid.Coord]fault.NodeID{{}: node.Node, {X: 1}: gateway.Node}),
			map[fault.NodeID][]netip.AddrPort{node.Node: {w.direct.LocalAddr()}, gateway.Node: {w.through.LocalAddr()}},
		},
		Normal: func(context.Context) map[fault.NodeID]bool {
			return nil
		},
		Receiver: bulk.DefaultReceiverConfig(), Metrics: metrics.New(w.reg), Logger: slog.New(slog.DiscardHandler),
	}
	if edit != nil {
		edit(&cfg)
	}
	w.m = NewBulk(cfg)
	return w
}

// addrOf returns a node's address, unless the test has removed it.
func (w *bulkWorld) addrOf(id fault.NodeID) (BulkPlace, bool) {
	addrs := w.m.cfg.Names.Services(id)
	if len(addrs) == 0 {
		return BulkPlace{}, false
	}
	return BulkPlace{Addr: addrs[0], Socket: w.sup, ReplyTo: w.sup.LocalAddr().String()}, true
}

// placedNodes are names with addresses that a test can remove.
type placedNodes struct {
	*view.Names
	addrs map[fault.NodeID][]netip.AddrPort
}

func (p *placedNodes) Services(id fault.NodeID) []netip.AddrPort { return p.addrs[id] }

func (p *placedNodes) Owner(addr netip.AddrPort) (fault.NodeID, bool) {
	for id, list := range p.addrs {
		if slices.Contains(list, addr) {
			return id, true
		}
	}
	return "", false
}

func mustBulk(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *bulkWorld) listen(handle direct.Handler) *direct.Socket {
	w.t.Helper()
	s, err := direct.Listen("127.0.0.1:0", direct.Options{})
	mustBulk(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx, handle) }()
	w.t.Cleanup(func() { cancel(); <-done })
	return s
}

// atSupervisor simulates the intake.
func (w *bulkWorld) atSupervisor(from netip.AddrPort, b []byte) {
	if w.m == nil {
		return
	}
	if bulk.IsChunk(b) {
		w.m.Chunk(from, b)
		return
	}
	a, err := servicenet.Unwrap(slices.Clone(b), fault.PathDirect, w.verify)
	if err != nil {
		w.t.Errorf("the supervisor refuses a message: %v", err)
		return
	}
	w.m.Announced(&a, from)
}

// atGateway is the neighbour and the torus behind it.
func (w *bulkWorld) atGateway(_ netip.AddrPort, b []byte) {
	o, err := servicenet.Open(slices.Clone(b), w.verify)
	if err != nil {
		w.t.Errorf("the gateway refuses a message: %v", err)
		return
	}
	to, inner, err := servicenet.InnerOf(o)
	if err != nil || to != node.Node {
		w.t.Errorf("a downcall to %s: %v", to, err)
		return
	}
	w.half.take(inner)
}

// restart simulates a killed half after its start: it has lost all state.
func (h *bulkHalf) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := bulk.DefaultSenderConfig()
	cfg.TorusRate = 5000
	var err error
	h.sender, err = bulk.NewSender(node, cfg)
	mustBulk(h.w.t, err)
}

func (h *bulkHalf) take(b []byte) {
	o, err := servicenet.Open(slices.Clone(b), h.w.verify)
	if err != nil {
		h.w.t.Errorf("the half refuses a message: %v", err)
		return
	}
	if r := o.Msg.GetBulkRequest(); r != nil {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			h.w.t.Error(err)
			return
		}
		h.step(bulk.Requested{Message: r, Supervisor: o.Name, Private: key})
		return
	}
	h.step(bulk.Pulled{Message: o.Msg.GetBulkPull(), Supervisor: o.Name})
}

func (h *bulkHalf) step(ev bulk.SenderEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do(h.sender.Step(time.Now(), ev))
}

func (h *bulkHalf) do(out bulk.SenderOutput) {
	for _, a := range out.Announce {
		b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_BulkAnnounce{BulkAnnounce: a.Message}}, h.signer)
		if err == nil && a.To.Via != "" {
			b, err = servicenet.SealRelayed(b, []fault.Hop{{Node: node.Node, Half: fault.HalfDNP}, {Node: gateway.Node, Half: fault.HalfHost}},
				h.relay)
		}
		if err != nil {
			h.w.t.Error(err)
			return
		}
		h.send(a.To, b)
	}
	for _, c := range out.Chunks {
		b, err := h.sender.Seal(nil, c, h.object[c.Offset:][:c.Length])
		if err != nil {
			h.w.t.Error(err)
			return
		}
		n := h.chunks.Add(1)
		if h.onSend != nil {
			h.onSend(n, c.To.Via != "")
		}
		h.send(c.To, b)
	}
	if !out.Wake.IsZero() {
		h.wakes.Reset(max(time.Until(out.Wake), time.Millisecond))
	}
	for _, g := range out.Gather {
		h.do(h.sender.Step(time.Now(), bulk.Ready{Transfer: g.Transfer, Name: "b.tar.gz", Size: uint64(len(h.object))}))
		h.do(h.sender.Step(time.Now(), bulk.Summed{Transfer: g.Transfer, Checksum: servicenet.ChecksumOf(g.Checksum, h.object)}))
	}
}

func (h *bulkHalf) send(to bulk.Route, b []byte) {
	socket := h.w.direct
	if to.Via != "" {
		socket = h.w.through
	}
	_ = socket.Send(netip.MustParseAddrPort(to.ReplyTo), b) // closed at the end of the test
}

// bulkGot collects a consumer's input.
type bulkGot struct {
	data     []byte
	progress []*lofamov1.BundleProgress
	restarts int
}

func (g *bulkGot) take(r *lofamov1.GetBundleResponse) error {
	if p := r.GetProgress(); p != nil {
		if p.GetReceived() == 0 && len(g.data) > 0 {
			g.data, g.restarts = nil, g.restarts+1
		}
		if p.GetReceived() != uint64(len(g.data)) || len(r.GetData()) > 0 {
			return errors.New("received does not count what came")
		}
		g.progress = append(g.progress, p)
	}
	g.data = append(g.data, r.GetData()...)
	return nil
}

func (w *bulkWorld) fetch(emit func(*lofamov1.GetBundleResponse) error) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), bulkBound)
	defer cancel()
	return w.m.Fetch(ctx, node, "bundle", bulk.MaxSize, emit)
}

func bulkObject(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func (w *bulkWorld) complete(g *bulkGot) *lofamov1.BundleProgress {
	w.t.Helper()
	if err := w.fetch(g.take); err != nil {
		w.t.Fatal(err)
	}
	first, last := g.progress[0], g.progress[len(g.progress)-1]
	if first.GetReceived() != 0 || !last.GetComplete() || last.GetSize() != uint64(len(w.half.object)) || last.GetName() != "b.tar.gz" ||
		!bytes.Equal(g.data, w.half.object) {
		w.t.Errorf("%d bytes of %d, first %v, last %v", len(g.data), len(w.half.object), first, last)
	}
	if n := w.counted("lofamo_bulk_transfers_total", "complete"); n < 1 {
		w.t.Error("not counted")
	}
	return last
}

// counted reads a counter.
func (w *bulkWorld) counted(name, label string) (n float64) {
	w.t.Helper()
	families, err := w.reg.Gather()
	mustBulk(w.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestBundleArrivesDirectly(t *testing.T) {
	w := newBulkWorld(t, bulkObject(600_001), nil)
	if last := w.complete(&bulkGot{}); last.GetVia() != "direct" {
		t.Errorf("by %s", last.GetVia())
	}
}

// TestBundleArrivesThroughTorus has the node's own address silent from the beginning.
func TestBundleArrivesThroughTorus(t *testing.T) {
	w := newBulkWorld(t, bulkObject(300_000), nil)
	w.direct.Block(true)
	if last := w.complete(&bulkGot{}); last.GetVia() != string(gateway.Node) {
		t.Errorf("by %s", last.GetVia())
	}
}

// TestCutInMiddle makes the half fall silent after a hundred chunks.
func TestCutInMiddle(t *testing.T) {
	w := newBulkWorld(t, bulkObject(600_000), nil)
	w.half.onSend = func(n int64, _ bool) {
		if n == 100 {
			w.direct.Block(true)
		}
	}
	g := &bulkGot{}
	if last := w.complete(g); last.GetVia() != string(gateway.Node) || g.restarts != 0 || last.GetRepeated() == 0 {
		t.Errorf("by %s, %d chunks again, begun anew %d times", last.GetVia(), last.GetRepeated(), g.restarts)
	}
}

// TestTransferRestartsWithItsHalf: the transfer restarts, and the consumer learns that the earlier data is void.
func TestTransferRestartsWithItsHalf(t *testing.T) {
	w := newBulkWorld(t, bulkObject(600_000), nil)
	var once sync.Once
	g := &bulkGot{}
	emit := func(r *lofamov1.GetBundleResponse) error {
		if len(g.data) > 50_000 {
			once.Do(w.half.restart)
		}
		return g.take(r)
	}
	if err := w.fetch(emit); err != nil || !bytes.Equal(g.data, w.half.object) || g.restarts != 1 {
		t.Errorf("%v: %d bytes, begun anew %d times", err, len(g.data), g.restarts)
	}
}

// TestSlowConsumerBoundsTransfer: while the consumer stalls, the node sends no more than the buffers hold.
func TestSlowConsumerBoundsTransfer(t *testing.T) {
	w := newBulkWorld(t, bulkObject(2_000_000), nil)
	blocked, release := make(chan struct{}), make(chan struct{})
	g := &bulkGot{}
	var once sync.Once
	errs := make(chan error, 1)
	go func() {
		errs <- w.fetch(func(r *lofamov1.GetBundleResponse) error {
			if len(r.GetData()) > 0 {
				once.Do(func() { close(blocked); <-release })
			}
			return g.take(r)
		})
	}()
	<-blocked
	// The receiver fills its buffer and falls quiet; then the number of chunks stays constant.
	most := int64(w.m.cfg.Receiver.Buffer + 2*w.m.cfg.Receiver.MaxDirect)
	for last := int64(-1); last != w.half.chunks.Load(); time.Sleep(200 * time.Millisecond) {
		last = w.half.chunks.Load()
	}
	if n := w.half.chunks.Load(); n > most {
		t.Errorf("%d chunks were sent to a consumer that takes none, want at most %d", n, most)
	}
	close(release)
	if err := <-errs; err != nil || !bytes.Equal(g.data, w.half.object) {
		t.Errorf("%v: %d bytes", err, len(g.data))
	}
}

// TestBlockedConsumerEndsTransfer: a consumer that reads nothing for its patience loses its place.
func TestBlockedConsumerEndsTransfer(t *testing.T) {
	w := newBulkWorld(t, bulkObject(2_000_000), func(c *BulkConfig) { c.Most, c.Patience = 1, 50*time.Millisecond })
	attempts.One(t, 10, "a transfer that a blocked consumer ends", func() bool {
		release, returned := make(chan struct{}), make(chan struct{})
		var blocked atomic.Bool
		err := w.fetch(func(r *lofamov1.GetBundleResponse) error {
			if len(r.GetData()) > 0 {
				blocked.Store(true)
				<-release
				close(returned)
				return errors.New("gone")
			}
			return nil
		})
		close(release)
		if !errors.Is(err, ErrBulkSlow) {
			t.Errorf("%v, want %v", err, ErrBulkSlow)
			return true
		}
		if !blocked.Load() { // a busy machine may use up the patience before the consumer blocks
			return false
		}
		<-returned // that was the last call
		return true
	})
	w.m.cfg.Patience = bulkBound
	w.complete(&bulkGot{})
}

func TestOutcomeOfEachTransferEnd(t *testing.T) {
	w := newBulkWorld(t, bulkObject(2_000_000), func(c *BulkConfig) { c.Most = 2 })
	full := errors.New("disk full")
	if err := w.fetch(func(r *lofamov1.GetBundleResponse) error {
		if len(r.GetData()) > 0 {
			return full
		}
		return nil
	}); !errors.Is(err, full) {
		t.Errorf("emit fails: %v", err)
	}
	gone := errors.New("the client went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	held := make(chan struct{})
	defer close(held)
	if err := w.m.Fetch(ctx, node, "bundle", bulk.MaxSize, func(r *lofamov1.GetBundleResponse) error {
		if len(r.GetData()) > 0 {
			cancel(gone)
			<-held // a consumer that hangs does not keep the transfer
		}
		return nil
	}); !errors.Is(err, gone) {
		t.Errorf("the context ends: %v", err)
	}
	if err := w.m.Fetch(t.Context(), node, "secrets", bulk.MaxSize, (&bulkGot{}).take); !refusedFor(err, bulk.Refused) {
		t.Errorf("another object: %v", err)
	}
	if err := w.m.Fetch(t.Context(), node, "bundle", 1000, (&bulkGot{}).take); !refusedFor(err, bulk.Refused) {
		t.Errorf("larger than allowed: %v", err)
	}
	if n := len(w.m.transfers); n != 0 || w.m.running != 0 {
		t.Errorf("%d transfers are left, %d run", n, w.m.running)
	}
}

func refusedFor(err error, want bulk.Result) bool {
	var o *OutcomeError
	return errors.As(err, &o) && o.Result == want && o.Error() != ""
}

// TestTransfersAreBounded fills the places.
func TestTransfersAreBounded(t *testing.T) {
	w := newBulkWorld(t, bulkObject(1000), func(c *BulkConfig) { c.Most = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		ended <- w.m.Fetch(ctx, node, "bundle", bulk.MaxSize, func(*lofamov1.GetBundleResponse) error {
			once.Do(func() { close(begun) })
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-begun
	if err := w.fetch((&bulkGot{}).take); !errors.Is(err, ErrBulkBusy) {
		t.Errorf("%v", err)
	}
	cancel()
	<-ended
	w.complete(&bulkGot{})
}

// TestSilentNodeEndsTransfer: all ways are silent.
func TestSilentNodeEndsTransfer(t *testing.T) {
	w := newBulkWorld(t, bulkObject(1000), func(c *BulkConfig) {
		c.Receiver.GiveUp, c.Receiver.KeepAlive, c.Receiver.GatherPoll = 200*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
		c.Receiver.RequestTimeout, c.Receiver.MaxTimeout = 50*time.Millisecond, 100*time.Millisecond
	})
	w.direct.Block(true)
	w.through.Block(true)
	if err := w.fetch((&bulkGot{}).take); !refusedFor(err, bulk.Timeout) {
		t.Errorf("%v", err)
	}
	w.m.cfg.Names.(*placedNodes).addrs = nil
	if err := w.fetch((&bulkGot{}).take); !refusedFor(err, bulk.Timeout) {
		t.Errorf("no way at all: %v", err)
	}
}

// TestUnknownTransfersAreCounted: packets of no transfer are counted and kept nowhere.
func TestUnknownTransfersAreCounted(t *testing.T) {
	w := newBulkWorld(t, bulkObject(1000), nil)
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	mustBulk(t, err)
	k, err := bulk.NewKey(key, key.PublicKey().Bytes(), bulk.Transfer{1}, node, "s1")
	mustBulk(t, err)
	chunk, err := k.Seal(nil, 0, []byte("x"))
	mustBulk(t, err)
	w.m.Chunk(w.direct.LocalAddr(), chunk)
	w.m.Chunk(w.direct.LocalAddr(), chunk[:5])
	announce := &lofamov1.BulkAnnounce{Transfer: make([]byte, 16)}
	a := &servicenet.Arrival{
		Opened: servicenet.Opened{Msg: &lofamov1.Message{Body: &lofamov1.Message_BulkAnnounce{BulkAnnounce: announce}}},
	}
	w.m.Announced(a, w.direct.LocalAddr())
	a.Msg.GetBulkAnnounce().Transfer = nil
	w.m.Announced(a, w.direct.LocalAddr())
	for what, want := range map[string]float64{"foreign": 2, "malformed": 1} {
		if got := w.counted("lofamo_bulk_packets_total", what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

// TestTransferPrefersDirectThenNormalNeighbours: direct first, then the neighbours, NORMAL ones first, then nodes farther away.
func TestTransferPrefersDirectThenNormalNeighbours(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 2, Z: 1}
	ids, nodes := map[grid.Coord]fault.NodeID{}, map[fault.NodeID][]netip.AddrPort{}
	for r := range dims.Nodes() {
		id := fault.DefaultNodeID(dims.At(r))
		ids[dims.At(r)], nodes[id] = id, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}
	}
	m := NewBulk(BulkConfig{Names: &placedNodes{view.NewNames(dims, ids), nodes}, Normal: func(context.Context) map[fault.NodeID]bool {
		return map[fault.NodeID]bool{"n3-0-0": true, "n2-1-0": true, "n2-0-0": true}
	}})
	for _, tc := range []struct {
		without fault.NodeID
		want    []string
	}{
		{"", []string{"direct", "via n3-0-0", "via n1-0-0", "via n0-1-0", "via n2-0-0", "via n1-1-0", "via n3-1-0", "via n2-1-0"}},
		{"n3-0-0", []string{"direct", "via n1-0-0", "via n0-1-0", "via n2-0-0", "via n1-1-0", "via n3-1-0", "via n2-1-0"}},
		{"n0-0-0", []string{"via n1-0-0", "via n0-1-0", "via n2-0-0", "via n1-1-0", "via n3-1-0", "via n2-1-0"}},
	} {
		delete(nodes, tc.without)
		var got []string
		for _, w := range m.ways(t.Context(), "n0-0-0") {
			got = append(got, w.String())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("without %q: %v, want %v", tc.without, got, tc.want)
		}
	}
	if got := m.ways(t.Context(), "nobody"); len(got) != 0 {
		t.Errorf("to nobody: %v", got)
	}
}

// TestTooLargePullIsSplit: a pull that is too large for the wrapper is split in two, with all its ranges.
func TestTooLargePullIsSplit(t *testing.T) {
	var ranges []*lofamov1.ChunkRange
	for i := range uint32(32) {
		ranges = append(ranges, &lofamov1.ChunkRange{First: 1<<14 + 1000*i, Count: 300})
	}
	w := newBulkWorld(t, nil, nil)
	sent := make(recordedSends, 8)
	w.m.cfg.DirectAddr = func(fault.NodeID) (BulkPlace, bool) { return BulkPlace{Socket: sent}, true }
	w.m.send(node, bulk.Send{Way: bulk.Way{Via: string(gateway.Node)},
		Message: &lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: &lofamov1.BulkPull{
			Transfer: make([]byte, 16), Node: string(node.Node), Half: lofamov1.Half_HALF_HOST, Ranges: ranges, ReplyTo: "192.0.2.1:7",
			Via: string(gateway.Node),
		}}}})
	close(sent)
	n := 0
	for b := range sent {
		o, err := servicenet.Open(b, w.verify)
		mustBulk(t, err)
		_, inner, err := servicenet.InnerOf(o)
		mustBulk(t, err)
		o, err = servicenet.Open(inner, w.verify)
		mustBulk(t, err)
		n += len(o.Msg.GetBulkPull().GetRanges())
	}
	if n != 32 {
		t.Errorf("%d ranges were sent, want 32", n)
	}
	for _, half := range splitPull(&lofamov1.BulkPull{Ranges: ranges}) {
		if len(half.GetBulkPull().GetRanges()) != 16 {
			t.Errorf("%v", half)
		}
	}
}

type recordedSends chan []byte

func (r recordedSends) Send(_ netip.AddrPort, b []byte) error {
	r <- slices.Clone(b)
	return nil
}
