package netlab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func dims(t *testing.T, s string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLayoutsKeepKernelLimits checks every layout against the assumptions of the kernel and the cluster.
func TestLayoutsKeepKernelLimits(t *testing.T) {
	for _, tc := range []struct {
		dims              string
		supervisors, nets int
		linkCables        int
	}{
		{"2x1x1", 1, 1, 2},
		{"2x2x2", 3, 2, 24},
		{"3x3x3", 5, 1, 81},
		{"5x6x8", 9, 2, 720},
	} {
		t.Run(tc.dims, func(t *testing.T) {
			s := Shape{Dims: dims(t, tc.dims), Supervisors: tc.supervisors, ServiceNetworks: tc.nets}
			if err := s.complete(); err != nil {
				t.Fatal(err)
			}
			l := plan(s, "lofamo-4194304-63-", 63)
			links, ports := 0, 0
			names, addrs := map[[2]string]bool{}, map[netip.Addr]bool{}
			for _, c := range l.cables {
				if c.far.bridge == "" {
					links++
					if c.own.addr.Masked() != c.far.addr.Masked() {
						t.Errorf("the ends of a cable are %s and %s", c.own.addr, c.far.addr)
					}
				} else {
					ports++
				}
				for _, e := range []end{c.own, c.far} {
					if len(e.dev) > 15 {
						t.Errorf("interface name %s: the kernel takes 15 bytes", e.dev)
					}
					if names[[2]string{e.space, e.dev}] {
						t.Errorf("two interfaces %s in %s", e.dev, e.space)
					}
					names[[2]string{e.space, e.dev}] = true
					if e.space != "" && !slices.Contains(l.spaces, e.space) {
						t.Errorf("no namespace %s", e.space)
					}
					if !e.addr.IsValid() {
						continue
					}
					if addrs[e.addr.Addr()] {
						t.Errorf("address %s twice", e.addr)
					}
					addrs[e.addr.Addr()] = true
				}
			}
			// One bridge port for every member on every network, one for the tests, and for every
			// supervisor one among its like.
			if links != tc.linkCables || ports != 1+tc.supervisors+tc.nets*(tc.supervisors+s.Dims.Nodes()) ||
				len(l.spaces) != 1+tc.supervisors+s.Dims.Nodes() {
				t.Errorf("%d links, %d bridge ports, %d namespaces", links, ports, len(l.spaces))
			}
			for id, n := range l.addresses.Nodes {
				if len(n.Links) != len(s.Dims.Links()) {
					t.Errorf("node %d has %d links", id, len(n.Links))
				}
			}
		})
	}
}

// TestCardHasTheTorusLinks: the links of a node with a card end at the card, and a cable joins the two.
func TestCardHasTheTorusLinks(t *testing.T) {
	l := plan(Shape{Dims: dims(t, "3x1x1"), Supervisors: 1, ServiceNetworks: 1, Cards: []fault.NodeID{"n1-0-0"}}, "p-", 0)
	for _, p := range []plug{{"n1-0-0-card", "tx+"}, {"n1-0-0-card", "tx-"}, {"n1-0-0", "svc0"}, {"n0-0-0", "tx+"}} {
		if _, ok := l.plugs[p]; !ok {
			t.Errorf("%s has no interface %s", p.member, p.iface)
		}
	}
	node, card := WindowAddresses(0)
	w := l.plugs[plug{"n1-0-0", WindowInterface}]
	if w.far.space != "p-n1-0-0-card" || w.own.addr.Addr() != node.Addr() || w.far.addr.Addr() != card.Addr() {
		t.Errorf("the window is %+v", w)
	}
}

func TestInvalidShapeIsRefused(t *testing.T) {
	for _, tc := range []struct {
		shape Shape
		want  []string
	}{
		{Shape{Dims: dims(t, "2"), Supervisors: 0}, []string{"supervisors: given 0: want 1 to 9"}},
		{Shape{Dims: dims(t, "7x7x7"), Supervisors: 10}, []string{"343 nodes: want at most 240", "given 10"}},
		{Shape{Dims: dims(t, "2"), Supervisors: 1, ServiceNetworks: 3}, []string{"service networks: given 3: want 1 or 2"}},
		{Shape{Supervisors: 1}, []string{"dims"}},
		{Shape{Dims: dims(t, "2"), Supervisors: 1, Cards: []fault.NodeID{"n1-0-0", "n1-0-0"}}, []string{"cards: given n1-0-0"}},
		{Shape{Dims: dims(t, "2"), Supervisors: 1, Cards: []fault.NodeID{"n2-0-0"}}, []string{"cards: given n2-0-0"}},
	} {
		err := tc.shape.complete()
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("error %v does not say %q", err, w)
			}
		}
	}
}

func TestImpairmentBecomesRules(t *testing.T) {
	flush, count := "flush chain netdev lofamo in_tx_plus", "add rule netdev lofamo in_tx_plus meta protocol ip counter name passed_tx_plus"
	for _, tc := range []struct {
		i    impairment
		want []string
	}{
		{impairment{}, []string{flush, count}},
		{impairment{cut: true}, []string{flush, "add rule netdev lofamo in_tx_plus counter name lost_tx_plus drop", count}},
		{impairment{lose: 305}, []string{flush, "add rule netdev lofamo in_tx_plus numgen random mod 1000 < 305 counter name lost_tx_plus drop",
			count}},
		{impairment{deaf: "10.220.0.1, 10.220.0.2"}, []string{
			flush, "add rule netdev lofamo in_tx_plus ip saddr { 10.220.0.1, 10.220.0.2 } counter name lost_tx_plus drop", count,
		}},
		{impairment{corrupt: 1000}, []string{flush, "add rule netdev lofamo in_tx_plus meta l4proto udp jump flip_tx_plus", count}},
		{impairment{cut: true, lose: 500, corrupt: 1}, []string{
			flush, "add rule netdev lofamo in_tx_plus counter name lost_tx_plus drop",
			"add rule netdev lofamo in_tx_plus meta l4proto udp numgen random mod 1000 < 1 jump flip_tx_plus", count,
		}},
	} {
		if got, want := rules("tx+", tc.i), strings.Join(tc.want, "\n")+"\n"; got != want {
			t.Errorf("%+v:\n%swant\n%s", tc.i, got, want)
		}
	}
}

func TestReadCounts(t *testing.T) {
	got, err := readCounts([]byte(`{"nftables": [{"metainfo": {"version": "1.0.6"}},
		{"counter": {"family": "netdev", "name": "passed_svc0_n1", "table": "lofamo", "handle": 2, "packets": 7, "bytes": 245}},
		{"counter": {"family": "netdev", "name": "lost_svc0_n1", "table": "lofamo", "handle": 3, "packets": 4, "bytes": 140}},
		{"counter": {"family": "netdev", "name": "damaged_svc0_n1", "table": "lofamo", "handle": 4, "packets": 1, "bytes": 30}}]}`))
	if want := (Count{Passed: 7, Lost: 4, Damaged: 1, Bytes: 245}); err != nil || got["svc0_n1"] != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "{", `{"nftables": []}`} {
		if _, err := readCounts([]byte(bad)); err == nil {
			t.Errorf("%q is taken for counters", bad)
		}
	}
}
