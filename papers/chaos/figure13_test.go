package chaos

import "testing"

// TestFigure13: the list of a packet holds the profitable and functional channels without its way back. If that is
// empty it holds the functional ones without the way back, and the way back when no other is left (§5.2.3.1).
func TestFigure13(t *testing.T) {
	const east, west, north, south = 1 << 0, 1 << 1, 1 << 2, 1 << 3
	cfg := Default(8, 8)
	at := func(change func(*Config), dead ...int) *Network {
		c := cfg
		if change != nil {
			change(&c)
		}
		n := network(t, c)
		for _, channel := range dead {
			n.KillLink(n.Node(3, 3), channel)
		}
		if err := n.Reconfigure(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	noFast := func(c *Config) { c.FastDeroute = false }
	routeback := func(c *Config) { c.NoRouteback = false }
	unaware := func(c *Config) { c.Mask = false }
	for _, tc := range []struct {
		name string
		n    *Network
		dest []int
		from int // channel of arrival
		want uint32
	}{
		{"(a): north-east, east is dead", at(nil, 0), []int{5, 5}, 1, north},
		{"no fault", at(nil), []int{5, 5}, 1, east | north},
		{"(b): east, which is dead; it came from the south", at(nil, 0), []int{5, 3}, 3, west | north},
		{"(b) without fast derouting waits to be derouted", at(noFast, 0), []int{5, 3}, 3, 0},
		{"(b) with routeback", at(routeback, 0), []int{5, 3}, 3, west | north | south},
		{"derouted: the way back would be profitable", at(nil), []int{5, 3}, 0, west | north | south},
		{"derouted, with routeback", at(routeback), []int{5, 3}, 0, east},
		{"the way back is all that is functional", at(nil, 0, 2, 3), []int{5, 3}, 1, west},
		{"at its source", at(nil, 0), []int{5, 3}, -1, west | north | south},
		{"a router that does not know", at(unaware, 0), []int{5, 3}, 3, east},
	} {
		if got := tc.n.channels(tc.n.Node(3, 3), tc.n.Node(tc.dest...), tc.from); got != tc.want {
			t.Errorf("%s: channels %04b, want %04b", tc.name, got, tc.want)
		}
	}
}
