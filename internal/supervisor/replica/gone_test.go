package replica

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// service is the gRPC service of a replica.
type service struct {
	net.Listener
	*grpc.Server

	mu    sync.Mutex
	conns []net.Conn // accepted
}

// serve starts a service that answers questions about its health, and returns it with peers that have a connection to it as s1.
func serve(t *testing.T, o ...grpc.ServerOption) (*service, *Peers) {
	t.Helper()
	ln, err := net.Listen("tcp", freeport.Addr(t).String())
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Listener: ln, Server: grpc.NewServer(o...)}
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(s) }()
	p := peersOf(t, ln.Addr().String())
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, p
}

// peersOf returns peers that keep one connection to an address, as s1.
func peersOf(t *testing.T, addr string) *Peers {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
	if err != nil {
		t.Fatal(err)
	}
	p := &Peers{peers: map[string]peer{"s1": {addr, conn, new(atomic.Bool)}}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (s *service) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns = append(s.conns, c)
	}
	return c, err
}

// cut closes all connections, and returns their number.
func (s *service) cut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	return len(s.conns)
}

// accepted returns the number of connections so far.
func (s *service) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// watching runs Gone for s1, and returns a channel with its result.
func watching(ctx context.Context, p *Peers) <-chan bool {
	gone := make(chan bool, 1)
	go func() { gone <- p.Gone(ctx, "s1") }()
	return gone
}

// TestReplicaIsGoneWhenItsKernelRefuses: a replica that accepts another connection after the loss of one is not gone. It is gone once
// nothing listens at its address.
func TestReplicaIsGoneWhenItsKernelRefuses(t *testing.T) {
	s, p := serve(t)
	gone := watching(t.Context(), p)
	supervisortest.Eventually(t, "a connection", p.peer("s1").reached.Load)
	cut := s.cut()
	supervisortest.Eventually(t, "another connection", func() bool {
		return s.accepted() > cut && p.Conn("s1").GetState() == connectivity.Ready
	})
	if len(gone) > 0 {
		t.Fatal("Gone reported a replica that accepts connections")
	}
	s.Stop()
	select {
	case is := <-gone:
		if !is {
			t.Error("Gone did not report a replica whose service has ended")
		}
	case <-time.After(time.Minute):
		t.Error("waited a minute for a replica to be gone")
	}
}

// TestReplicaThatWasNeverReachedIsNotGone: its kernel refuses connections from the beginning, perhaps because of a firewall.
func TestReplicaThatWasNeverReachedIsNotGone(t *testing.T) {
	p := peersOf(t, freeport.Addr(t).String())
	ctx, cancel := context.WithCancel(t.Context())
	gone := watching(ctx, p)
	supervisortest.Eventually(t, "the refusal", func() bool { return p.Conn("s1").GetState() == connectivity.TransientFailure })
	time.Sleep(5 * dialPause) // in which a replica that was reached would be gone
	cancel()
	if <-gone {
		t.Error("Gone reported a replica that was never reached")
	}
}

// TestReplicaThatWasRemovedIsNotGone: Set closes its connection on this side.
func TestReplicaThatWasRemovedIsNotGone(t *testing.T) {
	s, p := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone := watching(ctx, p)
	supervisortest.Eventually(t, "a connection", p.peer("s1").reached.Load)
	if err := p.Set(nil); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	time.Sleep(5 * dialPause) // in which a replica of the list would be gone
	cancel()
	if <-gone {
		t.Error("Gone reported a removed replica")
	}
}
