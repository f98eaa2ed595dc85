package half

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/config"
)

// The word stands above the configuration; a spare without one has no place.
func TestOrderedPeersOverrideConfiguration(t *testing.T) {
	cfg := config.Agent{Dims: "3x1x1", Coord: "0,0,0",
		Links: map[string]config.LinkAddr{"X+": {Local: "127.0.0.1:1", Peer: "127.0.0.1:2", Interface: "eth1"}}}
	var word peers.State
	word.Peers[grid.XPlus.Index()] = peers.Peer{Node: "spare-0", Address: netip.MustParseAddrPort("127.0.0.9:9")}
	before := maps.Clone(cfg.Links)
	got := WithPeers(cfg, word)
	if l := got.Links["X+"]; l != (config.LinkAddr{Local: "127.0.0.1:1", Peer: "127.0.0.9:9", PeerNode: "spare-0", Interface: "eth1"}) ||
		got.Coord != "0,0,0" {
		t.Errorf("%+v at %s", l, got.Coord)
	}
	if !maps.Equal(cfg.Links, before) {
		t.Error("the configuration itself was changed")
	}
	cfg.Spare, cfg.Coord = true, ""
	if got := WithPeers(cfg, word); got.Coord != "" {
		t.Errorf("a spare without a place is at %s", got.Coord)
	}
	word.Placed, word.Coord = true, grid.Coord{X: 2}
	if got := WithPeers(cfg, word); got.Coord != "2,0,0" {
		t.Errorf("a spare is at %q", got.Coord)
	}
	known := PeersConfig(cfg, word, context.Canceled)
	if i := grid.XPlus.Index(); !known.Lost || !known.Spare || known.Ends[i].Address.Port() != 1 || known.Configured[i] != (peers.Peer{}) {
		t.Errorf("%+v", known)
	}
}
