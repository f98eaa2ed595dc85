package ingest

import (
	"crypto/ecdh"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

func TestMain(m *testing.M) {
	os.Exit(leaks.Main(func() int { return fixedseed.Main(m) }))
}

const wait = time.Minute

var (
	host0 = fault.Origin{Node: "n0", Half: fault.HalfHost}
	dnp0  = fault.Origin{Node: "n0", Half: fault.HalfDNP}
	host1 = fault.Origin{Node: "n1", Half: fault.HalfHost}
	// The service interfaces of n0, whose second one is reached from the second socket; and of n1.
	eth0 = netip.MustParseAddrPort("10.0.0.1:7000")
	eth1 = netip.MustParseAddrPort("10.1.0.1:7000")
	n1   = netip.MustParseAddrPort("10.0.0.2:7000")
)

// authority issues the certificates of a cluster.
type authority struct {
	dir    string
	ca     *pki.CA
	verify *pki.Verifier
	known  map[pki.Identity]*pki.Signer
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), known: make(map[pki.Identity]*pki.Signer)}
	var err error
	if a.ca, err = pki.NewCA("test"); err != nil {
		t.Fatal(err)
	}
	if a.verify, err = pki.NewVerifier(a.ca.CertPEM(), "test"); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) signer(t testing.TB, id pki.Identity) *pki.Signer {
	t.Helper()
	if s := a.known[id]; s != nil {
		return s
	}
	cert, key := filepath.Join(a.dir, "x.pem"), filepath.Join(a.dir, "x.key")
	_ = os.Remove(cert)
	_ = os.Remove(key)
	if err := a.ca.IssueTo(cert, key, id, nil, nil); err != nil {
		t.Fatal(err)
	}
	s, err := pki.LoadSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	a.known[id] = s
	return s
}

// sentTo is a datagram that a supervisor sent.
type sentTo struct {
	socket uint8
	addr   netip.AddrPort
	data   []byte
}

// wire records sent messages; it stands for all sockets of a supervisor.
type wire struct {
	mu   sync.Mutex
	list []sentTo
	more chan struct{}
	err  error // the result of every Send
}

type wireSocket struct {
	w *wire
	n uint8
}

func (s wireSocket) Send(to netip.AddrPort, b []byte) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.err != nil {
		return s.w.err
	}
	s.w.list = append(s.w.list, sentTo{s.n, to, slices.Clone(b)})
	select {
	case s.w.more <- struct{}{}:
	default:
	}
	return nil
}

func (w *wire) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *wire) sent() []sentTo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// await waits until n datagrams were sent.
func (w *wire) await(t testing.TB, n int) []sentTo {
	t.Helper()
	timeout := time.After(wait)
	for {
		if list := w.sent(); len(list) >= n {
			return list
		}
		select {
		case <-w.more:
		case <-timeout:
			t.Fatalf("%d datagrams were sent, want %d", len(w.sent()), n)
		}
	}
}

// half is the peer: one half with its keys and sessions.
type half struct {
	origin  fault.Origin
	signer  *pki.Signer
	verify  servicenet.Verifier
	table   *direct.Sessions
	private *ecdh.PrivateKey
	seq     fault.Seq
}

func (a *authority) half(t testing.TB, o fault.Origin) *half {
	t.Helper()
	h := &half{origin: o, signer: a.signer(t, pki.NodeIdentity("test", o.Node, o.Half)), table: direct.NewSessions()}
	h.verify = direct.WithSessions(a.verify, h.table)
	return h
}

// reports seals n reports of the half, in one datagram.
func (h *half) reports(t testing.TB, epoch fault.Epoch, n int, digest bool, o servicenet.SealOptions) []byte {
	t.Helper()
	var list []fault.Report
	for range n {
		h.seq++
		list = append(list, fault.Report{ID: fault.ReportID{Origin: h.origin, Epoch: epoch, Seq: h.seq}, Digest: digest})
	}
	b, err := servicenet.SealReports(list, nil, h.signer, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *half) seal(t testing.TB, msg *lofamov1.Message) []byte {
	t.Helper()
	b, err := servicenet.Seal(msg, h.signer)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// request returns a sealed REQ.
func (h *half) request(t testing.TB, epoch, id uint64, sums ...lofamov1.Checksum) []byte {
	t.Helper()
	if h.private == nil {
		var err error
		if h.private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	return h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_PathRequest{PathRequest: &lofamov1.PathRequest{
		Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: epoch, Id: id, Checksums: sums,
		Key: h.private.PublicKey().Bytes(),
	}}})
}

// agree derives the session from a REP.
func (h *half) agree(t testing.TB, rep *lofamov1.PathReply) servicenet.SealOptions {
	t.Helper()
	secret, err := servicenet.PathExchange{
		Half: h.origin.String(), Epoch: rep.GetEpoch(), ID: rep.GetId(), Supervisor: "s1", Session: rep.GetSession(),
	}.Secret(h.private, rep.GetKey())
	if err != nil {
		t.Fatal(err)
	}
	key := servicenet.NewSession(rep.GetSession(), secret)
	h.table.Put("s1", servicenet.RoleSupervisor, key)
	return servicenet.SealOptions{Session: key, Checksum: rep.GetChecksum().Enum()}
}

func (h *half) ack(t testing.TB, epoch, id uint64) []byte {
	t.Helper()
	return h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_PathAck{PathAck: &lofamov1.PathAck{
		Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: epoch, Id: id,
	}}})
}

func (h *half) open(t testing.TB, d sentTo) servicenet.Opened {
	t.Helper()
	o, err := servicenet.Open(d.data, h.verify)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// takes is a leader that accepts inputs while it has room.
type takes struct {
	mu      sync.Mutex
	leading bool
	room    int
	got     []engine.Input
}

func (l *takes) Term() uint64 {
	if l.leading {
		return 7
	}
	return 0
}

func (l *takes) Submit(in engine.Input) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.got) == l.room {
		return false
	}
	l.got = append(l.got, in)
	return true
}

func (l *takes) inputs() []engine.Input {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

// forwards records requests to the leader.
type forwards struct {
	got      []*lofamov1.ForwardRequest
	stream   uint64
	restated chan []engine.Restated // nil: dropped
}

func (f *forwards) Stream() uint64 { return f.stream }

func (f *forwards) Restate(stream uint64, list []engine.Restated) {
	if stream == f.stream && f.restated != nil {
		f.restated <- list
	}
}

func (f *forwards) Forward(req *lofamov1.ForwardRequest, _ *servicenet.Reports, _ time.Time) bool {
	f.got = append(f.got, req)
	return true
}

type knownNodes []fault.NodeID

func (k knownNodes) Known(id fault.NodeID) bool { return slices.Contains(k, id) }

// supervisor is a supervisor's rails, without the goroutines until run.
type supervisor struct {
	wire    *wire
	intake  *Intake
	sender  *Sender
	leader  *takes
	forward *forwards
	tells   tells
	metrics *metrics.Metrics
	// noQuorum is the value that acks to its sender carry.
	noQuorum time.Duration
}

// tells records the digests and interests of halves.
type tells struct {
	mu        sync.Mutex
	digests   []notify.Digest
	forwarded []notify.Digest
	interests []*lofamov1.Interest
}

func (t *tells) Digest(d notify.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.digests = append(t.digests, d)
}

func (t *tells) Forwarded(d notify.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forwarded = append(t.forwarded, d)
}

func (t *tells) Interest(m *lofamov1.Interest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interests = append(t.interests, m)
}

func (a *authority) replica(t testing.TB, id string, spoil func(*IntakeConfig)) *supervisor {
	t.Helper()
	r := &supervisor{
		wire: &wire{more: make(chan struct{}, 1)}, leader: &takes{leading: true, room: 1 << 20}, forward: &forwards{},
		metrics: metrics.New(prometheus.NewRegistry()),
	}
	logger := slog.New(slog.DiscardHandler)
	x := NewExchanges(ExchangeConfig{
		ID: id, Wait: 5 * time.Millisecond, Metrics: r.metrics, Logger: logger,
		Allowed: []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C, lofamov1.Checksum_CHECKSUM_XXHASH64},
	})
	r.sender = NewSender(SenderConfig{
		Ports: []Port{{wireSocket{r.wire, 0}, "10.0.0.100:7001"}, {wireSocket{r.wire, 1}, "10.1.0.100:7001"}},
		Nodes: addresses{"n0": {eth0, eth1}, "n1": {n1}},
		Paths: x, Leader: func() string { return "s9" }, NoQuorum: func() time.Duration { return r.noQuorum },
		Signer:  a.signer(t, pki.SupervisorIdentity("test", id)),
		Metrics: r.metrics, Logger: logger,
	})
	cfg := IntakeConfig{
		Names: knownNodes{"n0", "n1"}, Verifier: x.Verifier(a.verify), Sender: r.sender, Leader: r.leader, Forwarder: r.forward,
		Notifier: &r.tells, Metrics: r.metrics, Logger: logger,
	}
	if spoil != nil {
		spoil(&cfg)
	}
	r.intake = NewIntake(cfg)
	return r
}

// run runs the sender and, where wanted, the intake until the test ends.
func (r *supervisor) run(t testing.TB, intake bool) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { r.sender.Run(t.Context()) })
	if intake {
		wg.Go(func() { r.intake.Run(t.Context()) })
	}
	t.Cleanup(wg.Wait)
}

// get handles a datagram that arrived at a socket.
func (r *supervisor) get(from netip.AddrPort, socket uint8, b []byte) {
	r.intake.handle(packet{from: from, socket: socket, data: b, arrived: time.Now()})
}

func (r *supervisor) refused(class string) float64 {
	return value(r.metrics.Refused.WithLabelValues(class))
}

// establish runs a whole exchange of a half over an interface.
func (r *supervisor) establish(t testing.TB, h *half, id uint64, from netip.AddrPort, socket uint8) servicenet.SealOptions {
	t.Helper()
	n := len(r.wire.sent())
	r.get(from, socket, h.request(t, 5, id, lofamov1.Checksum_CHECKSUM_XXHASH64))
	rep := h.open(t, r.wire.await(t, n+1)[n]).Msg.GetPathReply()
	if rep == nil {
		t.Fatal("no reply to a path request")
	}
	o := h.agree(t, rep)
	r.get(from, socket, h.ack(t, 5, id))
	return o
}

// value returns the value of a counter or gauge.
func value(c prometheus.Collector) float64 {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		panic(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// addresses maps nodes to their addresses.
type addresses map[fault.NodeID][]netip.AddrPort

func (a addresses) Services(id fault.NodeID) []netip.AddrPort { return a[id] }

func (a addresses) Owner(addr netip.AddrPort) (fault.NodeID, bool) {
	for id, list := range a {
		if slices.Contains(list, addr) {
			return id, true
		}
	}
	return "", false
}
