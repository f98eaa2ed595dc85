package dnpcore

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// A neighbour may send a copy of another node's report with hardly any hops left. That copy must not keep a good copy
// from going on. A good copy goes on once.
func TestCopyWithoutHopsDoesNotEndFlood(t *testing.T) {
	for name, made := range map[string]uint8{"no hop left": 20, "one hop left": 19, "few hops left": 12} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "3x3x1", "0,0,0")
			w.m.cfg.MaxHops = 20
			w.setHost([]string{"word", "service-network"})
			up := func(d grid.Direction, made uint8) (onward bool) {
				w.deeds = nil
				w.message(w.peer(d), halfcore.Relay{Kind: halfcore.RelayUp, Made: made, Limit: 20, Envelope: []byte("rise")})
				return strings.Contains(strings.Join(w.deeds, "\n"), `to Y-: up "rise"`)
			}
			if up(grid.XPlus, made) != (made < 20) {
				t.Fatalf("the copy with %d of 20 hops: %s", made, w.deeds)
			}
			if !up(grid.YPlus, 2) {
				t.Errorf("the good copy ended here: %s", w.deeds)
			}
			if up(grid.XPlus, 1) || up(grid.XMinus, 2) {
				t.Errorf("another copy went on: %s", w.deeds)
			}
		})
	}
	for name, copies := range map[string][]uint8{
		"one hop left": {19}, "few hops left": {12}, "many copies": {11, 12, 13, 14, 15, 16, 17, 18, 19},
	} {
		t.Run("to another node, "+name, func(t *testing.T) {
			w := newWorld(t, "3x3x1", "0,0,0")
			w.m.cfg.MaxHops = 20
			down := func(d grid.Direction, made, limit uint8) bool {
				w.deeds = nil
				w.message(w.peer(d), halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1, Y: 1}, Made: made, Limit: limit,
					Envelope: []byte("fall")})
				return strings.Contains(strings.Join(w.deeds, "\n"), `down "fall"`)
			}
			for _, made := range copies {
				down(grid.XMinus, made, 20)
			}
			down(grid.XMinus, 2, 3)
			if !down(grid.YMinus, 2, 20) {
				t.Errorf("the good copy ended here: %s", w.deeds)
			}
			if down(grid.XMinus, 1, 20) || down(grid.YMinus, 2, 20) {
				t.Errorf("another copy went on: %s", w.deeds)
			}
		})
	}
	t.Run("to another node", func(t *testing.T) {
		w := newWorld(t, "3x3x1", "0,0,0")
		down := func(d grid.Direction, made uint8) string {
			w.deeds = nil
			w.message(w.peer(d), halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1, Y: 1}, Made: made, Limit: 3,
				Envelope: []byte("fall")})
			return strings.Join(w.deeds, "\n")
		}
		if got := down(grid.XMinus, 3); strings.Contains(got, "fall") {
			t.Fatalf("a copy without hops went on: %s", got)
		}
		if got := down(grid.YMinus, 1); !strings.Contains(got, `down "fall"`) {
			t.Errorf("the good copy ended here: %s", got)
		}
	})
}
