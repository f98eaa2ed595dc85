package direct

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// TestFullBufferIsNoticed lets many datagrams, or few, wait in the kernel before the socket reads. The owner learns of drops.
func TestFullBufferIsNoticed(t *testing.T) {
	for _, tc := range []struct {
		name string
		sent int
		full bool
	}{{"few", 100, false}, {"more than the buffer holds", 4000, true}} {
		t.Run(tc.name, func(t *testing.T) {
			var read, full atomic.Int64
			s, err := Listen("127.0.0.1:0", Options{OnFull: func() { full.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			from, _ := start(t)
			for range tc.sent {
				if err := from.Send(s.LocalAddr(), make([]byte, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			ran := make(chan error, 1)
			go func() { ran <- s.Run(t.Context(), func(netip.AddrPort, []byte) { read.Add(1) }) }()
			for end := time.Now().Add(bound); uint64(read.Load())+s.Stats().Dropped < uint64(tc.sent) || tc.full && full.Load() == 0; {
				if time.Now().After(end) {
					t.Fatalf("%d of %d datagrams read, %d dropped, noticed %d times", read.Load(), tc.sent, s.Stats().Dropped, full.Load())
				}
				time.Sleep(time.Millisecond)
			}
			dropped := s.Stats().Dropped
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			<-ran
			if (full.Load() > 0) != tc.full || (dropped > 0) != tc.full {
				t.Errorf("%d datagrams dropped, and noticed %d times; want both: %t", dropped, full.Load(), tc.full)
			}
		})
	}
}
