package federation

import (
	"crypto/tls"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// acks records the nodes that were acknowledged.
type acks []string

func (a *acks) Answer(_ engine.To, ack *lofamov1.Ack) { *a = append(*a, ack.GetNode()) }

func newPeers(t *testing.T, a engine.Answerer) *Peers {
	t.Helper()
	b, err := NewPeers(PeerConfig{
		Regions: map[string]map[string]string{"east": {"e1": "127.0.0.1:1", "e0": "127.0.0.1:2"}},
		Foreign: map[fault.NodeID]string{"n2": "east", "n3": "east", "n9": "north"},
		Beside:  map[fault.NodeID][]string{"n1": {"east"}, "n0": {"east", "north"}},
		TLS:     func(string) (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS13}, nil }, Answerer: a,
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestPeerForwardsReportsOfOtherRegion(t *testing.T) {
	b := newPeers(t, &acks{})
	for id, want := range map[fault.NodeID]bool{"n2": true, "n9": false, "n1": false, "nobody": false} {
		if got := b.Theirs(id, &lofamov1.ForwardRequest{}, nil, time.Now()); got != want {
			t.Errorf("what is of %s goes on: %t, want %t", id, got, want)
		}
	}
	if !b.Known("n2") || b.Known("n1") {
		t.Error("who is of another region")
	}
	b.Witness("n1", &lofamov1.ForwardRequest{}, nil, time.Now())
	b.Witness("inside", &lofamov1.ForwardRequest{}, nil, time.Now()) // has no neighbour in another region
}

// TestPeerAcknowledgesOwnNodesOnly: another region frees the logs of its own nodes, not of ours.
func TestPeerAcknowledgesOwnNodesOnly(t *testing.T) {
	var got acks
	f := foreignOnly{newPeers(t, &got).cfg}
	f.Answer(engine.To{}, &lofamov1.Ack{Node: "n1"})
	f.Answer(engine.To{}, &lofamov1.Ack{Node: "n2"})
	if !slices.Equal(got, acks{"n2"}) {
		t.Errorf("acknowledged: %v", got)
	}
}

// TestVerdictsCoverOwnNodesOnly: a region's verdicts cover all of its own nodes, and only those.
func TestVerdictsCoverOwnNodesOnly(t *testing.T) {
	b := newPeers(t, &acks{})
	v := &lofamov1.BorderVerdicts{Failed: []*lofamov1.BorderVerdict{{Node: "n3", Host: true}, {Node: "n1", Host: true, Dnp: true},
		{Node: "n9", Dnp: true}}}
	want := []awareness.ForeignVerdict{{Node: "n2"}, {Node: "n3", Host: true}}
	if got := b.Of("east", v); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := b.Of("nowhere", v); got != nil {
		t.Errorf("%+v", got)
	}
}

func TestVerdictsOfHalvesAreCollected(t *testing.T) {
	failed := make(map[fault.NodeID]awareness.ForeignVerdict)
	note(failed, "n1", "link/X+", true)
	note(failed, "n1", "node", true)
	if len(failed) != 0 {
		t.Errorf("what is no half is noted: %v", failed)
	}
	note(failed, "n1", "host", true)
	note(failed, "n1", "dnp", true)
	note(failed, "n1", "host", false)
	if v := failed["n1"]; v != (awareness.ForeignVerdict{Node: "n1", DNP: true}) {
		t.Errorf("%+v", v)
	}
	if note(failed, "n1", "dnp", false); len(failed) != 0 {
		t.Errorf("a living node is kept: %v", failed)
	}
}

// TestRecoveryEventIsNoVerdict: a half has recovered; its recovery event follows with the state at the time of the death.
func TestRecoveryEventIsNoVerdict(t *testing.T) {
	failed := make(map[fault.NodeID]awareness.ForeignVerdict)
	ev := func(k lofamov1.EventKind, to lofamov1.State) {
		noteEvent(failed, &lofamov1.Event{Kind: k, Node: "n1", Component: "host", To: to})
	}
	ev(lofamov1.EventKind_COMPONENT_CHANGED, lofamov1.State_FAILED)
	if !failed["n1"].Host {
		t.Fatalf("%v: want n1's host", failed)
	}
	ev(lofamov1.EventKind_COMPONENT_CHANGED, lofamov1.State_NORMAL)
	ev(lofamov1.EventKind_RECOVERY_CHANGED, lofamov1.State_FAILED)
	ev(lofamov1.EventKind_STARVATION_CHANGED, lofamov1.State_FAILED)
	if len(failed) != 0 {
		t.Errorf("%v: want no verdict", failed)
	}
}

func TestRotationTriesEveryLeader(t *testing.T) {
	r := newRotation(map[string]string{"b": "", "a": ""})
	var got []string
	for range 3 {
		id, _ := r.Leader()
		got = append(got, id)
	}
	if !slices.Equal(got, []string{"a", "b", "a"}) {
		t.Errorf("%v", got)
	}
}
