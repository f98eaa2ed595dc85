package retransmit

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestBothEndsRetransmitEarly: a connection has the options at both ends.
func TestBothEndsRetransmitEarly(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	near, err := Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	for end, c := range map[string]net.Conn{"near": near, "far": far} {
		for name, o := range map[string]struct{ opt, least, most int }{
			"TCP_THIN_LINEAR_TIMEOUTS": {unix.TCP_THIN_LINEAR_TIMEOUTS, 1, 1},
			"TCP_RTO_MIN_US":           {unix.TCP_RTO_MIN_US, 50_000, 60_000}, // the kernel rounds up to its tick: 10 ms at most
			"TCP_RTO_MAX_MS":           {unix.TCP_RTO_MAX_MS, 1000, 1000},
		} {
			t.Run(end+"/"+name, func(t *testing.T) {
				raw, err := c.(*net.TCPConn).SyscallConn()
				if err != nil {
					t.Fatal(err)
				}
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
}
