package awareness

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// orders are the failures that TestOrderAndDuplicatesDoNotMatter once found, shrunk: moments, four seconds apart, of
// reports whose order mattered.
var orders = []struct {
	name    string
	dims    grid.Dims
	moments []string // one line per report: NODE/HALF EPOCH SEQ [digest] [, SUBJECT COMPONENT STATE KIND AGE]...
}{
	{
		// n2-0-0 has not answered, and so is no witness against n3-0-0. A second accusation made it a witness for a
		// moment, and the verdict on n3-0-0 was overdue.
		name: "accused anew", dims: grid.Dims{X: 4, Y: 2, Z: 1},
		moments: []string{
			"n3-0-0/host 1 1",
			"n2-0-0/host 2 1, n2-0-0 link/X+ FAILED SILENCE 21ms",
			"n2-1-0/dnp 1 1, n2-1-0 link/Y- FAILED SILENCE 100ms\nn2-0-0/dnp 1 1 digest",
		},
	},
	{
		// n1-0-0 reports again at the moment of a second accusation.
		name: "accused and heard", dims: grid.Dims{X: 4, Y: 2, Z: 1},
		moments: []string{
			"n1-1-0/host 1 2, n1-1-0 link/Y+ FAILED SILENCE 64ms",
			"n1-0-0/host 1 2 digest\nn0-0-0/host 1 3 digest, n0-0-0 link/X+ FAILED SILENCE 1ms\nn1-1-0/dnp 2 2, n1-1-0 link/Y- FAILED SILENCE 16ms",
		},
	},
	{
		// A report of the old epoch leads to a new challenge of n2-0-0, and a report of the new epoch answers it.
		name: "asked and booted", dims: grid.Dims{X: 4, Y: 2, Z: 1},
		moments: []string{
			"n2-1-0/dnp 1 1 digest, n2-1-0 link/Y- FAILED SILENCE 96ms\nn1-0-0/host 1 1, n1-0-0 link/X- FAILED SILENCE 66ms\nn2-0-0/dnp 1 1",
			"n2-0-0/dnp 1 2\nn2-0-0/dnp 2 1",
		},
	},
	{
		// The DNP half comes back from a verdict: its next report withdraws its earlier statement about the host.
		name: "back with an old word", dims: grid.Dims{X: 2, Y: 2, Z: 1},
		moments: []string{
			"n1-1-0/dnp 1 1 digest, n1-0-0 host FAILED DESCRIPTOR 100ms",
			"n1-0-0/host 1 1 digest, n1-0-0 dnp FAILED WATCHDOG 99ms\nn1-1-0/dnp 1 2",
			"n1-0-0/dnp 1 1 digest, n1-0-0 host FAILED WATCHDOG 1ms\nn1-0-0/host 1 2 digest",
			"n1-0-0/dnp 2 2\nn1-0-0/dnp 2 5 digest",
		},
	},
	{
		// The DNP half of n0-0-0 withdraws a statement about a contested link and makes it again.
		name: "withdrawn and made again", dims: grid.Dims{X: 2, Y: 1, Z: 1},
		moments: withdrawnAndMadeAgain,
	},
}

var withdrawnAndMadeAgain = []string{
	"n0-0-0/dnp 1 1, n0-0-0 link/X- SICK ERROR_RATIO 32ms\nn1-0-0/dnp 1 1, n1-0-0 link/X+ FAILED HANDSHAKE 25ms",
	"n0-0-0/dnp 1 2 digest\nn0-0-0/dnp 1 3 digest, n0-0-0 link/X- SICK ERROR_RATIO 29ms",
}

// TestContestedLinkSettlesWithNextReport: the order of reports decides the state of a contested link only until the contradicting end's
// next report.
func TestContestedLinkSettlesWithNextReport(t *testing.T) {
	var states []fault.State
	for _, reversed := range []bool{false, true} {
		w, err := newWorld(racks(grid.Dims{X: 2, Y: 1, Z: 1}))
		if err != nil {
			t.Fatal(err)
		}
		for i, moment := range withdrawnAndMadeAgain {
			lines := strings.Split(moment, "\n")
			if reversed && i == 1 {
				slices.Reverse(lines)
			}
			for _, line := range lines {
				w.step(Evidence{parseDelivery(t, line)})
			}
			w.run(4 * time.Second)
		}
		states = append(states, w.state("n0-0-0", fault.Link(grid.XMinus)))
		w.step(Evidence{parseDelivery(t, "n0-0-0/dnp 1 4 digest, n0-0-0 link/X- SICK ERROR_RATIO 4s")})
		if s := w.state("n0-0-0", fault.Link(grid.XMinus)); s != fault.Sick {
			t.Errorf("reversed %t: the link is %s after the next report, want SICK", reversed, s)
		}
	}
	if want := []fault.State{fault.Failed, fault.Sick}; !slices.Equal(states, want) {
		t.Errorf("before the next report the link is %s, want %s", states, want)
	}
}

// TestOrderOfSimultaneousReportsDoesNotMatter plays every possible order of the reports of one moment.
func TestOrderOfSimultaneousReportsDoesNotMatter(t *testing.T) {
	for _, tc := range orders {
		t.Run(tc.name, func(t *testing.T) {
			cfg := racks(tc.dims)
			moments := make([][]fault.Delivery, len(tc.moments))
			for i, m := range tc.moments {
				for line := range strings.Lines(m) {
					moments[i] = append(moments[i], parseDelivery(t, line))
				}
			}
			want := playMoments(t, cfg, moments, nil)
			for i, m := range moments {
				for _, order := range permutations(m) {
					other := slices.Clone(moments)
					other[i] = order
					if got := playMoments(t, cfg, other, nil); got != want {
						t.Errorf("moment %d in the order %v:\n%s\nwant\n%s", i, reportIDs(order), got, want)
					}
				}
			}
		})
	}
}

func reportIDs(ds []fault.Delivery) (out []fault.ReportID) {
	for _, d := range ds {
		out = append(out, d.Report.ID)
	}
	return out
}

func permutations[T any](of []T) [][]T {
	if len(of) == 0 {
		return [][]T{nil}
	}
	var out [][]T
	for i := range of {
		for _, rest := range permutations(slices.Delete(slices.Clone(of), i, i+1)) {
			out = append(out, append([]T{of[i]}, rest...))
		}
	}
	return out
}

func parseDelivery(t *testing.T, line string) fault.Delivery {
	t.Helper()
	d := fault.Delivery{Path: fault.PathDirect}
	for i, part := range strings.Split(strings.TrimSpace(line), ", ") {
		f := append(strings.Fields(part), "")
		var err error
		if i == 0 {
			node, half, _ := strings.Cut(f[0], "/")
			id := &d.Report.ID
			id.Origin = fault.Origin{Node: fault.NodeID(node), Half: fault.HalfHost}
			if half == fault.HalfDNP.String() {
				id.Origin.Half = fault.HalfDNP
			}
			d.Report.Digest = f[3] == "digest"
			_, err = fmt.Sscan(f[1]+" "+f[2], &id.Epoch, &id.Seq)
		} else {
			o := fault.Observation{Node: fault.NodeID(f[0])}
			var errs [4]error
			o.Component, errs[0] = fault.ParseComponent(f[1])
			o.State, errs[1] = fault.ParseState(f[2])
			o.Kind, errs[2] = fault.ParseKind(f[3])
			o.Age, errs[3] = time.ParseDuration(f[4])
			err = errors.Join(errs[:]...)
			d.Report.Observations = append(d.Report.Observations, o)
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return d
}
