package half

import (
	"net/netip"
	"reflect"
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
		if err := raw.Control(func(fd uintptr) { is = BoundTo(int(fd), local) }); err != nil {
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
