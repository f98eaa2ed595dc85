package inject

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// course is one recovery's timeline.
type course struct {
	x      harm
	detect time.Duration
	stood  time.Duration // the longest stall of this process before the detection: the machine was late, or may have been
	halfcore.Recovery
}

// Promises for one recovery at a time, and for all faults.
const (
	promisedServing  = 500 * time.Millisecond // from the detection, 99 of 100
	promisedCoverage = 0.999
)

// inTime reports whether a hang was found within the bound and, if not, whether that is in doubt.
func (c course) inTime(bound, tRead time.Duration) (ok, doubt bool) {
	ok = c.detect <= bound
	return ok, !ok && c.stood > tRead
}

// broken lists the broken promises.
func broken(p config.Periods, courses []course, classes []*class) []string {
	var out []string
	bound := halfcore.HangBound(p.TRead, p.ReadMisses)
	var serving []time.Duration
	for _, c := range courses {
		serving = append(serving, c.Serving)
		if ok, doubt := c.inTime(bound, p.TRead); c.x.hang && !ok && !doubt {
			out = append(out, fmt.Sprintf("a hang was found after %s: want %s", c.detect, bound))
		}
	}
	if q := quantile(serving, .99); q > promisedServing {
		out = append(out, fmt.Sprintf("99 of 100 serve again %s after the detection: want %s", q, promisedServing))
	}
	effective, covered := 0, 0
	for _, k := range classes {
		if !k.apart {
			effective += k.effective
			covered += k.covered
		}
		if k.lost+k.doubled > 0 {
			out = append(out, fmt.Sprintf("%s: %d reports were lost, %d doubled", k.name, k.lost, k.doubled))
		}
		if len(k.unhealed) > 0 {
			out = append(out, fmt.Sprintf("%s: %d not recovered", k.name, len(k.unhealed)))
		}
	}
	if float64(covered) < promisedCoverage*float64(effective) {
		out = append(out, fmt.Sprintf("coverage is %s: want %.1f %%", share(covered, effective), 100*promisedCoverage))
	}
	return out
}

func TestBrokenPromisesAreCounted(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	bound := halfcore.HangBound(p.TRead, p.ReadMisses)
	hang, crash := harms[0], harms[3]
	for _, tc := range []struct {
		name    string
		courses []course
		class   class
		want    int
	}{
		{"all kept", []course{{x: hang, detect: bound, Recovery: halfcore.Recovery{Serving: 500 * ms}}}, class{effective: 1000, covered: 999}, 0},
		{"a late hang", []course{{x: hang, detect: bound + 1}}, class{}, 1},
		{"one in doubt", []course{{x: hang, detect: bound + 1, stood: p.TRead + 1}}, class{}, 0},
		{"a late crash is no hang", []course{{x: crash, detect: bound + 1}}, class{}, 0},
		{"slow", []course{{x: crash, Recovery: halfcore.Recovery{Serving: 501 * ms}}}, class{}, 1},
		{"coverage", nil, class{effective: 1000, covered: 998}, 1},
		{"coverage of what is apart", nil, class{effective: 1000, apart: true}, 0},
		{"a lost report of what is apart", nil, class{lost: 1, apart: true}, 1},
		{"doubled", nil, class{doubled: 1}, 1},
		{"not recovered", nil, class{unhealed: []string{"x"}}, 1},
	} {
		if got := broken(p, tc.courses, []*class{&tc.class}); len(got) != tc.want {
			t.Errorf("%s: %q, want %d", tc.name, got, tc.want)
		}
	}
}

// promises asserts the promises of the whole campaign.
func promises(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range broken(p, done.courses, done.classes) {
		t.Error(s)
	}
}

// timeline measures recoveries one at a time on an otherwise idle cluster: the time of a recovery, not that of a
// machine busy with a dozen.
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
		proven, err := f.await(s.node, half, func(r halfcore.RecoveryRecord) bool {
			return r.Last != nil && r.Last.At >= l.At &&
				r.Last.Proven > 0
		})
		if err != nil {
			t.Errorf("%s: its self-test has not passed: %v", s.what, err)
			continue
		}
		stood := f.pace.longest(l.At-int64(s.detect), l.At)
		done.courses = append(done.courses, course{x, s.detect, stood, *proven.Last})
	}
}
