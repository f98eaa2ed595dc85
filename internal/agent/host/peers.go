package host

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// watchPeers follows the DNP half's peers file until ctx ends. It has no timer: others signal it when to look. No
// other goroutine waits for the disk here.
func (h *hostHalf) watchPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.peersLook:
			h.lookAtPeers()
		}
	}
}

// lookAtPeers updates the neighbours' names in this half's reports, if they have changed.
func (h *hostHalf) lookAtPeers() {
	if !h.peersFile.Changed() {
		return
	}
	cfg := half.WithStoredPeers(h.configured)
	around, err := half.TopologyOf(cfg)
	if err != nil || around.Coord != h.Topo.Coord {
		return // another node took this spare's place: its halves run until stopped from outside
	}
	h.Log.Info("new neighbours from the supervisors' order", "peers", fmt.Sprint(around.NeighbourIDs()), "torus", around.Dims.Short())
	h.Around.Store(around)
	h.step(hostcore.Neighbours{Topo: around})
}
