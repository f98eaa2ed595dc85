package direct

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// wrongCalls are the errors of a wrong call: neither the network nor a firewall causes them.
var wrongCalls = []unix.Errno{unix.EBADF, unix.EFAULT, unix.ENOTSOCK, unix.EDESTADDRREQ, unix.EISCONN, unix.EAFNOSUPPORT, unix.ENOSYS}

// Damaged reports whether an error of Send, to the socket's own address, shows that this process is damaged: its call was wrong, although
// its code is right. EINVAL counts while the machine has the socket's address: without the address the kernel answers so too.
func (s *Socket) Damaged(err error) bool {
	if slices.ContainsFunc(wrongCalls, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return true
	}
	return errors.Is(err, unix.EINVAL) && hasAddress(s.local.Addr())
}

// hasAddress reports whether the machine has an address; it has the unspecified one.
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
