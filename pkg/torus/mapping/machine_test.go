package mapping

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func parseDims(t *testing.T, s string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// others are all nodes but one.
func others(dims grid.Dims, but grid.Coord) (out []grid.Coord) {
	for c := range dims.All() {
		if c != but {
			out = append(out, c)
		}
	}
	return out
}

// Exactly the connected nodes are found good, by paths hardly longer than the shortest, in tori of all shapes with
// random faults.
func TestAgainstBreadthFirstSearch(t *testing.T) {
	for _, dims := range []grid.Dims{{X: 9, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 2}, {X: 6, Y: 6, Z: 1}, {X: 4, Y: 4, Z: 4}, {X: 2, Y: 7, Z: 3},
		parseDims(t, "4x3x3 without 1,1,1 3,2,2 0,0,1..2,0,1"), parseDims(t, "9 without 2 5..6")} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%s/%d", dims, seed), func(t *testing.T) {
				w := newWorld(t, dims, seed)
				for range w.rng.IntN(dims.Nodes() * 2) {
					c := dims.Node(w.rng.IntN(dims.Nodes()))
					w.cutLink(c, dims.LinksOf(c)[w.rng.IntN(len(dims.LinksOf(c)))])
				}
				mapper := dims.Node(w.rng.IntN(dims.Nodes()))
				for range w.rng.IntN(dims.Nodes()/4 + 1) {
					if c := dims.Node(w.rng.IntN(dims.Nodes())); c != mapper {
						w.dead[c] = true
					}
				}
				for c := range dims.All() {
					switch w.rng.IntN(6) {
					case 0:
						w.hosts[c] = HostDead
					case 1:
						w.mute[c] = true
					}
				}
				region := others(dims, mapper)
				w.rng.Shuffle(len(region), func(i, j int) { region[i], region[j] = region[j], region[i] })
				region = region[:max(1, len(region)-w.rng.IntN(3))]
				found, took := w.survey(mapper, region, 0)
				reach := w.reach(mapper, region)
				if len(found) != len(region) {
					t.Fatalf("%d findings of %d nodes", len(found), len(region))
				}
				for c, f := range found {
					w.check(f, reach[c])
				}
				if took > 4*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		}
	}
}

// check compares the finding about a node, which is so many hops away, with the truth.
func (w *world) check(f Found, hops int) {
	w.t.Helper()
	word := w.word(f.At)
	if hops == 0 {
		if f.DNP != Unknown || f.Host != Unknown || f.Hops != 0 || f.RoundTrip != 0 {
			w.t.Errorf("%s is cut off: found %+v", f.At, f)
		}
		return
	}
	host := Good
	switch {
	case word.Host == HostDead:
		host = Bad
	case w.mute[f.At]:
		host = Unknown
	}
	if f.DNP != Good || f.Host != host || f.Hops < hops || f.Hops > hops+2 || f.Good != word.Good || f.Bad != word.Bad ||
		f.RoundTrip < 2*time.Duration(hops)*time.Millisecond {
		w.t.Errorf("%s is %d hops away, its host %s, its links %06b %06b: found %+v", f.At, hops, host, word.Good, word.Bad, f)
	}
}

// A region of dead nodes, however large, costs one look at its border: none of them is probed, and nothing is
// flooded.
func TestDeadRegionCostsNothing(t *testing.T) {
	dims := grid.Dims{X: 5, Y: 5, Z: 5}
	w := newWorld(t, dims, 1)
	mapper := grid.Coord{}
	region := others(dims, mapper)
	for _, c := range region {
		w.dead[c] = true
	}
	found, took := w.survey(mapper, region, 0)
	for c, f := range found {
		if f.DNP != Unknown || f.Asked != 0 {
			t.Errorf("%s: %+v", c, f)
		}
	}
	if f := found[grid.Coord{X: 1}]; f.Bad != 1<<grid.XMinus.Index() || f.Good != 0 {
		t.Errorf("the mapper does not hear 1,0,0, and of its links it is found %06b %06b", f.Good, f.Bad)
	}
	if took > 100*time.Millisecond {
		t.Errorf("it took %s", took)
	}
}

// A node whose neighbours hear it but that does not answer, such as one of an earlier version, stays unknown. The
// mapper asks it by way of each neighbour, at most perWay times each. It reaches the nodes behind by other ways.
func TestNodeOfEarlierVersionStaysUnknown(t *testing.T) {
	dims := grid.Dims{X: 5, Y: 5, Z: 1}
	w := newWorld(t, dims, 1)
	old := grid.Coord{X: 2, Y: 2}
	w.old[old] = true
	found, _ := w.survey(grid.Coord{X: 2, Y: 1}, others(dims, grid.Coord{X: 2, Y: 1}), 0)
	for c, f := range found {
		switch {
		case c == old:
			if f.DNP != Unknown || f.Host != Unknown || f.Good != 0b1111 || f.Asked < perWay || f.Asked > 4*perWay {
				t.Errorf("it was found %+v", f)
			}
		case f.DNP != Good || f.Host != Good:
			t.Errorf("%s: %+v", c, f)
		}
	}
}

// Frames are lost, and still all is found: each hop of 10 loses one of twenty.
func TestMappingFindsAllDespiteLoss(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 4, Z: 4}
	missed := 0
	for seed := range uint64(20) {
		w := newWorld(t, dims, seed)
		w.loss = 0.05
		found, _ := w.survey(grid.Coord{}, others(dims, grid.Coord{}), 0)
		for _, f := range found {
			if f.DNP != Good {
				missed++
			}
		}
	}
	if missed > 0 {
		t.Errorf("%d of 20×63 nodes were not found", missed)
	}
}

// A link that dies under the run costs those behind it nothing but time, where there is another way; a link that is
// one way leads nowhere.
func TestLinkDiesMeanwhile(t *testing.T) {
	dims := grid.Dims{X: 6, Y: 6, Z: 1}
	w := newWorld(t, dims, 3)
	n := 0
	w.lose = func(from grid.Coord, d grid.Direction) bool {
		n++
		return from == grid.Coord{X: 1} && d == grid.XPlus && n > 6
	}
	found, _ := w.survey(grid.Coord{}, others(dims, grid.Coord{}), 0)
	for c, f := range found {
		if f.DNP != Good {
			t.Errorf("%s: %+v", c, f)
		}
	}
}

// Silent host halves, even of a whole region, keep no node from being found.
func TestSilentHostsDoNotHideNodes(t *testing.T) {
	dims := grid.Dims{X: 5, Y: 5, Z: 5}
	w := newWorld(t, dims, 1)
	for r := range dims.Nodes() {
		w.mute[dims.At(r)] = true
	}
	found, _ := w.survey(grid.Coord{}, others(dims, grid.Coord{}), 0)
	for c, f := range found {
		if f.DNP != Good || f.Host != Unknown || f.Asked > perWay {
			t.Errorf("%s: %+v", c, f)
		}
	}
}

// Nodes deeper than the longest path are for another mapper.
func TestNodesBeyondLongestPathAreLeft(t *testing.T) {
	dims := grid.Dims{X: 100, Y: 1, Z: 1}
	w := newWorld(t, dims, 1)
	found, _ := w.survey(grid.Coord{}, others(dims, grid.Coord{}), 0)
	for c, f := range found {
		if near := min(c.X, 100-c.X) <= MaxPath; (f.DNP == Good) != near {
			t.Errorf("%s: %+v", c, f)
		}
	}
}

// After a pause of the mapper's process the answers are still unread: it does not give up answers that came.
func TestPausedMapperReadsWaitingAnswers(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	w := newWorld(t, dims, 1)
	at := grid.Coord{}
	m := New(Config{Dims: dims, At: at, Region: others(dims, at), Run: 4, Own: w.word(at)}, w.now)
	first := m.Step(w.now, Tick{}).Send
	if len(first) != 2 {
		t.Fatalf("%d probes", len(first))
	}
	w.now = w.now.Add(5 * time.Second)
	if out := m.Step(w.now, Tick{}); out.Done || len(out.Send) > 0 {
		t.Error("it gave up what it has had no time to read")
	}
	for _, s := range first {
		_, b, _ := Reply(s.Data, Word{Good: 3, Host: HostDead})
		m.Step(w.now, Back{b})
	}
	w.now = w.now.Add(Pace)
	if out := m.Step(w.now, Tick{}); !out.Done {
		t.Error("it waits on")
	}
	for _, f := range m.Findings() {
		if f.DNP != Good || f.Host != Bad {
			t.Errorf("%+v", f)
		}
	}
}

// A mapper whose process was paused reports a round trip of at most Most, the length of a run. Supervisors refuse findings with a round
// trip of over a minute.
func TestRoundTripIsNoLongerThanRun(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	w := newWorld(t, dims, 1)
	m := New(Config{Dims: dims, Region: others(dims, grid.Coord{}), Run: 4, Own: w.word(grid.Coord{})}, w.now)
	first := m.Step(w.now, Tick{}).Send
	w.now = w.now.Add(2 * time.Minute)
	for _, s := range first {
		_, b, _ := Reply(s.Data, Word{Good: 3, Host: HostAlive})
		m.Step(w.now, Back{b})
	}
	for _, f := range m.Findings() {
		if f.DNP != Good || f.RoundTrip != Most {
			t.Errorf("%+v: want a round trip of %s", f, Most)
		}
	}
}

// The mapper asks no node faster than the forwarding nodes allow.
func TestMapperKeepsPaceOfForwardingNodes(t *testing.T) {
	dims := grid.Dims{X: 128, Y: 1, Z: 1}
	w := newWorld(t, dims, 1)
	w.cutLink(grid.Coord{}, grid.XMinus)
	_, took := w.survey(grid.Coord{}, others(dims, grid.Coord{})[:31], 0)
	if n := w.passed[grid.Coord{X: 1}]; float64(n) > Burst+Rate*took.Seconds() {
		t.Errorf("the neighbour passed on %d frames in %s", n, took)
	}
}

func TestValidate(t *testing.T) {
	good := Config{Dims: grid.Dims{X: 4, Y: 1, Z: 1}, Region: []grid.Coord{{X: 1}}, Run: 1}
	for want, change := range map[string]func(*Config){
		"":       func(*Config) {},
		"region": func(c *Config) { c.Region = nil },
		"twice":  func(c *Config) { c.Region = []grid.Coord{{X: 1}, {X: 1}} },
		"mapper": func(c *Config) { c.Region = []grid.Coord{{}} },
		"beyond": func(c *Config) { c.Region = []grid.Coord{{X: 4}} },
		"many":   func(c *Config) { c.Region = make([]grid.Coord, MaxRegion+1) },
		"run":    func(c *Config) { c.Run = 0 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); (err == nil) != (want == "") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzHop(f *testing.F) {
	ask := (&frame{kind: kindAsk, made: 1, host: true, number: 3, run: 9, path: []byte{1, 1, 3}}).append(nil)
	f.Add(ask, byte(grid.XMinus))
	_, answer, _ := Reply((&frame{kind: kindAsk, made: 1, number: 3, run: 9, path: []byte{5}}).append(nil), Word{Good: 3, Host: HostAlive})
	f.Add(answer, byte(grid.ZPlus))
	f.Fuzz(func(t *testing.T, b []byte, from byte) {
		d := grid.Direction(from%grid.NumDirections + 1)
		what, to, out := Hop(b, d)
		switch what {
		case Pass:
			if !to.Valid() || len(out) != len(b) || len(out) > MaxFrame {
				t.Errorf("% x passed on by %s as % x", b, to, out)
			}
			before, _ := decode(b)
			if after, ok := decode(out); !ok || after.made != before.made+1 {
				t.Errorf("% x passed on as % x", b, out)
			}
		case Asked:
			to, out, _ := Reply(b, Word{Good: 1, Host: HostAlive})
			if to != d || out == nil {
				t.Errorf("% x came by %s and is answered by %s", b, d, to)
			}
		case Drop, Answer:
		}
		if fr, ok := decode(b); ok && string(fr.append(nil)) != string(b) {
			t.Errorf("% x reads as %+v", b, fr)
		}
	})
}

// A path bounds how far nodes forward one frame, even a hostile one.
func TestHopsAreBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		path := make([]byte, 1+rng.IntN(MaxPath))
		for i := range path {
			path[i] = byte(1 + rng.IntN(grid.NumDirections))
		}
		b := (&frame{kind: kindAsk, made: 1, number: 1, run: 1, path: path}).append(nil)
		from := grid.Direction(path[0]).Opposite()
		hops := 1
		for {
			what, to, out := Hop(b, from)
			if what == Asked {
				break
			}
			if what != Pass || hops > MaxPath {
				t.Fatalf("path % x: %d after %d hops", path, what, hops)
			}
			b, from = out, to.Opposite()
			hops++
		}
		if hops != len(path) {
			t.Errorf("path % x was asked after %d hops", path, hops)
		}
	}
}
