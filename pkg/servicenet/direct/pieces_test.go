package direct

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestNoDatagramIsLongerThanEveryPathTakes: the longest envelope goes in pieces, and the receiver gets it whole.
func TestNoDatagramIsLongerThanEveryPathTakes(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	wire, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = wire.Close() }()
	envelope := bytes.Repeat([]byte{0x0a}, servicenet.MaxDatagram)
	to := wire.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := s.Send(to, envelope); err != nil {
		t.Fatal(err)
	}
	_ = wire.SetReadDeadline(time.Now().Add(time.Minute))
	j, b := pieces.NewJoiner(1), make([]byte, 1<<16)
	for {
		n, from, err := wire.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		if n > 1232 {
			t.Errorf("a datagram has %d bytes", n)
		}
		if whole, ok := j.Join(from, b[:n]); ok {
			if !bytes.Equal(whole, envelope) {
				t.Errorf("%d bytes arrived: want the envelope", len(whole))
			}
			return
		}
	}
}
