package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// Ports of a cluster lie in one block, below the range from which the kernel takes the ports of
// outgoing connections: a half that is dead for a while finds its port free when it comes back.
const (
	portsFrom  = 11000
	blockSize  = 64
	blockTries = 400
)

// portBlock is a block of ports that were all free, claimed against other clusters being made at
// this moment. The claim ends with release or with the process.
type portBlock struct {
	next, end int
	claims    []net.Listener
	held      []interface{ Close() error }
}

// reservePorts finds n consecutive ports that are free for UDP and for TCP on 127.0.0.1 and keeps
// them bound. release gives them up for the programs to bind.
func reservePorts(n int) (*portBlock, error) {
	to := outgoingFrom()
	blocks := (to - portsFrom) / blockSize
	need := (n + blockSize - 1) / blockSize
	if need > blocks {
		return nil, fmt.Errorf("reserve %d ports on 127.0.0.1: only %d lie between %d and %d", n, blocks*blockSize, portsFrom, to)
	}
	var last error
	for range blockTries {
		first := rand.IntN(blocks - need + 1) //nolint:gosec // any block will do; it is tried before use
		b, err := tryBlock(portsFrom+first*blockSize, n, need)
		if err == nil {
			return b, nil
		}
		last = err
	}
	return nil, fmt.Errorf("reserve %d consecutive ports on 127.0.0.1 between %d and %d: none free in %d tries, the last: %w", n, portsFrom,
		to, blockTries, last)
}

// outgoingFrom returns the lowest port that the kernel gives to outgoing connections.
func outgoingFrom() int {
	const usual = 32768
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	var low, high int
	if _, err := fmt.Sscan(string(b), &low, &high); err != nil || low < portsFrom+100*blockSize {
		return usual
	}
	return low
}

// tryBlock claims the blocks from port on and binds their first n ports.
func tryBlock(port, n, blocks int) (*portBlock, error) {
	b := &portBlock{next: port, end: port + n}
	for i := range blocks {
		// An abstract socket's name is free again when its holder dies, and it belongs to the
		// network namespace, as the ports do.
		l, err := net.Listen("unix", "@lofamo-local-ports-"+strconv.Itoa(port+i*blockSize))
		if err != nil {
			b.release()
			return nil, fmt.Errorf("block of port %d: %w", port+i*blockSize, err)
		}
		b.claims = append(b.claims, l)
	}
	for p := port; p < b.end; p++ {
		if err := b.hold(localAddr(p)); err != nil {
			b.release()
			return nil, err
		}
	}
	return b, nil
}

func (b *portBlock) hold(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	b.held = append(b.held, l)
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	b.held = append(b.held, u)
	return nil
}

// take returns the next address of the block.
func (b *portBlock) take() (string, error) {
	if b.next >= b.end {
		return "", errors.New("take port: the block is used up")
	}
	b.next++
	return localAddr(b.next - 1), nil
}

// takeOn returns the next address for service interface k: on 127.0.0.1 for 0, on 127.0.0.2 for 1.
func (b *portBlock) takeOn(k int) (string, error) {
	addr, err := b.take()
	if err != nil || k == 0 {
		return addr, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("take port: %w", err)
	}
	addr = net.JoinHostPort(fmt.Sprintf("127.0.0.%d", 1+k), port)
	return addr, b.hold(addr)
}

// unbind frees the ports; the claim on the block stays.
func (b *portBlock) unbind() {
	for _, h := range b.held {
		_ = h.Close()
	}
	b.held = nil
}

// release frees the ports and the claim. Nil does nothing.
func (b *portBlock) release() {
	if b == nil {
		return
	}
	b.unbind()
	for _, c := range b.claims {
		_ = c.Close()
	}
	b.claims = nil
}

func localAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portTaken returns an error when another process listens at the address.
func portTaken(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("TCP address %s is in use: %w", addr, err)
	}
	_ = l.Close()
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return fmt.Errorf("UDP address %s is in use: %w", addr, err)
	}
	_ = u.Close()
	return nil
}
