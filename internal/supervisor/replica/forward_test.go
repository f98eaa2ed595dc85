package replica

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
)

// leaderEnd passes on the requests that a leader receives.
type leaderEnd struct {
	lofamov1.UnimplementedReplicaServer

	got chan *lofamov1.ForwardRequest
}

func (l *leaderEnd) Forward(s grpc.BidiStreamingServer[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		l.got <- req
	}
}

type nobody struct{}

func (nobody) Answer(engine.To, *lofamov1.Ack) {}

// connected returns a connection to a leader.
func connected(t *testing.T, end lofamov1.ReplicaServer) *grpc.ClientConn {
	t.Helper()
	ln, srv := bufconn.Listen(1<<16), grpc.NewServer()
	lofamov1.RegisterReplicaServer(srv, end)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestOldEvidenceIsNotForwarded: a message that waited in the queue beyond the credible time, for instance since
// before a term of this replica's own, does not reach the next leader as fresher than it is.
func TestOldEvidenceIsNotForwarded(t *testing.T) {
	end := &leaderEnd{got: make(chan *lofamov1.ForwardRequest, 2)}
	conn := connected(t, end)
	f := NewForwarder(ForwarderConfig{Answerer: nobody{}, Metrics: metrics.New(prometheus.NewRegistry()),
		Logger: slog.New(slog.DiscardHandler)})
	f.Forward(&lofamov1.ForwardRequest{From: "old"}, nil, time.Now().Add(-2*maxHeld))
	f.Forward(&lofamov1.ForwardRequest{From: "new"}, nil, time.Now().Add(-time.Second))
	changed, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.follow(t.Context(), conn, changed) }()
	select {
	case req := <-end.got:
		if held := time.Duration(req.GetHeldNs()); req.GetFrom() != "new" || held < time.Second || held > maxHeld {
			t.Errorf("the leader got what was %s, held for %v; want what was new, held for a second", req.GetFrom(), held)
		}
	case err := <-ended:
		t.Fatalf("the stream ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the leader got nothing")
	}
	close(changed)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// hungLeader opens streams and reads nothing.
type hungLeader struct {
	lofamov1.UnimplementedReplicaServer

	opened chan struct{}
}

func (l hungLeader) Forward(s grpc.BidiStreamingServer[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) error {
	l.opened <- struct{}{}
	<-s.Context().Done()
	return s.Context().Err()
}

// electedLeader is a LeaderSource that tests set.
type electedLeader struct {
	mu      sync.Mutex
	id      string
	changed chan struct{}
}

func (l *electedLeader) Leader() (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id, l.changed
}

func (l *electedLeader) set(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = id
	close(l.changed)
	l.changed = make(chan struct{})
}

// TestForwarderLeavesHungLeader: the leader's process hangs, and the stream to it is full. When another replica leads, the evidence goes
// there.
func TestForwarderLeavesHungLeader(t *testing.T) {
	const bound, messages = 10 * time.Second, 16
	hung, next := hungLeader{opened: make(chan struct{}, 1)}, &leaderEnd{got: make(chan *lofamov1.ForwardRequest, messages)}
	peers := &Peers{changed: make(chan struct{}),
		peers: map[string]peer{"hung": {conn: connected(t, hung)}, "next": {conn: connected(t, next)}}}
	leaders := &electedLeader{id: "hung", changed: make(chan struct{})}
	f := NewForwarder(ForwarderConfig{Peers: peers, Leaders: leaders, Answerer: nobody{}, Metrics: metrics.New(prometheus.NewRegistry()),
		Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	select {
	case <-hung.opened:
	case <-time.After(bound):
		t.Fatal("no stream to the first leader")
	}
	// More than the stream's window: the forwarder takes the first messages from its backlog, and then waits for the leader.
	for i := range messages {
		f.Forward(&lofamov1.ForwardRequest{From: strconv.Itoa(i), Envelope: make([]byte, 64<<10)}, nil, time.Now())
	}
	for deadline := time.Now().Add(bound); ; runtime.Gosched() {
		f.mu.Lock()
		left := f.backlog.len()
		f.mu.Unlock()
		if left < messages-1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d messages are in the backlog", left)
		}
	}
	leaders.set("next")
	select {
	case <-next.got:
	case <-time.After(bound):
		t.Fatal("the next leader gets nothing")
	}
}
