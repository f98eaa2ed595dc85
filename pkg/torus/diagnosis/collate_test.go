package diagnosis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// truth is the true state of a torus.
type truth struct {
	dims    grid.Dims
	host    map[grid.Coord]bool // dead
	dnp     map[grid.Coord]bool // dead
	service map[grid.Coord]bool // cut off the service network
	way     map[way]bool        // dead
	loss    map[way]float64     // share of the frames that are lost
	corrupt map[way]float64     // share of the frames that come damaged: they are lost too
	rand    *rand.Rand          // nil: nothing is random
}

// way is a link in one direction, named by where it begins.
type way struct {
	from grid.Coord
	dir  grid.Direction
}

func newTruth(dims grid.Dims) *truth {
	return &truth{
		dims: dims, host: map[grid.Coord]bool{}, dnp: map[grid.Coord]bool{}, service: map[grid.Coord]bool{},
		way: map[way]bool{}, loss: map[way]float64{}, corrupt: map[way]float64{},
	}
}

func (t *truth) to(w way) grid.Coord { n, _ := t.dims.Neighbour(w.from, w.dir); return n }

func (w way) back(t *truth) way { return way{t.to(w), w.dir.Opposite()} }

// carries reports whether a way between two live DNP halves carries frames.
func (t *truth) carries(w way) bool { return !t.way[w] && !t.dnp[w.from] && !t.dnp[t.to(w)] }

// passes rolls the dice for one frame.
func (t *truth) passes(w way, f *Finding) bool {
	if !t.carries(w) {
		return false
	}
	if t.rand != nil && t.rand.Float64() < t.corrupt[w] {
		if f != nil {
			f.Damaged++
		}
		return false
	}
	if t.rand != nil && t.rand.Float64() < t.loss[w] {
		if f != nil {
			f.Missed++
		}
		return false
	}
	if f != nil {
		f.Heard++
	}
	return true
}

// gateway reports whether a node forwards between the torus and the supervisors.
func (t *truth) gateway(n grid.Coord) bool { return !t.host[n] && !t.service[n] && !t.dnp[n] }

// reach returns the nodes to which a DNP half can send, itself first.
func (t *truth) reach(from grid.Coord) []grid.Coord {
	out := []grid.Coord{from}
	for i := 0; i < len(out); i++ {
		for _, d := range t.dims.Links() {
			if w := (way{out[i], d}); t.carries(w) && !slices.Contains(out, t.to(w)) {
				out = append(out, t.to(w))
			}
		}
	}
	return out
}

func (t *truth) nodes() []grid.Coord {
	var out []grid.Coord
	for i := range t.dims.Nodes() {
		out = append(out, t.dims.At(i))
	}
	return out
}

// findings are the reports that the supervisors receive.
func (t *truth) findings() []NodeFindings {
	var out []NodeFindings
	for _, n := range t.nodes() {
		f := NodeFindings{Node: n}
		if !t.host[n] && !t.service[n] {
			f.Host = DNPAlive
			if t.dnp[n] {
				f.Host = DNPDead
			}
		}
		asked := t.gateway(n) || slices.ContainsFunc(t.nodes(), func(g grid.Coord) bool { return t.gateway(g) && slices.Contains(t.reach(g), n) })
		if asked && !t.dnp[n] && slices.ContainsFunc(t.reach(n), t.gateway) {
			f.DNP, f.OwnHost.Sent = true, 6
			if !t.host[n] {
				f.OwnHost.Answered = 6
			}
			for _, d := range t.dims.Links() {
				f.Links = append(f.Links, t.test(way{n, d}))
			}
		}
		out = append(out, f)
	}
	return out
}

func (t *truth) test(out way) Finding {
	f := Finding{Dir: out.dir}
	in := out.back(t)
	for range 20 {
		t.passes(in, &f) // heartbeats
	}
	try := func(r *Test, answered bool) {
		r.Sent++
		if answered {
			r.Answered++
			r.Min, r.Median, r.Max = time.Millisecond, time.Millisecond, time.Millisecond
		}
	}
	second := way{t.to(out), out.dir}
	for range 36 {
		try(&f.DNP, t.passes(out, nil) && t.passes(in, &f))
	}
	for range 6 {
		try(&f.Host, t.passes(out, nil) && !t.host[t.to(out)] && t.passes(in, &f))
	}
	for range 12 {
		try(&f.Through, t.passes(out, nil) && t.passes(second, nil) && t.passes(second.back(t), nil) && t.passes(in, &f))
	}
	return f
}

// cutOff reports whether no traffic leaves a node.
func (t *truth) cutOff(n grid.Coord) bool {
	if !t.host[n] && !t.service[n] {
		return false
	}
	return !slices.ContainsFunc(t.dims.Links(), func(d grid.Direction) bool { return t.carries(way{n, d}) })
}

// holds reports whether a finding is true.
func (t *truth) holds(f Found) bool {
	out := way{f.Node, f.Dir}
	switch f.Part {
	case PartHost:
		return t.host[f.Node]
	case PartDNP:
		return t.dnp[f.Node]
	case PartNode:
		return t.cutOff(f.Node)
	case PartLink:
		return (f.OutDead || f.InDead) && (!f.OutDead || t.way[out]) && (!f.InDead || t.way[out.back(t)])
	}
	return false
}

func (t *truth) String() string {
	return fmt.Sprintf("hosts %v DNPs %v service %v ways %v loss %v corrupt %v", t.host, t.dnp, t.service, t.way, t.loss, t.corrupt)
}

// Covers every combination of faults in a ring of three nodes. A finding must be true in every combination that
// yields the same findings, or it would be a guess. A single fault must be found.
func TestCollateNeverGuesses(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	const nodes, bits = 3, 3*3 + 3*2
	named, mustBe := 0, 0
	bySigns := map[string][]*truth{}
	for set := range 1 << bits {
		w := newTruth(dims)
		for i := range nodes {
			n := dims.At(i)
			w.host[n], w.dnp[n], w.service[n] = set>>(3*i)&1 == 1, set>>(3*i+1)&1 == 1, set>>(3*i+2)&1 == 1
			out := way{n, grid.XPlus}
			w.way[out], w.way[out.back(w)] = set>>(9+2*i)&1 == 1, set>>(10+2*i)&1 == 1
		}
		signs := fmt.Sprint(w.findings())
		bySigns[signs] = append(bySigns[signs], w)
	}
	for _, worlds := range bySigns {
		report := Collate(dims, worlds[0].findings())
		for _, f := range report.Found {
			named++
			for _, w := range worlds {
				if !w.holds(f) {
					t.Fatalf("%+v is found, and might be well: %s; as well as %s", f, w, worlds[0])
				}
			}
		}
		for i := range nodes { // the most that can be found
			n := dims.At(i)
			all := func(bad func(w *truth) bool) int {
				if slices.ContainsFunc(worlds, func(w *truth) bool { return !bad(w) }) {
					return 0
				}
				return 1
			}
			mustBe += all(func(w *truth) bool { return w.host[n] }) + all(func(w *truth) bool { return w.dnp[n] })
			mustBe += all(func(w *truth) bool { return w.way[way{n, grid.XPlus}] || w.way[way{n, grid.XPlus}.back(w)] })
		}
	}
	t.Logf("%d different findings, %d parts found of %d that could be known", len(bySigns), named, mustBe)
	if named*2 < mustBe {
		t.Errorf("%d parts found of %d that could be known: want half at least", named, mustBe)
	}
}

func TestCollateFindsWhatIsAlone(t *testing.T) {
	for _, dims := range []grid.Dims{{X: 3, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 1}, {X: 4, Y: 3, Z: 2}} {
		n := dims.At(dims.Nodes() / 2)
		out := way{n, grid.XPlus}
		for name, tc := range map[string]struct {
			plant func(w *truth)
			want  []Part
		}{
			"nothing":         {func(*truth) {}, nil},
			"service network": {func(w *truth) { w.service[n] = true }, nil},
			"host half":       {func(w *truth) { w.host[n] = true }, []Part{PartHost}},
			"DNP half":        {func(w *truth) { w.dnp[n] = true }, []Part{PartDNP}},
			"both halves":     {func(w *truth) { w.dnp[n], w.host[n] = true, true }, []Part{PartNode}},
			"link":            {func(w *truth) { w.way[out], w.way[out.back(w)] = true, true }, []Part{PartLink}},
			"one way":         {func(w *truth) { w.way[out] = true }, []Part{PartLink}},
			"other way":       {func(w *truth) { w.way[out.back(w)] = true }, []Part{PartLink}},
		} {
			w := newTruth(dims)
			tc.plant(w)
			report := Collate(dims, w.findings())
			var got []Part
			for _, f := range report.Found {
				got = append(got, f.Part)
				if !w.holds(f) {
					t.Errorf("%s, %s: %+v is well", dims, name, f)
				}
				if f.Part == PartLink && (f.OutDead != w.way[out] || f.InDead != w.way[out.back(w)]) {
					t.Errorf("%s, %s: %+v: the wrong way", dims, name, f)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s, %s: found %v, want %v", dims, name, report.Found, tc.want)
			}
			if dead := name == "both halves"; dead != slices.Contains(report.Silent, n) {
				t.Errorf("%s, %s: silent %v", dims, name, report.Silent)
			}
		}
	}
}

// Many faults at once in tori of many shapes, with losses: nothing that is well is named, lossy and corrupt links
// included.
func TestCollateNamesNothingHealthy(t *testing.T) {
	found := map[Part]int{}
	verdicts := map[Verdict]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		dims := grid.Dims{X: 1 + r.IntN(4), Y: 1 + r.IntN(4), Z: 1 + r.IntN(3)}
		if dims.Nodes() < 2 {
			continue
		}
		w := newTruth(dims)
		w.rand = r
		some := func(p float64) bool { return r.Float64() < p*float64(seed%4)/3 }
		for _, n := range w.nodes() {
			w.host[n], w.dnp[n], w.service[n] = some(0.1), some(0.1), some(0.2)
			for _, d := range dims.Links() {
				out := way{n, d}
				w.way[out] = some(0.1)
				if some(0.1) {
					w.loss[out] = 0.1 + 0.3*r.Float64()
				} else if some(0.1) {
					w.corrupt[out] = 0.1 + 0.3*r.Float64()
				}
			}
		}
		report := Collate(dims, w.findings())
		for _, f := range report.Found {
			found[f.Part]++
			if !w.holds(f) {
				t.Errorf("seed %d, %s: %+v is well: %s", seed, dims, f, w)
			}
		}
		for _, l := range report.Links {
			verdicts[l.Verdict]++
			out := way{l.Node, l.Dir}
			bad := w.loss[out]+w.corrupt[out]+w.loss[out.back(w)]+w.corrupt[out.back(w)] > 0
			switch {
			case (l.Verdict == Lossy || l.Verdict == Corrupt) && !bad:
				t.Errorf("seed %d, %s: link %s %s is %s: it is well", seed, dims, l.Node, l.Dir, l.Verdict)
			case l.Verdict == Corrupt && w.corrupt[out]+w.corrupt[out.back(w)] == 0:
				t.Errorf("seed %d, %s: link %s %s is corrupt: it only loses", seed, dims, l.Node, l.Dir)
			case l.Verdict == Dead && !w.way[out] && !w.way[out.back(w)]:
				t.Errorf("seed %d, %s: link %s %s is called dead", seed, dims, l.Node, l.Dir)
			case l.Verdict == Good && (!w.carries(out) || !w.carries(out.back(w))):
				t.Errorf("seed %d, %s: link %s %s is called good", seed, dims, l.Node, l.Dir)
			}
		}
	}
	for _, p := range []Part{PartHost, PartDNP, PartNode, PartLink} {
		if found[p] == 0 {
			t.Errorf("no %s was found in any torus: the test shows nothing", p)
		}
	}
	for _, v := range []Verdict{Good, Lossy, Corrupt, Dead, NothingAnswers} {
		if verdicts[v] == 0 {
			t.Errorf("no link was %s in any torus: the test shows nothing", v)
		}
	}
}

// A DNP half that answers slowly makes its links look slow to its neighbours and not to itself: none of them is slow.
// A slow link is so from both ends.
func TestSlowLinksAndSlowHalves(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 3, Z: 1}
	slowNode, slowLink := grid.Coord{X: 1, Y: 1}, way{grid.Coord{X: 0, Y: 0}, grid.XPlus}
	w := newTruth(dims)
	for _, planted := range []string{"half", "link"} {
		all := w.findings()
		for i := range all {
			for j := range all[i].Links {
				out := way{all[i].Node, all[i].Links[j].Dir}
				if planted == "half" && (out.from == slowNode || w.to(out) == slowNode) || planted == "link" &&
					(out == slowLink || out.back(w) == slowLink) {
					all[i].Links[j].DNP.Median = 400 * time.Millisecond
				}
			}
		}
		for _, l := range Collate(dims, all).Links {
			if is := l.Verdict == Slow; is != (planted == "link" && l.Node == slowLink.from && l.Dir == slowLink.dir) {
				t.Errorf("slow %s: link %s %s is %s", planted, l.Node, l.Dir, l.Verdict)
			}
		}
	}
}

// When only one node reports on one link, Collate cannot distinguish the causes.
func TestOneEndAloneIsInconclusive(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 3, Z: 1}
	a, b := grid.Coord{}, grid.Coord{X: 1}
	silent := Finding{Dir: grid.XPlus, DNP: Test{Sent: 36}}
	report := Collate(dims, []NodeFindings{{Node: a, DNP: true, Host: DNPAlive, Links: []Finding{silent}}, {Node: b}})
	if len(report.Found) > 0 || len(report.Links) != 1 || report.Links[0].Verdict != NothingAnswers {
		t.Errorf("found %+v, links %+v", report.Found, report.Links)
	}
	if !slices.Equal(report.Silent, []grid.Coord{b}) || len(report.Open) != 1 {
		t.Errorf("silent %v, open %v", report.Silent, report.Open)
	}
}

// A probe altered only behind a neighbour does not count against the link to that neighbour.
func TestAlteredBehindLink(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 3, Z: 1}
	all := newTruth(dims).findings()
	at, _ := dims.Neighbour(all[0].Node, grid.XPlus)
	all[0].finding(grid.XPlus).Through.Altered = 3
	report := Collate(dims, all)
	for _, l := range report.Links {
		if l.Verdict != Good {
			t.Errorf("link %s %s is %s", l.Node, l.Dir, l.Verdict)
		}
	}
	if len(report.Found) > 0 || len(report.Open) != 1 || report.Open[0].Node != at {
		t.Errorf("found %v, open %v: want a question about %s", report.Found, report.Open, at)
	}
}
