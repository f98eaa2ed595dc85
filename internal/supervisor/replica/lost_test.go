package replica

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestLeaderHearsOfLosses: the message after a loss at a follower informs the leader, once.
func TestLeaderHearsOfLosses(t *testing.T) {
	const late = 200 * time.Millisecond
	digest := func(seq fault.Seq) *servicenet.Reports {
		return &servicenet.Reports{List: []fault.Report{{ID: fault.ReportID{Seq: seq}, Digest: true}}}
	}
	for _, tc := range []struct {
		name string
		lose func(f *Forwarder)
		want bool
	}{
		{"nothing", func(*Forwarder) {}, false},
		{"a loss in the intake", (*Forwarder).Lost, true},
		{"a digest that waited long", func(f *Forwarder) {
			f.Forward(&lofamov1.ForwardRequest{}, digest(1), time.Now().Add(-2*late))
		}, true},
		{"digests beyond the backlog", func(f *Forwarder) {
			for i := range maxDigests + 1 {
				f.Forward(&lofamov1.ForwardRequest{}, digest(fault.Seq(i)), time.Now().Add(time.Hour))
			}
		}, true},
		{"restated digests beyond the queue", func(f *Forwarder) {
			for range maxRestated + 1 {
				f.Restate(1, []engine.Restated{{Arrived: time.Now().Add(time.Hour)}})
			}
		}, true},
		{"the end of a stream, which may have taken digests", (*Forwarder).closed, true},
		{"a loss long ago", func(f *Forwarder) { f.lost = time.Now().Add(-lostFor) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			end := &leaderEnd{got: make(chan *lofamov1.ForwardRequest, 2*maxDigests)}
			f := NewForwarder(ForwarderConfig{Answerer: nobody{}, Late: late, Metrics: metrics.New(prometheus.NewRegistry()),
				Logger: slog.New(slog.DiscardHandler)})
			f.opened() // stream 1
			tc.lose(f)
			f.Forward(&lofamov1.ForwardRequest{From: "last"}, nil, time.Now().Add(time.Hour))
			changed, ended := make(chan struct{}), make(chan error, 1)
			conn := connected(t, end)
			go func() { ended <- f.follow(t.Context(), conn, changed) }()
			lost, want, last := 0, map[bool]int{true: 1}[tc.want], false
			for limit := time.After(time.Minute); !last || f.waits() || lost < want; {
				select {
				case req := <-end.got:
					last = last || req.GetFrom() == "last"
					if req.GetLost() {
						lost++
					}
				case err := <-ended:
					t.Fatalf("the stream ended: %v", err)
				case <-limit:
					t.Fatalf("%d messages reported a loss, want %d; got the last message: %t", lost, want, last)
				}
			}
			close(changed)
			<-ended
			for len(end.got) > 0 {
				if (<-end.got).GetLost() {
					lost++
				}
			}
			if lost != want {
				t.Errorf("%d messages reported a loss, want %d", lost, want)
			}
		})
	}
}

// waits reports whether anything waits for the leader.
func (f *Forwarder) waits() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.backlog.len()+len(f.restated) > 0
}

// hears counts losses.
type hears struct {
	leads
	lost chan struct{}
}

func (h hears) Lost() { h.lost <- struct{}{} }

// refusesAll finds no evidence in any message.
type refusesAll struct{}

func (refusesAll) Forwarded(*lofamov1.ForwardRequest) *engine.Input { return nil }
func (refusesAll) Taken(*engine.Input)                              {}

// TestLeaderNotesFollowersLosses checks that the leader notes its followers' losses, and ignores losses of other regions' supervisors.
func TestLeaderNotesFollowersLosses(t *testing.T) {
	for _, own := range []bool{true, false} {
		h := hears{lost: make(chan struct{}, 2)}
		srv := &Server{Engine: h, Verifier: refusesAll{}, Metrics: metrics.New(prometheus.NewRegistry()),
			Own: func(context.Context) bool { return own }}
		s, err := lofamov1.NewReplicaClient(connected(t, srv)).Forward(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, req := range []*lofamov1.ForwardRequest{
			{Path: uint32(fault.PathDirect), Lost: true}, {Path: uint32(fault.PathTorus)}, // which ends the stream
		} {
			if err := s.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Recv(); err == nil {
			t.Fatal("the stream goes on")
		}
		if noted := len(h.lost) == 1; noted != own {
			t.Errorf("own replica %t: %d losses noted", own, len(h.lost))
		}
	}
}
