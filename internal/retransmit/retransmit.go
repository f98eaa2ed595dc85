// Package retransmit lets TCP connections retransmit lost packets early: Listen at one end and Dial at the other.
//
// Linux's defaults are made for the Internet. If no acknowledgement reveals a loss, the sender waits for 200 ms and the round-trip time
// before it retransmits, and doubles the wait after each further loss, up to 2 minutes. On a network that loses packets, this wait
// decides how soon raft agrees, and how soon a watcher gets an event. With the options the waits are 50 ms to 1 s. An end without them
// still waits as Linux does before it retransmits its own data.
//
// The segments are so short that every path takes them: see pkg/pieces.
//
// A connection whose data stay unacknowledged ends after about 14 s, with Linux's tcp_retries2 of 15, instead of 15 minutes.
package retransmit

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/pieces"
)

const (
	least = 50 * time.Millisecond // beside the round-trip time. A receiver may delay its acknowledgement by 40 ms.
	most  = time.Second           // the smallest maximum that Linux accepts
)

// Listen listens at a TCP address. The connections that it accepts have the options.
func Listen(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: early}
	lc.SetMultipathTCP(false) // such sockets refuse the options
	return lc.Listen(context.Background(), "tcp", addr)
}

// Dial connects to a TCP address. It is a dialer for gRPC.
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: early}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", addr)
}

// early sets the options that the kernel knows. With TCP_THIN_LINEAR_TIMEOUTS, a connection with fewer than four packets in flight
// retransmits six times before the wait doubles. TCP_RTO_MIN_US and TCP_RTO_MAX_MS need Linux 6.15.
func early(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		for _, o := range []struct {
			name       string
			opt, value int
		}{
			{"TCP_MAXSEG", unix.TCP_MAXSEG, pieces.MaxSegment},
			{"TCP_THIN_LINEAR_TIMEOUTS", unix.TCP_THIN_LINEAR_TIMEOUTS, 1},
			{"TCP_RTO_MIN_US", unix.TCP_RTO_MIN_US, int(least.Microseconds())},
			{"TCP_RTO_MAX_MS", unix.TCP_RTO_MAX_MS, int(most.Milliseconds())},
		} {
			if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, o.opt, o.value); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
				failed = os.NewSyscallError("setsockopt "+o.name, err)
			}
		}
	})
	return errors.Join(err, failed)
}
