package bounded_test

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/bounded"
)

// TestConnectionsOfOneSourceWaitForTheirRate: a burst of a whole cluster behind one address passes, and is refused nothing.
func TestConnectionsOfOneSourceWaitForTheirRate(t *testing.T) {
	t.Parallel()
	const rate, all = 100, 150
	h := newHouse(t, bounded.Limits{All: 2 * all, PerSource: 2 * all, Handshakes: rate})
	for range all {
		h.dial("127.0.0.2")
	}
	begin := time.Now()
	for range all {
		c, err := h.l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if took, want := time.Since(begin), (all-rate)*time.Second/rate; took < want*9/10 {
		t.Errorf("%d connections took %s: want at least %s", all, took, want)
	}
	if len(h.dropped) > 0 {
		t.Errorf("%d connections were dropped", len(h.dropped))
	}
}

// TestClosedListenerClosesWaitingConnections: no server has them yet.
func TestClosedListenerClosesWaitingConnections(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 10, PerSource: 10, Handshakes: 1})
	h.open("127.0.0.2")
	waiting := end{client: h.dial("127.0.0.2")}
	accepted := make(chan error, 1)
	go func() {
		c, err := h.l.Accept()
		if err == nil {
			_ = c.Close() // its turn came before the listener closed
		}
		accepted <- err
	}()
	for deadline := time.Now().Add(time.Minute); h.l.Len() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the connection does not wait")
		}
	}
	if err := h.l.Close(); err != nil {
		t.Fatal(err)
	}
	<-accepted
	h.closed(waiting)
}

// TestFloodOfHandshakesCostsBoundedTime: a stranger with as many handshakes as it can make gets its rate, and another source is served.
func TestFloodOfHandshakesCostsBoundedTime(t *testing.T) {
	const rate, lasts = 50, 2 * time.Second
	h := newHouse(t, bounded.Limits{All: 200, PerSource: 100, Handshakes: rate})
	conf := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{selfSigned(t, time.Now().Add(time.Hour))}}
	var made atomic.Int64
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := h.l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if tls.Server(c, conf).HandshakeContext(t.Context()) == nil {
					made.Add(1)
				}
				_ = c.Close()
			})
		}
	})
	dial := func(from string) error {
		d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute},
			Config: &tls.Config{InsecureSkipVerify: true}}
		c, err := d.DialContext(t.Context(), "tcp", h.l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	begin := time.Now()
	var flood sync.WaitGroup
	for range 64 {
		flood.Go(func() {
			for time.Since(begin) < lasts {
				_ = dial("127.0.0.2")
			}
		})
	}
	if err := dial("127.0.0.3"); err != nil {
		t.Errorf("a handshake of another source: %v", err)
	}
	flood.Wait()
	took := time.Since(begin)
	_ = h.l.Close()
	serving.Wait()
	if most := rate * (took.Seconds() + 1); float64(made.Load()) > most {
		t.Errorf("%d handshakes in %s: want at most %.0f", made.Load(), took, most)
	}
	t.Logf("%d handshakes in %s", made.Load(), took)
}
