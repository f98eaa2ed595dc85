// Package udpguard has the kernel refuse datagrams by their source before they take room in a receive buffer, so that a flood from
// strangers neither fills the buffer nor wakes its reader.
//
// SetPeer admits one source and is for sockets with one peer. A Guard is for sockets with many: it admits known sources always, and of all
// strangers together no more than a budget. Both attach a classic BPF program (SO_ATTACH_FILTER), which needs no privilege. The package
// looks at addresses alone and proves nothing: a source address can be forged by whoever can send raw packets. Start with Guard.
package udpguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaxKnown is how many known sources one program can tell by address and port. Of more the program looks at the addresses alone, and of
// more than MaxKnown addresses it admits all.
const MaxKnown = 512

// Offsets that a program of a UDP socket may load: its data begins at the UDP header, and the network header is reached by an offset of
// the kernel's (linux/filter.h).
const (
	netOffset    = 0xfff00000 // SKF_NET_OFF
	randomOffset = 0xfffff038 // SKF_AD_OFF + SKF_AD_RANDOM
	sourceV4     = netOffset + 12
	sourceV6     = netOffset + 8
	sourcePort   = 0
	acceptAll    = 0xffffffff // bytes of the datagram to keep
)

// SetPeer has the kernel drop every datagram that is not from peer. A later call replaces the peer. Datagrams that wait in the buffer
// already stay there: the reader checks the source as well.
func SetPeer(c syscall.RawConn, peer netip.AddrPort) error {
	if !peer.IsValid() {
		return fmt.Errorf("filter datagrams by source: peer %s: want an address and a port", peer)
	}
	if err := attach(c, program([]netip.AddrPort{peer}, true, allStrangers)); err != nil {
		return fmt.Errorf("filter datagrams by source %s: %w", peer, err)
	}
	return nil
}

// allStrangers is a share of 1 in 2^32: the program then admits no stranger at all.
const allStrangers = 32

// program admits known sources, by port too where ports is set, and of strangers one in 2^shift by chance.
func program(known []netip.AddrPort, ports bool, shift uint) []unix.SockFilter {
	var v4, v6 []netip.AddrPort
	for _, a := range known {
		a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
		if !ports {
			a = netip.AddrPortFrom(a.Addr(), 0)
		}
		if a.Addr().Is4() {
			v4 = append(v4, a)
		} else if a.Addr().Is6() {
			v6 = append(v6, a)
		}
	}
	four, six := sources(v4, ports), sources(v6, ports)
	out := []unix.SockFilter{
		load(unix.BPF_B, netOffset),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x40, Jt: 1},
		jump(len(four) + 1),
	}
	out = append(out, four...)
	out = append(out, jump(len(six)))
	out = append(out, six...)
	return append(out, strangers(shift)...)
}

// strangers ends a program.
func strangers(shift uint) []unix.SockFilter {
	switch {
	case shift == 0:
		return []unix.SockFilter{ret(acceptAll)}
	case shift >= allStrangers:
		return []unix.SockFilter{ret(0)}
	}
	return []unix.SockFilter{
		load(unix.BPF_W, randomOffset),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 1<<shift - 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
		ret(acceptAll),
		ret(0),
	}
}

// sources admits the known sources of one address family, and goes on behind its end with all others.
func sources(known []netip.AddrPort, ports bool) []unix.SockFilter {
	slices.SortFunc(known, netip.AddrPort.Compare)
	known = slices.Compact(known)
	var blocks [][]unix.SockFilter
	for len(known) > 0 {
		addr := known[0].Addr()
		n := slices.IndexFunc(known, func(a netip.AddrPort) bool { return a.Addr() != addr })
		if n < 0 {
			n = len(known)
		}
		blocks = append(blocks, block(addr, known[:n], ports))
		known = known[n:]
	}
	return slices.Concat(blocks...)
}

// block admits the known ports of one address.
func block(addr netip.Addr, known []netip.AddrPort, ports bool) []unix.SockFilter {
	var match []unix.SockFilter // what follows when the address is that
	if ports {
		match = append(match, load(unix.BPF_H, sourcePort))
		for _, a := range known {
			match = append(match, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(a.Port()), Jf: 1}, ret(acceptAll))
		}
	} else {
		match = append(match, ret(acceptAll))
	}
	at, words := uint32(sourceV4), addr.AsSlice()
	if addr.Is6() {
		at = sourceV6
	}
	var out []unix.SockFilter
	for i := 0; i < len(words); i += 4 {
		rest := (len(words)-i)/4 - 1 // words still to be compared, three instructions each
		out = append(out,
			load(unix.BPF_W, at+uint32(i)),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(words[i:]), Jt: 1},
			jump(3*rest+len(match)))
	}
	return append(out, match...)
}

func load(size uint16, at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at}
}

func jump(over int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(over)}
}

func ret(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

func attach(c syscall.RawConn, prog []unix.SockFilter) error {
	var serr error
	err := c.Control(func(fd uintptr) {
		serr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
	})
	return errors.Join(err, serr)
}

// detach has the kernel admit everything.
func detach(c syscall.RawConn) error {
	var serr error
	err := c.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
	if errors.Is(serr, unix.ENOENT) {
		serr = nil // none was attached
	}
	return errors.Join(err, serr)
}

// addresses counts the different addresses of sorted sources.
func addresses(known []netip.AddrPort) int {
	n := 0
	for i := range known {
		if i == 0 || known[i].Addr() != known[i-1].Addr() {
			n++
		}
	}
	return n
}
