package host

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
)

// watchPeers follows what the DNP half was told, until ctx ends. It has no timer: whoever has one says when to look. Nobody waits for the disk here.
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

// lookAtPeers puts the neighbours' names into what this half says, if they are others.
func (h *hostHalf) lookAtPeers() {
	seen := half.PeersFileSeen(h.StatePath(peerfile.Name))
	if seen == h.peersSeen {
		return
	}
	h.peersSeen = seen
	cfg := half.WithStoredPeers(h.configured)
	around, err := half.TopologyOf(cfg)
	if err != nil || around.Coord != h.Topo.Coord {
		return // a spare whose place was taken: its halves go on until somebody ends them
	}
	h.Log.Info("neighbours as told", "peers", fmt.Sprint(around.NeighbourIDs()))
	h.Around.Store(around)
	h.step(hostcore.Neighbours{Topo: around})
}
