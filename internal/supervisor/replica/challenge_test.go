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
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// challenges is a challenger that passes on its challenges.
type challenges chan awareness.Challenge

func (a challenges) Challenge(c awareness.Challenge) bool { a <- c; return true }

type leads struct{}

func (leads) Leading() bool            { return true }
func (leads) Lost()                    {}
func (leads) Submit(engine.Input) bool { return true }

// TestFollowersSendChallenges: the leader's followers send its challenge as well, except those whose stream has ended.
func TestFollowersSendChallenges(t *testing.T) {
	ln := bufconn.Listen(1 << 16)
	m := metrics.New(prometheus.NewRegistry())
	srv, leader := grpc.NewServer(), &Server{Engine: leads{}, Metrics: m}
	lofamov1.RegisterReplicaServer(srv, leader)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

	asked := make(challenges, 1)
	f := NewForwarder(ForwarderConfig{Answerer: nobody{}, Challenger: asked, Confirm: true, Metrics: m, Logger: slog.New(slog.DiscardHandler)})
	changed, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.follow(t.Context(), conn, changed) }()
	want := awareness.Challenge{Node: "n7", Half: fault.HalfDNP, Nonce: [16]byte{1, 2, 3}, Via: []fault.NodeID{"n8"}}
	deadline := time.After(time.Minute)
	for got := (awareness.Challenge{}); got.Node == ""; {
		leader.Challenge(want) // until the follower is there
		select {
		case got = <-asked:
			if got.Node != want.Node || got.Half != want.Half || got.Nonce != want.Nonce || got.Via != nil {
				t.Errorf("asked %+v", got)
			}
		case err := <-ended:
			t.Fatalf("the stream ended: %v", err)
		case <-deadline:
			t.Fatal("nobody was asked")
		case <-time.After(time.Millisecond):
		}
	}
	close(changed)
	for over := false; !over; {
		select {
		case <-asked: // discard the challenges so far
		case err := <-ended:
			if over = true; err != nil {
				t.Error(err)
			}
		}
	}
	for {
		leader.mu.Lock()
		left := len(leader.followers)
		leader.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatal("a follower that is gone is still asked")
		case <-time.After(time.Millisecond):
		}
	}
}
