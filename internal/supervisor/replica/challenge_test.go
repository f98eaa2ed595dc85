package replica

import (
	"context"
	"log/slog"
	"net"
	"slices"
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

// TestFollowersSendChallenges: the leader's followers send its challenge as well, except those whose stream has ended. A follower
// also sends it through those neighbours whose host halves send it their digests.
func TestFollowersSendChallenges(t *testing.T) {
	ln := bufconn.Listen(1 << 16)
	m := metrics.New(prometheus.NewRegistry())
	srv := grpc.NewServer()
	leader := &Server{Engine: leads{}, Metrics: m, Names: knows{"n8": true, "n9": true, "n10": true}, Window: time.Hour}
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
	digest := func(node fault.NodeID, h fault.Half, p fault.Path) engine.Restated {
		id := fault.ReportID{Origin: fault.Origin{Node: node, Half: h}, Epoch: 1, Seq: 1}
		return engine.Restated{ID: id, Words: 1, Path: p, Arrived: time.Now()}
	}
	want := awareness.Challenge{Node: "n7", Half: fault.HalfDNP, Nonce: [16]byte{1, 2, 3}, Via: []fault.NodeID{"n8", "n9", "n10"}}
	deadline := time.After(time.Minute)
	for got := (awareness.Challenge{}); len(got.Via) == 0; {
		f.Restate(f.Stream(), []engine.Restated{digest("n8", fault.HalfHost, fault.PathDirect),
			digest("n9", fault.HalfDNP, fault.PathDirect), digest("n10", fault.HalfHost, fault.PathTorus)})
		leader.Challenge(want) // until the follower is there and has forwarded the digests
		select {
		case got = <-asked:
			via := len(got.Via) == 0 || slices.Equal(got.Via, want.Via[:1])
			if got.Node != want.Node || got.Half != want.Half || got.Nonce != want.Nonce || !via {
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

// TestFollowerReachesNodeForAWindow: a follower whose last digest of a node is older than the window is not asked to send
// challenges through that node.
func TestFollowerReachesNodeForAWindow(t *testing.T) {
	var s session
	at := time.Now()
	s.heard(fault.Origin{Node: "a", Half: fault.HalfHost}, at)
	s.heard(fault.Origin{Node: "b", Half: fault.HalfDNP}, at)
	for _, tc := range []struct {
		since time.Duration
		want  []string
	}{{-time.Second, []string{"a"}}, {0, []string{"a"}}, {time.Second, nil}} {
		if got := s.reach([]fault.NodeID{"c", "b", "a"}, at.Add(tc.since)); !slices.Equal(got, tc.want) {
			t.Errorf("digests since %s: the follower reaches %q, want %q", tc.since, got, tc.want)
		}
	}
}
