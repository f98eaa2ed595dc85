package half

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// windowHalves returns the configurations of the halves of one node with two kernels. The lease outlasts the pauses of a busy machine.
func windowHalves(t *testing.T) (host, card config.Agent) {
	t.Helper()
	host = agenttest.NodeConfig(t)
	write, read := config.Duration(20*time.Millisecond), config.Duration(2*time.Second)
	host.Periods = &config.PeriodsOverride{TWrite: &write, TRead: &read}
	card = host
	host.TLS.DNPCert, host.TLS.DNPKey, card.TLS.HostCert, card.TLS.HostKey = "", "", "", ""
	a, b := freeport.Addr(t).String(), freeport.Addr(t).String()
	host.Window, card.Window = config.WindowConfig{Listen: a, Peer: b}, config.WindowConfig{Listen: b, Peer: a}
	return host, card
}

// windowEnd is one end of a window. Its state directory stands for a kernel.
type windowEnd struct {
	*Window
	t    *testing.T
	own  *Page
	logs logLines
	stop func()
}

// openEnd opens one end of a window, which runs until the test ends or stops it.
func openEnd(t *testing.T, cfg config.Agent, h fault.Half) *windowEnd {
	t.Helper()
	e := &windowEnd{t: t}
	cfg.StateDir = filepath.Join(agenttest.Dir(t), "state")
	c, err := Prepare(cfg, h, slog.New(slog.NewTextHandler(&e.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if e.own, err = OpenPage(c.StatePath(RegisterFile), h, c.Log); err != nil {
		t.Fatal(err)
	}
	e.own.SetEpoch(1)
	cs := Closers{func() error { return e.own.File.Close() }}
	if e.Window, err = c.OpenWindow(e.own, &cs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if err := cs.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(e.stop)
	e.Run(ctx, g)
	return e
}

// write writes a word of the end's own half, which sends a statement.
func (e *windowEnd) write(w watchdog.DNPWord) {
	if e.common.Half == fault.HalfHost {
		e.own.WriteHost(time.Now(), watchdog.HostWord{Valid: true})
		return
	}
	w.Valid = true
	e.own.note(e.own.File.StoreDNP(w))
	e.Wrote(time.Now(), e.own)
}

// await writes the words of all ends, as halves do, until something holds.
func await(t *testing.T, what string, holds func() bool, ends ...*windowEnd) {
	t.Helper()
	defer func() {
		for _, e := range ends {
			if s := e.Status(time.Now()); t.Failed() {
				t.Logf("%s half at %s: %+v\n%s", e.common.Half, s.Listen, *s, e.logs.all())
			}
		}
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(agenttest.Bound); time.Now().Before(end); <-tick.C {
		for _, e := range ends {
			e.write(watchdog.DNPWord{Core: e.core()})
		}
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", agenttest.Bound, what)
}

// core returns the state that a DNP half's word shows, so that the words of two cards differ.
func (e *windowEnd) core() watchdog.Health {
	if e.own.epoch%2 == 0 {
		return watchdog.HealthSick
	}
	return watchdog.HealthNormal
}

// counts returns what people on the node see.
func (e *windowEnd) counts() local.WindowStatus { return *e.Status(time.Now()) }

// logLines collects the lines of a log.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

// Write adds a line.
func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

func (l *logLines) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}

// count returns the number of lines with all the texts.
func (l *logLines) count(texts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			n++
		}
	}
	return n
}

// hub joins the host's end of a window to the ends of some cards that have the same address for the host, as machines with one
// address on an Ethernet segment. All cards get the host's datagrams, and one of them gets the handshakes.
type hub struct {
	t       *testing.T
	host    netip.AddrPort
	front   *net.UDPConn
	cards   []netip.AddrPort
	backs   []*net.UDPConn
	answers atomic.Int32 // the card that gets handshakes

	mu     sync.Mutex
	record bool
	frames [][]byte // that cards sent while record was set
}

// joinBy puts a hub between a host and its cards, and changes their addresses.
func joinBy(t *testing.T, host *config.Agent, cards ...*config.Agent) *hub {
	t.Helper()
	front := freeport.Addr(t)
	b := &hub{t: t, host: netip.MustParseAddrPort(host.Window.Listen), front: listenUDP(t, front)}
	host.Window.Peer = front.String()
	for _, c := range cards {
		listen, back := freeport.Addr(t), freeport.Addr(t)
		c.Window = config.WindowConfig{Listen: listen.String(), Peer: back.String()}
		b.cards, b.backs = append(b.cards, listen), append(b.backs, listenUDP(t, back))
	}
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(front))
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	g.Go(func() { b.carryHandshakes(tcp, &g) })
	g.Go(func() { b.carry(b.front, b.toCards) })
	for _, back := range b.backs {
		g.Go(func() { b.carry(back, b.fromCard) })
	}
	t.Cleanup(func() {
		_ = tcp.Close()
		for _, c := range append(b.backs, b.front) {
			_ = c.Close()
		}
		g.Wait()
	})
	return b
}

func listenUDP(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (b *hub) carry(c *net.UDPConn, do func([]byte)) {
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		do(buf[:n])
	}
}

func (b *hub) toCards(p []byte) {
	for i, back := range b.backs {
		_, _ = back.WriteToUDPAddrPort(p, b.cards[i]) // a card may be off
	}
}

func (b *hub) fromCard(p []byte) {
	b.mu.Lock()
	if b.record {
		b.frames = append(b.frames, slices.Clone(p))
	}
	b.mu.Unlock()
	b.toHost(p)
}

// toHost sends a datagram to the host, as a card does.
func (b *hub) toHost(p []byte) { _, _ = b.front.WriteToUDPAddrPort(p, b.host) }

func (b *hub) carryHandshakes(l *net.TCPListener, g *sync.WaitGroup) {
	for {
		host, err := l.AcceptTCP()
		if err != nil {
			return
		}
		g.Go(func() {
			defer host.Close()
			back := net.TCPAddrFromAddrPort(netip.AddrPortFrom(freeport.IP(), 0))
			card, err := net.DialTCP("tcp", back, net.TCPAddrFromAddrPort(b.cards[b.answers.Load()]))
			if err != nil {
				return
			}
			defer card.Close()
			g.Go(func() { _, _ = io.Copy(card, host); _ = card.CloseWrite() })
			_, _ = io.Copy(host, card)
		})
	}
}
