package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/agent/topo"
	"github.com/lofamo/lofamo/internal/config"
)

// asTold returns the configuration as it is with what the supervisors have said: of a spare the place, of all the peers.
func asTold(cfg config.Agent, word peers.State) config.Agent {
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

// told is asTold by what is on disk.
func told(cfg config.Agent) config.Agent {
	word, _ := peerfile.Load(filepath.Join(cfg.StateDir, peerfile.Name)) // lost: the configuration stands, and the half says so
	return asTold(cfg, word)
}

// peersConfig is what the DNP half begins with, of a configuration as it is in its file.
func peersConfig(cfg config.Agent, word peers.State, lost error) *dnpcore.PeersConfig {
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

// topoOf is what a node knows of the torus around it, by a configuration as it was told.
func topoOf(cfg config.Agent) (*topo.Map, error) {
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

// sealPeers seals a status. Where names and addresses are so long that it could not be relayed, the addresses of configured peers are left
// out: they are needed only where a neighbour has never said where its end is.
func sealPeers(st *lofamov1.PeerStatus, signer servicenet.Signer) ([]byte, error) {
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

// goOver has a link speak with the peer that the machine knows now. Of the one before nothing is left, neither here nor in the copy: a half
// that goes on from that must not speak to the new one in a session of the old.
func (d *dnpHalf) goOver(dir grid.Direction) {
	p := d.core.PeerAt(dir)
	d.log.Info("link goes over to another peer", "link", dir.String(), "peer", p.Node, "address", p.Address.String())
	d.newSession(dir)
}

func (d *dnpHalf) keepPeers(word peers.State) {
	if err := peerfile.Save(d.statePath(peerfile.Name), word); err != nil {
		d.log.Error("peers not kept: they are lost with the next restart", "err", err)
	}
}

// peersSeen is how the host half knows the file of the DNP half: it reads it when it is another.
type peersSeen struct {
	at   time.Time
	size int64
}

// seenOf looks at the file.
func seenOf(path string) peersSeen {
	info, err := os.Stat(path)
	if err != nil {
		return peersSeen{}
	}
	return peersSeen{info.ModTime(), info.Size()}
}

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
	seen := seenOf(h.statePath(peerfile.Name))
	if seen == h.peersSeen {
		return
	}
	h.peersSeen = seen
	cfg := told(h.configured)
	around, err := topoOf(cfg)
	if err != nil || around.Coord != h.topo.Coord {
		return // a spare whose place was taken: its halves go on until somebody ends them
	}
	h.log.Info("neighbours as told", "peers", fmt.Sprint(around.NeighbourIDs()))
	h.around.Store(around)
	h.step(hostcore.Neighbours{Topo: around})
}
