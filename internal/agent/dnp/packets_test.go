package dnp

import (
	"net"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// neighbour is a socket in the place of a half's neighbour in direction X+, with the keys of its session.
type neighbour struct {
	t    *testing.T
	d    *dnpHalf
	keys *torus.Session
	conn *net.UDPConn
	seq  uint64
}

func newNeighbour(t *testing.T) *neighbour {
	t.Helper()
	d, keys := halfWithSession(t, agenttest.NodeConfig(t), grid.XPlus)
	link := d.links[grid.XPlus.Index()]
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(link.PeerAddr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &neighbour{t: t, d: d, keys: keys, conn: conn}
}

func (n *neighbour) heartbeat() []byte {
	n.t.Helper()
	n.seq++
	f := torus.Frame{
		Type: torus.TypeHeartbeat, Flags: torus.FlagAnswers, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Session: 9, Seq: n.seq, Epoch: 3,
		DNP: 1, Host: 1,
	}
	b, err := f.Append(nil, n.keys)
	if err != nil {
		n.t.Fatal(err)
	}
	return b
}

// begin makes the link normal, by heartbeats in time for long enough that the half does not doubt itself. It returns the
// time of the last one, on a clock that is ahead.
func (n *neighbour) begin() time.Time {
	n.t.Helper()
	now := time.Now()
	for range 40 {
		f, err := n.d.authentic(now, grid.XPlus, n.heartbeat())
		if err != nil {
			n.t.Fatal(err)
		}
		n.d.handle(now, &dnpcore.Frame{Dir: grid.XPlus, Frame: f})
		n.d.handle(now, dnpcore.Tick{})
		now = now.Add(n.d.Periods.LinkPeriod)
	}
	n.check(torus.LinkNormal)
	return now.Add(-n.d.Periods.LinkPeriod)
}

// sends makes a heartbeat without news wait at the half's link.
func (n *neighbour) sends() {
	n.t.Helper()
	if _, err := n.conn.WriteToUDPAddrPort(n.heartbeat(), n.d.links[grid.XPlus.Index()].LocalAddr()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *neighbour) check(want torus.LinkState) {
	n.t.Helper()
	if got := n.d.core.LinkSnapshot(grid.XPlus).Rx; got != want {
		n.t.Errorf("link %s, want %s", got, want)
	}
}

// A heartbeat that waits counts before any event that may find the link silent, not only before a tick.
func TestWaitingHeartbeatCountsBeforeDueEvent(t *testing.T) {
	for sends, want := range map[bool]torus.LinkState{true: torus.LinkNormal, false: torus.LinkBroken} {
		n := newNeighbour(t)
		period := n.d.Periods.LinkPeriod
		now := n.begin()
		for range n.d.Periods.LinkMisses {
			now = now.Add(period)
			n.d.handle(now, dnpcore.Tick{})
		}
		if sends {
			n.sends()
		}
		now = now.Add(period + time.Millisecond)
		n.d.handle(now, dnpcore.Bad{Dir: grid.XPlus, Kind: torus.BadSession, Count: 1})
		n.check(want)
	}
}

// A heartbeat that waits refutes the hint that would make the link silent at once.
func TestWaitingHeartbeatRefutesRefusal(t *testing.T) {
	for sends, want := range map[bool]torus.LinkState{true: torus.LinkNormal, false: torus.LinkBroken} {
		n := newNeighbour(t)
		period := n.d.Periods.LinkPeriod
		now := n.begin().Add(period)
		n.d.handle(now, dnpcore.Tick{})
		if sends {
			n.sends()
		}
		now = now.Add(period / 8)
		n.d.apply(now, n.d.core.Step(now, dnpcore.Refused{Dir: grid.XPlus}))
		now = now.Add(period / 8)
		n.d.apply(now, n.d.core.Step(now, dnpcore.Tick{})) // a second probe
		now = now.Add(period / 4)
		n.d.apply(now, n.d.core.Step(now, dnpcore.Refused{Dir: grid.XPlus}))
		n.check(torus.LinkNormal)
		n.d.onRefused(now, grid.XPlus)
		n.check(want)
	}
}
