package udplink

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// Bind opens the UDP socket of a link, for a process that holds it while the link's own process is restarted. Packets
// that arrive meanwhile wait in the socket. See Config.Socket.
func Bind(local netip.AddrPort, iface string) (*net.UDPConn, error) {
	family := "6"
	if local.Addr().Is4() {
		family = "4"
	}
	if _, err := Sockaddr(local); err != nil { // Go would ignore an unknown zone
		return nil, fmt.Errorf("listen on UDP %s: %w", local, err)
	}
	lc := net.ListenConfig{Control: BindTo(iface)}
	pc, err := lc.ListenPacket(context.Background(), "udp"+family, local.String())
	if err != nil {
		return nil, fmt.Errorf("listen on UDP %s: %w", local, err)
	}
	conn := pc.(*net.UDPConn)
	if err := conn.SetReadBuffer(receiveBuffer); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("receive buffer of UDP %s: %w", local, err)
	}
	return conn, nil
}

// CheckInterface returns an error unless a socket is bound to the interface of a link. iface is the interface's name or an alternative
// name. If it is empty, the socket must be bound to none. The kernel binds a socket with a link-local address to the address's zone. A
// socket that is bound to a removed interface receives nothing, even if another interface has the same name now.
func CheckInterface(fd int, local netip.AddrPort, iface string) error {
	bound, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX)
	if err != nil {
		return fmt.Errorf("interface of the socket: %w", err)
	}
	want := 0
	switch zone := local.Addr().Zone(); {
	case zone != "" && local.Addr().IsLinkLocalUnicast():
		iface = zone
		var sa unix.Sockaddr
		if sa, err = Sockaddr(local); err == nil {
			want = int(sa.(*unix.SockaddrInet6).ZoneId)
		}
	case iface != "":
		want, err = interfaceIndex(fd, iface)
	}
	switch {
	case err != nil:
		return fmt.Errorf("interface %s: %w", iface, err)
	case bound != want:
		return fmt.Errorf("the socket is bound to %s: want %s", nameOfIndex(fd, bound), cmp.Or(iface, "no interface"))
	}
	return nil
}

// interfaceIndex returns the index of the interface with a name. net.InterfaceByName knows no alternative names.
func interfaceIndex(fd int, name string) (int, error) {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r)
	}
	if err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

// nameOfIndex names the interface that a socket is bound to.
func nameOfIndex(fd, index int) string {
	if index == 0 {
		return "no interface"
	}
	if name, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err == nil {
		return "interface " + name
	}
	return fmt.Sprintf("interface %d, which was removed", index)
}

// bind takes over the given socket, or opens one.
func (l *Link) bind() error {
	l.udp = l.cfg.Socket
	if l.udp == nil {
		var err error
		if l.udp, err = Bind(l.cfg.Local, l.cfg.Interface); err != nil {
			return fmt.Errorf("link %s: %w", l.cfg.Dir, err)
		}
	}
	addr, ok := l.udp.LocalAddr().(*net.UDPAddr)
	if !ok {
		return fmt.Errorf("link %s: the socket has no address", l.cfg.Dir)
	}
	l.local = unmap(addr.AddrPort())
	if l.cfg.Socket != nil && l.cfg.Local.Port() != 0 && l.local != l.cfg.Local {
		return fmt.Errorf("link %s: the socket is bound to UDP %s: want %s", l.cfg.Dir, l.local, l.cfg.Local)
	}
	if l.cfg.Socket == nil {
		return nil
	}
	raw, err := l.udp.SyscallConn()
	if err == nil {
		if cerr := raw.Control(func(fd uintptr) { err = CheckInterface(int(fd), l.cfg.Local, l.cfg.Interface) }); cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", l.cfg.Dir, err)
	}
	return nil
}

// filter makes the kernel drop all datagrams but the peer's. If the kernel refuses, the reader does it.
func (l *Link) filter(c syscall.RawConn, peer netip.AddrPort) {
	if err := udpguard.SetPeer(c, peer); err != nil {
		l.log.Warn("the kernel does not filter the packets of this link: strangers can fill its buffer", "err", err)
	}
}

// memInfo is the array of SO_MEMINFO; its last element counts drops.
type memInfo [9]uint32

// dropCount counts the packets that the kernel dropped at a socket. It never falls: when the socket is closed, the last
// value remains. It is safe for concurrent use.
type dropCount struct {
	before uint32 // drops of a socket that the caller supplied
	mu     sync.Mutex
	last   uint32
}

// read returns the count.
func (d *dropCount) read(c syscall.RawConn) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, ok := drops(c); ok {
		d.last = n - d.before
	}
	return uint64(d.last)
}

// drops returns the number of packets that the kernel has dropped at a socket. It reports false if the socket is closed.
func drops(c syscall.RawConn) (n uint32, ok bool) {
	var info memInfo
	size := uint32(unsafe.Sizeof(info))
	var errno syscall.Errno
	err := c.Control(func(fd uintptr) {
		_, _, errno = unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err != nil || errno != 0 {
		return 0, false
	}
	return info[len(info)-1], true
}

func (l *Link) dropped() uint64 { return l.drops.read(l.raw) + l.quiet.dropped() }
