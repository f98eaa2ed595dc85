package direct

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PathError reports whether an error of Send, or one passed to OnError, speaks against the path to that destination:
// no route, no neighbour, no interface, no address to send from, no listener at the port, a filter. A full buffer, a
// datagram too long and a closed socket do not.
func PathError(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN, unix.ENONET,
		unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL,
		unix.EACCES, unix.EPERM, // a prohibiting route or filter, here or on the way
		unix.EINVAL: // the kernel's error when the source address has gone, and on a blackhole route
		return true
	default:
		return false
	}
}

// memInfo is the array of 32-bit numbers that SO_MEMINFO gives: among them the bytes that wait, the size of the buffer, and
// the number of drops.
const (
	memInfoLen    = 9
	memInfoWaits  = 0
	memInfoBuffer = 1
	memInfoDrops  = 8
)

// memInfo returns the socket's numbers; false: the kernel does not give them.
func memInfo(fd uintptr) (info [memInfoLen]uint32, ok bool) {
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	return info, errno == 0 && size >= uint32(unsafe.Sizeof(info))
}

// drops returns the kernel's count of datagrams dropped at this endpoint because its buffer was full.
func (e *endpoint) drops() (n uint64) {
	_ = e.raw.Control(func(fd uintptr) { // an error: it is closed
		if info, ok := memInfo(fd); ok {
			n = uint64(info[memInfoDrops])
		}
	})
	return n
}

func (s *Socket) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	ep := s.cur.Load()
	if s.closed.Load() || ep == nil {
		return s.past
	}
	return s.past + ep.drops()
}
