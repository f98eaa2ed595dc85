package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// The daemon of the DNP half alone does not listen: it continues when the host half's daemon gets the place, and ends
// on request.
func TestSpareOfOneHalf(t *testing.T) {
	d := &daemon{
		cfg: RunConfig{Half: fault.HalfDNP, Agent: config.Agent{Node: "spare-0", Spare: true, Dims: "3x1x1", StateDir: t.TempDir()}},
		log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.awaitPlace(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("asked to stop: %v", err)
	}
	go func() { ended <- d.awaitPlace(t.Context()) }()
	if err := storage.PeerOrders().Save(d.cfg.Agent.StateDir, peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if at := half.WithStoredPeers(d.cfg.Agent).Coord; at != "1,0,0" {
		t.Errorf("goes on at %q", at)
	}
}

// A spare's daemon stops its halves when its place changes or is removed, but not when the stored order is unreadable.
func TestSpareLeavesItsPlace(t *testing.T) {
	here := peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}}
	for what, tc := range map[string]struct {
		word peers.State
		lost error
		want bool
	}{
		"the same place": {here, nil, false}, "no place": {peers.State{Number: 4}, nil, true},
		"another place":              {peers.State{Number: 4, Placed: true}, nil, true},
		"a file that cannot be read": {peers.State{}, peers.ErrState, false}, "no file": {peers.State{}, nil, false},
	} {
		if got := moved("1,0,0", tc.word, tc.lost); got != tc.want {
			t.Errorf("%s: moved %t", what, got)
		}
	}
	d := &daemon{cfg: RunConfig{Agent: config.Agent{Spare: true, Dims: "3x1x1", StateDir: t.TempDir()}}, log: slog.New(slog.DiscardHandler)}
	save := func(s peers.State) {
		t.Helper()
		if err := storage.PeerOrders().Save(d.cfg.Agent.StateDir, s); err != nil {
			t.Fatal(err)
		}
	}
	save(here)
	serving, ended := make(chan struct{}), make(chan error, 1)
	serve := func(ctx context.Context) error {
		close(serving)
		<-ctx.Done()
		return nil
	}
	go func() { ended <- d.inPlace(t.Context(), serve) }()
	<-serving
	save(peers.State{Number: 4})
	if err := <-ended; !errors.Is(err, errMoved) {
		t.Errorf("without a place: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serving = make(chan struct{})
	if err := d.inPlace(ctx, serve); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
}
