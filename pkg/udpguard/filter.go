// Package udpguard makes the kernel refuse datagrams by their source before they take space in a receive buffer, so
// that a flood from strangers neither fills the buffer nor wakes its reader.
//
// SetPeer admits one source and suits sockets with one peer. A Guard suits sockets with many, and TCP listeners: it always
// admits known sources, and limits all strangers together to one budget. Both attach a classic BPF program
// (SO_ATTACH_FILTER), which needs no privilege. A Pace bounds the reader's own work. The package checks only addresses and
// proves nothing: anyone who can send raw packets can forge a source address. Start with Guard.
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

// maxProgram is the kernel's limit of instructions in one program (BPF_MAXINSNS).
const maxProgram = 4096

// Offsets that a UDP socket's program may load: its data begins at the UDP header, and the kernel's negative offsets
// reach the network header (linux/filter.h).
const (
	netOffset    = 0xfff00000 // SKF_NET_OFF
	randomOffset = 0xfffff038 // SKF_AD_OFF + SKF_AD_RANDOM
	sourceV4     = netOffset + 12
	sourceV6     = netOffset + 8
	sourcePort   = 0
	tcpFlags     = 13 // of a TCP listener's program: its data begins at the TCP header
	tcpSYN       = 2
	acceptAll    = 0xffffffff // bytes of the datagram to keep
)

// SetPeer makes the kernel drop every datagram that is not from peer. A later call replaces the peer. Datagrams
// already in the buffer stay there, so the reader must check the source as well.
func SetPeer(c syscall.RawConn, peer netip.AddrPort) error {
	if !peer.IsValid() {
		return fmt.Errorf("filter datagrams by source: peer %s: want an address and a port", peer)
	}
	if err := attach(c, program([]netip.AddrPort{peer}, rules{ports: true}, allStrangers)); err != nil {
		return fmt.Errorf("filter datagrams by source %s: %w", peer, err)
	}
	return nil
}

// allStrangers is a share of 1 in 2^32: the program then admits no stranger at all.
const allStrangers = 32

// rules define the strangers of a program.
type rules struct {
	ports    bool // a source is an address and a port; otherwise an address
	near     bool // strangers are other ports at the addresses of known sources: the program admits no other address
	listener bool // of TCP: the program looks at SYNs alone, and admits the packets of connections
}

// program admits known sources, and one stranger's datagram in 2^shift at random.
func program(known []netip.AddrPort, r rules, shift uint) []unix.SockFilter {
	var v4, v6 []netip.AddrPort
	for _, a := range known {
		a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
		if !r.ports {
			a = netip.AddrPortFrom(a.Addr(), 0)
		}
		if a.Addr().Is4() {
			v4 = append(v4, a)
		} else if a.Addr().Is6() {
			v6 = append(v6, a)
		}
	}
	var near []unix.SockFilter
	if r.near {
		near, shift = strangers(shift), allStrangers
	}
	four, six := sources(v4, r.ports, near), sources(v6, r.ports, near)
	var out []unix.SockFilter
	if r.listener {
		out = append(out, load(unix.BPF_B, tcpFlags),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: tcpSYN, Jt: 1}, ret(acceptAll))
	}
	out = append(out,
		load(unix.BPF_B, netOffset),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf0},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x40, Jt: 1},
		jump(len(four)+1))
	out = append(out, four...)
	out = append(out, jump(len(six)))
	out = append(out, six...)
	return append(out, strangers(shift)...)
}

// strangers returns the end of a program, which decides on strangers.
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

// sources returns instructions that admit the known sources of one address family. All other sources run on past their end. near, if not
// empty, decides on unknown ports at known addresses; if it is empty, these run on too.
func sources(known []netip.AddrPort, ports bool, near []unix.SockFilter) []unix.SockFilter {
	slices.SortFunc(known, netip.AddrPort.Compare)
	known = slices.Compact(known)
	var blocks [][]unix.SockFilter
	for len(known) > 0 {
		addr := known[0].Addr()
		n := slices.IndexFunc(known, func(a netip.AddrPort) bool { return a.Addr() != addr })
		if n < 0 {
			n = len(known)
		}
		blocks = append(blocks, block(addr, known[:n], ports, near))
		known = known[n:]
	}
	return slices.Concat(blocks...)
}

// block admits the known ports of one address.
func block(addr netip.Addr, known []netip.AddrPort, ports bool, near []unix.SockFilter) []unix.SockFilter {
	var match []unix.SockFilter // the instructions after the address matches
	if ports {
		match = append(match, load(unix.BPF_H, sourcePort))
		for _, a := range known {
			match = append(match, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(a.Port()), Jf: 1}, ret(acceptAll))
		}
		match = append(match, near...)
	} else {
		match = append(match, ret(acceptAll))
	}
	at, words := uint32(sourceV4), addr.AsSlice()
	if addr.Is6() {
		at = sourceV6
	}
	var out []unix.SockFilter
	for i := 0; i < len(words); i += 4 {
		rest := (len(words)-i)/4 - 1 // words still to compare, three instructions each
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
		serr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
	})
	return errors.Join(err, serr)
}

// detach makes the kernel admit everything.
func detach(c syscall.RawConn) error {
	var serr error
	err := c.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
	if errors.Is(serr, unix.ENOENT) {
		serr = nil // no program was attached
	}
	return errors.Join(err, serr)
}

// replace attaches prog. On failure no program is attached.
func replace(c syscall.RawConn, prog []unix.SockFilter) error {
	if len(prog) <= maxProgram && attach(c, prog) == nil {
		return nil
	}
	// The kernel charges the socket for the old and the new program together, so the new one may fit alone.
	if err := detach(c); err != nil {
		return err
	}
	if len(prog) > maxProgram {
		return fmt.Errorf("attach a program of %d instructions: the kernel takes %d at most", len(prog), maxProgram)
	}
	if err := attach(c, prog); err != nil {
		return fmt.Errorf("attach a program of %d instructions: %w", len(prog), err)
	}
	return nil
}
