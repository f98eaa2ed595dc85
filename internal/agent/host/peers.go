package host

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
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
	around := h.newPeers()
	if around == nil {
		return
	}
	h.Log.Info("new neighbours from the supervisors' order", "peers", fmt.Sprint(around.NeighbourIDs()), "torus", around.Dims.Short())
	h.Around.Store(around)
	h.step(hostcore.Neighbours{Topo: around})
}

// newPeers returns the topology with the neighbours in the DNP half's peers file, and accepts these neighbours as netconsole senders. It
// returns nil if the file has not changed. It also returns nil for a missing or unreadable file, so that the present neighbours stay.
func (h *hostHalf) newPeers() *halfcore.Topology {
	if !h.peersFile.Changed() {
		return nil
	}
	word, lost := storage.PeerOrders().Load(h.Config.StateDir)
	h.peersLost.Set(h.Log, "reading the neighbours of the DNP half", lost)
	if lost != nil {
		h.peersFile.Again() // perhaps the DNP half was writing it
	}
	if word.Number == 0 {
		return nil
	}
	cfg := half.WithPeers(h.configured, word)
	around, err := half.TopologyOf(cfg)
	if err != nil || around.Coord != h.Topo.Coord {
		return nil // another node took this spare's place: its halves run until stopped from outside
	}
	h.SetSenders(cfg)
	return around
}
