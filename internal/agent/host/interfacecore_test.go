package host

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/leaks"
)

func TestMain(m *testing.M) {
	os.Exit(leaks.Main(func() int { return fixedseed.Main(m) }))
}

func eth(index int) netLink {
	return netLink{index: index, name: "eth0", admin: true, oper: true, state: "up"}
}

func at(index int, prefix string) address {
	return address{index, netip.MustParsePrefix(prefix)}
}

func netInterface(name, addr string) watchedInterface {
	return watchedInterface{name, netip.MustParseAddr(addr)}
}

func TestInterfaceVerdictOfEachCondition(t *testing.T) {
	off, dark := eth(2), eth(2)
	off.admin, off.oper = false, false
	dark.oper, dark.state = false, "lower-layer-down"
	other := netLink{index: 3, name: "eth1", others: []string{"enp3s0"}, admin: true, oper: true}
	lo := netLink{index: 1, name: "lo", admin: true, oper: true, state: "unknown"}
	home := []address{at(2, "10.0.0.1/24"), at(1, "127.0.0.1/8"), at(1, "::1/128")}
	for _, tc := range []struct {
		want  watchedInterface
		links []netLink
		addrs []address
		up    bool
		why   string
	}{
		{netInterface("eth0", "10.0.0.1"), []netLink{lo, eth(2)}, home, true, "interface eth0 is up and has address 10.0.0.1"},
		{netInterface("eth0", "10.0.0.1"), []netLink{lo, off}, home, false, "interface eth0 is switched off"},
		{netInterface("eth0", "10.0.0.1"), []netLink{lo, dark}, home, false,
			"interface eth0 has no carrier (operational state lower-layer-down)"},
		{netInterface("eth0", "10.0.0.1"), []netLink{lo, other}, home, false, "interface eth0 is not there"},
		{netInterface("eth0", "10.0.0.2"), []netLink{lo, eth(2)}, home, false, "address 10.0.0.2 is not on interface eth0"},
		{netInterface("eth1", "10.0.0.1"), []netLink{eth(2), other}, home, false, "address 10.0.0.1 is not on interface eth1"},
		{netInterface("enp3s0", "10.0.0.3"), []netLink{other}, []address{at(3, "10.0.0.3/32")}, true,
			"interface enp3s0 is up and has address 10.0.0.3"},
		{netInterface("eth0", "0.0.0.0"), []netLink{eth(2)}, home, true, "interface eth0 is up and has any address of the family of 0.0.0.0"},
		{netInterface("eth0", "::"), []netLink{eth(2)}, home, false, "any address of the family of :: is not on interface eth0"},
		{netInterface("eth0", "fe80::1%eth0"), []netLink{eth(2)}, []address{at(2, "fe80::1/64")}, true,
			"interface eth0 is up and has address fe80::1"},
		{netInterface("", "10.0.0.1"), []netLink{lo, eth(2)}, home, true, "address 10.0.0.1 is on an interface that is up"},
		{netInterface("", "::ffff:10.0.0.1"), []netLink{lo, eth(2)}, home, true, "address 10.0.0.1 is on an interface that is up"},
		{netInterface("", "10.0.0.1"), []netLink{lo, dark}, home, false,
			"the interface of address 10.0.0.1 has no carrier (operational state lower-layer-down)"},
		{netInterface("", "10.0.0.1"), []netLink{lo, dark, other}, append(home, at(3, "10.0.0.1/24")), true,
			"address 10.0.0.1 is on an interface that is up"},
		{netInterface("", "10.0.0.9"), []netLink{lo, dark}, home, false, "address 10.0.0.9 is on no interface"},
		{netInterface("", "0.0.0.0"), []netLink{lo, off}, home, true, "any address of the family of 0.0.0.0 is on an interface that is up"},
		{netInterface("", "0.0.0.0"), nil, nil, false, "any address of the family of 0.0.0.0 is on no interface"},
		{netInterface("", "127.7.7.7"), []netLink{lo}, home, true, "address 127.7.7.7 is on an interface that is up"},
		{netInterface("", "10.0.0.7"), []netLink{eth(2)}, home, false, "address 10.0.0.7 is on no interface"},
	} {
		c := newInterfaceCore([]watchedInterface{tc.want})
		c.replace(tc.links, tc.addrs)
		if got := c.judge(); len(got) != 1 || got[0] != (interfaceChange{0, tc.up, tc.why}) {
			t.Errorf("%+v: got %+v; want %t, %q", tc.want, got, tc.up, tc.why)
		}
		if got := c.judge(); len(got) != 0 {
			t.Errorf("%+v: told again: %+v", tc.want, got)
		}
	}
}

// TestInterfaceChangesOverTime plays the life of two rails, one line a step.
func TestInterfaceChangesOverTime(t *testing.T) {
	c := newInterfaceCore([]watchedInterface{netInterface("eth0", "10.0.0.1"), netInterface("", "10.1.0.1")})
	off, dark := eth(2), eth(2)
	off.admin = false
	dark.oper = false
	for i, tc := range []struct {
		do   func()
		want string
	}{
		{func() {}, "0- 1-"},
		{func() { c.setLink(eth(2)) }, ""},
		{func() { c.setAddr(at(2, "10.0.0.1/24"), true) }, "0+"},
		{func() { c.setAddr(at(2, "10.0.0.1/24"), true) }, ""}, // its lifetime, say
		{func() { c.setAddr(at(2, "10.1.0.1/24"), true) }, "1+"},
		{func() { c.setLink(dark) }, "0- 1-"},
		{func() { c.setLink(off) }, ""}, // down is down
		{func() { c.setLink(eth(2)) }, "0+ 1+"},
		{func() { c.dropLink(7) }, ""},
		{func() { c.dropLink(2) }, "0- 1-"},
		{func() { c.setLink(eth(9)) }, ""},
		{func() { c.setAddr(at(9, "10.0.0.1/24"), true) }, "0+"},
		{func() { c.setAddr(at(2, "10.0.0.1/24"), false) }, ""}, // late news of the old one
		// The missed changes: the interface is another one under the old name, and the address moved.
		{func() {
			c.replace([]netLink{eth(12)}, []address{at(12, "10.0.0.1/24"), at(12, "10.1.0.1/24")})
		}, "0- 0+ 1+"},
		{func() {
			c.replace([]netLink{eth(12), {index: 13, name: "eth1", admin: true, oper: true}},
				[]address{at(12, "10.0.0.1/24"), at(13, "10.1.0.1/24")})
		}, ""},
		{func() { c.setLink(netLink{index: 12, name: "renamed", admin: true, oper: true}) }, "0-"},
	} {
		tc.do()
		var got []string
		for _, ch := range c.judge() {
			got = append(got, fmt.Sprint(ch.Index)+map[bool]string{true: "+", false: "-"}[ch.Up])
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("step %d: got %q, want %q", i, s, tc.want)
		}
	}
}

// TestInterfaceCoreAgainstNaive: after any sequence of events, the last report equals the result of a fresh check, and changes of
// one rail alternate.
func TestInterfaceCoreAgainstNaive(t *testing.T) {
	rails := []watchedInterface{netInterface("eth0", "10.0.0.1"), netInterface("eth1", "0.0.0.0"), netInterface("", "10.0.0.2"),
		netInterface("", "0.0.0.0")}
	rapid.Check(t, func(t *rapid.T) {
		c := newInterfaceCore(rails)
		links, addrs := map[int]netLink{}, map[address]bool{}
		told := map[int]bool{}
		note := func(changes []interfaceChange) {
			for _, ch := range changes {
				if was, ok := told[ch.Index]; ok && was == ch.Up {
					t.Fatalf("rail %d told twice in a row: %+v", ch.Index, ch)
				}
				told[ch.Index] = ch.Up
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			index := rapid.IntRange(1, 4).Draw(t, "index")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				l := netLink{index: index, name: fmt.Sprint("eth", index%2), admin: rapid.Bool().Draw(t, "admin"), oper: rapid.Bool().Draw(t, "oper")}
				links[index] = l
				c.setLink(l)
			case 1:
				delete(links, index)
				for a := range addrs {
					if a.index == index {
						delete(addrs, a)
					}
				}
				c.dropLink(index)
			default:
				a, on := at(index, fmt.Sprintf("10.0.0.%d/24", rapid.IntRange(1, 2).Draw(t, "addr"))), rapid.Bool().Draw(t, "on")
				if delete(addrs, a); on {
					addrs[a] = true
				}
				c.setAddr(a, on)
			}
			note(c.judge())
		}
		for i, r := range rails {
			if want := naive(r, links, addrs); told[i] != want {
				t.Fatalf("rail %d is told to be up: %t; want %t, with %v and %v", i, told[i], want, links, addrs)
			}
		}
	})
}

// naive decides for a rail as a person would read it off `ip addr`. Of two links of one name, which
// only stale news can make, the one with the lower index counts.
func naive(r watchedInterface, links map[int]netLink, addrs map[address]bool) bool {
	indexes := make([]int, 0, len(links))
	for i := range links {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	for _, i := range indexes {
		l := links[i]
		if r.Name != "" && l.name != r.Name {
			continue
		}
		for a := range addrs {
			if a.index == i && l.admin && l.oper && (r.Addr.IsUnspecified() || a.prefix.Addr() == r.Addr) {
				return true
			}
		}
		if r.Name != "" {
			return false
		}
	}
	return false
}

// TestUnchangedInterfacesAllocateNothing: events about others, and lifetimes of addresses, come all the time.
func TestUnchangedInterfacesAllocateNothing(t *testing.T) {
	c := newInterfaceCore([]watchedInterface{netInterface("eth0", "10.0.0.1"), netInterface("", "10.0.0.1"),
		netInterface("nosuch0", "10.0.0.1")})
	c.replace([]netLink{eth(2)}, []address{at(2, "10.0.0.1/24")})
	c.judge()
	if n := testing.AllocsPerRun(100, func() {
		c.setLink(eth(2))
		c.setAddr(at(2, "10.0.0.1/24"), true)
		if c.judge() != nil {
			t.Error("told something")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
