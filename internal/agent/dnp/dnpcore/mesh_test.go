package dnpcore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// mesh is a whole torus of DNP halves. Each link carries a bounded number of frames a millisecond; more frames wait in
// a bounded queue, and frames beyond that are lost.
type mesh struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Time
	cfg   Config
	dims  grid.Dims
	nodes []*meshNode
	rate  int     // frames a millisecond a link; 0: any
	loss  float64 // of hop frames
	lost  int     // frames that a queue dropped
	// spoil changes a frame on its way; nil: none.
	spoil func(from *meshNode, f *torus.Frame)
	// signed holds the messages in the supervisors' envelopes, for a half that wants one opened.
	signed map[string]*lofamov1.Message
	// peersOf makes a torus that changes: frames then travel where both ends of a link say that it leads. It returns what
	// a starting half knows of its peers.
	peersOf func(n *meshNode) *halfcore.PeersConfig
}

type meshNode struct {
	at      grid.Coord
	m       *Machine
	wake    time.Time
	dead    bool
	host    watchdog.HostWord // its host half's word
	cut     [grid.NumDirections]bool
	queue   [grid.NumDirections][]torus.Frame // frames to send by each link
	air     []Frame                           // frames that arrive at the end of the millisecond
	opened  map[string]int
	back    map[string]int
	missing []routing.Missing
	sealed  []Seal
	saved   bool                     // SaveMask of the last step other than the host's
	stores  map[watchdog.Addr]uint32 // every bit that was ever set
	noHost  bool                     // its host half is dead
	window  halfcore.Window          // to its host half's kernel; zero: there is one kernel
	page    Output                   // its registers as written last
	mapped  []*lofamov1.MapFindings  // sent by it
}

const meshQueue = 128

// newMesh makes a torus in which all links are up.
func newMesh(t *testing.T, dims string, seed uint64, edit func(c *Config)) *mesh {
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	w := &mesh{t: t, rnd: rand.New(rand.NewPCG(seed, 9)), now: start, dims: d}
	w.cfg = Config{Periods: p, MaxHops: routing.HopBound(d), LinkGrace: time.Second}
	if edit != nil {
		edit(&w.cfg)
	}
	for at := range d.All() {
		w.nodes = append(w.nodes, &meshNode{at: at, host: watchdog.HostWord{Valid: true}, opened: map[string]int{},
			back: map[string]int{}, stores: map[watchdog.Addr]uint32{}})
	}
	for _, n := range w.nodes {
		w.begin(n, Hops{})
	}
	w.sessions()
	w.run(time.Second)
	return w
}

func (w *mesh) begin(n *meshNode, hops Hops) {
	cfg := w.cfg
	cfg.Topo = halfcore.NewTopology(fault.DefaultNodeID(n.at), n.at, w.dims, nil)
	cfg.Hops, cfg.Seed = hops, w.rnd.Uint64()
	if w.peersOf != nil {
		cfg.Peers = w.peersOf(n)
	}
	m, err := New(cfg, w.now, 7)
	if err != nil {
		w.t.Fatal(err)
	}
	n.m = m
	w.step(n, Tick{})
}

func (w *mesh) sessions() {
	for _, n := range w.nodes {
		for _, d := range w.dims.LinksOf(n.at) {
			w.step(n, Session{Dir: d, ID: uint32(w.now.Sub(start)/time.Millisecond) + 1})
		}
	}
}

func (w *mesh) node(at string) *meshNode {
	c, err := grid.ParseCoord(at)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.nodes[w.dims.Index(c)]
}

func (w *mesh) cut(n *meshNode, d grid.Direction) {
	to, _ := w.dims.Neighbour(n.at, d)
	n.cut[d.Index()], w.nodes[w.dims.Index(to)].cut[d.Opposite().Index()] = true, true
}

func (w *mesh) step(n *meshNode, ev Event) {
	if n.dead {
		return
	}
	before := n.m.cfg.Topo
	out := n.m.Step(w.now, ev)
	n.wake = out.Wake
	w.farewell(n, before, out.Farewell)
	if _, host := ev.(Host); !host {
		n.saved = out.SaveMask
	}
	for _, s := range out.Stores {
		n.stores[s.Addr] |= s.Value
	}
	if out.WriteDNP {
		n.page.DNP = out.DNP
	}
	if out.WriteDescriptor {
		n.page.Descriptor = out.Descriptor
	}
	n.page.Causes = append(n.page.Causes, out.Causes...)
	for _, f := range out.Frames {
		i := f.Dir.Index()
		if f.Frame.Type == torus.TypeHop && w.rnd.Float64() < w.loss {
			continue
		}
		if len(n.queue[i]) >= meshQueue {
			w.lost++
			continue
		}
		f.Frame.Payload = bytes.Clone(f.Frame.Payload)
		n.queue[i] = append(n.queue[i], f.Frame)
	}
	n.missing = append(n.missing, out.Missing...)
	n.sealed = append(n.sealed, out.Seal...)
	for _, b := range append([][]byte(nil), out.Open...) {
		n.opened[string(b)]++
		if msg := w.signed[string(b)]; msg != nil {
			defer w.step(n, Opened{servicenet.Opened{Msg: msg, Raw: b, Name: "sup-0"}})
		}
	}
	for _, m := range out.ToHost {
		if m.Kind == halfcore.RelayBack {
			n.back[string(m.Envelope)]++
		}
	}
	var mail []TestMail
	for _, t := range out.TestMail {
		if !t.Echo && !n.noHost {
			mail = append(mail, TestMail{Echo: true, Data: t.Data})
		}
	}
	for _, s := range out.Seal {
		if f := s.Order.GetMapFindings(); f != nil {
			n.mapped = append(n.mapped, f)
		}
	}
	for _, p := range out.Probes {
		defer w.step(n, Test{selftest.Returned{Module: p.Module, Data: p.Data}})
	}
	for _, j := range out.Judge {
		w.step(n, openedData(j))
	}
	if out.TakeHost {
		word := n.host
		word.Valid = !n.noHost
		w.step(n, Host{Taken: true, Sample: watchdog.Sample{Valid: !n.noHost}, Word: word, Window: n.window})
	}
	for _, t := range mail {
		w.step(n, t)
	}
}

// run advances the time, a millisecond at a time.
func (w *mesh) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		for _, n := range w.nodes {
			for _, d := range n.m.Links() {
				w.carry(n, d)
			}
		}
		if w.peersOf != nil {
			w.shake()
		}
		w.now = w.now.Add(time.Millisecond)
		for _, n := range w.nodes {
			air := n.air
			n.air = nil
			for i := range air {
				w.step(n, &air[i])
			}
			if !n.wake.After(w.now) {
				w.step(n, Tick{})
			}
		}
	}
}

func (w *mesh) carry(n *meshNode, d grid.Direction) {
	q := n.queue[d.Index()]
	k := len(q)
	if w.rate > 0 {
		k = min(k, w.rate)
	}
	if peer := w.peer(n, d); peer != nil && !n.cut[d.Index()] && !n.dead {
		for _, f := range q[:k] {
			if w.spoil != nil {
				w.spoil(n, &f)
			}
			peer.air = append(peer.air, Frame{Dir: d.Opposite(), Frame: f})
		}
	}
	n.queue[d.Index()] = append(n.queue[d.Index()][:0], q[k:]...)
}

// stats adds up the counters of all nodes.
func (w *mesh) stats() (h HopStats, r RouteStats) {
	for _, n := range w.nodes {
		s, q := n.m.HopStats(), n.m.RouteStats()
		h.Held += s.Held
		h.Refused += s.Refused
		h.Expired += s.Expired
		h.Again += s.Again
		r.Routed += q.Routed
		r.Derouted += q.Derouted
		r.Flooded += q.Flooded
		r.Swapped += q.Swapped
		r.Ended += q.Ended
	}
	return h, r
}

// noRuleBroken checks that no half accuses a neighbour, nor reports itself sick.
func (w *mesh) noRuleBroken() {
	w.t.Helper()
	for _, n := range w.nodes {
		for d, rules := range n.m.ProtocolStats() {
			for r, count := range rules {
				if count > 0 && halfcore.Rule(r) != halfcore.RuleRate {
					w.t.Errorf("%s: link %d: rule %s broken %d times", n.at, d, halfcore.Rule(r), count)
				}
			}
		}
		if v := n.stores[watchdog.AddrRouter0] &^ watchdog.RouterNoRoute; v != 0 {
			w.t.Errorf("%s: router exceptions %#x", n.at, v)
		}
		if v := n.stores[watchdog.AddrRouter1]; v != 0 {
			w.t.Errorf("%s: router exceptions 1 %#x: its core is sick of its neighbours' traffic", n.at, v)
		}
	}
}

func (n *meshNode) down(w *mesh, to grid.Coord, text string) {
	w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: to, Envelope: []byte(text)}})
}

// Messages route around random dead links, in one to three dimensions, by chaos; each arrives once.
func TestMeshAroundDeadLinks(t *testing.T) {
	for _, test := range []struct {
		dims string
		dead float64
	}{{"6", 0.1}, {"4x4", 0.2}, {"6x5", 0.2}, {"3x3x3", 0.25}, {"3x3x3 without 1,0,2..2,2,2", 0.1}, {"4x4 without 1,1 3,2", 0.1}} {
		derouted := uint64(0)
		for seed := range uint64(4) {
			w := newMesh(t, test.dims, seed, nil)
			for _, n := range w.nodes {
				for _, d := range w.dims.LinksOf(n.at) {
					if d.Positive() && w.rnd.Float64() < test.dead {
						w.cut(n, d)
					}
				}
			}
			w.run(500 * time.Millisecond)
			reached := w.reach()
			type sent struct {
				from, to *meshNode
				text     string
			}
			var all []sent
			for i := range 60 {
				from, to := w.nodes[w.rnd.IntN(len(w.nodes))], w.nodes[w.rnd.IntN(len(w.nodes))]
				if from == to {
					continue
				}
				all = append(all, sent{from, to, fmt.Sprint("m", i)})
				from.down(w, to.at, all[len(all)-1].text)
				w.run(3 * time.Millisecond)
			}
			w.run(2 * time.Second)
			for _, s := range all {
				want := 0
				if reached[s.from] == reached[s.to] {
					want = 1
				}
				if got := s.to.opened[s.text]; got != want {
					t.Errorf("%s seed %d: %s from %s to %s came %d times, want %d", test.dims, seed, s.text, s.from.at, s.to.at, got, want)
				}
			}
			_, r := w.stats()
			derouted += r.Derouted
			w.noRuleBroken()
		}
		if derouted == 0 {
			t.Errorf("%s: nothing was derouted: the test tests nothing", test.dims)
		}
	}
}

// reach numbers the parts of the torus that are connected.
func (w *mesh) reach() map[*meshNode]int {
	part := map[*meshNode]int{}
	for i, n := range w.nodes {
		if part[n] != 0 {
			continue
		}
		part[n] = i + 1
		for queue := []*meshNode{n}; len(queue) > 0; queue = queue[1:] {
			for _, d := range w.dims.LinksOf(queue[0].at) {
				c, _ := w.dims.Neighbour(queue[0].at, d)
				if to := w.nodes[w.dims.Index(c)]; !queue[0].cut[d.Index()] && part[to] == 0 {
					part[to] = i + 1
					queue = append(queue, to)
				}
			}
		}
	}
	return part
}

// A message to a dead node ends, makes no node sick, and uses no more than its hops and a flood among the neighbours.
func TestMeshDeadDestination(t *testing.T) {
	w := newMesh(t, "4x4x4", 1, nil)
	dead := w.node("2,2,2")
	dead.dead = true
	w.run(500 * time.Millisecond)
	for i := range 5 {
		w.node("0,0,0").down(w, dead.at, fmt.Sprint("to the dead ", i))
		w.run(20 * time.Millisecond)
	}
	w.run(6 * time.Second)
	h, r := w.stats()
	if h.Held != 0 || r.Flooded == 0 {
		t.Errorf("%+v %+v", h, r)
	}
	t.Logf("%+v, a message: %.0f hops, %.1f floods", r, float64(r.Routed+r.Derouted)/5, float64(r.Flooded)/5)
	if most := uint64(5 * 200); r.Routed+r.Derouted+r.Flooded > most {
		t.Errorf("%+v: want at most %d", r, most)
	}
	w.noRuleBroken()
}

// Halves of an earlier version, which allow a message 32 hops and report themselves sick over more, get no such
// message.
func TestEarlierVersionGetsNoUnknownFrames(t *testing.T) {
	w := newMesh(t, "9x9x1", 3, nil)
	old := func(n *meshNode) bool { return (n.at.X+n.at.Y)%3 == 0 }
	w.cfg.NoHops, w.cfg.MaxHops = true, earlierHops
	for _, n := range w.nodes {
		if old(n) {
			w.begin(n, Hops{})
		}
	}
	w.sessions()
	w.run(time.Second)
	dead := w.node("4,4,0")
	dead.dead = true
	w.run(500 * time.Millisecond)
	for i := range 40 {
		w.node("4,3,0").down(w, dead.at, fmt.Sprint("to the dead ", i))
		w.run(20 * time.Millisecond)
	}
	w.run(6 * time.Second)
	ended := uint64(0)
	for _, n := range w.nodes {
		if s := n.m.RouteStats(); old(n) && s.Ended > 0 {
			t.Errorf("%s: %+v", n.at, s)
		} else {
			ended += s.Ended
		}
	}
	if ended == 0 {
		t.Error("no message has made all its hops: nothing is tested")
	}
}

// All nodes are full of messages for everywhere: chaos still empties the torus, and nothing is lost. Dimension order,
// which here amounts to the absence of the exchange rule, deadlocks.
func TestFullNodesExchangeMessages(t *testing.T) {
	for _, test := range []struct {
		dims string
		a    routing.Algorithm
	}{{"4x4", routing.Chaos}, {"3x3x3", routing.Chaos}, {"6", routing.Chaos}, {"2x2x2", routing.Chaos}} {
		t.Run(test.dims+" "+test.a.String(), func(t *testing.T) {
			w := newMesh(t, test.dims, 3, func(c *Config) { c.Routing = test.a })
			total := w.fill()
			w.sessions()
			if h, _ := w.stats(); h.Held != total {
				t.Fatalf("%d held of %d", h.Held, total)
			}
			w.run(5 * time.Second)
			arrived := 0
			for _, n := range w.nodes {
				for text, k := range n.opened {
					if arrived++; k != 1 {
						t.Errorf("%s came %d times", text, k)
					}
				}
			}
			h, r := w.stats()
			t.Logf("%d of %d arrived; %+v %+v", arrived, total, h, r)
			if arrived != total || h.Held != 0 || h.Expired != 0 {
				t.Errorf("%d of %d arrived; %+v", arrived, total, h)
			}
			if r.Swapped == 0 && h.Refused == 0 {
				t.Error("no node was ever full: the test tests nothing")
			}
			w.noRuleBroken()
		})
	}
}

// An envelope in several pieces arrives whole and once, though its pieces take different routes and frames are lost. If
// a piece does not arrive, the half reports the envelope as missing.
func TestEnvelopeInPiecesArrivesWholeAndOnce(t *testing.T) {
	w := newMesh(t, "4x4", 2, nil)
	w.loss = 0.3
	from, to := w.node("0,0,0"), w.node("2,2,0")
	long := bytes.Repeat([]byte("envelope "), 400)
	pieces, err := routing.Split(from.at, long, halfcore.MaxRelayEnvelope)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		from.down(w, to.at, string(p))
	}
	w.run(time.Second)
	if to.opened[string(long)] != 1 || len(to.opened) != 1 || to.missing != nil {
		t.Errorf("opened %d messages, the long one %d times; missing %v", len(to.opened), to.opened[string(long)], to.missing)
	}
	to.m.out = Output{}
	to.m.toHost(long)
	if len(to.m.out.ToHost) != len(pieces) || !routing.IsPiece(to.m.out.ToHost[0].Envelope) {
		t.Errorf("%d messages to the host half, want %d pieces", len(to.m.out.ToHost), len(pieces))
	}
	long[0]++
	if pieces, err = routing.Split(from.at, long, halfcore.MaxRelayEnvelope); err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces[1:] {
		from.down(w, to.at, string(p))
	}
	w.run(2 * routing.MissingAfter)
	if len(to.opened) != 1 || len(to.missing) != 1 || to.missing[0].Have != len(pieces)-1 || to.missing[0].Origin != from.at {
		t.Errorf("opened %d messages; missing %v", len(to.opened), to.missing)
	}
	from.down(w, to.at, "\xc5\x02 of a later version, which makes nobody sick")
	w.run(100 * time.Millisecond)
	if s := to.m.ReorderStats(); s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	w.noRuleBroken()
}

// fill restarts all halves without room for another message, each message for another node, and returns the number of
// messages.
func (w *mesh) fill() (total int) {
	for _, n := range w.nodes {
		var hops Hops
		for i := range n.m.room() {
			to := n.at
			for to == n.at {
				to = w.dims.At(w.rnd.IntN(len(w.nodes)))
			}
			s := slot{msg: halfcore.Relay{Kind: halfcore.RelayDown, Limit: w.cfg.MaxHops, Dst: to, Envelope: fmt.Appendf(nil, "%s/%d", n.at, i)}}
			b, err := s.encode()
			if err != nil {
				w.t.Fatal(err)
			}
			hops.Held[i] = Held{Bytes: b}
			total++
		}
		w.begin(n, hops)
	}
	return total
}
