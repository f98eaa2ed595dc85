package host

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestUnreadablePeersAreReadAgain: while the DNP half overwrites its peers file, as on a full disk, the host half may find half of it. The
// configured neighbours are not those of the order, so the present ones stay until the file can be read, even if its time and size do not
// change any more.
func TestUnreadablePeersAreReadAgain(t *testing.T) {
	cfg := agenttest.NodeConfig(t)
	if err := half.MakeStateDir(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	path := storage.PeerOrders().Path(cfg.StateDir)
	h := &hostHalf{configured: cfg, peersFile: half.Watch(path)}
	h.Config, h.Half, h.Senders = cfg, fault.HalfHost, half.NewNetconsoleSenders()
	h.Log = slog.New(slog.DiscardHandler)
	var err error
	if h.Topo, err = half.TopologyOf(cfg); err != nil {
		t.Fatal(err)
	}
	order := peers.State{Number: 3}
	order.Peers[grid.XPlus.Index()] = peers.Peer{Node: "spare-0"} // the only neighbour, both ways
	order.Peers[grid.XMinus.Index()] = peers.Peer{Node: "spare-0", Address: netip.MustParseAddrPort("10.9.0.1:7101")}
	if err := storage.PeerOrders().Save(cfg.StateDir, order); err != nil {
		t.Fatal(err)
	}
	if got := h.newPeers(); got == nil || got.Neighbours[0].ID != "spare-0" {
		t.Fatalf("%+v: want the neighbour of the order", got)
	}
	if node, _ := h.Senders.Node(netip.MustParseAddr("10.9.0.1")); node != "spare-0" {
		t.Errorf("the sender of netconsole's lines at the new neighbour's address: %q: want spare-0", node)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("?"), len(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.newPeers(); got != nil {
		t.Errorf("an unreadable file: %+v: want no change", got)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if got := h.newPeers(); got == nil || got.Neighbours[0].ID != "spare-0" {
		t.Errorf("%+v: want the neighbour of the order", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := h.newPeers(); got != nil {
		t.Errorf("a file that is gone: %+v: want no change", got)
	}
}
