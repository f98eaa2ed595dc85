package dnp

import (
	"log/slog"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// halfWithSession opens a DNP half whose copy has a session, and returns it with the keys of its neighbour.
func halfWithSession(t testing.TB, cfg config.Agent, dir grid.Direction) (*dnpHalf, *torus.Session) {
	t.Helper()
	c, err := half.Prepare(cfg, fault.HalfDNP, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tx, rx := agenttest.CopyWithSession(t, half.CopyPath(cfg.StateDir, fault.HalfDNP), cfg, dir, 0, torus.LinkSnapshot{Replay: 1})
	d := &dnpHalf{Common: c, packet: make([]byte, 0, cfg.MTU)}
	d.tests = half.NewProber(t.Context(), &d.Common)
	var open half.Closers
	t.Cleanup(func() {
		if err := open.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.open(&open); err != nil {
		t.Fatal(err)
	}
	return d, torus.ResumeSession(9, rx, tx, 0)
}

// A heartbeat without news costs no allocation, from the socket to the copy.
func TestPacketDoesNotAllocate(t *testing.T) {
	d, keys := halfWithSession(t, agenttest.NodeConfig(t), grid.XPlus)
	f := torus.Frame{Type: torus.TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Session: 9, Epoch: 3, DNP: 1, Host: 1}
	b := make([]byte, 0, torus.HeartbeatSize)
	packet := func() {
		f.Seq++
		var err error
		if b, err = f.Append(b[:0], keys); err != nil {
			t.Fatal(err)
		}
		d.OnPacket(grid.XPlus, b)
	}
	packet() // the first one reveals the working link and the peer
	if allocs := testing.AllocsPerRun(200, packet); allocs != 0 {
		t.Errorf("%v allocations a packet", allocs)
	}
	if c, _, _ := d.Copy.File.Link(grid.XPlus); c.High != f.Seq {
		t.Errorf("the copy is at %d, the link at %d", c.High, f.Seq)
	}
}
