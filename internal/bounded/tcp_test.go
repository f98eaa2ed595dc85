package bounded_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestConnectionsRepeatEarly: an accepted connection has the options of the listener.
func TestConnectionsRepeatEarly(t *testing.T) {
	l, err := bounded.ListenTCP("127.0.0.1:0", bounded.Options{Limits: bounded.Limits{All: 2, PerSource: 2}})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, l: l}
	t.Cleanup(func() { _ = l.Close() })
	accepted := h.open("127.0.0.1").conn.Conn.(*net.TCPConn)
	raw, err := accepted.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]struct{ opt, least, most int }{
		"TCP_THIN_LINEAR_TIMEOUTS": {unix.TCP_THIN_LINEAR_TIMEOUTS, 1, 1},
		"TCP_RTO_MIN_US":           {unix.TCP_RTO_MIN_US, 50_000, 60_000}, // the kernel rounds up to its tick: 10 ms at most
		"TCP_RTO_MAX_MS":           {unix.TCP_RTO_MAX_MS, 1000, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			var got int
			if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, o.opt) }); cerr != nil {
				t.Fatal(cerr)
			}
			if errors.Is(err, unix.ENOPROTOOPT) {
				requirements.Missing(t, "the kernel has no %s; Linux 6.15 has it", name)
			}
			if err != nil || got < o.least || got > o.most {
				t.Errorf("%d, %v: want %d to %d", got, err, o.least, o.most)
			}
		})
	}
}
