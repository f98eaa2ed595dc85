package client_test

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// line forwards bytes to a server until it is frozen: then connections stay open and no data arrives, as with a stopped
// server process.
type line struct{ gate sync.RWMutex }

func newLine(t *testing.T, to string) (*line, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	pass := func(from, to net.Conn) {
		b := make([]byte, 1<<14)
		for {
			n, err := from.Read(b)
			l.gate.RLock()
			if err == nil {
				_, err = to.Write(b[:n])
			}
			l.gate.RUnlock()
			if err != nil {
				_ = errors.Join(from.Close(), to.Close())
				return
			}
		}
	}
	wg.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, from, far)
			mu.Unlock()
			wg.Go(func() { pass(from, far) })
			wg.Go(func() { pass(far, from) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l, ln.Addr().String()
}

func (l *line) freeze(t *testing.T) {
	l.gate.Lock()
	t.Cleanup(l.gate.Unlock)
}

// TestWatchLeavesAStoppedSupervisor: a supervisor whose process is stopped keeps its connections. A silent watch checks
// with a call, gets no answer, and continues at another supervisor without losing a change.
func TestWatchLeavesAStoppedSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	first, second := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	l, address := newLine(t, first.Address)
	c, err := client.New(client.Config{
		Targets: []string{address, second.Address}, TLS: clienttest.ClientTLS(t,
			dir), TryTimeout: 2 * time.Second, Silence: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	m.Commit(2, &lofamov1.Event{Node: "n2"})
	var got []uint64
	err = c.Watch(bounded(t), client.WatchOptions{After: 1}, func(r *lofamov1.WatchResponse) error {
		if got = append(got, r.GetRevision()); r.GetRevision() == 2 {
			l.freeze(t)
			m.Commit(3, &lofamov1.Event{Node: "n3"})
		}
		if r.GetRevision() == 3 {
			return client.ErrStop
		}
		return nil
	})
	if err != nil || len(got) != 2 {
		t.Errorf("%v: %v", got, err)
	}
}
