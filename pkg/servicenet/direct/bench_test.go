package direct

import (
	"context"
	"net/netip"
	"testing"
)

// BenchmarkRoundTrip is one datagram there and back on loopback, busy.
func BenchmarkRoundTrip(b *testing.B) {
	for name, opts := range map[string]Options{"plain": {}, "telling": {OnError: func(netip.AddrPort, error) {}}} {
		b.Run(name, func(b *testing.B) {
			near, far := listen(b, opts), listen(b, opts)
			back := make(chan struct{}, 1)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 2)
			go func() { done <- near.Run(ctx, func(netip.AddrPort, []byte) { back <- struct{}{} }) }()
			go func() { done <- far.Run(ctx, func(from netip.AddrPort, p []byte) { _ = far.Send(from, p) }) }()
			payload := make([]byte, 400)
			b.ReportAllocs()
			for b.Loop() {
				if err := near.Send(far.LocalAddr(), payload); err != nil {
					b.Fatal(err)
				}
				<-back
			}
			cancel()
			for range 2 {
				if err := <-done; err != nil {
					b.Error(err)
				}
			}
		})
	}
}

func listen(b *testing.B, opts Options) *Socket {
	b.Helper()
	s, err := Listen("127.0.0.1:0", opts)
	if err != nil {
		b.Fatal(err)
	}
	return s
}
