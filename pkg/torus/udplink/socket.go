package udplink

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Bind opens the UDP socket of a link, for a process that holds it while the link's own process is restarted: what comes
// meanwhile waits in it. See Config.Socket.
func Bind(local netip.AddrPort, iface string) (*net.UDPConn, error) {
	family := "6"
	if local.Addr().Is4() {
		family = "4"
	}
	lc := net.ListenConfig{Control: bindTo(iface)}
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

// bind takes over the socket that was given, or opens one.
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
	return nil
}
