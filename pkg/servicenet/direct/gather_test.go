package direct

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// TestReaderLetsManyDatagramsGather reads datagrams 5 ms apart, between which the reader never rests, and then bursts, between
// which it does. None is lost.
func TestReaderLetsManyDatagramsGather(t *testing.T) {
	const gather = time.Millisecond
	s, err := Listen("127.0.0.1:0", Options{Gather: gather})
	if err != nil {
		t.Fatal(err)
	}
	from, _ := start(t)
	var read, rests atomic.Int64
	arrived := make(chan struct{}, 1)
	r := newReader(s, func(netip.AddrPort, []byte) {
		read.Add(1)
		select {
		case arrived <- struct{}{}:
		default:
		}
	})
	r.rest = func(_ context.Context, d time.Duration) {
		if rests.Add(1); d != gather {
			t.Errorf("the reader rests for %s: want %s", d, gather)
		}
	}
	done := make(chan error, 1)
	go func() { done <- r.serve(t.Context(), s.cur.Load()) }()
	deadline := time.After(bound)
	sent := int64(0)
	send := func(n int) {
		t.Helper()
		for range n {
			if err := from.Send(s.LocalAddr(), []byte("digest")); err != nil {
				t.Fatal(err)
			}
		}
		for sent += int64(n); read.Load() < sent; {
			select {
			case <-arrived:
			case <-deadline:
				t.Fatalf("%d of %d datagrams were read", read.Load(), sent)
			}
		}
	}
	for range 2 * gatherCount {
		send(1)
		time.Sleep(5 * gather)
	}
	if n := rests.Load(); n != 0 {
		t.Errorf("the reader rested %d times while there was one datagram each 5 ms", n)
	}
	for rests.Load() == 0 {
		send(2 * gatherCount)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the reader ended with %v", err)
	}
}
