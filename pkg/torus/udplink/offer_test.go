package udplink

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
)

// agreed makes a handshake from the dialer's end up to the acceptor's ready, and returns the session. No commit is
// sent, and the connection is reset.
func agreed(t *testing.T, l *Link) *torus.Session {
	t.Helper()
	r := l.remote.Load()
	for end := time.Now().Add(bound); ; sleep(t.Context(), minBackoff) {
		s, err := func() (*torus.Session, error) {
			conn, err := l.connect(t.Context(), r.addr)
			if err != nil {
				return nil, err
			}
			defer finish(conn, 0)
			tc := tls.Client(conn, r.tls)
			if err := errors.Join(tc.HandshakeContext(t.Context()), expect(tc, byteReady)); err != nil {
				return nil, err
			}
			return l.derive(tc, r)
		}()
		if err == nil {
			return s
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestFrameOfOfferedSessionIsCommit: when the commit of a handshake is lost, the first frame of the new session takes
// its place. The link does not break.
func TestFrameOfOfferedSessionIsCommit(t *testing.T) {
	a, b := pairOf(t)
	a.misses, b.misses = 500, 500
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	s := agreed(t, a.link)
	a.OnSession(a.cfg.Dir, s)
	b.until("given the session, and normal", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		if o.State != torus.LinkNormal {
			t.Fatalf("the link became %s", o.Detail)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.ids); n > 1 && b.ids[1] != s.ID() {
			t.Fatalf("a later session: %08x, want %08x", b.ids[1:], s.ID())
		}
		return len(b.ids) == 2
	})
	a.untilNormal()
	b.untilNormal()
	sleep(t.Context(), 2*handshakeTimeout) // the acceptor's end of the handshake is over
	if ids := b.sessionIDs(); len(ids) != 2 || ids[1] != s.ID() {
		t.Errorf("sessions %08x: want two, the last of them %08x", ids, s.ID())
	}
}

// TestOfferedSessionEnds: an offer ends after its time, with another handshake, and with another peer.
func TestOfferedSessionEnds(t *testing.T) {
	for name, end := range map[string]func(l *Link, o *offer){
		"its time is over":       func(_ *Link, o *offer) { o.at = o.at.Add(-offerLife) },
		"another offer":          func(l *Link, o *offer) { l.propose(o.session, o.with) },
		"another peer":           func(l *Link, o *offer) { l.Leave() },
		"handshakes are blocked": func(l *Link, _ *offer) { l.SetFaults(LinkFaults{BlockOut: true}) },
		"none of these":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			_, b := pairOf(t)
			l, err := Listen(b.cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			key := [torus.KeySize]byte{1}
			s := torus.NewSession(7, key, key)
			o := l.propose(s, l.remote.Load())
			if end != nil {
				l.propose(torus.NewSession(8, key, key), l.remote.Load())
				o = l.propose(s, l.remote.Load())
				end(l, o)
			}
			f := torus.Frame{Type: torus.TypeHeartbeat, Direction: b.cfg.Dir, Session: 7, Epoch: 1, Seq: 1}
			wire, err := f.Append(nil, s)
			if err != nil {
				t.Fatal(err)
			}
			b.sessions = make(chan *torus.Session, 4)
			l.commitBy(b, slices.Clone(wire))
			l.commitBy(b, wire)
			want := 1
			if end != nil && name != "another offer" {
				want = 0
			}
			if n := len(b.sessions); n != want {
				t.Errorf("%d sessions, want %d", n, want)
			}
			if want == 1 && l.commit(b, o) {
				t.Error("a commit after the frame begins the session again")
			}
		})
	}
}

// TestDialerWaitsForAcceptorToClose: a dialer that resets the connection soon after its commit could lose the commit.
func TestDialerWaitsForAcceptorToClose(t *testing.T) {
	a, b := pairOf(t)
	listener, err := net.Listen("tcp4", b.cfg.Local.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	server := a.cfg.handshakeConfig(only("a"))
	server.Certificates, server.ClientAuth = b.cfg.TLS.Certificates, b.cfg.TLS.ClientAuth
	a.start()
	deadline := time.Now().Add(bound)
	for {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		tc := tls.Server(conn, server)
		before := time.Now()
		_, err = tc.Write([]byte{byteReady})
		if err == nil {
			err = expect(tc, byteCommit)
		}
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(2 * settle))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
			if slow := time.Since(before) >= handshakeTimeout; slow && time.Now().Before(deadline) {
				continue // this machine was: the dialer need not wait so long
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the dialer did not wait: %v", err)
			}
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
