package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// condemn kills a node of a 2x2x2 torus whose neighbours' frames are refused, and returns the time from the first
// challenge to the verdict. hint gets every challenge to the node and returns the refusals to feed.
func condemn(t *testing.T, hint func(Challenge) []Refused) time.Duration {
	t.Helper()
	w, err := newWorld(testConfig(grid.Dims{X: 2, Y: 2, Z: 2}))
	if err != nil {
		t.Fatal(err)
	}
	var asked, verdict time.Time
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Challenges {
			if c.Node != "n0-0-0" {
				continue
			}
			if asked.IsZero() {
				asked = at
			}
			for _, r := range hint(c) {
				w.send(at.Add(200*time.Microsecond), r)
			}
		}
		for _, c := range out.Changes {
			if c.Node == "n0-0-0" && c.Component == fault.ComponentNode && c.To == fault.Failed {
				verdict = at
			}
		}
	}
	w.start()
	w.actor("n0-0-0", fault.HalfHost).alive, w.actor("n0-0-0", fault.HalfDNP).alive = false, false
	w.ended = true
	w.run(30 * time.Millisecond)
	w.silence("n0-0-0", false, 32*time.Millisecond)
	w.run(time.Second)
	if asked.IsZero() || verdict.IsZero() {
		t.Fatalf("challenged at %v, verdict at %v", asked, verdict)
	}
	return verdict.Sub(asked)
}

// TestForgedRefusalsShortenNoWait feeds refusals that a stranger, a neighbour or another node could forge. Only those
// of challenges that no other node has read shorten the wait.
func TestForgedRefusalsShortenNoWait(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 2, Y: 2, Z: 2})
	var last [16]byte
	for _, tc := range []struct {
		name string
		hint func(Challenge) []Refused
		want time.Duration
	}{
		{"no refusals", func(Challenge) []Refused { return nil }, cfg.ChallengeNode},
		{"the node's kernel", func(c Challenge) []Refused { return []Refused{{c.Node, c.Nonce}} }, cfg.ChallengeHalf / 2},
		{"a flood of guessed nonces", func(c Challenge) (out []Refused) {
			for i := range 1000 {
				guess := c.Nonce
				guess[i%8] ^= byte(i%255 + 1)
				out = append(out, Refused{c.Node, guess})
			}
			return out
		}, cfg.ChallengeNode},
		{"a neighbour that forwards challenges", func(c Challenge) []Refused {
			if c.Again {
				return nil
			}
			return []Refused{{c.Node, c.Nonce}, {c.Node, c.Nonce}, {c.Node, c.Nonce}}
		}, cfg.ChallengeNode},
		{"one challenge, time after time", func(c Challenge) []Refused {
			if c.Again && last == [16]byte{} {
				last = c.Nonce
			}
			return []Refused{{c.Node, last}, {c.Node, last}}
		}, cfg.ChallengeNode},
		{"in another node's name", func(c Challenge) []Refused { return []Refused{{"n1-1-1", c.Nonce}, {"nobody", c.Nonce}} }, cfg.ChallengeNode},
	} {
		t.Run(tc.name, func(t *testing.T) {
			took := condemn(t, tc.hint)
			if took < tc.want || took > tc.want+2*time.Millisecond {
				t.Errorf("verdict %s after the first challenge: want %s", took, tc.want)
			}
		})
	}
}

// TestQueuedAnswerGoesBeforeHintedVerdict expects no verdict in the step of a refusal: an answer may wait behind it.
func TestQueuedAnswerGoesBeforeHintedVerdict(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 2, Y: 2, Z: 2}))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	for _, h := range halves {
		w.actor("n0-0-0", h).mute = true
	}
	var straight []Challenge
	w.log = func(_ time.Time, out Output) {
		for _, c := range out.Challenges {
			if c.Node == "n0-0-0" && c.Again {
				straight = append(straight, c)
			}
		}
	}
	w.ended = true
	w.silence("n0-0-0", false, 32*time.Millisecond)
	w.run(25 * time.Millisecond)
	if len(straight) < refusedEnough {
		t.Fatalf("%d straight challenges in 25ms", len(straight))
	}
	for _, c := range straight { // all of them late, and together
		for _, change := range w.m.Step(w.now, Refused{c.Node, c.Nonce}).Changes {
			if change.To == fault.Failed {
				t.Fatalf("verdict in the step of a refusal: %+v", change)
			}
		}
	}
	last := straight[len(straight)-1]
	w.step(Answered{Nonce: last.Nonce, Origin: fault.Origin{Node: "n0-0-0", Half: fault.HalfDNP}, Epoch: 1, Path: fault.PathTorus})
	w.run(100 * time.Millisecond)
	if n, _ := w.m.Node("n0-0-0"); n.State == fault.Failed {
		t.Errorf("n0-0-0 is %s though it answered", n.State)
	}
}
