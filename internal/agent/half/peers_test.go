package half

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
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
	cfg.Dims = "" // it learns its torus, too
	if _, err := TopologyOf(WithPeers(cfg, word)); err == nil {
		t.Error("a spare is placed in no torus")
	}
	if word.Torus, _ = grid.ParseDims("4x1x1 without 1,0,0"); WithPeers(cfg, word).Dims != "4x1x1 without 1,0,0" {
		t.Errorf("it is placed in a torus of %s", WithPeers(cfg, word).Dims)
	}
	known := PeersConfig(cfg, word, context.Canceled)
	if i := grid.XPlus.Index(); !known.Lost || !known.Spare || known.Ends[i].Address.Port() != 1 || known.Configured[i] != (peers.Peer{}) {
		t.Errorf("%+v", known)
	}
}

// A node follows an ordered torus after a restart: peers that no order names keep their configured names, although the
// next places with nodes are others now, and a link without an end or a peer is left out.
func TestOrderedTorusGivesTopology(t *testing.T) {
	at := func(port string) config.LinkAddr {
		return config.LinkAddr{Local: "127.0.0.1:" + port, Peer: "127.0.0.2:" + port}
	}
	cfg := config.Agent{Node: "n0-0-0", Dims: "2x2x1", Coord: "0,0,0", Links: map[string]config.LinkAddr{"X+": at("1"), "X-": at("2"),
		"Y+": at("3"), "Y-": at("4"), "Z+": {Local: "127.0.0.1:5"}, "Z-": {Local: "127.0.0.1:6"}}}
	before, err := TopologyOf(cfg)
	if err != nil || len(before.Links) != 4 || len(before.Neighbours) != 2 {
		t.Fatalf("%+v, %v", before, err)
	}
	dims, err := grid.ParseDims("3x2x2 without 2,1,0 1,0,1 2,0,1 0,1,1 1,1,1 2,1,1")
	if err != nil {
		t.Fatal(err)
	}
	word := peers.State{Number: 2, Torus: dims}
	word.Peers[grid.XMinus.Index()] = peers.Peer{Node: "joined", Address: netip.MustParseAddrPort("127.0.0.9:1")}
	word.Peers[grid.ZPlus.Index()] = peers.Peer{Node: "above", Address: netip.MustParseAddrPort("127.0.0.9:2")}
	around, err := TopologyOf(WithPeers(cfg, word))
	if err != nil {
		t.Fatal(err)
	}
	if around.Dims != dims || !slices.Equal(around.Links, []grid.Direction{grid.XPlus, grid.XMinus, grid.YPlus, grid.YMinus, grid.ZPlus}) ||
		!slices.Equal(around.NeighbourIDs(), []fault.NodeID{"n1-0-0", "joined", "n0-1-0", "above"}) {
		t.Errorf("links %v to %v in %s", around.Links, around.NeighbourIDs(), around.Dims)
	}
	if n := around.Neighbours[3]; n.Coord != (grid.Coord{Z: 1}) || !slices.Equal(n.Dirs, []grid.Direction{grid.ZPlus}) {
		t.Errorf("%+v", n)
	}
}
