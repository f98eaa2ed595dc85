package direct

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// refusal is a call of OnRefused.
type refusal struct {
	to    netip.AddrPort
	quote []byte
}

// startRefusing runs a socket that passes on refusals, and takes all of them for known or for strange ones.
func startRefusing(t *testing.T, addr string, known bool) (*Socket, <-chan datagram, <-chan refusal) {
	t.Helper()
	refusals := make(chan refusal, 1<<16)
	s, err := Listen(addr, Options{OnRefused: func(to netip.AddrPort, quote []byte) bool {
		refusals <- refusal{to, bytes.Clone(quote)}
		return known
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s, run(t, s), refusals
}

// TestRefusedDatagramIsQuoted sends to closed ports: the owner gets the beginning of each datagram and its address.
func TestRefusedDatagramIsQuoted(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			ip := freeport.IP()
			if addr == "[::1]:0" {
				six, err := net.ListenPacket("udp", addr)
				if err != nil {
					t.Skipf("SKIPPED %s: no IPv6 here: %v", t.Name(), err)
				}
				_ = six.Close()
				ip = netip.IPv6Loopback()
			}
			a, _, refusals := startRefusing(t, addr, true)
			for i, size := range []int{1, 20, QuoteSize, QuoteSize + 1, 1200} {
				to, b := closedPort(t, ip), bytes.Repeat([]byte{byte(i + 1)}, size)
				if err := a.Send(to, b); err != nil {
					t.Fatal(err)
				}
				r := next(t, refusals)
				if want := b[:min(size, QuoteSize)]; r.to != to || !bytes.Equal(r.quote, want) {
					t.Errorf("refused by %s: %d bytes %x; want %d bytes %x by %s", r.to, len(r.quote), r.quote, len(want), want, to)
				}
			}
		})
	}
}

// TestStrangeErrorsCostNoDatagram sends to closed ports without a pause, which the owner calls strange: datagrams from
// others go on to arrive, the collection of errors ends, and begins again after the rest.
func TestStrangeErrorsCostNoDatagram(t *testing.T) {
	a, atA, refusals := startRefusing(t, "127.0.0.1:0", false)
	b, _ := start(t)
	gone := freeport.Addr(t)
	const storm = 20 * strangeBurst
	begun := time.Now()
	for i := range storm {
		if err := a.Send(gone, []byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		if i%100 != 0 {
			continue
		}
		want := fmt.Sprint("through the storm ", i)
		if err := b.Send(a.LocalAddr(), []byte(want)); err != nil {
			t.Fatal(err)
		}
		if d := receive(t, atA); d.b != want {
			t.Fatalf("got %q, want %q", d.b, want)
		}
	}
	// Each rest begins when the burst is used up, and each is as long as strangeRest or longer.
	rests := 2 + int(time.Since(begun)/strangeRest)
	if n := len(refusals); n < strangeBurst || n > rests*(strangeBurst+strangeRate+errorBatch) {
		t.Errorf("%d of %d errors reached the owner: want the collection to end after %d", n, storm, strangeBurst)
	}
	for len(refusals) > 0 {
		<-refusals
	}
	for deadline := time.Now().Add(bound); len(refusals) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no error was collected after the storm")
		}
		if err := b.Send(a.LocalAddr(), []byte("now?")); err != nil { // the reader looks whether its rest is over
			t.Fatal(err)
		}
		receive(t, atA)
		if err := a.Send(gone, []byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-refusals:
			if r.to != gone {
				t.Errorf("refused by %s, want %s", r.to, gone)
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
