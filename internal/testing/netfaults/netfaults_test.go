package netfaults

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

// bound is the maximum wait of a test: long, for a busy machine.
const bound = time.Minute

func socket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addr(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

func listen(t *testing.T, target netip.AddrPort, seed uint64) *Line {
	t.Helper()
	l, err := Listen(target, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return l
}

func set(t *testing.T, l *Line, d Direction, f udplink.Faults) {
	t.Helper()
	if err := l.Set(d, f); err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, c *net.UDPConn, to netip.AddrPort, b []byte) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c *net.UDPConn) ([]byte, netip.AddrPort) {
	t.Helper()
	b := make([]byte, maxDatagram)
	_ = c.SetReadDeadline(time.Now().Add(bound))
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n], from
}

// settle waits until the given number of datagrams has been received and none is in transit.
func settle(t *testing.T, l *Line, d Direction, received uint64) Counts {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		c := l.Counts(d)
		if c.Received+c.Doubled != c.Sent+c.Lost+c.Queued {
			t.Fatalf("the account is wrong: %+v", c)
		}
		if c.Received == received && c.Queued == 0 {
			return c
		}
		if time.Now().After(end) {
			t.Fatalf("at last %+v, want %d received", c, received)
		}
	}
}

// numbered returns a datagram with its number.
func numbered(i int) []byte {
	b := make([]byte, 64)
	binary.BigEndian.PutUint32(b, uint32(i))
	return b
}

// sent sends n numbered datagrams through a new line, and returns those that arrive.
func sent(t *testing.T, seed uint64, f udplink.Faults, n int) ([][]byte, Counts) {
	t.Helper()
	target, client := socket(t), socket(t)
	l := listen(t, addr(target), seed)
	set(t, l, ToTarget, f)
	// Few at a time, so that no socket's buffer runs over.
	const batch = 50
	var got [][]byte
	var c Counts
	for i := range n {
		send(t, client, l.Addr(), numbered(i))
		if (i+1)%batch == 0 || i == n-1 {
			c = settle(t, l, ToTarget, uint64(i+1))
			for uint64(len(got)) < c.Sent {
				b, _ := receive(t, target)
				got = append(got, b)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	return got, c
}

func TestCarriesBothWays(t *testing.T) {
	target, a, b := socket(t), socket(t), socket(t)
	l := listen(t, addr(target), 1)
	for _, c := range []*net.UDPConn{a, b} {
		payload := numbered(int(addr(c).Port()))
		send(t, c, l.Addr(), payload)
		got, from := receive(t, target)
		if !slices.Equal(got, payload) {
			t.Fatalf("%x arrives as %x", payload, got)
		}
		send(t, target, from, append(got, 1))
		if back, by := receive(t, c); !slices.Equal(back, append(payload, 1)) || by != l.Addr() {
			t.Errorf("%x answered by %s, want by %s", back, by, l.Addr())
		}
	}
	want := Counts{Received: 2, Sent: 2}
	if to, from := settle(t, l, ToTarget, 2), settle(t, l, FromTarget, 2); to != want || from != want {
		t.Errorf("counts %+v and %+v", to, from)
	}
	// The longest datagram, the empty one.
	for _, b := range [][]byte{make([]byte, 65507), {}} {
		send(t, a, l.Addr(), b)
		if got, _ := receive(t, target); len(got) != len(b) {
			t.Errorf("%d bytes arrive as %d", len(b), len(got))
		}
	}
}

func TestEachFaultHasItsEffect(t *testing.T) {
	const n = 400
	for _, tc := range []struct {
		name     string
		faults   udplink.Faults
		min, max int // that arrive
		check    func(got [][]byte, c Counts) bool
	}{
		{"none", udplink.Faults{}, n, n, func(_ [][]byte, c Counts) bool { return c == Counts{Received: n, Sent: n} }},
		{"block", udplink.Faults{Block: true}, 0, 0, func(_ [][]byte, c Counts) bool { return c.Lost == n }},
		{"drop", udplink.Faults{Drop: 0.5}, n * 4 / 10, n * 6 / 10, func(got [][]byte, c Counts) bool { return int(c.Lost) == n-len(got) }},
		{"duplicate", udplink.Faults{Duplicate: 0.5}, n * 14 / 10, n * 16 / 10,
			func(got [][]byte, c Counts) bool { return int(c.Doubled) == len(got)-n }},
		{"corrupt", udplink.Faults{Corrupt: 0.5}, n, n, func(got [][]byte, c Counts) bool {
			bad := uint64(0)
			for i, b := range got {
				if !slices.Equal(b, numbered(i)) {
					bad++
				}
			}
			return bad == c.Corrupted && bad > n*4/10 && bad < n*6/10
		}},
		{"reorder", udplink.Faults{Reorder: 0.3}, n, n, func(got [][]byte, c Counts) bool {
			return !slices.IsSortedFunc(got, slices.Compare) && c.Overtaken > n*2/10 && c.Overtaken < n*4/10
		}},
		{"jitter", udplink.Faults{Jitter: 10 * time.Millisecond}, n, n, func(got [][]byte, _ Counts) bool {
			return !slices.IsSortedFunc(got, slices.Compare)
		}},
		{"delay", udplink.Faults{Delay: 5 * time.Millisecond}, n, n, func(got [][]byte, _ Counts) bool {
			return slices.IsSortedFunc(got, slices.Compare)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, c := sent(t, 7, tc.faults, n)
			if len(got) < tc.min || len(got) > tc.max || !tc.check(got, c) {
				t.Errorf("%d arrive of %d (want %d to %d), %+v", len(got), n, tc.min, tc.max, c)
			}
		})
	}
}

// TestSameSeedSameOutcome: one seed, one outcome; another seed, another.
func TestSameSeedSameOutcome(t *testing.T) {
	f := udplink.Faults{Drop: 0.2, Corrupt: 0.2, Duplicate: 0.2}
	a, ca := sent(t, 1, f, 200)
	b, cb := sent(t, 1, f, 200)
	if ca != cb || !slices.EqualFunc(a, b, slices.Equal) {
		t.Errorf("the same seed: %+v and %+v", ca, cb)
	}
	if c, _ := sent(t, 2, f, 200); slices.EqualFunc(a, c, slices.Equal) {
		t.Error("another seed changes nothing")
	}
}

func TestDelayIsKept(t *testing.T) {
	target, client := socket(t), socket(t)
	l := listen(t, addr(target), 1)
	const delay = 50 * time.Millisecond
	set(t, l, ToTarget, udplink.Faults{Delay: delay})
	begin := time.Now()
	send(t, client, l.Addr(), []byte{1})
	if _, _ = receive(t, target); time.Since(begin) < delay {
		t.Errorf("came after %v, want %v", time.Since(begin), delay)
	}
}

// TestOneDirectionAtATime cuts one direction and the other, and heals.
func TestOneDirectionAtATime(t *testing.T) {
	target, client := socket(t), socket(t)
	l := listen(t, addr(target), 1)
	send(t, client, l.Addr(), []byte{0})
	_, peer := receive(t, target)
	block := udplink.Faults{Block: true}

	set(t, l, ToTarget, block)
	send(t, client, l.Addr(), []byte{1})
	if c := settle(t, l, ToTarget, 2); c.Lost != 1 {
		t.Errorf("a blocked direction: %+v", c)
	}
	send(t, target, peer, []byte{2})
	if b, _ := receive(t, client); b[0] != 2 {
		t.Errorf("the other direction carries %x", b)
	}
	set(t, l, ToTarget, udplink.Faults{})
	set(t, l, FromTarget, block)
	send(t, target, peer, []byte{3})
	if c := settle(t, l, FromTarget, 2); c.Lost != 1 {
		t.Errorf("a blocked direction: %+v", c)
	}
	send(t, client, l.Addr(), []byte{4})
	if b, _ := receive(t, target); b[0] != 4 {
		t.Errorf("the healed direction carries %x", b)
	}
}

// TestTargetThatComesAndGoes: datagrams without a receiver are lost, later ones arrive.
func TestTargetThatComesAndGoes(t *testing.T) {
	client, at := socket(t), freeport.Addr(t) // another process cannot take this port meanwhile
	l := listen(t, at, 1)
	for range 3 {
		send(t, client, l.Addr(), []byte{1})
	}
	settle(t, l, ToTarget, 3)
	again, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	send(t, client, l.Addr(), []byte{2})
	if b, from := receive(t, again); b[0] != 2 {
		t.Errorf("%x arrives", b)
	} else {
		send(t, again, from, []byte{3})
	}
	if b, _ := receive(t, client); b[0] != 3 {
		t.Errorf("%x comes back", b)
	}
}

func TestClientsAreBounded(t *testing.T) {
	target := socket(t)
	l := listen(t, addr(target), 1)
	for i := range maxFlows + 2 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		send(t, c, l.Addr(), numbered(i))
		_ = settle(t, l, ToTarget, uint64(i+1))
		defer c.Close() // its address must not become another's
	}
	if c := l.Counts(ToTarget); c.Overflow != 2 || c.Lost != 2 || c.Sent != maxFlows {
		t.Errorf("%+v", c)
	}
}

func TestCloseWithDatagramsOnTheirWay(t *testing.T) {
	target, client := socket(t), socket(t)
	l := listen(t, addr(target), 1)
	set(t, l, ToTarget, udplink.Faults{Delay: udplink.MaxDelay})
	send(t, client, l.Addr(), []byte{1})
	for end := time.Now().Add(bound); l.Counts(ToTarget).Queued == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never on its way")
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_ = target.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := target.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a closed line delivers: %v", err)
	}
}

func TestInvalidFaultsAreRefused(t *testing.T) {
	if _, err := Listen(netip.AddrPort{}, 0); err == nil || !strings.Contains(err.Error(), "want ip:port") {
		t.Errorf("no target: %v", err)
	}
	l := listen(t, netip.MustParseAddrPort("127.0.0.1:9"), 0)
	if err := l.Set(0, udplink.Faults{}); err == nil || !strings.Contains(err.Error(), "direction Direction(0)") {
		t.Errorf("no direction: %v", err)
	}
	if err := l.Set(ToTarget, udplink.Faults{Drop: 2}); err == nil || !strings.Contains(err.Error(), "Drop 2: want 0 to 1") {
		t.Errorf("a drop of 2: %v", err)
	}
	if c := l.Counts(0); c != (Counts{}) {
		t.Errorf("counts of no direction: %+v", c)
	}
}
