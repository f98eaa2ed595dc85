package replica

import (
	"context"
	"log/slog"
	"net"
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

// TestOldEvidenceIsNotForwarded: a message that waited in the queue beyond the credible time, for instance since
// before a term of this replica's own, does not reach the next leader as fresher than it is.
func TestOldEvidenceIsNotForwarded(t *testing.T) {
	ln := bufconn.Listen(1 << 16)
	srv, end := grpc.NewServer(), &leaderEnd{got: make(chan *lofamov1.ForwardRequest, 2)}
	lofamov1.RegisterReplicaServer(srv, end)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

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
