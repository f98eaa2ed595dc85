package udplink

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// bound is how long a test waits for an expected event: long, for a busy machine.
const bound = time.Minute

// authority issues the test's certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  ed25519.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.cert, a.key = a.sign(template, nil, nil)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, by ed25519.PrivateKey) (*x509.Certificate, ed25519.PrivateKey) {
	a.t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// config is a link's TLS configuration, good for either end, with a certificate for name.
func (a *authority) config(name string) *tls.Config {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"link"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, key := a.sign(template, a.cert, a.key)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		RootCAs:      a.pool, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "link",
	}
}

func noCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return new(tls.Certificate), nil
}

func only(name string) func(*x509.Certificate) error {
	return func(c *x509.Certificate) error {
		if c.Subject.CommonName != name {
			return fmt.Errorf("certificate of %q: want %q", c.Subject.CommonName, name)
		}
		return nil
	}
}

// logs passes a link's log lines to a waiting test, and drops them when none waits.
type logs chan string

func (l logs) Enabled(context.Context, slog.Level) bool { return true }
func (l logs) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logs) WithGroup(string) slog.Handler            { return l }
func (l logs) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	select {
	case l <- line:
	default:
	}
	return nil
}

// node is the smallest shell around a link and its machine: it treats one link as a DNP half does.
type node struct {
	t     testing.TB
	ca    *authority
	cfg   Config
	epoch fault.Epoch
	logs  logs
	// misses is LinkConfig.Misses; 0 stands for 5. With more, a wait for a processor does not break the link.
	misses int

	link   *Link
	cancel context.CancelFunc
	wg     sync.WaitGroup

	packets  chan []byte
	sessions chan *torus.Session
	refusals chan struct{}
	refused  atomic.Int64 // packets

	mu    sync.Mutex
	step  chan struct{} // closed and replaced with every step
	out   torus.LinkOutput
	stats torus.LinkStats
	ids   []uint32
}

func (n *node) OnPacket(_ grid.Direction, b []byte) {
	select {
	case n.packets <- slices.Clone(b):
	default:
	}
}

func (n *node) OnSession(_ grid.Direction, s *torus.Session) { n.sessions <- s }
func (n *node) OnRefused(grid.Direction) {
	n.refused.Add(1)
	select {
	case n.refusals <- struct{}{}:
	default:
	}
}

// pairOf configures both ends of a link, X+ of 0,0,0, which dials, and X- of 1,0,0.
func pairOf(t testing.TB) (a, b *node) {
	t.Helper()
	ca := newAuthority(t)
	addrA, addrB := freeport.Addr(t), freeport.Addr(t)
	a = &node{t: t, ca: ca, logs: make(logs, 64), cfg: Config{
		Dir: grid.XPlus, Dst: grid.Coord{X: 1}, Local: addrA, Peer: addrB, Dialer: true,
		TLS: ca.config("a"), VerifyPeer: only("b"), Rand: mrand.New(mrand.NewPCG(1, 1)),
	}}
	b = &node{t: t, ca: ca, logs: make(logs, 64), cfg: Config{
		Dir: grid.XMinus, Src: grid.Coord{X: 1}, Local: addrB, Peer: addrA,
		TLS: ca.config("b"), VerifyPeer: only("a"), Rand: mrand.New(mrand.NewPCG(2, 2)),
	}}
	a.cfg.Logger, b.cfg.Logger = slog.New(a.logs), slog.New(b.logs)
	return a, b
}

// start starts the node as a new process would.
func (n *node) start() {
	n.t.Helper()
	link, err := Listen(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.link, n.cancel = link, cancel
	n.epoch++
	n.packets, n.sessions = make(chan []byte, 64), make(chan *torus.Session, 4)
	n.refusals = make(chan struct{}, 64)
	n.refused.Store(0)
	n.mu.Lock()
	n.step, n.out, n.stats, n.ids = make(chan struct{}), torus.LinkOutput{}, torus.LinkStats{}, nil
	n.mu.Unlock()
	n.wg.Go(func() {
		if err := link.Run(ctx, n); err != nil {
			n.t.Errorf("run: %v", err)
		}
	})
	n.wg.Go(func() { n.own(ctx) })
	n.t.Cleanup(n.stop)
}

func (n *node) stop() {
	n.cancel()
	n.wg.Wait()
}

// own is the goroutine that owns the machine.
func (n *node) own(ctx context.Context) {
	m := torus.NewLink(torus.LinkConfig{
		Dir: n.cfg.Dir, Src: n.cfg.Src, Dst: n.cfg.Dst, Period: 20 * time.Millisecond, Misses: cmp.Or(n.misses, 5), Grace: 10 * time.Second,
		SickRatio: 0.1, ClearRatio: 0.02, Window: 40, MinErrors: 5, HoldOff: 200 * time.Millisecond,
	}, time.Now())
	var keys torus.Keyring
	buf := make([]byte, 0, n.cfg.MTU)
	status := torus.Status{Epoch: n.epoch, DNP: 0xd, Host: uint32(n.cfg.Dir)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var ev torus.LinkEvent = torus.Tick{}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.refusals:
			ev = torus.Refused{}
		case s := <-n.sessions:
			keys.Add(time.Now(), s)
			ev = torus.SessionStarted{ID: s.ID()}
		case b := <-n.packets:
			f, err := torus.Decode(b, torus.DefaultMaxFrame, &keys)
			if err != nil {
				ev = torus.FrameBad{Kind: torus.KindOf(err)}
				break
			}
			keys.Confirm(f.Session)
			ev = torus.FrameReceived{Frame: f}
		}
		out := m.Step(time.Now(), ev)
		var frames []torus.Frame
		if out.SendHeartbeat {
			frames = append(frames, m.NextFrame(status))
		}
		if out.SendAsk {
			frames = append(frames, m.NextAsk(status))
		}
		for _, f := range frames {
			if wire, err := f.Append(buf[:0], &keys); err == nil {
				_ = n.link.Send(wire)
			}
		}
		if out.Redial {
			n.link.Redial()
		}
		timer.Reset(time.Until(out.Wake))
		n.publish(out, m.Stats(), ev)
	}
}

func (n *node) publish(out torus.LinkOutput, stats torus.LinkStats, ev torus.LinkEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out, n.stats = out, stats
	if s, ok := ev.(torus.SessionStarted); ok {
		n.ids = append(n.ids, s.ID)
	}
	close(n.step)
	n.step = make(chan struct{})
}

// until waits for a step after which the condition holds.
func (n *node) until(what string, holds func(torus.LinkOutput, torus.LinkStats) bool) {
	n.t.Helper()
	deadline := time.After(bound)
	for {
		n.mu.Lock()
		out, stats, step := n.out, n.stats, n.step
		n.mu.Unlock()
		if holds(out, stats) {
			return
		}
		select {
		case <-step:
		case <-deadline:
			n.t.Fatalf("%s: not %s within %v: %s %+v; link %+v", n.cfg.Dir, what, bound, out.Detail, stats, n.link.Stats())
		}
	}
}

// state returns the result of the latest step.
func (n *node) state() (torus.LinkOutput, torus.LinkStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out, n.stats
}

// sessionIDs returns the sessions that the machine knows, the oldest first.
func (n *node) sessionIDs() []uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ids)
}

func (n *node) untilNormal() {
	n.t.Helper()
	n.until("normal both ways", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		return o.Detail.Rx == torus.LinkNormal && o.Detail.Tx == torus.LinkNormal
	})
}

// untilLog waits for a log line that contains all of the words.
func (n *node) untilLog(contains func(line string) bool) string {
	n.t.Helper()
	deadline := time.After(bound)
	for {
		select {
		case line := <-n.logs:
			if contains(line) {
				return line
			}
		case <-deadline:
			n.t.Fatal("the log line did not come")
		}
	}
}
