package chaos

import "testing"

// TestLonePacketWalks: a packet that is alone, and so short that it does not meet its own tail, makes the walk of the
// Markov chain, throw by throw.
func TestLonePacketWalks(t *testing.T) {
	cfg := Default(18, 16)
	cfg.Mesh, cfg.Flits = true, 2
	n := network(t, cfg)
	for y := 3; y <= 11; y++ {
		n.KillLink(n.Node(9, y), 0)
	}
	if err := n.Reconfigure(); err != nil {
		t.Fatal(err)
	}
	src, dst := n.Node(5, 7), n.Node(13, 7)
	var got Delivery
	n.OnDelivery(func(d Delivery) { got = d })
	for trial := range 40 {
		walker := n.dice
		r, from, hops := src, -1, 0
		for ; r != dst; hops++ {
			c := walker.bit(n.channels(r, dst, from))
			r, from = int(n.neighbour[r*n.chans+c]), c^1
		}
		got = Delivery{}
		n.Send(src, dst)
		n.Step()
		for n.Population() > 0 {
			n.Step()
		}
		if got.Node != dst || got.Hops != hops || n.dice != walker {
			t.Fatalf("packet %d came to %d after %d hops, the walk to %d after %d", trial, got.Node, got.Hops, dst, hops)
		}
		if want := (hops+1)*(cfg.Decode+2) + cfg.Flits; got.Tail-got.Born != want {
			t.Fatalf("packet %d took %d cycles for %d hops, want %d", trial, got.Tail-got.Born, hops, want)
		}
	}
}
