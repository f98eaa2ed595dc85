package half

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

// LinksEnv is the environment variable that names the UDP sockets of links which a DNP half has inherited from its
// daemon: "X+=3,X-=4". Every process of the half uses the same sockets, so packets that arrive between two processes
// wait in them.
const LinksEnv = "LOFAMO_LINKS"

// firstInherited is the first inherited descriptor, after standard input, output and error.
const firstInherited = 3

// FormatLinks returns the variable's value for links that are passed in this order.
func FormatLinks(dirs []grid.Direction) string {
	var b strings.Builder
	for i, d := range dirs {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%d", d, firstInherited+i)
	}
	return b.String()
}

// ParseLinks parses the variable's value. It skips entries that it does not understand.
func ParseLinks(s string) map[grid.Direction]int {
	out := map[grid.Direction]int{}
	for kv := range strings.SplitSeq(s, ",") {
		name, n, _ := strings.Cut(kv, "=")
		dir, err := grid.ParseDirection(name)
		fd, nerr := strconv.Atoi(n)
		if err == nil && nerr == nil && fd >= firstInherited {
			out[dir] = fd
		}
	}
	return out
}

// Inherited returns a link's inherited socket; nil: none is bound to local and the interface. The descriptor itself stays open under
// its number, so that a later daemon finds it there.
func Inherited(dir grid.Direction, local netip.AddrPort, iface string) *net.UDPConn {
	fd, ok := ParseLinks(os.Getenv(LinksEnv))[dir]
	if !ok || !BoundTo(fd, local, iface) {
		return nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(own), "link "+dir.String())
	defer func() { _ = f.Close() }()
	pc, err := net.FilePacketConn(f)
	if err != nil {
		return nil
	}
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		_ = pc.Close()
		return nil
	}
	return conn
}

// BoundTo reports whether a descriptor is a UDP socket that is bound to an address and an interface; iface is empty for none.
func BoundTo(fd int, want netip.AddrPort, iface string) bool {
	if udplink.CheckInterface(fd, want, iface) != nil {
		return false
	}
	if t, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || t != unix.IPPROTO_UDP {
		return false
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	want = netip.AddrPortFrom(want.Addr().Unmap().WithZone(""), want.Port())
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)) == want
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)) == want
	}
	return false
}
