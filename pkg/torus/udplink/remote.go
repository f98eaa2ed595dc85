package udplink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/torus"
)

// remote is who is at the other end. It does not change: another one takes its place.
type remote struct {
	addr netip.AddrPort
	to   unix.Sockaddr // the same
	tls  *tls.Config   // of handshakes with it
}

// handshaken is a session and with whom it was made.
type handshaken struct {
	session *torus.Session
	with    *remote
}

func (c Config) remote(addr netip.AddrPort, verify func(*x509.Certificate) error) (*remote, error) {
	to, err := Sockaddr(addr)
	if err != nil {
		return nil, fmt.Errorf("link %s: peer address %s: %w", c.Dir, addr, err)
	}
	return &remote{addr: addr, to: to, tls: c.handshakeConfig(verify)}, nil
}

// SetPeer has the link speak with another peer from now on: at that address, and whose certificate verify accepts. Packets of the
// one before are a stranger's then. A handshake with it that is under way may still be told of: see Outdated. Whoever calls it asks for
// a session with the new peer by Redial. This end's address stays as it is.
func (l *Link) SetPeer(addr netip.AddrPort, verify func(*x509.Certificate) error) error {
	cfg := l.cfg
	cfg.Peer, cfg.VerifyPeer = unmap(addr), verify
	if err := cfg.validate(); err != nil {
		return err
	}
	r, err := cfg.remote(cfg.Peer, verify)
	if err != nil {
		return err
	}
	l.remote.Store(r)
	l.filter(r.addr)
	return nil
}

// Outdated says whether a session that OnSession tells of was made with a peer that SetPeer has since replaced. Its keys must not be
// used. Who asks keeps SetPeer from being called meanwhile.
func (l *Link) Outdated(s *torus.Session) bool {
	m := l.made.Load()
	return m != nil && m.session == s && m.with != l.remote.Load()
}

// PeerAddr returns the address of the other end.
func (l *Link) PeerAddr() netip.AddrPort { return l.remote.Load().addr }
