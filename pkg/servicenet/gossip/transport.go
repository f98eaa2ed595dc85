package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

var errBlocked = errors.New("gossip is blocked by fault injection")

// maxStreams bounds the streams that others hold open to us at one time. Of each, memberlist gathers up
// to 20 MB before it can know whether the other end has the key, and it does not bound their number.
// Who is refused tries again, in step with rejoinInterval or the next push and pull.
const maxStreams = 32

// floodRest is how long nothing is read where more packets come than Config.MaxPackets.
const floodRest = time.Millisecond

// transport is memberlist's own with a switch in it: while it is blocked, packets are dropped and
// streams refused, both ways.
type transport struct {
	inner   *memberlist.NetTransport
	ctx     context.Context // ends dials when the member closes
	blocked atomic.Bool
	open    chan struct{} // one for each stream that is open
	refused atomic.Uint64
	pace    *rate.Limiter // of packets; nil: no bound
	packets chan *memberlist.Packet
	streams chan net.Conn
	stop    sync.Once
	done    chan struct{}
	wg      sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(ctx context.Context, bind netip.AddrPort, logger *log.Logger, pace *rate.Limiter) (*transport, error) {
	// With port 0 the TCP port that the kernel gives may be taken in UDP.
	tries := 1
	if bind.Port() == 0 {
		tries = 10
	}
	var inner *memberlist.NetTransport
	var err error
	for range tries {
		inner, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{bind.Addr().String()}, BindPort: int(bind.Port()), Logger: logger})
		if err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	t := &transport{
		inner:   inner,
		ctx:     ctx,
		open:    make(chan struct{}, maxStreams),
		pace:    pace,
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
		done:    make(chan struct{}),
	}
	t.wg.Go(t.forwardPackets)
	t.wg.Go(t.forwardStreams)
	return t, nil
}

func (t *transport) block(on bool) { t.blocked.Store(on) }

func (t *transport) forwardPackets() {
	for {
		select {
		case <-t.done:
			return
		case p := <-t.inner.PacketCh():
			if t.pace != nil && !t.pace.Allow() {
				time.Sleep(floodRest) // memberlist reads no further meanwhile
			}
			if t.blocked.Load() {
				continue
			}
			select {
			case t.packets <- p:
			case <-t.done:
				return
			}
		}
	}
}

func (t *transport) forwardStreams() {
	for {
		select {
		case <-t.done:
			return
		case c := <-t.inner.StreamCh():
			if t.blocked.Load() {
				_ = c.Close()
				continue
			}
			select {
			case t.open <- struct{}{}:
				c = &stream{Conn: c, release: sync.OnceFunc(func() { <-t.open })}
			default:
				t.refused.Add(1)
				_ = c.Close()
				continue
			}
			select {
			case t.streams <- c:
			case <-t.done:
				_ = c.Close()
				return
			}
		}
	}
}

// stream is an accepted stream, which gives its place back when it is closed.
type stream struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.release()
	return s.Conn.Close()
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	return t.inner.FinalAdvertiseAddr(ip, port)
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	if t.blocked.Load() {
		return time.Now(), nil // as a cut cable: the sender does not know
	}
	return t.inner.WriteToAddress(b, addr)
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.blocked.Load() {
		return nil, fmt.Errorf("dial %s: %w", addr.Addr, errBlocked)
	}
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(t.ctx, "tcp", addr.Addr)
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport. The forwarders run until the inner listeners have
// stopped: these could not stop while they wait to hand something over.
func (t *transport) Shutdown() error {
	var err error
	t.stop.Do(func() {
		err = t.inner.Shutdown()
		close(t.done)
		t.wg.Wait()
	})
	return err
}
