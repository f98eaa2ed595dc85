package half

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/agent/topo"
	"github.com/lofamo/lofamo/internal/config"
)

// WithPeers returns the configuration with the supervisors' updates: a spare's place, and all peers.
func WithPeers(cfg config.Agent, word peers.State) config.Agent {
	if cfg.Spare {
		cfg.Coord = word.Place()
	}
	cfg.Links = maps.Clone(cfg.Links)
	for i, d := range grid.Directions() {
		l, ok := cfg.Links[d.String()]
		if p := word.Peers[i]; ok && p.Node != "" {
			l.PeerNode = p.Node
			if p.Address.IsValid() {
				l.Peer = p.Address.String()
			}
			cfg.Links[d.String()] = l
		}
	}
	return cfg
}

// WithStoredPeers is WithPeers with the peers file from disk.
func WithStoredPeers(cfg config.Agent) config.Agent {
	word, _ := peerfile.Load(filepath.Join(cfg.StateDir, peerfile.Name)) // lost: use the configuration
	return WithPeers(cfg, word)
}

// PeersConfig returns the DNP half's initial peers, from a configuration as read from its file.
func PeersConfig(cfg config.Agent, word peers.State, lost error) *dnpcore.PeersConfig {
	out := &dnpcore.PeersConfig{State: word, Lost: lost != nil, Spare: cfg.Spare}
	for i, d := range grid.Directions() {
		l, ok := cfg.Links[d.String()]
		if !ok {
			continue
		}
		if a, err := netip.ParseAddrPort(l.Local); err == nil && !a.Addr().IsUnspecified() {
			out.Ends[i].Address = a
		}
		if cfg.Spare {
			continue
		}
		out.Configured[i].Node, _ = cfg.PeerNode(d)
		out.Configured[i].Address, _ = netip.ParseAddrPort(l.Peer)
	}
	return out
}

// TopologyOf returns a node's map of the torus around it, from a configuration with the supervisors' updates.
func TopologyOf(cfg config.Agent) (*topo.Map, error) {
	coord, dims, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	ids := map[grid.Direction]fault.NodeID{}
	for _, d := range dims.Links() {
		ids[d], _ = cfg.PeerNode(d)
	}
	return topo.New(cfg.Node, coord, dims, ids), nil
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
	if err == nil && len(b) <= relay.MaxEnvelope {
		return b, nil
	}
	for _, p := range st.GetConfigured() {
		p.Address = ""
	}
	return servicenet.Seal(msg, signer)
}

// PeersSeen identifies a version of the DNP half's peers file: the host half reads the file when it has changed.
type PeersSeen struct {
	at   time.Time
	size int64
}

// PeersFileSeen looks at the file.
func PeersFileSeen(path string) PeersSeen {
	info, err := os.Stat(path)
	if err != nil {
		return PeersSeen{}
	}
	return PeersSeen{info.ModTime(), info.Size()}
}
