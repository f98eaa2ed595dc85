package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Plan is a story of random faults: a cluster and its faults, as commands of a Script. It is made before it is played,
// so that parts can be removed and the rest played again.
type Plan struct {
	Dims        grid.Dims
	Preset      string
	Interfaces  int
	Supervisors int
	Seed        uint64
	Acts        []string
	Moves       bool       // nodes join and leave
	Ordered     bool       // Config.Ordered
	Stops       bool       // nodes announce stops
	Synchronous bool       // Config.Synchronous
	Fences      *FencePlan // nodes fence themselves

	bug bug
}

// shape is a torus with its relative frequency: the duration of a story grows with its nodes.
type shape struct {
	dims   grid.Dims
	weight int
}

var shapes = []shape{
	{grid.Dims{X: 2, Y: 1, Z: 1}, 2}, {grid.Dims{X: 3, Y: 1, Z: 1}, 2}, {grid.Dims{X: 5, Y: 1, Z: 1}, 3},
	{grid.Dims{X: 2, Y: 2, Z: 1}, 3}, {grid.Dims{X: 3, Y: 2, Z: 1}, 4}, {grid.Dims{X: 3, Y: 3, Z: 1}, 5}, {grid.Dims{X: 4, Y: 4, Z: 1}, 3},
	{grid.Dims{X: 2, Y: 2, Z: 2}, 8}, {grid.Dims{X: 3, Y: 2, Z: 2}, 4}, {grid.Dims{X: 3, Y: 3, Z: 3}, 3}, {grid.Dims{X: 4, Y: 4, Z: 4}, 1},
}

// theme is the emphasis of a story.
type theme int

// The themes, in the order of author.act.
const (
	ofNodes theme = iota
	ofLinks
	ofServices
	ofSupervisors
	ofStores
	ofTrust
	ofMends
	numThemes
)

// NewPlan makes the story of a seed.
func NewPlan(seed uint64) Plan {
	rnd := rand.New(rand.NewPCG(seed, 3))
	return newPlan(seed, theme(rnd.IntN(int(numThemes))), 3)
}

// newPlan makes a story with the given emphasis on a theme.
func newPlan(seed uint64, th theme, times int) Plan {
	g := author{rnd: rand.New(rand.NewPCG(seed, 2)), theme: th, times: times}
	return g.plan(seed, g.shape(shapes))
}

// plan writes the story.
func (g *author) plan(seed uint64, dims grid.Dims) Plan {
	g.dims = dims
	g.supervisors = []int{3, 3, 3, 5}[g.rnd.IntN(4)]
	g.interfaces = 1 + g.rnd.IntN(2)
	p := Plan{
		Dims: g.dims, Preset: []string{config.PresetDefault, config.PresetDefault, config.PresetDefault, config.PresetFast}[g.rnd.IntN(4)],
		Interfaces: g.interfaces, Supervisors: g.supervisors, Seed: seed,
	}
	for n := 5 + g.rnd.IntN(10); len(p.Acts) < n; {
		p.Acts = append(p.Acts, g.act()...)
		p.Acts = append(p.Acts, g.pause())
	}
	return p
}

// author invents the events of a story.
type author struct {
	rnd         *rand.Rand
	dims        grid.Dims
	supervisors int
	interfaces  int
	liars       map[grid.Coord]bool
	honest      bool // no node lies
	theme       theme
	times       int
}

// pick returns an index with the probability of its weight.
func (g *author) pick(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	at := g.rnd.IntN(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	panic("sim: weights")
}

// shape returns the torus of one of the shapes.
func (g *author) shape(of []shape) grid.Dims {
	weights := make([]int, len(of))
	for i, s := range of {
		weights[i] = s.weight
	}
	return of[g.pick(weights)].dims
}

func (g *author) node() grid.Coord { return g.dims.Node(g.rnd.IntN(g.dims.Nodes())) }

func (g *author) direction(at grid.Coord) grid.Direction {
	links := g.dims.LinksOf(at)
	return links[g.rnd.IntN(len(links))]
}

func (g *author) half() fault.Half { return fault.Half(1 + g.rnd.IntN(2)) }

func (g *author) supervisor() string {
	if g.rnd.IntN(2) == 0 {
		return "leader"
	}
	return fmt.Sprint("s", g.rnd.IntN(g.supervisors))
}

func (g *author) ms(lo, hi int) string { return fmt.Sprintf("%dms", lo+g.rnd.IntN(hi-lo)) }

// pause lets time pass: mostly less than everything takes to be known, sometimes so much that the next
// fault comes alone.
func (g *author) pause() string {
	if g.rnd.IntN(5) == 0 {
		return "run " + g.ms(6000, 9000)
	}
	return "run " + g.ms(10, 1500)
}

// act is one fault of the catalogue, or the end of one.
func (g *author) act() []string {
	acts := []struct {
		weight int
		do     func() []string
	}{
		{10, g.ofNode}, {7, g.ofLink}, {6, g.ofService}, {8, g.ofSupervisor}, {3, g.ofStore}, {3, g.ofTrust}, {4, g.mend},
	}
	weights := make([]int, len(acts))
	for i, a := range acts {
		weights[i] = a.weight
	}
	weights[g.theme] *= g.times
	return acts[g.pick(weights)].do()
}

func lines(format string, args ...any) []string {
	return strings.Split(fmt.Sprintf(format, args...), "\n")
}

func (g *author) ofNode() []string {
	n, h := g.node(), g.half()
	switch g.rnd.IntN(9) {
	case 0, 1:
		return lines("kill %s %s", n, h)
	case 2:
		return lines("hang %s %s", n, h)
	case 3, 4:
		return lines("kill %s node", n)
	case 5:
		return lines("hang %s node\nrun %s\ncontinue %s node", n, g.ms(50, 3000), n)
	case 6:
		return lines("kill %s %s\nrun %s\nstart %s %s", n, h, g.ms(10, 500), n, h)
	case 7:
		return lines("kill-fraction %.1f", []float64{0.3, 0.5, 1}[g.rnd.IntN(3)])
	}
	return lines("kill %s node\nkill %s node", n, g.node())
}

func (g *author) ofLink() []string {
	n := g.node()
	d := g.direction(n)
	switch g.rnd.IntN(6) {
	case 0, 1:
		return lines("cut %s %s", n, d)
	case 2:
		return lines("cut %s %s out", n, d)
	case 3:
		return lines("lose %s %s %.2f", n, d, 0.05+0.75*g.rnd.Float64())
	case 4:
		return lines("corrupt %s %s %.2f", n, d, 0.05+0.3*g.rnd.Float64())
	}
	return lines("flap %s %s %s", n, d, g.ms(200, 4000))
}

func (g *author) ofService() []string {
	n := g.node()
	switch g.rnd.IntN(7) {
	case 0, 1:
		return lines("cut-service %s", n)
	case 2:
		return lines("cut-service %s %d", n, g.rnd.IntN(g.interfaces))
	case 3:
		return lines("lose-service %s 0.3", n)
	case 4:
		return lines("corrupt-service %s 0.1", n)
	case 5:
		return lines("cut-supervisor\nsensor %s memory FAILED\nrun %s\nsensor %s memory NORMAL\nmend-supervisor", n, g.ms(10, 1500), n)
	}
	return lines("sensor %s memory FAILED\nrun %s\nsensor %s memory NORMAL", n, g.ms(10, 1500), n)
}

func (g *author) ofSupervisor() []string {
	s := g.supervisor()
	switch g.rnd.IntN(9) {
	case 0:
		return lines("kill-supervisor %s\nrun %s\nstart-supervisor s0 s1 s2", s, g.ms(10, 4000))
	case 1, 2:
		n := g.rnd.IntN(g.supervisors)
		return lines("stop-supervisor s%d\nrun %s\ncontinue-supervisor s%d", n, g.ms(50, 4000), n)
	case 3:
		cut := g.rnd.IntN(g.supervisors)
		names := make([]string, g.supervisors)
		for i := range names {
			names[i] = fmt.Sprint("s", i)
		}
		g.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names[cut] += " |"
		return lines("part-supervisors %s\nrun %s\njoin-supervisors", strings.Join(names, " "), g.ms(50, 5000))
	case 4:
		return lines("restart all supervisors")
	case 5:
		return lines("supervisor-cut %s from %s %s", s, g.node(), g.node())
	case 6:
		return lines("supervisor-cut s%d from all", g.rnd.IntN(g.supervisors))
	case 7: // the leader lives
		return lines("end-term")
	}
	return lines("kill-supervisor %s", s)
}

func (g *author) ofStore() []string {
	if g.rnd.IntN(3) == 0 {
		return lines("store full\nrun %s\nstore ok", g.ms(50, 5000))
	}
	return lines("store slow %s\nrun %s\nstore ok", g.ms(100, 5000), g.ms(50, 5000))
}

// ofTrust invents events with clocks, versions and liars.
func (g *author) ofTrust() []string {
	n := g.node()
	switch g.rnd.IntN(6) {
	case 0:
		return lines("clock %s %s%dm", n, []string{"", "-"}[g.rnd.IntN(2)], 1+g.rnd.IntN(60))
	case 1:
		return lines("future %s", n)
	case 2:
		return lines("future-supervisor %s", g.supervisor())
	}
	if !g.mayLie(n) {
		return nil
	}
	g.liars[n] = true
	near := g.dims.Neighbours(n)
	m := near[g.rnd.IntN(len(near))]
	if g.rnd.IntN(2) == 0 {
		return lines("liar %s", n)
	}
	// Reports of a node without a service network pass through the liar, who can replay them after the node's death.
	return lines("liar %s\ncut-service %s\nrun %s\nkill %s node\nrun 7s", n, m, g.ms(1000, 4000), m)
}

// mayLie reports whether every node would still have fewer liars around it than a quorum.
func (g *author) mayLie(n grid.Coord) bool {
	if g.liars == nil {
		g.liars = make(map[grid.Coord]bool)
	}
	for _, near := range g.dims.Neighbours(n) {
		around := 1
		for _, c := range g.dims.Neighbours(near) {
			around += count(g.liars[c])
		}
		if around >= awareness.Quorum(len(g.dims.Neighbours(near))) {
			return false
		}
	}
	return !g.liars[n] && !g.honest
}

func (g *author) mend() []string {
	n := g.node()
	d := g.direction(n)
	return lines("continue %s node\nstart %s node\nmend-service %s\nmend %s %s\nlose %s %s 0", n, n, n, n, d, n, d)
}

// mendAll ends every fault there can be.
func (p Plan) mendAll(dims grid.Dims) []string {
	out := lines("store ok\njoin-supervisors\nmend-supervisor")
	for i := range p.Supervisors {
		out = append(out, lines("continue-supervisor s%d\nstart-supervisor s%d\nsupervisor-mend s%d", i, i, i)...)
	}
	for c := range dims.All() {
		out = append(out, lines("honest %s\ncontinue %s node\nstart %s node\nmend-service %s\nlose-service %s 0\ncorrupt-service %s 0", c,
			c, c, c, c, c)...)
		out = append(out, fmt.Sprintf("sensor %s memory NORMAL", c)) // the plan may have lost the act that resets it
		for _, d := range dims.LinksOf(c) {
			out = append(out, lines("unflap %s %s\nmend %s %s\nlose %s %s 0\ncorrupt %s %s 0", c, d, c, d, c, d, c, d)...)
		}
	}
	return out
}

// Run plays the story: from a healthy cluster, through its faults, to the repair of everything. Then all must be NORMAL
// again, every report committed, and all supervisors in agreement.
func (p Plan) Run() error {
	if p.Fences != nil {
		_, err := p.runFences()
		return err
	}
	w, r, err := p.begin()
	if err != nil {
		return err
	}
	acts := slices.Concat(lines("settle"), p.Acts)
	if p.Ordered { // only faults of nodes with a place can end, so the supervisors must be back, and then the last nodes
		acts = append(append(acts, p.mendAll(p.Dims)...), "run 16s")
	}
	if err := r.play(acts); err != nil {
		return err
	}
	acts = append(p.mendAll(w.cfg.Dims), "mend-cables", "settle 60s", "followed 40s")
	for c := range w.cfg.Dims.All() {
		acts = append(acts, fmt.Sprintf("delivered %s", c))
	}
	return r.play(append(acts, "run 100ms", "same", "no-groups 30s"))
}

// play carries out commands. One about a node or link that is not there does nothing: in a shortened story, or without
// a leader, it may not have joined.
func (r *runner) play(acts []string) error {
	for _, a := range acts {
		err := r.do(strings.Fields(a))
		if len(r.broken) > 0 {
			return errors.New(strings.Join(r.broken, "\n"))
		}
		if err != nil && (r.moves == nil || !errors.Is(err, errAbsent)) {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

func (p Plan) begin() (*World, *runner, error) {
	periods, err := config.Preset(p.Preset)
	if err != nil {
		return nil, nil, err
	}
	cfg := Config{Dims: p.Dims, Periods: periods, Seed: p.Seed, Interfaces: p.Interfaces, Supervisors: p.Supervisors,
		Moves: p.Moves, Ordered: p.Ordered, Synchronous: p.Synchronous, bug: p.bug}
	if p.Stops {
		cfg.StopLimit = stopLimit
	}
	if p.Fences != nil {
		if err := p.Fences.configure(&cfg); err != nil {
			return nil, nil, err
		}
	}
	w, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	return w, &runner{World: w, periods: periods}, nil
}

// maxTries is the maximum number of plays to shorten a story.
const maxTries = 200

// Shrink removes from a failing story everything that its failure does not need: first the end, then one act after the
// other, until no more can be removed. It returns the rest and its failure, which must be the same kind as that of the
// whole: another failure proves nothing.
func (p Plan) Shrink(failed error) (Plan, error) {
	tries := 0
	fails := func(acts []string) bool {
		if tries++; tries > maxTries {
			return false
		}
		q := p
		q.Acts = acts
		err := q.Run()
		if err == nil || manner(err) != manner(failed) {
			return false
		}
		failed = err
		return true
	}
	for size := len(p.Acts) / 2; size > 0; size /= 2 {
		for end := len(p.Acts); end-size >= 0; end -= size {
			if end > len(p.Acts) {
				continue
			}
			if less := slices.Delete(slices.Clone(p.Acts), end-size, end); fails(less) {
				p.Acts = less
			}
		}
	}
	return p, failed
}

// manner is how a story fails, without the names and times of the moment: the first words that have no digit.
func manner(failed error) string {
	words := slices.DeleteFunc(strings.Fields(failed.Error()), func(w string) bool { return strings.ContainsAny(w, "0123456789") })
	return strings.Join(words[:min(5, len(words))], " ")
}

// Story describes a plan and its failure, so that a person can follow and replay it.
func (p Plan) Story(failed error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: torus %s, preset %s, %d supervisors, %d interfaces\n", p.Seed, p.Dims, p.Preset, p.Supervisors, p.Interfaces)
	for _, a := range p.Acts {
		fmt.Fprintf(&b, "    %s\n", a)
	}
	fmt.Fprintf(&b, "  → %s", strings.ReplaceAll(failed.Error(), "\n", "\n    "))
	return b.String()
}
