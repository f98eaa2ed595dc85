package config

import (
	"net/netip"

	"github.com/lofamo/lofamo/pkg/fault"
)

// WindowConfig is this half's end of the window to the kernel of the other half: UDP for words and messages, TCP on the same
// addresses for the handshake. Each half has a configuration, keys and a state directory of its own, which differ in this
// section.
type WindowConfig struct {
	// Listen is this half's address, "ip:port". Required in a window.
	Listen string `json:"listen,omitempty"`
	// Peer is the other half's address, "ip:port", of the same family. Required in a window.
	Peer string `json:"peer,omitempty"`
	// Interface binds the window to a network interface (SO_BINDTODEVICE). Default none.
	Interface string `json:"interface,omitempty"`
}

// Zero reports whether there is no window.
func (w WindowConfig) Zero() bool { return w == WindowConfig{} }

// HalvesHere returns the halves that may run with this configuration: both, or with a window those of which it names the
// certificate or the key.
func (a Agent) HalvesHere() (out []fault.Half) {
	if t := a.TLS; a.Window.Zero() || t.HostCert != "" || t.HostKey != "" {
		out = append(out, fault.HalfHost)
	}
	if t := a.TLS; a.Window.Zero() || t.DNPCert != "" || t.DNPKey != "" || len(out) == 0 {
		out = append(out, fault.HalfDNP)
	}
	return out
}

func (a Agent) validateHalves(p *problems) {
	here := a.HalvesHere()
	if len(here) == 1 && here[0] == fault.HalfDNP {
		p.add(a.ValidateHostWords())
	}
	for _, h := range here {
		if h == fault.HalfHost {
			p.path("tls.hostCert", a.TLS.HostCert)
			p.path("tls.hostKey", a.TLS.HostKey)
			continue
		}
		p.path("tls.dnpCert", a.TLS.DNPCert)
		p.path("tls.dnpKey", a.TLS.DNPKey)
	}
	if a.Window.Zero() {
		return
	}
	p.listen("window.listen", a.Window.Listen)
	p.remote("window.peer", a.Window.Peer)
	p.iface("window.interface", a.Window.Interface)
	if a.Spare {
		p.bad("spare", a.Spare, "false beside window: a spare's daemon finds a place for both halves, and here each has its own")
	}
	listen, err := netip.ParseAddrPort(a.Window.Listen)
	peer, perr := netip.ParseAddrPort(a.Window.Peer)
	switch {
	case err != nil || perr != nil: // named already
	case listen.Addr().Unmap().Is4() != peer.Addr().Unmap().Is4():
		p.bad("window.peer", a.Window.Peer, "an address of the family of window.listen (%s)", a.Window.Listen)
	case listen == peer:
		p.bad("window.peer", a.Window.Peer, "another address than window.listen")
	}
}
