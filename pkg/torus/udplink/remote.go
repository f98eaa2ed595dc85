package udplink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// remote is the peer at the other end. It does not change, only another one can replace it.
type remote struct {
	at   grid.Coord
	away bool // there is none: see Leave
	addr netip.AddrPort
	bare netip.AddrPort // the same without a zone, as packets carry it
	to   rawAddr        // the same for the kernel
	tls  *tls.Config    // of handshakes with it
}

// handshaken is a session and its peer.
type handshaken struct {
	session *torus.Session
	with    *remote
}

func (c Config) remote(addr netip.AddrPort, verify func(*x509.Certificate) error) (*remote, error) {
	to, err := Sockaddr(addr)
	if err != nil {
		return nil, fmt.Errorf("link %s: peer address %s: %w", c.Dir, addr, err)
	}
	bare := netip.AddrPortFrom(addr.Addr().WithZone(""), addr.Port())
	return &remote{at: c.Dst, addr: addr, bare: bare, to: rawOf(to), tls: c.handshakeConfig(verify)}, nil
}

// SetPeer makes the link speak with another peer from now on: of that place, at that address, with a certificate that
// verify accepts. Packets of the previous peer are a stranger's then. A handshake with that one may still be under way and
// reported: see Outdated. The caller requests a session with the new peer by Redial. This end's address stays the
// same.
func (l *Link) SetPeer(at grid.Coord, addr netip.AddrPort, verify func(*x509.Certificate) error) error {
	cfg := l.cfg
	cfg.Dst, cfg.Peer, cfg.VerifyPeer = at, unmap(addr), verify
	if err := cfg.validate(); err != nil {
		return err
	}
	r, err := cfg.remote(cfg.Peer, verify)
	if err != nil {
		return err
	}
	l.become(r)
	return nil
}

func (l *Link) become(r *remote) {
	l.remote.Store(r)
	l.filter(l.raw, r.addr)
	l.knowPeer()
	l.quiet.newPeer(l, r.addr)
}

// Leave makes the link speak with nobody until the next SetPeer: it takes no packets and makes no sessions. Its sockets
// stay open.
func (l *Link) Leave() {
	r := *l.remote.Load()
	r.addr, r.away = l.local, true // nobody sends from this end's own address
	r.bare = netip.AddrPortFrom(r.addr.Addr().WithZone(""), r.addr.Port())
	l.become(&r)
}

// Outdated reports whether a session passed to OnSession was made with a peer that SetPeer has since replaced. Its
// keys must not be used. The caller must prevent concurrent calls of SetPeer.
func (l *Link) Outdated(s *torus.Session) bool {
	m := l.made.Load()
	return m != nil && m.session == s && m.with != l.remote.Load()
}

// PeerAddr returns the address of the other end.
func (l *Link) PeerAddr() netip.AddrPort { return l.remote.Load().addr }
