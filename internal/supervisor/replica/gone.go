package replica

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/retransmit"
)

const (
	// dialPause is the pause after the first attempt to connect to a replica whose connection was lost. The pauses double.
	dialPause = 20 * time.Millisecond
	// dialTime bounds one attempt: a kernel answers within a round trip.
	dialTime = 200 * time.Millisecond
	// dialsFor bounds the attempts after the loss.
	dialsFor = 3 * time.Second

	// questionEvery is the interval of the questions to a replica, and the time for each answer.
	questionEvery = 200 * time.Millisecond
	// silentAfter is the number of consecutive questions without an answer after which a replica is silent.
	silentAfter = 3
	// roundLate is the delay of this process's own timer from which a round without an answer does not count.
	roundLate = 50 * time.Millisecond
)

// Gone returns true when the process of a replica is gone, and false when ctx ends. It is gone if its open connection has ended and the
// kernel of its machine refuses a new one, because no process listens there. A replica that was unreachable from the beginning is not gone.
func (p *Peers) Gone(ctx context.Context, id string) bool { return p.lost(ctx, id, peer.gone) }

// Silent returns true when a replica has answered none of silentAfter questions in a row, although it answered an earlier one, and false
// when ctx ends. A replica that is only busy may be silent too.
func (p *Peers) Silent(ctx context.Context, id string) bool { return p.lost(ctx, id, peer.silent) }

// lost returns true as soon as is returns true for the connection to a replica, and false when ctx ends.
func (p *Peers) lost(ctx context.Context, id string, is func(peer, context.Context) bool) bool {
	for {
		changed := p.Changed()
		if peer := p.peer(id); peer.conn != nil && is(peer, ctx) {
			return true
		}
		select {
		case <-changed: // the list of replicas, and so perhaps the connection
		case <-ctx.Done():
			return false
		}
	}
}

// Returns waits until a replica answers a question again, and reports whether it does before ctx ends.
func (p *Peers) Returns(ctx context.Context, id string) bool {
	for ctx.Err() == nil {
		if peer := p.peer(id); peer.conn != nil && peer.answers(ctx) {
			return true
		}
		pace(ctx, time.Now().Add(dialPause))
	}
	return false
}

// silent is Silent for one connection. It also returns false when this side closes the connection.
func (p peer) silent(ctx context.Context) bool {
	heard := hearing{}
	for ctx.Err() == nil && p.conn.GetState() != connectivity.Shutdown {
		began := time.Now()
		answered := p.answers(ctx)
		pace(ctx, began.Add(questionEvery))
		if ctx.Err() == nil && heard.asked(answered, time.Since(began)) {
			return true
		}
	}
	return false
}

// hearing judges the silence of one replica.
type hearing struct {
	once   bool // it has answered
	missed int  // questions without an answer since
}

// asked takes the outcome of one question and how long the round took. It reports whether the replica is silent. A round that took too long
// proves only that this process was paused or got too little processor time.
func (h *hearing) asked(answered bool, took time.Duration) (silent bool) {
	switch {
	case answered:
		h.once, h.missed = true, 0
	case took > questionEvery+roundLate:
		h.missed = 0
	case h.once:
		h.missed++
	}
	return h.missed >= silentAfter
}

// answers reports whether the process of the replica answers one question within questionEvery.
func (p peer) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, questionEvery)
	defer cancel()
	_, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	default:
		return true // a refusal is a sign of life
	}
}

// pace waits until a time or the end of ctx.
func pace(ctx context.Context, until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
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
