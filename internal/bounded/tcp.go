package bounded

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times for repeating lost packets. Linux's defaults are made for the Internet: a packet is repeated after 200 ms at the earliest, and
// each further loss doubles that, up to 2 minutes.
const (
	// minRepeat is added to the measured round-trip time. A receiver may delay its acknowledgement by 40 ms.
	minRepeat = 50 * time.Millisecond
	maxRepeat = time.Second // the least that Linux accepts
)

// ListenTCP listens at a TCP address, with limits. Its connections repeat lost packets early, after 50 ms to 1 s.
//
// Where packets are lost, this decides how soon raft agrees and watchers get an event. The six first repeats of a few packets are
// equally far apart; then the distance doubles. Kernels before Linux 6.15 keep their minimum and maximum. Connections inherit the options
// of the listener's socket. The sender of data repeats it, so the options do not apply to data from the other end.
func ListenTCP(addr string, o Options) (*Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // such sockets refuse the options
	lc.Control = func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = repeatEarly(int(fd)) }), err)
	}
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	return Listen(l, o), nil
}

// repeatEarly sets the options of a socket that its kernel knows.
func repeatEarly(fd int) error {
	for _, o := range []struct {
		name       string
		opt, value int
	}{
		{"TCP_THIN_LINEAR_TIMEOUTS", unix.TCP_THIN_LINEAR_TIMEOUTS, 1},
		{"TCP_RTO_MIN_US", unix.TCP_RTO_MIN_US, int(minRepeat.Microseconds())},
		{"TCP_RTO_MAX_MS", unix.TCP_RTO_MAX_MS, int(maxRepeat.Milliseconds())},
	} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, o.opt, o.value); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return os.NewSyscallError("setsockopt "+o.name, err)
		}
	}
	return nil
}
