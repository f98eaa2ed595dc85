package replica

import (
	"context"
	"errors"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/lofamo/lofamo/internal/retransmit"
)

const (
	// dialPeriod is the pause between two attempts to connect to a replica whose connection was lost.
	dialPeriod = 20 * time.Millisecond
	// dialTime bounds one attempt: a kernel answers within a round trip.
	dialTime = 200 * time.Millisecond
	// dialsFor is how long the attempts go on after the loss. Later, an election lease of the shortest time has ended.
	dialsFor = 3 * time.Second
)

// Gone waits until the process of a replica is gone, and reports that. It returns false when ctx ends. The process is gone if the replica's
// open connection has ended and the kernel of its machine refuses another one: no process listens there. A replica that is silent,
// unreachable from the beginning, or paused is not gone.
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

// gone is Gone for one connection. It also returns false when the connection is closed here.
func (p peer) gone(ctx context.Context) bool {
	for await(ctx, p.conn, func(s connectivity.State) bool { return s == connectivity.Ready }) &&
		await(ctx, p.conn, func(s connectivity.State) bool { return s != connectivity.Ready }) {
		for lost := time.Now(); time.Since(lost) < dialsFor && p.conn.GetState() != connectivity.Ready; {
			if refuses(ctx, p.addr) {
				return true
			}
			select {
			case <-time.After(dialPeriod):
			case <-ctx.Done():
				return false
			}
		}
	}
	return false
}

// await waits until a connection has a wanted state. It returns false when ctx ends or the connection is closed here.
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

// refuses reports whether a kernel refuses a connection, because no process listens at the address.
func refuses(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := retransmit.Dial(ctx, addr)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
