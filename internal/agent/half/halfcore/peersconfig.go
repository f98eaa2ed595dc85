package halfcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peers"
)

// PeersConfig is a half's initial knowledge of its peers.
type PeersConfig struct {
	State peers.State // as kept by an earlier incarnation
	Lost  bool        // a state was kept but cannot be read
	// Ends are this node's own ends of its links, without names. An address that other nodes could not use is left out.
	Ends [grid.NumDirections]peers.Peer
	// Configured are the peers that the configuration names.
	Configured [grid.NumDirections]peers.Peer
	Dims       grid.Dims // the configured torus; zero: none
	Spare      bool      // the supervisors assign its place
	Moves      bool      // its daemon starts the halves again at another place
}

// PeersOfAnotherLife reports whether an order is for another incarnation of the node than its own, which holds the
// given state. It is always false once the node holds an order.
func PeersOfAnotherLife(s peers.State, o *lofamov1.PeerOrder, own uint64) bool {
	return s.Number == 0 && order.OtherLife(o.GetLife(), o.GetLifeUnknown(), own)
}

// PeerStatuses returns a node's status in two parts: its peer state and its configuration, each short enough to be
// relayed. coord is the node's place by its configuration.
func PeerStatuses(self fault.NodeID, epoch fault.Epoch, coord string, s peers.State, cfg PeersConfig, lost bool) [2]*lofamov1.PeerStatus {
	if cfg.Spare {
		coord = s.Place()
	}
	return [2]*lofamov1.PeerStatus{
		{
			Node: string(self), Epoch: uint64(epoch), Number: s.Number, Peers: peers.Proto(s.Peers), Lost: lost, Coord: coord, Spare: cfg.Spare,
			Torus: s.TorusName(), Moves: cfg.Moves,
		},
		{
			Node: string(self), Epoch: uint64(epoch), Coord: coord, Spare: cfg.Spare, Configuration: true,
			Ends: peers.Proto(cfg.Ends), Configured: peers.Proto(cfg.Configured), Torus: cfg.torusName(),
			Moves: cfg.Moves,
		},
	}
}

// torusName is the short name of the configured torus; "-": none.
func (c PeersConfig) torusName() string {
	if c.Dims == (grid.Dims{}) {
		return "-"
	}
	return c.Dims.Short()
}
