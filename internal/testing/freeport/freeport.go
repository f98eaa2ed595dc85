// Package freeport gives tests loopback addresses to listen at.
//
// A port that the kernel chose for a socket, which is then closed, is the kernel's to give again at once: to the next who asks, or
// to an outgoing connection. So these addresses are of this process alone, no address is given twice, and the ports are
// below those that the kernel gives by itself (ip_local_port_range, from 32768).
package freeport

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

const (
	first = 10000
	count = 20000
)

var given atomic.Uint32

// IP is the loopback address of this process: process numbers have 22 bits at most.
func IP() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(1 + pid>>16&0x3f), byte(pid >> 8), byte(pid)})
}

// Addr returns an address with a free UDP and TCP port. Until the test, or a process that it starts, uses the address, the kernel refuses
// all its connections and datagrams.
func Addr(t testing.TB) netip.AddrPort {
	t.Helper()
	addr, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Find is Addr for what begins before the first test, and for benchmarks.
func Find() (netip.AddrPort, error) { return FindAt(IP()) }

// FindAt is Find for another loopback address, such as that of localhost, which other processes may use too.
func FindAt(ip netip.Addr) (netip.AddrPort, error) {
	for {
		n := given.Add(1) - 1
		if n >= count {
			return netip.AddrPort{}, fmt.Errorf("all %d ports of %s were given", count, ip)
		}
		if addr := netip.AddrPortFrom(ip, uint16(first+n)); free(addr) {
			return addr, nil
		}
	}
}

// forkOnce calls os.FindProcess, whose first call in a process forks without the lock of forks.
var forkOnce = sync.OnceFunc(func() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
})

// free reports whether nothing listens at an address. It holds the lock of forks meanwhile: a forked process has copies of all open
// sockets until it executes its program, and would keep the address occupied.
func free(addr netip.AddrPort) bool {
	forkOnce()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", addr.String())
	if err != nil {
		return false
	}
	defer func() { _ = l.Close() }()
	u, err := net.ListenPacket("udp", addr.String())
	if err != nil {
		return false
	}
	return u.Close() == nil
}
