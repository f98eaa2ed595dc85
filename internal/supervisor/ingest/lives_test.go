package ingest

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Another node's answer to the challenge is no sign of life, and answers that nobody waits for go to the engine.
func TestNodeAnswersForItselfAlone(t *testing.T) {
	t.Parallel()
	q := liveQuestion{node: "n1", answered: make(chan struct{}, 1)}
	l := lives{waiting: map[[16]byte]liveQuestion{{1}: q}}
	for _, c := range []struct {
		nonce       byte
		node        fault.NodeID
		asked, live bool
	}{{2, "n1", false, false}, {1, "n2", true, false}, {1, "n1", true, true}, {1, "n1", true, true}} {
		if asked := l.answer([16]byte{c.nonce}, c.node); asked != c.asked || (len(q.answered) == 1) != c.live {
			t.Errorf("answer of %s to %d: asked %v, lives %v: want %v, %v", c.node, c.nonce, asked, len(q.answered) == 1, c.asked, c.live)
		}
	}
}
