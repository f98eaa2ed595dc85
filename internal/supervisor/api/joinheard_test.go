package api

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// earlierStatuses is a store with nodes' statuses from an earlier term, and a sender of orders to these nodes.
type earlierStatuses struct {
	statuses map[fault.NodeID]*lofamov1.PeerStatus
	answers  order.Registry[ingest.Answers]

	mu     sync.Mutex
	silent bool // x answers nothing
	lose   int  // so many orders to x are lost yet
}

func (*earlierStatuses) Write(context.Context, store.Write) (uint64, error) { return 8, nil }
func (s *earlierStatuses) Peers(context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error) {
	return s.statuses, nil
}
func (*earlierStatuses) Direct(fault.NodeID) bool { return true }

func (s *earlierStatuses) Order(id fault.NodeID, what string, _ func(string) *lofamov1.Message, _ []fault.NodeID) {
	s.mu.Lock()
	lost := s.silent || s.lose > 0
	if id == "x" {
		s.lose--
	}
	s.mu.Unlock()
	if peers, ok := s.answers.Of(what); ok && id == "x" && !lost {
		peers.Take(&lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: &lofamov1.PeerStatus{Node: "x", Spare: true, Life: 77}}})
	}
}

func (s *earlierStatuses) switchOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = true
}

// TestSpareGetsPlaceOnlyIfItIsHeard: x reported its ends under an earlier leader. Its neighbours give up their links to one another only
// for a node that runs now.
func TestSpareGetsPlaceOnlyIfItIsHeard(t *testing.T) {
	for name, tc := range map[string]struct {
		silent  bool
		lose    int
		wait    time.Duration // from the beginning of the term
		thenOff time.Duration // after it has been switched off
		want    codes.Code
	}{
		"switched off before the term":           {silent: true, wait: time.Second, want: codes.Aborted},
		"switched off during the term":           {wait: time.Second, thenOff: time.Minute, want: codes.Aborted},
		"it answers the leader's first question": {wait: time.Second},
		"it joins at the beginning of the term":  {},
		"questions are lost":                     {lose: 5, wait: 10 * time.Second},
		"it was last heard an hour ago":          {wait: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dims, err := grid.Dims{X: 3, Y: 1, Z: 1}.Without(grid.Coord{X: 2})
				if err != nil {
					t.Fatal(err)
				}
				have := topology.New(dims, []topology.Node{{ID: "n0"}, {ID: "n1", Coord: grid.Coord{X: 1}}, {ID: "x", Spare: true}}, nil, 7)
				s := &earlierStatuses{statuses: make(map[fault.NodeID]*lofamov1.PeerStatus), silent: tc.silent, lose: tc.lose}
				for id, at := range map[fault.NodeID]string{"n0": "0,0,0", "n1": "1,0,0", "x": ""} {
					s.statuses[id] = &lofamov1.PeerStatus{Node: string(id), Coord: at, Spare: at == "", Torus: "3x1x1", Ends: []*lofamov1.Peer{
						{Direction: uint32(grid.XPlus), Address: "10.0.0.1:7001"}, {Direction: uint32(grid.XMinus), Address: "10.0.0.1:7002"}}}
				}
				names := view.NamesOf(have)
				channel := orders.New(orders.Config{Names: names, Marks: view.NewMarks(), Masks: view.NewMasks(), Store: s, Sender: s, Spans: true,
					Own: func() map[netip.AddrPort]string { return nil },
					Map: func() (view.Map, bool) { return view.Map{}, false }, Metrics: metrics.New(prometheus.NewRegistry()),
					Logger: slog.New(slog.DiscardHandler)})
				channel.Answers(&s.answers)
				ctx, cancel := context.WithCancel(t.Context())
				var leading sync.WaitGroup
				leading.Go(func() { channel.Lead(ctx, 5, func(context.Context, uint64) error { return nil }) })
				defer leading.Wait()
				defer cancel()
				synctest.Wait()
				time.Sleep(tc.wait)
				if tc.thenOff > 0 {
					s.switchOff()
					time.Sleep(tc.thenOff)
				}
				server := New(Config{Self: "s1", Names: names, Operators: &oneTopology{have: have}, Ends: channel,
					Logger: slog.New(slog.DiscardHandler)})
				began := time.Now()
				resp, err := server.JoinNodes(asOperator(t), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{{Id: "x"}}})
				if status.Code(err) != tc.want || err == nil && resp.GetNodes()[0].GetCoord() != "2,0,0" {
					t.Errorf("%v, %v: want code %s, and without an error the place 2,0,0", resp, err, tc.want)
				}
				if took := time.Since(began); took > agentsWithin {
					t.Errorf("the join took %s: want at most %s", took, agentsWithin)
				}
			})
		})
	}
}
