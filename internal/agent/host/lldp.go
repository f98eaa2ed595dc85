package host

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Frames of the Link Layer Discovery Protocol, IEEE 802.1AB.
const (
	lldpType    = 0x88cc // Ethernet's type
	maxLLDP     = 1500   // bytes of a frame's payload
	lldpBridge  = 1 << 2 // capabilities
	lldpRouter  = 1 << 4
	maxLLDPText = 255 // bytes of a name
)

// lldpGroups are the multicast addresses of LLDP: nearest bridge, nearest bridge but repeaters, nearest customer bridge.
var lldpGroups = [][6]byte{{1, 0x80, 0xc2, 0, 0, 0x0e}, {1, 0x80, 0xc2, 0, 0, 3}, {1, 0x80, 0xc2, 0, 0, 0}}

// Switch is a switch or router that an LLDP frame names.
type Switch struct {
	Interface string `json:"interface"`      // of this machine, which received the frame
	Chassis   string `json:"chassis"`        // the switch's identity: a MAC address, an IP address or a text
	Port      string `json:"port"`           // of the switch
	Name      string `json:"name,omitempty"` // the switch's system name
}

// Label returns the switch's name as the value of a label: at most 63 bytes of A-Z, a-z, 0-9, '-', '_' and '.'.
func (s Switch) Label() string {
	name := cmp.Or(s.Name, s.Chassis)
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '-' || r == '_' || r == '.' || alphanumeric(byte(r))) {
			return r
		}
		return '-'
	}, name)
	value := strings.Trim(plain, "-_.")
	if value == name && len(value) <= 63 {
		return value
	}
	// Other names must not give the same value.
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return strings.TrimLeft(fmt.Sprintf("%s-%08x", value[:min(len(value), 54)], h.Sum32()), "-")
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// errNoSwitch is the error of a good frame whose sender is no switch.
var errNoSwitch = errors.New("LLDP: the sender is neither a bridge nor a router, or says goodbye")

// parseLLDP reads the payload of a frame.
func parseLLDP(b []byte) (Switch, error) {
	var s Switch
	if len(b) > maxLLDP {
		return s, fmt.Errorf("LLDP: %d bytes, want at most %d", len(b), maxLLDP)
	}
	isSwitch, goodbye := true, false
	for i := 0; ; i++ {
		if len(b) < 2 {
			return s, errors.New("LLDP: ends without an end mark")
		}
		head := binary.BigEndian.Uint16(b)
		kind, n := int(head>>9), int(head&0x1ff)
		if len(b) < 2+n {
			return s, fmt.Errorf("LLDP: field %d of type %d has %d bytes, want %d", i, kind, len(b)-2, n)
		}
		value := b[2 : 2+n]
		b = b[2+n:]
		if want := i + 1; i < 3 && kind != want {
			return s, fmt.Errorf("LLDP: field %d has type %d, want %d", i, kind, want)
		}
		switch kind {
		case 0: // the end; Ethernet may pad the frame
			if !isSwitch || goodbye {
				return s, errNoSwitch
			}
			return s, nil
		case 1, 2:
			if n < 2 || n > 1+maxLLDPText {
				return s, fmt.Errorf("LLDP: type %d has %d bytes, want 2 to %d", kind, n, 1+maxLLDPText)
			}
			if kind == 1 {
				s.Chassis = lldpID(value[0], value[1:], 4, 5)
			} else {
				s.Port = lldpID(value[0], value[1:], 3, 4)
			}
		case 3:
			if n < 2 {
				return s, fmt.Errorf("LLDP: the time to live has %d bytes, want 2", n)
			}
			goodbye = value[0] == 0 && value[1] == 0
		case 5:
			s.Name = lldpText(value[:min(n, maxLLDPText)])
		case 7:
			if n < 4 {
				return s, fmt.Errorf("LLDP: the capabilities have %d bytes, want 4", n)
			}
			isSwitch = binary.BigEndian.Uint16(value[2:])&(lldpBridge|lldpRouter) != 0
		}
	}
}

// lldpID returns an identity as text. Its subtype says what it is; mac and ip are the subtypes of addresses.
func lldpID(subtype byte, value []byte, mac, ip byte) string {
	switch {
	case subtype == mac && len(value) == 6:
		return net.HardwareAddr(value).String()
	case subtype == ip && (len(value) == 1+net.IPv4len || len(value) == 1+net.IPv6len):
		return net.IP(value[1:]).String()
	}
	return lldpText(value)
}

// lldpText returns printable text.
func lldpText(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(bytes.TrimRight(b, "\x00")))
}

// ErrNoFrame is the error of Switches if no interface has received a frame of a switch.
var ErrNoFrame = errors.New("no switch heard by LLDP")

// Switches listens on these interfaces for LLDP frames, until each has heard a switch or ctx ends. It returns the switch
// of each interface that has heard one, in the order of the interfaces' names. It needs CAP_NET_RAW.
func Switches(ctx context.Context, interfaces []string) ([]Switch, error) {
	waiting := map[int]string{}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w (it needs CAP_NET_RAW)", err)
	}
	sock := os.NewFile(uintptr(fd), "lldp")
	defer func() { _ = sock.Close() }()
	for _, name := range interfaces {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %q: %w", name, err)
		}
		waiting[i.Index] = name
		for _, group := range lldpGroups {
			m := unix.PacketMreq{Ifindex: int32(i.Index), Type: unix.PACKET_MR_MULTICAST, Alen: 6} //nolint:gosec // kernel's number
			copy(m.Address[:], group[:])
			if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
				return nil, fmt.Errorf("interface %q: multicast: %w", name, err)
			}
		}
	}
	// A port of a bond: the frame is the port's own.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_ORIGDEV, 1); err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(lldpType)}); err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	out, err := hear(sock, waiting)
	slices.SortFunc(out, func(a, b Switch) int { return cmp.Compare(a.Interface, b.Interface) })
	switch {
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("packet socket: %w", err)
	case len(out) == 0:
		return nil, fmt.Errorf("%w on %s", ErrNoFrame, strings.Join(interfaces, ", "))
	}
	return out, nil
}

// hear reads frames until each of these interfaces has heard a switch.
func hear(sock *os.File, waiting map[int]string) ([]Switch, error) {
	conn, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	var out []Switch
	frame := make([]byte, maxLLDP+1)
	for len(waiting) > 0 {
		var n int
		var from unix.Sockaddr
		var failed error
		if err := conn.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), frame, 0) //nolint:gosec // a descriptor
			return !errors.Is(failed, unix.EAGAIN)
		}); err != nil {
			return out, err
		}
		if errors.Is(failed, unix.EINTR) || errors.Is(failed, unix.ENETDOWN) { // an interface went down: the others go on
			continue
		}
		if failed != nil {
			return out, failed
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		name, ok := waiting[link.Ifindex]
		if !ok {
			continue
		}
		if s, err := parseLLDP(frame[:n]); err == nil {
			s.Interface = name
			out = append(out, s)
			delete(waiting, link.Ifindex)
		}
	}
	return out, nil
}

// bigEndian returns a number of 16 bits in network byte order.
func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Cables returns the physical Ethernet interfaces of this machine that are up: those that a cable to a switch may have.
// sysfs is the root of /sys.
func Cables(sysfs string) ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("interfaces of this machine: %w", err)
	}
	var out []string
	for _, i := range all {
		if _, err := os.Stat(sysfs + "/class/net/" + i.Name + "/device"); err == nil && i.Flags&net.FlagUp != 0 && len(i.HardwareAddr) == 6 {
			out = append(out, i.Name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no physical Ethernet interface of this machine is up: %w", ErrNoFrame)
	}
	return out, nil
}
