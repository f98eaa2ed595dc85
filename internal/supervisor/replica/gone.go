package replica

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/lofamo/lofamo/internal/retransmit"
)

const (
	// dialPause is the pause after the first attempt to connect to a replica whose connection was lost. The pauses double.
	dialPause = 20 * time.Millisecond
	// dialTime bounds one attempt: a kernel answers within a round trip.
	dialTime = 200 * time.Millisecond
	// dialsFor bounds the attempts after the loss.
	dialsFor = 3 * time.Second
)

// Gone returns true when the process of a replica is gone, and false when ctx ends. A process is gone if its open connection has ended and
// the kernel of its machine refuses a new one, because no process listens there. A replica that is silent, unreachable from the beginning,
// or paused is not gone.
func (p *Peers) Gone(ctx context.Context, id string) bool {
	for {
		changed := p.Changed()
		peer := p.peer(id)
		if peer.conn != nil && peer.gone(ctx) {
			return true
		}
		select {
		case <-changed: // the list of replicas, and so perhaps the connection
		case <-ctx.Done():
			return false
		}
	}
}

// Refuses reports whether the kernel of a replica's machine refuses connections now.
func (p *Peers) Refuses(ctx context.Context, id string) bool {
	peer := p.peer(id)
	return peer.conn != nil && refused(ctx, peer.addr)
}

// gone is Gone for one connection. It also returns false when this side closes the connection.
func (p peer) gone(ctx context.Context) bool {
	ready := func(s connectivity.State) bool { return s == connectivity.Ready }
	lost := func(s connectivity.State) bool { return s != connectivity.Ready }
	for await(ctx, p.conn, lost) {
		if p.reached.Load() && p.refusesSoon(ctx) {
			return true
		}
		if !await(ctx, p.conn, ready) {
			return false
		}
	}
	return false
}

// refusesSoon reports whether the kernel of the replica's machine refuses a connection within dialsFor, while none is open. While the
// process ends, its kernel may still accept some.
func (p peer) refusesSoon(ctx context.Context) bool {
	began := time.Now()
	for pause := dialPause; time.Since(began) < dialsFor; pause *= 2 {
		if s := p.conn.GetState(); s == connectivity.Ready || s == connectivity.Shutdown {
			return false
		}
		if refused(ctx, p.addr) {
			return true
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// await waits until a connection has a wanted state. It returns false when ctx ends or this side closes the connection.
func await(ctx context.Context, conn *grpc.ClientConn, wanted func(connectivity.State) bool) bool {
	for {
		state := conn.GetState()
		switch {
		case state == connectivity.Shutdown:
			return false
		case wanted(state):
			return true
		case !conn.WaitForStateChange(ctx, state):
			return false
		}
	}
}

// refused reports whether all addresses of a host refuse a connection to a port.
func refused(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return false
	}
	for _, ip := range ips {
		c, err := retransmit.Dial(ctx, net.JoinHostPort(ip, port))
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return len(ips) > 0
}
