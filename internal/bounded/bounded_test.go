package bounded_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/bounded"
)

// end is both ends of a connection.
type end struct {
	client net.Conn
	conn   *bounded.Conn
}

// house is a bounded listener that reports the connections it drops.
type house struct {
	t       *testing.T
	l       *bounded.Listener
	dropped chan string
}

func newHouse(t *testing.T, limits bounded.Limits) *house {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, dropped: make(chan string, 100)}
	h.l = bounded.Listen(l, bounded.Options{Limits: limits, Dropped: func(reason string) { h.dropped <- reason }})
	t.Cleanup(func() { _ = h.l.Close() })
	return h
}

// dial connects from a loopback address.
func (h *house) dial(from string) net.Conn {
	h.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(h.t.Context(), "tcp", h.l.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// open connects and accepts.
func (h *house) open(from string) end {
	h.t.Helper()
	c := h.dial(from)
	s, err := h.l.Accept()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	return end{c, s.(*bounded.Conn)}
}

// closed waits until the listener has closed the connection.
func (h *house) closed(e end) {
	h.t.Helper()
	_ = e.client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := e.client.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) || isTimeout(err) {
		h.t.Fatalf("the connection is open: %v", err)
	}
}

// alive passes a byte.
func (h *house) alive(e end) {
	h.t.Helper()
	if _, err := e.conn.Write([]byte("x")); err != nil {
		h.t.Fatalf("the connection was closed: %v", err)
	}
	_ = e.client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(e.client, make([]byte, 1)); err != nil {
		h.t.Fatalf("the connection was closed: %v", err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func (h *house) want(reason string) {
	h.t.Helper()
	select {
	case got := <-h.dropped:
		if got != reason {
			h.t.Errorf("a connection was dropped as %s: want %s", got, reason)
		}
	default:
		h.t.Errorf("nothing was dropped: want one as %s", reason)
	}
}

func TestOldestUnprovenConnectionOfSourceMakesRoom(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 10, PerSource: 2})
	first, second := h.open("127.0.0.2"), h.open("127.0.0.2")
	third := h.open("127.0.0.2")
	h.closed(first)
	h.want(bounded.Evicted)
	h.alive(second)
	h.alive(third)
	if n := h.l.Len(); n != 2 {
		t.Errorf("%d connections: want 2", n)
	}
}

func TestBusiestSourceMakesRoomForOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 4, PerSource: 3})
	honest := h.open("127.0.0.3") // the oldest
	greedy := []end{h.open("127.0.0.2"), h.open("127.0.0.2"), h.open("127.0.0.2")}
	other := h.open("127.0.0.4")
	h.closed(greedy[0])
	h.alive(honest)
	h.alive(other)
	h.alive(greedy[1])
}

func TestAdmittedConnectionIsNeverClosedForAnother(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 2, PerSource: 1})
	var known []end
	for range 2 {
		e := h.open("127.0.0.2") // it counts for its source until it is admitted
		if err := e.conn.Admit("viewer/ann"); err != nil {
			t.Fatal(err)
		}
		known = append(known, e)
	}
	refused := end{client: h.dial("127.0.0.2")}
	_ = h.dial("127.0.0.3")
	accepted := make(chan error, 1)
	go func() {
		_, err := h.l.Accept()
		accepted <- err
	}()
	h.closed(refused)
	for _, e := range known {
		h.alive(e)
	}
	_ = h.l.Close()
	if err := <-accepted; err == nil {
		t.Error("a connection was accepted beyond the limit")
	}
}

func TestSubjectHasItsShareOfConnections(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 10, PerSource: 10, PerSubject: 2})
	a, b, c := h.open("127.0.0.2"), h.open("127.0.0.3"), h.open("127.0.0.4")
	for _, e := range []end{a, b} {
		if err := e.conn.Admit("viewer/ann"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.conn.Admit("viewer/ann"); !errors.Is(err, bounded.ErrSubject) {
		t.Errorf("the third connection of a subject: %v: want ErrSubject", err)
	}
	h.want(bounded.Subject)
	if err := c.conn.Admit("viewer/bob"); err != nil {
		t.Errorf("another subject: %v", err)
	}
	_ = a.conn.Close()
	d := h.open("127.0.0.2")
	if err := d.conn.Admit("viewer/ann"); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	_ = d.conn.Close()
	if err := d.conn.Admit("viewer/ann"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed connection: %v: want net.ErrClosed", err)
	}
}

func TestSubjectsTogetherLeaveRoom(t *testing.T) {
	t.Parallel()
	h := newHouse(t, bounded.Limits{All: 3, PerSource: 3, PerSubject: 2, Subjects: 2})
	for i, subject := range []string{"viewer/ann", "viewer/bob"} {
		if err := h.open("127.0.0.2").conn.Admit(subject); err != nil {
			t.Fatal(i, err)
		}
	}
	e := h.open("127.0.0.2")
	if err := e.conn.Admit("viewer/eve"); !errors.Is(err, bounded.ErrSubject) {
		t.Errorf("a third subject: %v: want ErrSubject", err)
	}
	if err := e.conn.Admit(""); err != nil {
		t.Errorf("one without a limit: %v", err)
	}
}

func TestSourceOfAddress(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"10.0.0.1:5": "10.0.0.1", "[::ffff:10.0.0.1]:5": "10.0.0.1", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:5": "fe80::/64",
	} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := bounded.SourceOf(a); got != want {
			t.Errorf("%s: source %q: want %q", addr, got, want)
		}
	}
	if got := bounded.SourceOf(&net.UnixAddr{Name: "@x", Net: "unix"}); got != "@x" {
		t.Errorf("a Unix socket: %q", got)
	}
}
