package udplink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

// When the peer's process has ended and its kernel lives, the kernel answers each packet with ICMP port unreachable.
// Anybody can send such an answer. It quotes the packet, and a heartbeat fits into the quotation as a whole with its
// MAC, so a stranger who has not seen the packet cannot make one that counts.

const (
	// quotable is the number of the newest heartbeats that an answer may quote.
	quotable = 8
	// strangeRate and strangeBurst bound the ICMP errors per second that quote nothing sent by this link. Beyond
	// them the kernel keeps no errors for this socket for a udpguard.Rest: they lie in the buffer of the received packets.
	strangeRate, strangeBurst    = 20, 64
	strangeRest, strangeRestMost = time.Second, 64 * time.Second
	// sendTries bounds how often a packet is offered to the kernel: an ICMP answer to an earlier packet shows as the
	// error of the next call, once, and is no fault of this packet.
	sendTries = 8
)

// quotes are the newest heartbeats sent, each of which may come back once. The link's sendMu guards them.
type quotes struct {
	packets [quotable][torus.HeartbeatSize]byte
	valid   [quotable]bool
	next    int
}

// note remembers a packet, if it is a heartbeat.
func (q *quotes) note(b []byte) {
	if len(b) != torus.HeartbeatSize {
		return
	}
	copy(q.packets[q.next][:], b)
	q.valid[q.next] = true
	q.next = (q.next + 1) % quotable
}

// take reports whether b is one of the packets, and forgets that one.
func (q *quotes) take(b []byte) bool {
	for i := range q.packets {
		if q.valid[i] && bytes.Equal(q.packets[i][:], b) {
			q.valid[i] = false
			return true
		}
	}
	return false
}

// Sendto sends a packet on the socket of a link without waiting, for a process that holds the socket, too. It repeats
// the call when the error is of an earlier packet.
func Sendto(fd int, b []byte, to unix.Sockaddr) error {
	var err error
	for range sendTries {
		if err = unix.Sendto(fd, b, unix.MSG_DONTWAIT, to); !fromICMP(err) {
			break
		}
	}
	return err
}

// fromICMP holds for the errors that the kernel makes of ICMP answers.
func fromICMP(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.EACCES, unix.EPROTO, unix.ENOPROTOOPT,
		unix.EOPNOTSUPP:
		return true
	default:
		return false
	}
}

// reportErrors asks the kernel to keep ICMP errors for the link's sockets, or to keep none and to forget all.
func (l *Link) reportErrors(on bool) {
	level, opt := unix.SOL_IP, unix.IP_RECVERR
	if l.local.Addr().Is6() {
		level, opt = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	v := 0
	if on {
		v = 1
	}
	set := func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, opt, v) }
	_ = l.raw.Control(set) // an error says that it is closed
	l.quiet.with(set)
}

// look wakes the goroutine that reads the errors.
func (l *Link) look() {
	select {
	case l.errors <- struct{}{}:
	default: // it is awake
	}
}

// watchErrors passes on refused packets until ctx ends.
func (l *Link) watchErrors(ctx context.Context, h Handler) {
	strangers := rate.NewLimiter(strangeRate, strangeBurst)
	rest := udpguard.Rest{First: strangeRest, Most: strangeRestMost}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.errors:
		}
		flooded := false
		for !flooded {
			refused, found := l.nextError()
			if !found {
				break
			}
			if refused {
				h.OnRefused(l.cfg.Dir)
			} else {
				flooded = !strangers.Allow()
			}
		}
		if !flooded {
			continue
		}
		l.reportErrors(false)
		sleep(ctx, rest.Next(time.Now()))
		l.reportErrors(true)
	}
}

// nextError takes one error out of the kernel's queue. It reports whether that says that the peer's port refused a
// packet which this link sent lately, and whether there was an error at all.
func (l *Link) nextError() (refused, found bool) {
	var quote [torus.HeartbeatSize + 1]byte
	var control [256]byte
	n, cn := -1, 0
	next := func(fd uintptr) {
		var rerr error
		if n, cn, _, _, rerr = unix.Recvmsg(int(fd), quote[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); rerr != nil {
			n = -1
		}
	}
	if err := l.raw.Control(next); err != nil || n < 0 {
		l.quiet.with(next)
	}
	if n < 0 {
		return false, false
	}
	if !portUnreachable(control[:cn]) {
		return false, true
	}
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	return l.quotes.take(quote[:n]), true
}

// Layout of struct sock_extended_err: errno, 32 bits, then origin, 8 bits.
const (
	extendedErrSize   = 16
	extendedErrOrigin = 4
)

// portUnreachable reports whether the control data of an error say ICMP port unreachable.
func portUnreachable(control []byte) bool {
	ms, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range ms {
		is := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !is || len(m.Data) < extendedErrSize {
			continue
		}
		origin := m.Data[extendedErrOrigin]
		return (origin == unix.SO_EE_ORIGIN_ICMP || origin == unix.SO_EE_ORIGIN_ICMP6) &&
			syscall.Errno(binary.NativeEndian.Uint32(m.Data)) == unix.ECONNREFUSED
	}
	return false
}
