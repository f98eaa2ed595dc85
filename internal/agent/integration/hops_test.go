package integration

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A message that a half acknowledged to its neighbour is in the copy, together with its window. After a kill the half
// passes it on, and drops duplicates.
func TestAcknowledgedMessageIsInCopy(t *testing.T) {
	n := newTestNet(t, pair, patientLinks)
	cfg := n.cfgs[at0]
	dir := grid.XPlus
	local, peer := netip.MustParseAddrPort(cfg.Links[dir.String()].Local), netip.MustParseAddrPort(cfg.Links[dir.String()].Peer)
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(peer))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	tx, rx := agenttest.CopyWithSession(t, half.CopyPath(cfg.StateDir, fault.HalfDNP), cfg, dir, 12, torus.LinkSnapshot{})
	p := &peerEnd{t: t, conn: conn, to: local}
	p.keys.Add(time.Now(), torus.ResumeSession(9, rx, tx, 0))

	// No neighbour but the one that it comes from, and no host half: the message stays where it is.
	hop := torus.NewHop(torus.HopConfig{Again: time.Second, Most: time.Second}, 5)
	hd, _ := hop.Send(time.Now(), 0)
	payload, err := halfcore.Relay{Kind: halfcore.RelayUp, Made: 1, Limit: 9, Envelope: []byte("rise"),
		Hops: []halfcore.RelayHop{{Half: fault.HalfDNP}}}.Append(hd.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	send := func() {
		seq++
		g := torus.Frame{
			Type: torus.TypeHop, Direction: dir.Opposite(), Src: grid.Coord{X: 1}, Dst: at0, Session: 9, Epoch: 3, Seq: seq, Flags: torus.FlagHops,
			DNP: 1, Host: 1, Payload: payload,
		}
		b, err := g.Append(nil, &p.keys)
		if err == nil {
			_, err = conn.WriteToUDPAddrPort(b, local)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// It is sent with every frame that comes of this life, whose numbers are above last, until it is acknowledged.
	acknowledged := func(last uint64) {
		t.Helper()
		buf := make([]byte, 2048)
		if err := conn.SetReadDeadline(time.Now().Add(bound)); err != nil {
			t.Fatal(err)
		}
		for {
			size, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("not acknowledged: %v", err)
			}
			g, err := torus.Decode(buf[:size], cfg.MTU, &p.keys)
			if err != nil || g.Flags&torus.FlagHops == 0 {
				t.Fatalf("frame %+v, %v: want one that says FlagHops", g, err)
			}
			if g.Seq <= last {
				continue
			}
			if g.Type != torus.TypeHop {
				send()
				continue
			}
			if ack, _, err := torus.DecodeHop(g.Payload); err != nil || ack.AckStream != 5 || ack.Ack != 1 {
				t.Fatalf("acknowledgement %+v, %v", ack, err)
			}
			return
		}
	}
	kept := func() (messages int, window uint64) {
		c := n.look(at0, fault.HalfDNP)
		for i := range storage.NumRelay {
			if len(c.Relay(i)) > 0 {
				messages++
			}
		}
		s, _ := torus.DecodeHopSnapshot(c.Hop(dir))
		return messages, s.Ack
	}
	n.start(at0, fault.HalfDNP)
	acknowledged(0)
	if messages, window := kept(); messages != 1 || window != 1 {
		t.Fatalf("acknowledged, and the copy has %d messages and a window that ends at %d", messages, window)
	}
	n.halt(at0, fault.HalfDNP)
	last, _, _ := n.look(at0, fault.HalfDNP).Link(dir)
	n.start(at0, fault.HalfDNP)
	acknowledged(last.TxSeq)
	if messages, window := kept(); messages != 1 || window != 1 {
		t.Fatalf("when it came again the copy has %d messages and a window that ends at %d", messages, window)
	}
	n.start(at0, fault.HalfHost)
	agenttest.Await(n.t, "the host half has taken it", func() bool {
		messages, _ := kept()
		return messages == 0
	})
}
