package half

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

func TestLinkSocketsSurviveEnvironment(t *testing.T) {
	got := ParseLinks(FormatLinks([]grid.Direction{grid.XPlus, grid.ZMinus}))
	if want := map[grid.Direction]int{grid.XPlus: 3, grid.ZMinus: 4}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v: want %v", got, want)
	}
	for _, s := range []string{"", "X+", "X+=", "X+=x", "W+=3", "X+=2", "X+=-1", ",,"} {
		if got := ParseLinks(s); len(got) > 0 {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// A socket that is bound to a removed interface receives nothing, even if another interface gets the name: a half must not use it.
func TestSocketOfRemovedInterfaceIsNotUsed(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	local := netip.MustParseAddrPort("127.0.0.1:7001")
	const add = "link add late0 type veth peer name far0"
	netnstest.IP(t, add)
	conn, err := udplink.Bind(local, "late0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	bound := func() (is bool) {
		if err := raw.Control(func(fd uintptr) { is = BoundTo(int(fd), local, "late0") }); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if !bound() {
		t.Error("the socket is not bound while its interface exists")
	}
	netnstest.IP(t, "link delete late0")
	netnstest.IP(t, add)
	if bound() {
		t.Error("the socket of the removed interface counts as bound")
	}
	again, err := udplink.Bind(local, "late0")
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// The interface of a socket is compared by number: a renamed interface, or an alternative name of it, is the same interface. The kernel
// binds a socket with a link-local address to the interface of its zone.
func TestSocketIsComparedByInterfaceNumber(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	netnstest.IP(t, "link add one0 type veth peer name two0")
	bound := func(local netip.AddrPort, iface string, is ...string) {
		t.Helper()
		conn, err := udplink.Bind(local, iface)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "one0", "alt0", "two0", "none0"} {
			var got bool
			if err := raw.Control(func(fd uintptr) { got = BoundTo(int(fd), local, name) }); err != nil {
				t.Fatal(err)
			}
			if want := slices.Contains(is, name); got != want {
				t.Errorf("socket of %q at %s: bound to %q is %t, want %t", iface, local, name, got, want)
			}
		}
	}
	local := netip.MustParseAddrPort("127.0.0.1:7001")
	bound(local, "", "")
	bound(local, "one0", "one0")
	netnstest.IP(t, "link property add dev one0 altname alt0")
	bound(local, "one0", "one0", "alt0")
	bound(local, "alt0", "one0", "alt0")
	netnstest.IP(t, "address add fe80::1/64 dev two0 nodad")
	netnstest.IP(t, "link set two0 up")
	netnstest.IP(t, "link set one0 up")
	zoned := netip.MustParseAddrPort("[fe80::1%two0]:7001")
	bound(zoned, "", "", "one0", "alt0", "two0", "none0") // the zone decides
	if conn, err := udplink.Bind(zoned, "two0"); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	conn, err := udplink.Bind(local, "two0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	netnstest.IP(t, "link set two0 down")
	netnstest.IP(t, "link set two0 name new0")
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if !BoundTo(int(fd), local, "new0") || BoundTo(int(fd), local, "two0") {
			t.Error("the socket does not follow the new name of its interface")
		}
	})
}
