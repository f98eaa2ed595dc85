// Package retransmit lets TCP connections repeat lost packets early, after 50 ms to 1 s: Listen at one end and Dial at the other.
//
// Linux's defaults are made for the Internet: a lost packet is repeated after 200 ms at the earliest, and each further loss
// doubles that, up to 2 minutes. On a network that loses packets, this time decides how soon raft agrees, and how soon a watcher gets an
// event. Each end repeats the data that it sends, so both ends set the options.
package retransmit

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// least is added to the measured round-trip time. A receiver may delay its acknowledgement by 40 ms.
	least = 50 * time.Millisecond
	most  = time.Second // the smallest maximum that Linux accepts
)

// Listen listens at a TCP address. The connections that it accepts have the options.
func Listen(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: early}
	lc.SetMultipathTCP(false) // such sockets refuse the options
	return lc.Listen(context.Background(), "tcp", addr)
}

// Dial connects to a TCP address: a dialer for gRPC.
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: early}
	return d.DialContext(ctx, "tcp", addr)
}

// early sets the options that the kernel knows. With the first, a connection with few packets in transit repeats them six times at
// equal distances before the distance doubles. The two others came with Linux 6.15.
func early(_, _ string, c syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		for _, o := range []struct {
			name       string
			opt, value int
		}{
			{"TCP_THIN_LINEAR_TIMEOUTS", unix.TCP_THIN_LINEAR_TIMEOUTS, 1},
			{"TCP_RTO_MIN_US", unix.TCP_RTO_MIN_US, int(least.Microseconds())},
			{"TCP_RTO_MAX_MS", unix.TCP_RTO_MAX_MS, int(most.Milliseconds())},
		} {
			if e := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, o.opt, o.value); e != nil && !errors.Is(e, unix.ENOPROTOOPT) {
				err = os.NewSyscallError("setsockopt "+o.name, e)
			}
		}
	}
	return errors.Join(c.Control(set), err)
}
