package half

import (
	"maps"
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// WithPeers returns the configuration with the supervisors' updates: the torus, the place of a spare or of a node that has moved,
// and all peers.
func WithPeers(cfg config.Agent, word peers.State) config.Agent {
	file := cfg
	if cfg.Spare || word.Placed {
		cfg.Coord = word.Place()
	}
	if word.Torus != (grid.Dims{}) {
		cfg.Dims = word.Torus.String()
	}
	cfg.Links = maps.Clone(cfg.Links)
	for i, d := range grid.Directions() {
		l, ok := cfg.Links[d.String()]
		if !ok {
			continue
		}
		if p := word.Peers[i]; p.Node != "" {
			l.PeerNode = p.Node
			if p.Address.IsValid() {
				l.Peer = p.Address.String()
			}
		} else if word.Placed { // the configured peer is that of another place
			l.Peer, l.PeerNode = "", ""
		} else if l.Peer != "" && word.Torus != (grid.Dims{}) { // in another torus the default name would be another
			l.PeerNode, _ = file.PeerNode(d)
		}
		cfg.Links[d.String()] = l
	}
	return cfg
}

// WithStoredPeers is WithPeers with the peers file from disk.
func WithStoredPeers(cfg config.Agent) config.Agent {
	word, _ := storage.PeerOrders().Load(cfg.StateDir) // lost: use the configuration
	return WithPeers(cfg, word)
}

// PeersConfig returns the DNP half's initial peers, from a configuration as read from its file.
func PeersConfig(cfg config.Agent, word peers.State, lost error) *halfcore.PeersConfig {
	out := &halfcore.PeersConfig{State: word, Lost: lost != nil, Spare: cfg.Spare || word.Placed}
	out.Dims, _ = grid.ParseDims(cfg.Dims) // a spare may have none
	for i, d := range grid.Directions() {
		l, ok := cfg.Links[d.String()]
		if !ok {
			continue
		}
		if a, err := netip.ParseAddrPort(l.Local); err == nil && !a.Addr().IsUnspecified() {
			out.Ends[i].Address = a
		}
		if out.Spare {
			continue
		}
		out.Configured[i].Node, _ = cfg.PeerNode(d)
		out.Configured[i].Address, _ = netip.ParseAddrPort(l.Peer)
	}
	return out
}

// TopologyOf returns a node's map of the torus around it, from a configuration with the supervisors' updates. A link
// without a peer is left out.
func TopologyOf(cfg config.Agent) (*halfcore.Topology, error) {
	coord, dims, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	ids := map[grid.Direction]fault.NodeID{}
	var without []grid.Direction
	for _, d := range dims.LinksOf(coord) {
		if cfg.Links[d.String()].Peer == "" {
			without = append(without, d)
			continue
		}
		ids[d], _ = cfg.PeerNode(d)
	}
	return halfcore.NewTopology(cfg.Node, coord, dims, ids).Without(without...), nil
}

// SealOrderStatus seals an answer to an order, shortened if it would not fit a relayed message.
func SealOrderStatus(m *lofamov1.Message, signer servicenet.Signer) ([]byte, error) {
	if st := m.GetPeerStatus(); st != nil {
		return SealPeers(st, signer)
	}
	if st := m.GetActStatus(); st != nil {
		servicenet.FitAct(st)
	}
	return servicenet.Seal(m, signer)
}

// SealPeers seals a status. If long names and addresses make it too long to relay, it omits the addresses of
// configured peers: they matter only if a neighbour has never announced the address of its end.
func SealPeers(st *lofamov1.PeerStatus, signer servicenet.Signer) ([]byte, error) {
	msg := &lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: st}}
	b, err := servicenet.Seal(msg, signer)
	if err == nil && len(b) <= halfcore.MaxRelayEnvelope {
		return b, nil
	}
	for _, p := range st.GetConfigured() {
		p.Address = ""
	}
	return servicenet.Seal(msg, signer)
}
