package direct

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiver makes the kernel's two receiving calls into memory of its own: package unix would allocate in each call,
// even if no datagram waits. Neither call blocks, so they bypass the Go scheduler (RawSyscall): an ordinary call after
// a rest wakes the runtime's monitor thread.
type receiver struct {
	from    unix.RawSockaddrAny
	fromLen uint32

	// For the error queue.
	msg     unix.Msghdr
	iov     unix.Iovec
	payload [QuoteSize]byte
	quoted  int // bytes of the failed datagram in payload
	oob     [256]byte

	zones map[uint32]string
}

// datagram reads one without waiting. It is from r.from.
func (r *receiver) datagram(fd uintptr, b []byte) (int, syscall.Errno) {
	r.fromLen = unix.SizeofSockaddrAny
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT,
		uintptr(unsafe.Pointer(&r.from)), uintptr(unsafe.Pointer(&r.fromLen)))
	return int(n), errno
}

// failure reads one entry of the error queue without waiting; false: there is none. The datagram was to r.from. Errno
// 0: the error is not from the network.
func (r *receiver) failure(fd uintptr) (syscall.Errno, bool) {
	r.iov.Base = &r.payload[0]
	r.iov.SetLen(len(r.payload))
	r.msg = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&r.from)), Namelen: unix.SizeofSockaddrAny, Iov: &r.iov, Control: &r.oob[0]}
	r.msg.SetIovlen(1)
	r.msg.SetControllen(len(r.oob))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if errno != 0 {
		return 0, false
	}
	r.fromLen, r.quoted = r.msg.Namelen, int(n)
	return extendedErr(r.oob[:r.msg.Controllen]), true
}

// address returns the address that the last call put into r.from; an IPv4 address on an IPv6 socket is returned as
// IPv4.
func (r *receiver) address() netip.AddrPort {
	switch {
	case r.from.Addr.Family == unix.AF_INET && r.fromLen >= unix.SizeofSockaddrInet4:
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.from))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), port(sa.Port))
	case r.from.Addr.Family == unix.AF_INET6 && r.fromLen >= unix.SizeofSockaddrInet6:
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&r.from))
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.Scope_id != 0 {
			a = a.WithZone(r.zone(sa.Scope_id))
		}
		return netip.AddrPortFrom(a, port(sa.Port))
	}
	return netip.AddrPort{}
}

// port is in network byte order on any machine.
func port(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}

// zone returns the name of an interface, or its number if the lookup fails. It caches only names, because a later lookup may succeed.
func (r *receiver) zone(index uint32) string {
	if name, ok := r.zones[index]; ok {
		return name
	}
	ifc, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return strconv.FormatUint(uint64(index), 10)
	}
	if r.zones == nil {
		r.zones = map[uint32]string{}
	}
	r.zones[index] = ifc.Name
	return ifc.Name
}

// sizes of struct sock_extended_err: errno, 32 bits, then origin, 8 bits.
const (
	extendedErrSize   = 16
	extendedErrOrigin = 4
)

// extendedErr finds the error in the control messages of an entry; 0: it is none of the network's.
func extendedErr(oob []byte) syscall.Errno {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range msgs {
		ip := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
		ip6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !ip && !ip6 || len(m.Data) < extendedErrSize {
			continue
		}
		switch m.Data[extendedErrOrigin] {
		case unix.SO_EE_ORIGIN_ICMP, unix.SO_EE_ORIGIN_ICMP6, unix.SO_EE_ORIGIN_LOCAL:
			return syscall.Errno(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
