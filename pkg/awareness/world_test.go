package awareness

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// epoch0 is the start of the tests' time.
var epoch0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testConfig(dims grid.Dims) Config {
	ids := make(map[grid.Coord]fault.NodeID, dims.Nodes())
	for at := range dims.All() {
		ids[at] = fault.DefaultNodeID(at)
	}
	var n uint64
	return Config{
		Dims: dims, IDs: ids, Supervisor: "s0",
		ChallengeNode: 60 * time.Millisecond, ChallengeHalf: 20 * time.Millisecond, ChallengeSingle: 300 * time.Millisecond,
		DigestPeriod: 500 * time.Millisecond, DigestMisses: 4, Grace: 500 * time.Millisecond,
		HalfBound: 210 * time.Millisecond, Horizon: time.Hour, StopLimit: time.Minute,
		Nonce: func() (b [16]byte) {
			n++
			binary.BigEndian.PutUint64(b[8:], n)
			return b
		},
	}
}

// label gives every node a value of the failure domain key: r0, r1, ...
func label(cfg *Config, key string, value func(grid.Coord) int) {
	if cfg.Labels == nil {
		cfg.Labels = map[fault.NodeID]map[string]string{}
	}
	for c, id := range cfg.IDs {
		if cfg.Labels[id] == nil {
			cfg.Labels[id] = map[string]string{}
		}
		cfg.Labels[id][key] = fmt.Sprintf("r%d", value(c))
	}
	cfg.DomainLabels = append(cfg.DomainLabels, key)
}

// subject is the subject of a statement.
type subject struct {
	node fault.NodeID
	comp fault.Component
}

type statement struct {
	state  fault.State
	kind   fault.Kind
	began  time.Time
	detail string
	ended  bool
}

// actor is one half in the world.
type actor struct {
	origin fault.Origin
	alive  bool      // runs: sends digests
	born   time.Time // when it restarted; zero: it has not
	mute   bool      // hears no challenges
	lost   bool      // its reports do not arrive
	// drops reports for every datagram to or from the half whether it is lost; nil: none is. Reports are sent again
	// until they arrive, as the outbox does.
	drops      func() bool
	via        fault.Path
	held       time.Duration
	waits      time.Duration // of its reports at a supervisor that cannot reach the leader
	slow       time.Duration // to answer
	epoch      fault.Epoch
	seq        fault.Seq
	says       map[subject]statement
	sent       []fault.Delivery // for replays
	nextDigest time.Time
	readings   []fault.Reading     // to include in its next report
	restart    fault.RestartNotice // the same
	stop       fault.Stop          // the same
}

// loses draws whether one of n datagrams is lost.
func (a *actor) loses(n int) bool {
	lost := false
	for range n {
		lost = a.drops() || lost
	}
	return lost
}

// event is a future input of the machine.
type event struct {
	at  time.Time
	seq int
	ev  Event
}

// world is a cluster of halves that send a test's statements and digests and answer challenges, in virtual time.
type world struct {
	m      *Machine
	cfg    Config
	dims   grid.Dims
	before grid.Dims // the last move
	now    time.Time
	actors map[fault.Origin]*actor
	order  []*actor
	queue  []event
	seq    int
	wake   time.Time
	log    func(at time.Time, out Output)
	quiet  bool
	behind time.Duration // constant delay of the shell
	slow   time.Duration // additional delay of all answers
	seen   sightings

	ended   bool                  // silences reported from now on are marked as those of ended processes
	refuses map[fault.NodeID]bool // nodes whose kernels refuse straight challenges

	platform fault.Platform // stated in all reports; 0: none, like agents of an earlier version
}

func newWorld(cfg Config) (*world, error) {
	m, err := New(cfg, epoch0, nil)
	if err != nil {
		return nil, err
	}
	w := &world{m: m, cfg: cfg, dims: cfg.Dims, now: epoch0, actors: map[fault.Origin]*actor{}, log: func(time.Time, Output) {}}
	for r := range cfg.Dims.Places() {
		for _, h := range halves {
			if w.id(r) == "" {
				continue // of another region
			}
			a := &actor{origin: fault.Origin{Node: w.id(r), Half: h}, via: fault.PathDirect}
			if h == fault.HalfDNP {
				a.via, a.held = fault.PathTorus, 3*time.Millisecond
			}
			w.actors[a.origin] = a
			w.order = append(w.order, a)
		}
	}
	return w, nil
}

func (w *world) id(rank int) fault.NodeID { return w.cfg.IDs[w.dims.At(rank)] }

func (w *world) coord(id fault.NodeID) grid.Coord {
	rank, ok := w.m.ranks[id]
	if !ok {
		panic("no node " + string(id))
	}
	return w.dims.At(rank)
}

func (w *world) actor(id fault.NodeID, h fault.Half) *actor {
	return w.actors[fault.Origin{Node: id, Half: h}]
}

// boot restarts a half, with all components NORMAL.
func (w *world) boot(a *actor) {
	a.alive, a.born, a.epoch, a.seq = true, w.now, a.epoch+1, 0
	a.says = map[subject]statement{}
	id := a.origin.Node
	set := func(c fault.Component, k fault.Kind) {
		a.says[subject{id, c}] = statement{state: fault.Normal, kind: k, began: w.now}
	}
	if a.origin.Half == fault.HalfHost {
		set(fault.ComponentHost, fault.KindSelf)
		set(fault.ComponentDNP, fault.KindWatchdog)
		for _, c := range []fault.Component{fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentDNPCore,
			fault.ComponentTemperature} {
			set(c, fault.KindSelf)
		}
		for _, d := range w.dims.Links() {
			set(fault.Link(d), fault.KindSelf)
		}
	} else {
		set(fault.ComponentDNP, fault.KindSelf)
		set(fault.ComponentDNPCore, fault.KindSelf)
		set(fault.ComponentTemperature, fault.KindSelf)
	}
	w.digest(a)
}

func (w *world) digest(a *actor) {
	a.nextDigest = w.now.Add(w.cfg.DigestPeriod)
	if a.origin.Half == fault.HalfDNP && w.actor(a.origin.Node, fault.HalfHost).alive {
		return // a DNP half reports by itself only while its host is dead
	}
	subjects := make([]subject, 0, len(a.says))
	for s := range a.says {
		subjects = append(subjects, s)
	}
	slices.SortFunc(subjects, func(x, y subject) int {
		return cmp.Or(strings.Compare(string(x.node), string(y.node)), int(x.comp)-int(y.comp))
	})
	w.report(a, true, subjects...)
}

// report sends the half's statements about the subjects.
func (w *world) report(a *actor, digest bool, subjects ...subject) {
	a.seq++
	d := fault.Delivery{Path: a.via, Report: fault.Report{ID: fault.ReportID{Origin: a.origin, Epoch: a.epoch, Seq: a.seq},
		Digest: digest, Platform: w.platform}}
	if !a.born.IsZero() {
		d.Report.Uptime = max(1, w.now.Sub(a.born))
	}
	for _, s := range subjects {
		st := a.says[s]
		age := w.now.Sub(st.began)
		if digest && st.state == fault.Normal {
			age = 0 // as on the wire, so that digests with the same content are equal
		}
		d.Report.Observations = append(d.Report.Observations, fault.Observation{
			Node: s.node, Component: s.comp, State: st.state, Kind: st.kind, Age: age, Detail: st.detail,
			Ended: st.ended})
	}
	d.Report.Readings, a.readings = a.readings, nil
	d.Report.Restart, a.restart = a.restart, fault.RestartNotice{}
	d.Report.Stop, a.stop = a.stop, 0
	if a.via == fault.PathTorus {
		d.Hops = []fault.Hop{{Node: "relay", Half: fault.HalfDNP, Held: a.held}}
	}
	a.sent = append(a.sent, d)
	if a.lost {
		return
	}
	held := a.held
	for a.drops != nil && !digest && a.drops() {
		held += 30 * time.Millisecond // AckTimeout
	}
	if a.waits > 0 { // as the engine does
		if d.Waited = a.waits; digest && a.waits > w.cfg.Window() {
			return
		}
		d.Report.Observations = slices.Clone(d.Report.Observations)
		for i := range d.Report.Observations {
			d.Report.Observations[i].Age += a.waits
		}
	}
	if !digest || a.drops == nil || !a.drops() {
		w.send(w.now.Add(held+a.waits), Evidence{d})
	}
}

func (w *world) say(a *actor, s subject, state fault.State, kind fault.Kind, age time.Duration) {
	a.says[s] = statement{state: state, kind: kind, began: w.now.Add(-age)}
	w.report(a, false, s)
}

func (w *world) send(at time.Time, ev Event) {
	w.seq++
	i, _ := slices.BinarySearchFunc(w.queue, at, func(e event, at time.Time) int { return cmp.Or(e.at.Compare(at), -1) })
	w.queue = slices.Insert(w.queue, i, event{at, w.seq, ev})
}

// silence makes every live neighbour of the node report all its links to the node silent, or (heard) working.
func (w *world) silence(id fault.NodeID, heard bool, age time.Duration) {
	c := w.coord(id)
	for i, n := range w.dims.Neighbours(c) {
		a := w.actor(w.cfg.IDs[n], fault.HalfHost)
		if a == nil || !a.alive {
			continue
		}
		w.silenceBy(a, c, heard, age+time.Duration(i)*time.Millisecond)
	}
}

func (w *world) silenceBy(a *actor, c grid.Coord, heard bool, age time.Duration) {
	var subjects []subject
	for _, d := range w.dims.LinksTo(w.coord(a.origin.Node), c) {
		s := subject{a.origin.Node, fault.Link(d)}
		st := statement{state: fault.Failed, kind: fault.KindSilence, began: w.now.Add(-age), ended: w.ended}
		if heard {
			st = statement{state: fault.Normal, kind: fault.KindSelf, began: w.now.Add(-age)}
		}
		a.says[s] = st
		subjects = append(subjects, s)
	}
	w.report(a, false, subjects...)
}

// move gives the torus other places; nodes are named by their places. The new nodes' halves do not run, and those of
// the nodes that have left keep running: nobody asks them any more.
func (w *world) move(dims grid.Dims) {
	cfg := testConfig(dims)
	w.before, w.dims, w.cfg.Dims, w.cfg.IDs = w.dims, dims, dims, cfg.IDs
	for at := range dims.All() {
		for _, h := range halves {
			a := &actor{origin: fault.Origin{Node: cfg.IDs[at], Half: h}, via: fault.PathDirect}
			if w.actors[a.origin] == nil {
				w.actors[a.origin] = a
				w.order = append(w.order, a)
			}
		}
	}
	w.step(Moved{Dims: dims, IDs: cfg.IDs, Revision: w.cfg.Revision})
}

// follow has a node follow the last move.
func (w *world) follow(id fault.NodeID) {
	at, a := w.coord(id), w.actor(id, fault.HalfHost)
	for _, d := range grid.Directions() {
		was, had := w.before.Neighbour(at, d)
		is, has := w.dims.Neighbour(at, d)
		s := subject{id, fault.Link(d)}
		switch {
		case !has:
			delete(a.says, s)
		case !had || was != is:
			w.say(a, s, fault.Unknown, fault.KindSelf, 0)
		}
	}
}

// run advances time.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := end
		if len(w.queue) > 0 && w.queue[0].at.Before(next) {
			next = w.queue[0].at
		}
		if !w.wake.IsZero() && w.wake.Before(next) {
			next = w.wake
		}
		for _, a := range w.order {
			if a.alive && a.nextDigest.Before(next) {
				next = a.nextDigest
			}
		}
		if !next.Before(end) {
			w.now = end
			return
		}
		w.now = next
		for _, a := range w.order {
			if a.alive && !a.nextDigest.After(next) {
				w.digest(a)
			}
		}
		for len(w.queue) > 0 && !w.queue[0].at.After(next) {
			ev := w.queue[0].ev
			w.queue = w.queue[1:]
			w.step(ev)
		}
		if !w.wake.IsZero() && !w.wake.After(next) {
			w.step(Tick{})
		}
	}
}

func (w *world) step(ev Event) {
	w.m.Behind(w.now, w.behind)
	out := w.m.Step(w.now, ev)
	if !out.Wake.IsZero() && !out.Wake.After(w.now) {
		panic(fmt.Sprintf("wake %s is not after %s", out.Wake, w.now))
	}
	w.wake = out.Wake
	w.seen.check(w.m, out.Changes)
	for _, c := range out.Challenges {
		if c.Again && w.refuses[c.Node] {
			w.send(w.now.Add(200*time.Microsecond), Refused{Node: c.Node, Nonce: c.Nonce})
		}
		for i, h := range halves {
			a := w.actor(c.Node, h)
			if a.alive && !a.mute && (c.Half == 0 || c.Half == h) && (a.drops == nil || !a.loses(2)) {
				w.send(w.now.Add(w.slow+a.slow+time.Duration(i+1)*time.Millisecond),
					Answered{Nonce: c.Nonce, Origin: a.origin, Epoch: a.epoch, Path: a.via})
			}
		}
	}
	if !w.quiet {
		w.log(w.now, out)
	}
}

// sightings checks that every change of a machine tells what preceded it, and changes what a reader sees.
type sightings struct {
	of  *Machine
	now map[place]Aspect
}

type place struct {
	node      fault.NodeID
	component fault.Component
}

func (s *sightings) check(m *Machine, changes []Change) {
	if s.of != m {
		*s = sightings{m, map[place]Aspect{}}
	}
	for _, c := range changes {
		at := place{c.Node, c.Component}
		if was, known := s.now[at]; known && was != c.Was || c.Void() {
			panic(fmt.Sprintf("change %+v: %+v preceded it", c, was))
		}
		s.now[at] = Aspect{c.Cause, c.SingleWitness, c.Flag}
	}
}

// start boots all halves and waits until grace is over.
func (w *world) start() {
	w.quiet = true
	for _, a := range w.order {
		w.boot(a)
	}
	w.run(w.cfg.Grace + w.cfg.DigestPeriod/2)
	w.quiet = false
}

func (w *world) state(id fault.NodeID, c fault.Component) fault.State {
	return w.m.nodes[w.m.ranks[id]].components[c].state
}
