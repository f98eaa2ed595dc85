package ingest

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// When a node's agents have ended and its kernel lives, the kernel refuses challenges with ICMP port unreachable. Anybody
// can send such an answer, so it counts only if it quotes the nonce of a challenge that went to that address, straight
// and nowhere else. A node may have several addresses; all of them must refuse, each once.

// Refused takes an ICMP answer from a report socket: the kernel at an address refused a datagram that begins with quote.
// It returns whether that datagram is a challenge that still waits for a refusal from there.
func (s *Sender) Refused(to netip.AddrPort, quote []byte) bool {
	nonce, ok := quotedNonce(quote)
	if !ok {
		return false
	}
	node, all, ok := s.asked.refused(nonce, to)
	if all {
		s.cfg.Metrics.ChallengesRefused.Inc()
		if s.cfg.Refused != nil {
			s.cfg.Refused(awareness.Refused{Node: node, Nonce: nonce})
		}
	}
	return ok
}

// straight notes the addresses of a challenge that goes straight to a node. It must precede the sending.
func (a *asked) straight(node fault.NodeID, nonce [servicenet.NonceSize]byte, places []Place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.find(nonce)
	if p == nil {
		return
	}
	p.node, p.open = node, make([]netip.AddrPort, len(places))
	for i, at := range places {
		p.open[i] = unmapped(at.Addr)
	}
}

// refused notes that an address refused a challenge. ok reports whether that was still open, and all whether it was the
// last one.
func (a *asked) refused(nonce [servicenet.NonceSize]byte, by netip.AddrPort) (node fault.NodeID, all, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.find(nonce)
	if p == nil {
		return "", false, false
	}
	i := slices.Index(p.open, unmapped(by))
	if i < 0 {
		return "", false, false
	}
	p.open = slices.Delete(p.open, i, i+1)
	return p.node, len(p.open) == 0, true
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// quotedNonce returns the nonce of the challenge that an envelope without acks contains, of which only the beginning is
// given.
func quotedNonce(envelope []byte) (nonce [servicenet.NonceSize]byte, ok bool) {
	var size uint64
	for _, want := range [...]protowire.Number{payloadField, challengeField, askedField} {
		field, typ, n := protowire.ConsumeTag(envelope)
		if n < 0 || field != want || typ != protowire.BytesType {
			return nonce, false
		}
		envelope = envelope[n:]
		if size, n = protowire.ConsumeVarint(envelope); n < 0 {
			return nonce, false
		}
		envelope = envelope[n:]
	}
	if size != uint64(len(nonce)) || len(envelope) < len(nonce) {
		return nonce, false
	}
	return [servicenet.NonceSize]byte(envelope), true
}
