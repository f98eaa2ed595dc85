package direct

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestWrongCallShowsDamage: errors that the network, a firewall or a missing address causes show no damage of the process.
func TestWrongCallShowsDamage(t *testing.T) {
	here, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = here.Close() }()
	gone := &Socket{local: netip.MustParseAddrPort("192.0.2.1:7100")} // TEST-NET-1: no machine has it
	everywhere := &Socket{local: netip.MustParseAddrPort("0.0.0.0:7100")}
	for _, tc := range []struct {
		name string
		at   *Socket
		err  error
		want bool
	}{
		{"bad descriptor", here, unix.EBADF, true},
		{"bad buffer", gone, unix.EFAULT, true},
		{"no such call", here, unix.ENOSYS, true},
		{"wrong length of the address", here, unix.EINVAL, true},
		{"wrong length of the address, all addresses", everywhere, unix.EINVAL, true},
		{"the address is gone", gone, unix.EINVAL, false},
		{"firewall", here, unix.EPERM, false},
		{"no route", here, unix.ENETUNREACH, false},
		{"no room", here, unix.ENOBUFS, false},
		{"closed", here, net.ErrClosed, false},
		{"too long", here, servicenet.ErrTooLong, false},
		{"none", here, nil, false},
	} {
		err := tc.err
		if err != nil {
			err = fmt.Errorf("send to 127.0.0.1:1: %w", err)
		}
		if got := tc.at.Damaged(err); got != tc.want {
			t.Errorf("%s: damaged is %t", tc.name, got)
		}
	}
}

// TestKernelRefusesWrongCall: the kernel rejects malformed calls, such as a damaged sending path makes, with errors that count as damage.
func TestKernelRefusesWrongCall(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	raw := s.cur.Load().raw
	for name, call := range map[string]func(fd int) error{
		"wrong family": func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: "/x"}) },
		"no address":   func(fd int) error { return unix.Send(fd, []byte("x"), 0) },
		"wrong descriptor": func(int) error {
			return unix.Sendto(-1, []byte("x"), 0, &unix.SockaddrInet4{Port: int(s.local.Port()), Addr: s.local.Addr().As4()})
		},
	} {
		var got error
		if err := raw.Control(func(fd uintptr) { got = call(int(fd)) }); err != nil {
			t.Fatal(err)
		}
		if got == nil || !s.Damaged(got) {
			t.Errorf("%s: %v shows no damage", name, got)
		}
	}
}
