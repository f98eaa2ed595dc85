package direct

import (
	"context"
	"net/netip"
	"testing"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/railtest"
)

func TestDirectRailKeepsRailContract(t *testing.T) {
	for name, opts := range map[string]Options{"plain": {}, "telling": {OnError: func(netip.AddrPort, error) {}}} {
		t.Run(name, func(t *testing.T) {
			railtest.Run(t, func(t *testing.T) railtest.Harness { return harness(t, opts) })
		})
	}
}

func harness(t *testing.T, opts Options) railtest.Harness {
	near, far := open1(t, opts), open1(t, Options{})
	targets := map[string]netip.AddrPort{"s0": far.LocalAddr()}
	rail := NewRail(near, targets)
	clear(targets) // the rail has its own
	return railtest.Harness{
		Rail: rail, Target: "s0", Unknown: "s9", Limit: servicenet.MaxDatagram,
		Read: func(deliver func([]byte)) {
			done := make(chan error, 1)
			go func() { done <- far.Run(context.Background(), func(_ netip.AddrPort, b []byte) { deliver(b) }) }()
			t.Cleanup(func() {
				_ = far.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		},
		Refused: func() uint64 { return near.Stats().Busy },
		Lost:    func() uint64 { return far.Stats().Dropped },
		Close:   func() { _ = near.Close() },
	}
}

func open1(t *testing.T, opts Options) *Socket {
	t.Helper()
	s, err := Listen("127.0.0.1:0", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
