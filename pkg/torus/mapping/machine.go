package mapping

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// How a run goes.
const (
	// MaxRegion bounds a region, in nodes.
	MaxRegion = 128
	// Pace is between two looks, and perPace how many probes leave at each: 200 a second at most.
	Pace    = 10 * time.Millisecond
	perPace = 2
	// Rate bounds the probes that a forwarding node accepts from one link in a second, and Burst those at once: a run
	// and its answers.
	Rate = 500
	// Burst goes with Rate.
	Burst = 100
	// maxFlying bounds the probes in flight.
	maxFlying = 16
	// answerIn is how long the mapper waits for an answer: 64 hops, and a busy machine.
	answerIn = 500 * time.Millisecond
	// perWay bounds the probes to a node by way of each neighbour that hears the node.
	perWay = 3
	// Most bounds a run. Nodes that have not answered by then are Unknown.
	Most = 10 * time.Second
	// ownLate is the delay of a tick after which unread answers may be waiting, and ownGrace is how much longer the
	// mapper then waits for answers.
	ownLate  = 100 * time.Millisecond
	ownGrace = 300 * time.Millisecond
)

// Knowledge is the known state of a part. The zero value means unknown.
type Knowledge uint8

// The states.
const (
	Unknown Knowledge = iota
	Good
	Bad
)

// String returns unknown, good or bad.
func (k Knowledge) String() string {
	switch k {
	case Good:
		return "good"
	case Bad:
		return "bad"
	default:
		return "unknown"
	}
}

// Config sets a run.
type Config struct {
	Dims   grid.Dims
	At     grid.Coord   // the mapper
	Region []grid.Coord // to map; 1 to MaxRegion, each once, without the mapper
	Run    uint64       // in all probes: an answer to another run does not count. Not 0
	Own    Word         // the mapper's own links
	// Hops bounds a path; 0, or more than MaxPath: MaxPath.
	Hops int
}

// Validate names the first field that is not allowed.
func (c Config) Validate() error {
	if n := len(c.Region); n < 1 || n > MaxRegion {
		return fmt.Errorf("region: given %d nodes: want 1 to %d", n, MaxRegion)
	}
	seen := make(map[grid.Coord]bool, len(c.Region))
	for _, at := range c.Region {
		if err := c.Dims.Check(at); err != nil {
			return fmt.Errorf("region: %w", err)
		}
		if seen[at] || at == c.At {
			return fmt.Errorf("region: given %s: want each node once, and not the mapper", at)
		}
		seen[at] = true
	}
	if c.Run == 0 {
		return fmt.Errorf("run: given 0: want another number")
	}
	return nil
}

// Found is the finding about one node.
type Found struct {
	At        grid.Coord
	DNP, Host Knowledge
	Good, Bad uint8         // its links: as it says, or as its neighbours say when it has not answered
	RoundTrip time.Duration // the fastest; 0: none
	Hops      int           // by which it was reached; 0: it was not
	Asked     int           // probes
}

// Event is an input of a run.
type Event interface{ mappingEvent() }

// Tick says that time has passed.
type Tick struct{}

// Back is a probe for which Hop said Answer. Its Data is not kept.
type Back struct{ Data []byte }

func (Tick) mappingEvent() {}
func (Back) mappingEvent() {}

// Send is a probe to send by the link Dir.
type Send struct {
	Dir  grid.Direction
	Data []byte
}

// Output is the result of a step. Its slices last until the next step.
type Output struct {
	Send []Send
	Done bool      // Findings are final
	Wake time.Time // when Step must be called again; zero: done
}

// way is a neighbour by which a node may be reached.
type way struct {
	from  *node // nil: the mapper
	dir   grid.Direction
	tries int
}

// node is a node of the region.
type node struct {
	found Found
	path  []byte // by which it answered
	ways  []way
	open  int // probes of it on their way
	// asksHost counts the probes to its host half by a path that had led to its DNP half.
	asksHost int
}

// flight is a probe that is on its way.
type flight struct {
	node   *node
	path   []byte
	at, by time.Time // sent; given up
}

// Machine is one run at one node. One goroutine owns it.
//
//	asking ──no node left to ask, all answered or given up─────► done
//	   └──────────────────────Most──────────────────────────────►
type Machine struct {
	cfg    Config
	nodes  map[grid.Coord]*node
	order  []*node // by rank
	flying map[uint32]flight
	late   map[uint32]flight // given up; an answer still counts
	next   uint32
	due    time.Time
	end    time.Time
	done   bool
	send   []Send
}

// New begins a run. The configuration must have passed Validate.
func New(cfg Config, now time.Time) *Machine {
	if err := cfg.Validate(); err != nil {
		panic("mapping: New with a configuration that was not validated: " + err.Error())
	}
	if cfg.Hops == 0 || cfg.Hops > MaxPath {
		cfg.Hops = MaxPath
	}
	m := &Machine{
		cfg: cfg, nodes: make(map[grid.Coord]*node, len(cfg.Region)), flying: make(map[uint32]flight), late: make(map[uint32]flight),
		due: now, end: now.Add(Most),
	}
	for _, at := range cfg.Region {
		m.nodes[at] = &node{found: Found{At: at}}
	}
	for _, n := range m.nodes {
		m.order = append(m.order, n)
	}
	slices.SortFunc(m.order, func(a, b *node) int { return cfg.Dims.Rank(a.found.At) - cfg.Dims.Rank(b.found.At) })
	m.heard(nil, cfg.At, cfg.Own)
	return m
}

// heard handles a node's report on its links: the mapper can ask the nodes that it hears by that way.
func (m *Machine) heard(from *node, at grid.Coord, w Word) {
	for _, d := range grid.Directions() {
		c, ok := m.cfg.Dims.Neighbour(at, d)
		n := m.nodes[c]
		if !ok || n == nil {
			continue
		}
		back := uint8(1) << d.Opposite().Index()
		switch {
		case w.Good>>d.Index()&1 == 1:
			if n.path == nil { // else the node's own report counts
				n.found.Good, n.found.Bad = n.found.Good|back, n.found.Bad&^back
			}
			if from == nil || len(from.path) < m.cfg.Hops {
				n.ways = append(n.ways, way{from: from, dir: d})
			}
		case w.Bad>>d.Index()&1 == 1 && n.path == nil && n.found.Good&back == 0:
			n.found.Bad |= back
		}
	}
}

// Step handles one event. Time must not run backwards.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.send = m.send[:0]
	switch ev := ev.(type) {
	case Tick:
		if !m.done && !now.Before(m.due) {
			m.tick(now)
		}
	case Back:
		m.back(now, ev.Data)
	}
	out := Output{Send: m.send, Done: m.done, Wake: m.due}
	if m.done {
		out.Wake = time.Time{}
	}
	return out
}

func (m *Machine) tick(now time.Time) {
	if now.Sub(m.due) > ownLate {
		for k, f := range m.flying {
			if grace := now.Add(ownGrace); grace.After(f.by) {
				f.by = grace
			}
			m.flying[k] = f
		}
	}
	for k, f := range m.flying {
		if !now.Before(f.by) {
			f.node.open--
			m.late[k] = f
			delete(m.flying, k)
		}
	}
	sent := 0
	for sent < perPace && len(m.flying) < maxFlying {
		n := m.nearest()
		if n == nil {
			break
		}
		m.ask(now, n)
		sent++
	}
	if len(m.flying) == 0 && sent == 0 || !now.Before(m.end) {
		m.done = true
		return
	}
	m.due = now.Add(Pace)
}

// nearest returns the node that is fewest hops away, of the possible ones, host halves last. It returns nil
// if none is left.
func (m *Machine) nearest() (nearest *node) {
	hops := 0
	for _, n := range m.order {
		if h := n.hops(); h > 0 && (nearest == nil || h < hops) {
			nearest, hops = n, h
		}
	}
	return nearest
}

// hops returns the length of the path to a node that has not reported everything, by a way that was not tried often
// enough, plus MaxPath if only the host half is missing. It returns 0 if there is no such way, or if the node is
// being asked.
func (n *node) hops() int {
	switch w := n.best(); {
	case n.open > 0:
		return 0
	case n.path != nil && n.found.Host == Unknown && n.asksHost < perWay: // the first probe was for both
		return MaxPath + len(n.path) // last: unanswered DNP halves may hide more nodes
	case n.path == nil && w != nil:
		return w.hops()
	}
	return 0
}

// ask sends a probe to a node that has not said everything.
func (m *Machine) ask(now time.Time, n *node) {
	path := n.path
	if path == nil {
		w := n.best()
		w.tries++
		if w.from != nil {
			path = append(path, w.from.path...)
		}
		path = append(path, byte(w.dir))
	} else {
		n.asksHost++
	}
	m.next++
	f := frame{kind: kindAsk, made: 1, host: true, number: m.next, run: m.cfg.Run, path: path}
	m.flying[m.next] = flight{node: n, path: path, at: now, by: now.Add(answerIn)}
	n.open++
	n.found.Asked++
	m.send = append(m.send, Send{grid.Direction(path[0]), f.append(make([]byte, 0, MaxFrame))})
}

// best is the way that was tried least, and of these the shortest.
func (n *node) best() *way {
	var best *way
	for i := range n.ways {
		w := &n.ways[i]
		if w.tries < perWay && (best == nil || w.tries < best.tries || w.tries == best.tries && w.hops() < best.hops()) {
			best = w
		}
	}
	return best
}

func (w *way) hops() int {
	if w.from == nil {
		return 1
	}
	return len(w.from.path) + 1
}

// back handles an answer, a late one too.
func (m *Machine) back(now time.Time, data []byte) {
	f, ok := decode(data)
	if !ok || f.run != m.cfg.Run || m.done {
		return
	}
	fl, flying := m.flying[f.number]
	if !flying {
		if fl, ok = m.late[f.number]; !ok {
			return
		}
	}
	n := fl.node
	if !slices.Equal(f.path, fl.path) {
		return
	}
	if trip := min(now.Sub(fl.at), Most); n.found.RoundTrip == 0 || trip < n.found.RoundTrip {
		n.found.RoundTrip = max(trip, 1)
	}
	if n.path == nil { // the host half's answer may come first
		n.path, n.found.DNP, n.found.Hops = fl.path, Good, len(fl.path)
		n.asksHost = 1
		n.found.Good, n.found.Bad = f.word.Good, f.word.Bad
		m.heard(n, n.found.At, f.word)
	}
	switch {
	case f.kind == kindHost:
		n.found.Host = Good
	case f.word.Host == HostDead && n.found.Host == Unknown:
		n.found.Host = Bad
	}
	if flying && n.found.Host != Unknown {
		delete(m.flying, f.number)
		n.open--
	}
}

// Findings returns the findings so far about all nodes of the region, by rank.
func (m *Machine) Findings() []Found {
	out := make([]Found, len(m.order))
	for i, n := range m.order {
		out[i] = n.found
	}
	return out
}
