package udplink

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file has the system calls for each packet. None of them blocks, so they bypass the Go scheduler (RawSyscall6).
// With ordinary calls, the runtime's monitor thread woke for each group of packets: that was a fifth of an idle half's
// measured cost.

// rawAddr is an address in the kernel's form.
type rawAddr struct {
	any unix.RawSockaddrAny
	len uint32
}

// rawOf converts the result of Sockaddr.
func rawOf(sa unix.Sockaddr) (r rawAddr) {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&r.any)) = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: networkOrder(sa.Port), Addr: sa.Addr,
		}
		r.len = unix.SizeofSockaddrInet4
	case *unix.SockaddrInet6:
		*(*unix.RawSockaddrInet6)(unsafe.Pointer(&r.any)) = unix.RawSockaddrInet6{
			Family: unix.AF_INET6, Port: networkOrder(sa.Port), Addr: sa.Addr, Scope_id: sa.ZoneId,
		}
		r.len = unix.SizeofSockaddrInet6
	}
	return r
}

// addrPort is the inverse of rawOf, without a zone.
func (r *rawAddr) addrPort() netip.AddrPort {
	switch {
	case r.any.Addr.Family == unix.AF_INET && r.len >= unix.SizeofSockaddrInet4:
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.any))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), networkOrder(int(sa.Port)))
	case r.any.Addr.Family == unix.AF_INET6 && r.len >= unix.SizeofSockaddrInet6:
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&r.any))
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), networkOrder(int(sa.Port)))
	}
	return netip.AddrPort{}
}

// networkOrder swaps the bytes of a port where the machine's order is not the network's.
func networkOrder(port int) uint16 {
	var one uint16 = 1
	if *(*byte)(unsafe.Pointer(&one)) == 1 {
		return uint16(port)<<8 | uint16(port)>>8
	}
	return uint16(port)
}

// sendTo sends one datagram without waiting.
func sendTo(fd uintptr, b []byte, to *rawAddr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, uintptr(unsafe.Pointer(&to.any)), uintptr(to.len))
	if errno != 0 {
		return errno
	}
	return nil
}

// atOnce is the number of datagrams that one call to the kernel reads.
const atOnce = 4

// extra receives the time of arrival from a socket with SO_TIMESTAMPNS.
type extra struct {
	head unix.Cmsghdr
	at   unix.Timespec
}

// batch is the memory for the datagrams of one call.
type batch struct {
	msgs [atOnce]struct {
		unix.Msghdr
		len uint32
	}
	iovs  [atOnce]unix.Iovec
	from  [atOnce]rawAddr
	extra [atOnce]extra
	bytes []byte
	size  int // of one datagram at most; longer ones are cut
}

func newBatch(size int) *batch {
	b := &batch{bytes: make([]byte, atOnce*size), size: size}
	for i := range b.msgs {
		b.iovs[i].Base = &b.bytes[i*size]
		b.iovs[i].SetLen(size)
		b.msgs[i].Iov, b.msgs[i].Name = &b.iovs[i], (*byte)(unsafe.Pointer(&b.from[i].any))
		b.msgs[i].SetIovlen(1)
	}
	return b
}

// read reads datagrams without waiting. The error of an empty socket is EAGAIN. Fewer than atOnce: the socket is empty.
func (b *batch) read(fd uintptr) (int, syscall.Errno) {
	for i := range b.msgs {
		b.msgs[i].Namelen, b.msgs[i].Control = unix.SizeofSockaddrAny, (*byte)(unsafe.Pointer(&b.extra[i]))
		b.msgs[i].SetControllen(int(unsafe.Sizeof(b.extra[i])))
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.msgs[0])), atOnce, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// datagram returns the i-th datagram of the last read, and its sender.
func (b *batch) datagram(i int) ([]byte, netip.AddrPort) {
	b.from[i].len = b.msgs[i].Namelen
	return b.bytes[i*b.size:][:b.msgs[i].len], b.from[i].addrPort()
}

// waited returns how long before now the i-th datagram arrived; 0 if the kernel does not say. Just after
// the first socket of a machine asks for these times, the kernel may record when a datagram is read: the result is then
// about 0.
func (b *batch) waited(i int, now time.Time) time.Duration {
	x := &b.extra[i]
	if b.msgs[i].Controllen == 0 || x.head.Level != unix.SOL_SOCKET || x.head.Type != unix.SCM_TIMESTAMPNS {
		return 0
	}
	return time.Duration(now.UnixNano() - x.at.Nano())
}
