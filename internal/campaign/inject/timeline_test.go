package inject

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/pkg/fault"
)

// course is one recovery's timeline.
type course struct {
	x      harm
	detect time.Duration
	recovery.Recovery
}

// timeline takes the course of recoveries one after the other, nothing else going on: what a recovery takes, and not what
// a machine takes for a dozen at a time.
func timeline(t *testing.T, f *field) {
	n := 4
	if *full {
		n = 200
	}
	r := rand.New(rand.NewPCG(*seed, 5))
	nodes := f.nodes
	for i := range n {
		x := harms[0]
		if i%2 == 1 {
			x = harms[3]
		}
		half := []fault.Half{fault.HalfHost, fault.HalfDNP}[i/2%2]
		time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		s, l, err := f.hurt(nodes[r.IntN(len(nodes))], half, x)
		if err != nil || !s.healed {
			t.Errorf("%s: %v", s.what, err)
			continue
		}
		proven, err := f.await(s.node, half, func(r recovery.Record) bool { return r.Last != nil && r.Last.At >= l.At && r.Last.Proven > 0 })
		if err != nil {
			t.Errorf("%s: its self-test has not passed: %v", s.what, err)
			continue
		}
		done.courses = append(done.courses, course{x, s.detect, *proven.Last})
	}
}
