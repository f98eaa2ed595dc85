package udplink

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/torus"
)

// TestEndedPeerIsRefused checks that the end of the peer's process comes back from its kernel, and breaks the link
// after refused probes. The peer's next process finds the link as after any silence.
func TestEndedPeerIsRefused(t *testing.T) {
	a, b := pairOf(t)
	a.start()
	b.start()
	a.untilNormal()
	if n := a.refused.Load(); n != 0 {
		t.Errorf("%d packets refused by a peer that lives", n)
	}
	// On a busy machine silence may break a link before its refused probes do.
	attempts.One(t, 5, "3 packets are refused: a heartbeat and two probes", func() bool {
		before := a.refused.Load()
		b.stop()
		a.until("BROKEN", func(o torus.LinkOutput, _ torus.LinkStats) bool {
			return o.State == torus.LinkBroken && o.Detail.Silent
		})
		n := a.refused.Load() - before
		b.start()
		a.untilNormal()
		t.Logf("%d packets refused", n)
		return n >= 3
	})
}

// TestForgedRefusalsChangeNothing checks that ICMP errors from others, which quote no heartbeat of this link, are no
// hints, neither one by one nor as a flood, and that the link carries on.
func TestForgedRefusalsChangeNothing(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	a, b := pairOf(t)
	a.start()
	b.start()
	a.untilNormal()
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(raw) }()
	forged := unreachable(a.link.LocalAddr(), a.link.PeerAddr(), make([]byte, torus.HeartbeatSize))
	to := &unix.SockaddrInet4{Addr: a.link.LocalAddr().Addr().As4()}
	flood := func(n int) {
		t.Helper()
		for range n {
			if err := unix.Sendto(raw, forged, 0, to); err != nil && err != unix.ENOBUFS {
				t.Fatal(err)
			}
		}
	}
	a.until("frames go on beside single errors", func(_ torus.LinkOutput, s torus.LinkStats) bool {
		flood(1)
		return s.Received > 60
	})
	_, before := a.state()
	flood(20000)
	a.until("frames go on beside a flood", func(_ torus.LinkOutput, s torus.LinkStats) bool {
		return s.Received > before.Received+60
	})
	if n := a.refused.Load(); n != 0 {
		t.Errorf("%d forged errors counted", n)
	}
	a.untilNormal()
	b.untilNormal()
}

// unreachable is an ICMP message of port unreachable for a UDP packet.
func unreachable(from, to netip.AddrPort, payload []byte) []byte {
	be := binary.BigEndian
	udp := make([]byte, 8, 8+len(payload))
	be.PutUint16(udp, from.Port())
	be.PutUint16(udp[2:], to.Port())
	be.PutUint16(udp[4:], uint16(8+len(payload)))
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	be.PutUint16(ip[2:], uint16(28+len(payload)))
	src, dst := from.Addr().As4(), to.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	msg := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, ip...) // destination unreachable, port
	msg = append(append(msg, udp...), payload...)
	sum := uint32(0)
	for i := 0; i+1 < len(msg); i += 2 {
		sum += uint32(be.Uint16(msg[i:]))
	}
	if len(msg)%2 == 1 {
		sum += uint32(msg[len(msg)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	be.PutUint16(msg[2:], ^uint16(sum))
	return msg
}

// TestQuotesCountOnce checks that only a heartbeat sent lately can come back, and once.
func TestQuotesCountOnce(t *testing.T) {
	var q quotes
	packet := func(i byte) []byte {
		b := make([]byte, torus.HeartbeatSize)
		b[0] = i
		return b
	}
	for i := range byte(quotable + 1) {
		q.note(packet(i + 1))
	}
	q.note(append(packet(50), 0)) // a longer frame
	for what, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"too old": {packet(1), false}, "never sent": {packet(60), false}, "nothing": {nil, false}, "cut": {packet(3)[:40], false},
		"a longer frame": {append(packet(50), 0), false}, "zeros": {packet(0), false}, "the newest": {packet(quotable + 1), true},
	} {
		if got := q.take(c.b); got != c.want {
			t.Errorf("%s: %t, want %t", what, got, c.want)
		}
	}
	if q.take(packet(quotable + 1)) {
		t.Error("a packet came back twice")
	}
}
