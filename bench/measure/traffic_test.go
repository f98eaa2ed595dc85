package measure

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

func TestTrafficCountsEachPacketOnce(t *testing.T) {
	to, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	from, err := net.DialUDP("udp4", nil, to.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	port := uint16(to.LocalAddr().(*net.UDPAddr).Port)

	// The counter does not report when it is open, so rounds continue until it has seen a packet.
	const size, rounds = 100 + 28, 50
	for range rounds {
		sent, received, err := countWhile(t, port, func() {
			buf := make([]byte, 200)
			for range 200 {
				if _, err := from.Write(buf[:size-28]); err != nil {
					t.Fatal(err)
				}
				if _, err := to.Read(buf); err != nil {
					t.Fatal(err)
				}
			}
		})
		if errors.Is(err, unix.EPERM) {
			requirements.Missing(t, "counting packets needs CAP_NET_RAW")
		}
		if err != nil {
			t.Fatal(err)
		}
		if sent != 0 || received%size != 0 || received > 200*size {
			t.Fatalf("%d bytes sent, %d received by the port: want none, and at most 200 packets of %d bytes", sent, received, size)
		}
		if received > 0 {
			return
		}
	}
	t.Fatalf("no packet seen in %d rounds", rounds)
}

// countWhile runs Traffic on one port until do is done.
func countWhile(t *testing.T, port uint16, do func()) (sent, received int64, err error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sent, received, err = Traffic(ctx, map[uint16]bool{port: true})
	}()
	do()
	stop()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the counter did not stop")
	}
	return sent, received, err
}
