package direct

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// wrongCalls are errors of a malformed system call. Neither the network nor a firewall causes them.
var wrongCalls = []unix.Errno{unix.EBADF, unix.EFAULT, unix.ENOTSOCK, unix.EDESTADDRREQ, unix.EISCONN, unix.EAFNOSUPPORT, unix.ENOSYS}

// Damaged reports whether err shows that this process is damaged. err is from Send to the socket's own address. It does so if the kernel
// rejected the call as malformed. EINVAL counts only while the machine has that address, because the kernel also returns it without.
func (s *Socket) Damaged(err error) bool {
	if slices.ContainsFunc(wrongCalls, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return true
	}
	return errors.Is(err, unix.EINVAL) && hasAddress(s.local.Addr())
}

// hasAddress reports whether the machine has an address. It is true for the unspecified address.
func hasAddress(want netip.Addr) bool {
	if want.IsUnspecified() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == want.WithZone("").Unmap()
	})
}
