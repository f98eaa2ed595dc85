package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// answerWithin bounds every wait for an answer on loopback.
const answerWithin = 30 * time.Second

// ErrUnanswered is the error for a datagram without an answer in time.
var ErrUnanswered = errors.New("no answer")

// Sample is one exchange.
type Sample struct {
	RoundTrip time.Duration // from before it was handed over until its answer has been understood
	Sender    time.Duration // spent from outbox to socket; raw datagrams have none
	Receiver  time.Duration // spent from socket to inbox
	Processor time.Duration // of the whole process meanwhile; the caller of Once fills it in
}

// Added returns the time of one way in addition to the datagram's own.
func (s Sample) Added() time.Duration { return s.Sender + s.Receiver }

// Flow is the throughput of a saturated sender.
type Flow struct {
	Reports, Datagrams uint64
	Bytes              uint64 // of reports' datagrams, without UDP's and IP's headers
	Took               time.Duration
}

// PerSecond is a count of the flow over its time.
func (f Flow) PerSecond(n uint64) float64 { return float64(n) / f.Took.Seconds() }

// Exchange is a way to say something and be answered.
type Exchange interface {
	// Once sends one and waits for its answer.
	Once() (Sample, error)
	// Saturate keeps window datagrams or reports on their way for so long.
	Saturate(d time.Duration, window int) (Flow, error)
	Close() error
}

// port is a UDP socket: a plain one or the direct rail's.
type port interface {
	send(to netip.AddrPort, b []byte) error
	addr() netip.AddrPort
	run(ctx context.Context, handle func(from netip.AddrPort, b []byte)) error
}

// Echo is raw datagrams there and back: the bound for everything that is built on them.
type Echo struct {
	near, far port
	payload   []byte
	back      chan time.Time
	stop      func() error
}

// NewEcho returns an Echo that answers datagrams of size bytes with datagrams of answer bytes. Its sockets are plain
// ones of package net or, with rail, those of the direct rail.
func NewEcho(rail bool, size, answer int) (*Echo, error) {
	e := &Echo{payload: make([]byte, size), back: make(chan time.Time, 1<<16)}
	open := newPlain
	if rail {
		open = newRailPort
	}
	var err error
	if e.near, err = open(); err != nil {
		return nil, err
	}
	if e.far, err = open(); err != nil {
		return nil, err
	}
	reply := make([]byte, answer)
	e.stop = start(
		func(ctx context.Context) error {
			return e.near.run(ctx, func(netip.AddrPort, []byte) { e.back <- time.Now() })
		},
		func(ctx context.Context) error {
			return e.far.run(ctx, func(from netip.AddrPort, _ []byte) { _ = e.far.send(from, reply) })
		},
	)
	return e, nil
}

// start runs functions until stop is called, which returns their errors.
func start(run ...func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range run {
		g.Go(func() error { return f(ctx) })
	}
	return func() error {
		cancel()
		return g.Wait()
	}
}

// Once implements Exchange.
func (e *Echo) Once() (Sample, error) {
	begun := time.Now()
	if err := e.near.send(e.far.addr(), e.payload); err != nil {
		return Sample{}, err
	}
	at, err := await(e.back)
	return Sample{RoundTrip: at.Sub(begun)}, err
}

// Saturate implements Exchange.
func (e *Echo) Saturate(d time.Duration, window int) (Flow, error) {
	var f Flow
	begun := time.Now()
	for inFlight := 0; inFlight > 0 || time.Since(begun) < d; {
		for ; inFlight < window && time.Since(begun) < d; inFlight++ {
			if err := e.near.send(e.far.addr(), e.payload); err != nil {
				return f, err
			}
			f.Datagrams++
		}
		if _, err := await(e.back); err != nil {
			return f, err
		}
		inFlight--
		for more := true; more && inFlight > 0; {
			select {
			case <-e.back:
				inFlight--
			default:
				more = false
			}
		}
	}
	f.Took, f.Reports, f.Bytes = time.Since(begun), f.Datagrams, f.Datagrams*uint64(len(e.payload))
	return f, nil
}

// Close implements Exchange.
func (e *Echo) Close() error { return e.stop() }

// await waits for one answer.
func await(back <-chan time.Time) (time.Time, error) {
	select {
	case at := <-back:
		return at, nil
	default:
	}
	late := time.NewTimer(answerWithin)
	defer late.Stop()
	select {
	case at := <-back:
		return at, nil
	case <-late.C:
		return time.Time{}, fmt.Errorf("%w within %s", ErrUnanswered, answerWithin)
	}
}

type plain struct{ c *net.UDPConn }

func newPlain() (port, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(1 << 20) // as the direct rail has it
	return plain{c}, nil
}

func (p plain) send(to netip.AddrPort, b []byte) error {
	_, err := p.c.WriteToUDPAddrPort(b, to)
	return err
}

func (p plain) addr() netip.AddrPort { return p.c.LocalAddr().(*net.UDPAddr).AddrPort() }

func (p plain) run(ctx context.Context, handle func(netip.AddrPort, []byte)) error {
	stop := context.AfterFunc(ctx, func() { _ = p.c.Close() })
	defer stop()
	buf := make([]byte, 2048)
	for {
		n, from, err := p.c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read raw datagrams: %w", err)
		}
		handle(from, buf[:n])
	}
}

type railPort struct{ s *direct.Socket }

func newRailPort() (port, error) {
	s, err := direct.Listen("127.0.0.1:0", direct.Options{})
	return railPort{s}, err
}

func (p railPort) send(to netip.AddrPort, b []byte) error { return p.s.Send(to, b) }
func (p railPort) addr() netip.AddrPort                   { return p.s.LocalAddr() }
func (p railPort) run(ctx context.Context, handle func(netip.AddrPort, []byte)) error {
	return p.s.Run(ctx, handle)
}
