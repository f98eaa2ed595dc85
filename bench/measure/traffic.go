package measure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Traffic counts the bytes that a set of UDP ports sends and receives over the loopback interface, IP headers
// included, until ctx ends. It requires CAP_NET_RAW.
func Traffic(ctx context.Context, ports map[uint16]bool) (sent, received int64, err error) {
	const protoIP = 0x0800
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(protoIP)))
	if err != nil {
		return 0, 0, fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// A bounded wait, so that the end of ctx is seen on a silent interface.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return 0, 0, fmt.Errorf("set time-out on packet socket: %w", err)
	}
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return sent, received, fmt.Errorf("read packet socket: %w", err)
		}
		// On loopback every packet is seen leaving and arriving: count it once.
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		src, dst, ok := udpPorts(buf[:min(n, len(buf))])
		if !ok {
			continue
		}
		if ports[src] {
			sent += int64(n)
		}
		if ports[dst] {
			received += int64(n)
		}
	}
	return sent, received, nil
}

// udpPorts reads the ports of a UDP packet in IPv4.
func udpPorts(b []byte) (src, dst uint16, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return 0, 0, false
	}
	head := int(b[0]&0xf) * 4
	if len(b) < head+4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(b[head:]), binary.BigEndian.Uint16(b[head+2:]), true
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Rate is bytes over a time, in bytes a second.
func Rate(bytes int64, over time.Duration) float64 { return float64(bytes) / over.Seconds() }
