package dnpcore

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/procedure"
	"github.com/lofamo/lofamo/pkg/torus/routing"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// orderProcedure makes a node begin a procedure, like a supervisor's envelope.
func (w *mesh) orderProcedure(n *meshNode, count uint64, edit func(*lofamov1.ProcedureOrder)) {
	o := &lofamov1.ProcedureOrder{
		Number: &lofamov1.OrderNumber{Term: 5, Count: count}, Node: string(fault.DefaultNodeID(n.at)), Diagnose: true, DelayUs: 300_000,
		HopUs:          50_000,
		DrainTimeoutMs: 1000, ReplyTo: "10.0.0.1:7700",
	}
	if edit != nil {
		edit(o)
	}
	if w.signed == nil {
		w.signed = map[string]*lofamov1.Message{}
	}
	text := fmt.Sprintf("order %d to %s %t", count, n.at, o.GetAsk())
	w.signed[text] = &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: o}}
	w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: n.at, Envelope: []byte(text)}})
}

// procedureLongest is the maximum length of a procedure in these tests.
const procedureLongest = 300*time.Millisecond + time.Second + 100*time.Millisecond + 250*time.Millisecond + 600*time.Millisecond +
	diagnoseFor + 300*time.Millisecond

// statuses returns the procedure statuses that a node has sent.
func (n *meshNode) statuses() (out []*lofamov1.ProcedureStatus) {
	for _, s := range n.sealed {
		if st := s.Order.GetProcedureStatus(); st != nil {
			out = append(out, st)
		}
	}
	return out
}

// end returns the last status that a node sent, which must report the end of a procedure.
func (w *mesh) end(n *meshNode) *lofamov1.ProcedureStatus {
	all := n.statuses()
	if len(all) == 0 {
		w.t.Fatalf("%s has said nothing", n.at)
	}
	s := all[len(all)-1]
	if s.GetState() != lofamov1.ProcedureState_PROCEDURE_NORMAL {
		w.t.Errorf("%s: the last that it said is %v", n.at, s)
	}
	return s
}

// traffic is the load of a torus during a test: from and to everywhere, half of it deferrable.
type traffic struct {
	w    *mesh
	sent []sentMessage
}

type sentMessage struct {
	from, to *meshNode
	text     string
	urgent   bool
	at       time.Time
	came     time.Duration // -1: not yet
}

func (f *traffic) run(d time.Duration) {
	for end := f.w.now.Add(d); f.w.now.Before(end); {
		from, to := f.w.nodes[f.w.rnd.IntN(len(f.w.nodes))], f.w.nodes[f.w.rnd.IntN(len(f.w.nodes))]
		if from != to && !from.dead && !to.dead {
			s := sentMessage{from: from, to: to, text: fmt.Sprint("m", len(f.sent)), urgent: len(f.sent)%2 == 0, at: f.w.now, came: -1}
			f.sent = append(f.sent, s)
			f.w.step(from, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: to.at, MayWait: !s.urgent, Envelope: []byte(s.text)}})
		}
		f.w.run(4 * time.Millisecond)
		f.look()
	}
}

func (f *traffic) look() {
	for i := range f.sent {
		if s := &f.sent[i]; s.came < 0 && s.to.opened[s.text] > 0 {
			s.came = f.w.now.Sub(s.at)
		}
	}
}

// check verifies that every message has arrived once, and urgent ones as fast as without any procedure.
func (f *traffic) check(urgentWithin time.Duration) {
	f.w.t.Helper()
	f.look()
	longest := [2]time.Duration{}
	for _, s := range f.sent {
		if s.to.dead || s.from.dead {
			continue
		}
		if n := s.to.opened[s.text]; n != 1 {
			f.w.t.Errorf("%s to %s, urgent %t, sent at %s, came %d times", s.text, s.to.at, s.urgent, s.at.Sub(start), n)
		}
		i := 0
		if s.urgent {
			i = 1
		}
		longest[i] = max(longest[i], s.came)
	}
	if longest[1] > urgentWithin {
		f.w.t.Errorf("something urgent took %s: want at most %s", longest[1], urgentWithin)
	}
	f.w.t.Logf("%d messages; what may wait took up to %s, what is urgent up to %s", len(f.sent), longest[0], longest[1])
}

// An ordered procedure with diagnosis, under traffic. The torus empties of deferrable messages, while urgent ones
// continue. All halves test their links under the order's number and report how it ended. Nothing is lost, and no half
// is reported sick.
func TestProcedureDrainsAndTestsWholeMesh(t *testing.T) {
	for _, test := range []struct {
		dims string
		loss float64
	}{{"2x2x2", 0}, {"3x3x2", 0.1}, {"4x4x4", 0}, {"3x3x3 without 1,0,2..2,2,2", 0}} {
		w := newMesh(t, test.dims, 5, nil)
		w.loss = test.loss
		f := &traffic{w: w}
		f.run(200 * time.Millisecond)
		before := w.expressFrames()
		starter := w.node("1,0,0")
		w.orderProcedure(starter, 1, nil)
		f.run(procedureLongest)
		frames := float64(w.expressFrames()-before) / float64(len(w.nodes))
		w.run(time.Second)
		urgent := 400 * time.Millisecond
		if test.loss > 0 {
			urgent = 2 * time.Second
		}
		f.check(urgent)
		held := uint64(0)
		for _, n := range w.nodes {
			s, st := w.end(n), n.m.ProcedureStats()
			held += st.HeldUp
			if !s.GetClear() || !s.GetDiagnosed() || s.GetNumber().GetCount() != 1 || len(s.GetSilent())+len(s.GetHolding()) > 0 ||
				st.State != procedure.Normal || st.Clear != 1 || st.Waiting > 0 {
				t.Errorf("%s, %s: %v, %+v", test.dims, n.at, s, st)
			}
			if n != starter && len(n.statuses()) != 1 {
				t.Errorf("%s, %s: %d statuses of one that did not begin it", test.dims, n.at, len(n.statuses()))
			}
			if got := n.findings(1); got != len(w.dims.LinksOf(n.at)) {
				t.Errorf("%s, %s: findings of %d links", test.dims, n.at, got)
			}
		}
		if test.loss == 0 {
			w.noRuleBroken()
		}
		if held == 0 {
			t.Error("nothing was held up: the test tests nothing")
		}
		var states []lofamov1.ProcedureState
		for _, s := range starter.statuses() {
			states = append(states, s.GetState())
		}
		t.Logf("%s: %.0f frames of broadcasts and barriers a node, %d messages held up, %d rounds, the starter said %v", test.dims,
			frames, held, w.end(starter).GetRound(), states)
	}
}

func (w *mesh) expressFrames() (sum uint64) {
	for _, n := range w.nodes {
		e, b := n.m.ExpressStats(), n.m.BarrierStats()
		sum += e.Sent[express.TopicManage] + e.Repeated[express.TopicManage] + b.Sent + b.Repeated
	}
	return sum
}

// findings returns the number of links about which a node has sent findings, for an order.
func (n *meshNode) findings(count uint64) (links int) {
	for _, s := range n.sealed {
		if f := s.Order.GetDiagnosisFindings(); f != nil && f.GetNumber().GetCount() == count {
			links++
		}
	}
	return links
}

// In the middle of the drain a link dies, and another node: the drain times out and names the silent node, and all
// continue. A repeated order gets the status again.
func TestProcedureSurvivesDeaths(t *testing.T) {
	w := newMesh(t, "3x3x2", 6, nil)
	f := &traffic{w: w}
	f.run(200 * time.Millisecond)
	starter, dies := w.node("1,0,0"), w.node("2,2,1")
	w.orderProcedure(starter, 1, nil)
	w.run(50 * time.Millisecond) // its acknowledged messages die with it
	w.cut(w.node("0,0,0"), grid.YPlus)
	dies.dead = true
	f.run(procedureLongest)
	w.run(6 * time.Second)
	f.check(6 * time.Second) // messages waiting for the dead node are as late as without a procedure
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		if s := w.end(n); s.GetClear() || !slices.Contains(s.GetSilent(), uint32(w.dims.Rank(dies.at))) || !s.GetDiagnosed() || n.m.inhibited() {
			t.Errorf("%s: %v", n.at, s)
		}
	}
	said := len(starter.statuses())
	w.orderProcedure(starter, 1, func(o *lofamov1.ProcedureOrder) { o.Ask = true })
	if again := starter.statuses(); len(again) != said+1 || again[said] != again[said-1] || starter.m.inhibited() {
		t.Errorf("asked again: %v", again[said:])
	}
	other := w.node("0,1,0")
	w.orderProcedure(other, 1, func(o *lofamov1.ProcedureOrder) { o.Ask = true })
	w.orderProcedure(other, 2, func(o *lofamov1.ProcedureOrder) { o.Ask = true })
	if s := other.statuses(); len(s) != 3 || s[1] != s[0] || s[2].GetError() == "" || other.m.inhibited() {
		t.Errorf("another one, asked: %v", s)
	}
	w.orderProcedure(starter, 3, func(o *lofamov1.ProcedureOrder) { o.Absent = []uint32{uint32(w.dims.Rank(dies.at))} })
	w.run(procedureLongest)
	for _, n := range w.nodes {
		if !n.dead && !w.end(n).GetClear() {
			t.Errorf("%s: without the dead: %v", n.at, w.end(n))
		}
	}
	w.orderProcedure(w.node("0,0,1"), 2, nil)
	if n := w.node("0,0,1"); n.m.inhibited() {
		t.Error("an order that is older is obeyed")
	}
}

// A deferrable message cannot be delivered: the drain times out and names its holder, no mask changes, and the message
// stays where it is.
func TestProcedureNamesHalfWithStuckMessage(t *testing.T) {
	w := newMesh(t, "4x1x1", 7, nil)
	holder := w.node("2,0,0")
	w.loss = 1 // of messages: its neighbour never gets it
	w.step(holder, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: w.node("3,0,0").at, MayWait: true,
		Envelope: []byte("stuck")}})
	w.orderProcedure(w.node("0,0,0"), 1, nil)
	w.run(time.Second)
	w.mask(w.node("1,0,0"), 1, chanmask.All.Without(grid.XPlus))
	w.run(time.Second)
	if _, force := w.node("1,0,0").m.Mask(); force != chanmask.All {
		t.Errorf("mask %s in force in the middle of the procedure", force)
	}
	w.run(procedureLongest)
	for _, n := range w.nodes {
		s := w.end(n)
		if s.GetClear() || !slices.Equal(s.GetHolding(), []uint32{2}) || len(s.GetSilent()) > 0 || (s.GetHeld() > 0) != (n == holder) {
			t.Errorf("%s: %v", n.at, s)
		}
	}
	if _, force := w.node("1,0,0").m.Mask(); force == chanmask.All {
		t.Error("the mask did not change when it was over")
	}
}

func (w *mesh) mask(n *meshNode, number uint64, mask chanmask.Mask) {
	if w.signed == nil {
		w.signed = map[string]*lofamov1.Message{}
	}
	text := fmt.Sprintf("mask %d to %s", number, n.at)
	w.signed[text] = &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{Node: string(
		fault.DefaultNodeID(n.at)), Number: number, Mask: uint32(mask)}}}
	w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: n.at, Envelope: []byte(text)}})
}

// A mask ordered during a drain comes into force when the network is clear, at all nodes before any of them continues.
func TestMaskOrderedInDrainWaitsForClear(t *testing.T) {
	w := newMesh(t, "3x3x1", 8, func(c *Config) { c.Procedure.MaskDead = true })
	a, b := w.node("1,1,0"), w.node("2,1,0")
	dead := w.node("0,0,0")
	w.cut(dead, grid.XPlus)
	w.run(500 * time.Millisecond)
	w.orderProcedure(w.node("0,2,0"), 1, nil)
	w.run(20 * time.Millisecond)
	w.mask(a, 1, chanmask.All.Without(grid.XPlus))
	w.mask(b, 1, chanmask.All.Without(grid.XMinus))
	changed := map[*meshNode]procedure.State{}
	for range int(procedureLongest / time.Millisecond) {
		w.run(time.Millisecond)
		for _, n := range w.nodes {
			if _, force := n.m.Mask(); force != chanmask.All && changed[n] == 0 {
				changed[n] = n.m.ProcedureStats().State
				for _, other := range w.nodes {
					if !other.m.inhibited() {
						t.Errorf("%s changes its mask, and %s has gone on", n.at, other.at)
					}
				}
			}
		}
	}
	for _, n := range []*meshNode{a, b, dead, w.node("1,0,0")} {
		if changed[n] != procedure.Diagnostics || !w.end(n).GetClear() {
			t.Errorf("%s: its mask changed in %s", n.at, changed[n])
		}
	}
	if state, _ := dead.m.Mask(); len(changed) != 4 || state.Own != chanmask.All.Without(grid.XPlus) {
		t.Errorf("masks have changed at %d nodes, the own word is %s", len(changed), state.Own)
	}
	for _, n := range []*meshNode{dead, w.node("1,0,0")} { // it is repaired, at both ends
		n.cut = [grid.NumDirections]bool{}
	}
	w.run(2 * time.Second)
	w.orderProcedure(w.node("0,2,0"), 2, nil)
	w.run(procedureLongest)
	for _, n := range []*meshNode{dead, w.node("1,0,0")} {
		if state, force := n.m.Mask(); state.Own != chanmask.All || force != chanmask.All {
			t.Errorf("%s: own word %s, in force %s, after the link was mended", n.at, state.Own, force)
		}
	}
}

// Two nodes that find evidence at the same time begin one procedure, without any supervisor. A third that always finds
// evidence begins no more procedures than its budget allows.
func TestEvidenceStartsProcedure(t *testing.T) {
	w := newMesh(t, "2x2x2", 9, func(c *Config) {
		c.Procedure.OnEvidence = true
		c.Procedure.Limits = defaultLimits(grid.Dims{X: 2, Y: 2, Z: 2}, c.Periods.LinkPeriod)
		c.Procedure.Limits.Rest = 5 * time.Second
	})
	for i, at := range []string{"0,0,0", "1,1,1"} { // a message that misses a piece, for each of two nodes
		from, to := w.node("1,0,0"), w.node(at)
		pieces, err := routing.Split(from.at, bytes.Repeat([]byte{byte(i)}, 3000), halfcore.MaxRelayEnvelope)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pieces[1:] {
			from.down(w, to.at, string(p))
		}
	}
	w.run(12 * time.Second)
	for _, n := range w.nodes {
		s := w.end(n)
		if !s.GetClear() || s.GetNumber() != nil || s.GetWave() != 1 || s.GetStarter() != 0 || !s.GetDiagnosed() || n.findings(0) != 0 {
			t.Errorf("%s: %v", n.at, s)
		}
	}
	first := w.node("0,0,0").statuses()[0]
	if !strings.Contains(first.GetCause(), "missing") || first.GetState() != lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE {
		t.Errorf("%v", first)
	}
	bad, out := w.node("1,0,0"), 0
	for range 600 {
		bad.m.evidence("always something")
		w.run(100 * time.Millisecond)
		if w.node("0,1,1").m.inhibited() {
			out++
		}
	}
	st := w.node("0,1,1").m.ProcedureStats()
	if st.Clear+st.NotClear != 1+budgetOf || out > 250 {
		t.Errorf("%+v, out of Normal for %d of 600 looks", st, out)
	}
	w.noRuleBroken()
}

// Random tori under traffic, with lost messages, links that die one way or both in any state, halves that die, and
// halves that come back cold. Every half is back in Normal within Longest of leaving it. A report that the torus was
// clear names a time at which it was, and at which no half that had to answer was dead. If no half dies, and links work
// both ways or not at all, every deliverable message arrives, and few arrive twice (with 350 seeds 7 of a million are
// lost, where links lose 30 % of all packets as well).
func TestProcedureAlwaysEndsUnderRandomFaults(t *testing.T) {
	clears, ends, died := 0, 0, map[procedure.State]int{}
	for seed := range uint64(10) {
		w := newMesh(t, []string{"2x2x1", "3x3x1", "2x2x2", "4x2x1", "3x2x2"}[seed%5], seed, nil)
		w.loss = []float64{0, 0.1, 0.3}[seed%3]
		watch := &watcher{w: w, left: map[*meshNode]time.Time{}, begun: w.now}
		f := &traffic{w: w}
		f.run(100 * time.Millisecond)
		if seed%4 == 0 {
			w.nodes[w.rnd.IntN(len(w.nodes))].dead = true
		}
		for count := uint64(1); count <= 2; count++ {
			starter := w.nodes[w.rnd.IntN(len(w.nodes))]
			watch.begun = w.now
			w.orderProcedure(starter, count, func(o *lofamov1.ProcedureOrder) { o.DrainTimeoutMs = 400 })
			for range 4 {
				victim := w.nodes[w.rnd.IntN(len(w.nodes))]
				in := procedure.State(1 + w.rnd.IntN(7))
				for range 150 {
					f.run(4 * time.Millisecond)
					watch.look()
					if victim.m.ProcedureStats().State == in {
						break
					}
				}
				died[victim.m.ProcedureStats().State]++
				d := w.dims.Links()[w.rnd.IntN(len(w.dims.Links()))]
				switch k := w.rnd.IntN(4); {
				case k == 0, k == 1 && seed%2 == 1:
					w.cut(victim, d)
				case k == 1:
					victim.cut[d.Index()] = true // one way
				case k == 2 && seed%2 == 0 && !victim.dead: // its held messages are gone
					w.begin(victim, Hops{})
					delete(watch.left, victim)
					w.sessions()
				default:
				}
			}
			for range int((procedureLongest + time.Second) / (4 * time.Millisecond)) {
				f.run(4 * time.Millisecond)
				watch.look()
			}
		}
		c, e := watch.count()
		clears, ends = clears+c, ends+e
		w.run(6 * time.Second)
		// Messages held back at a node without a route set out as others expire there.
		for end := w.now.Add((maxHeldUp/NumHeld + 1) * hopLife); w.waiting() > 0 && w.now.Before(end); {
			w.run(time.Second)
		}
		f.look()
		parts := w.reach()
		for _, n := range w.nodes {
			if st := n.m.ProcedureStats(); !n.dead && st.Waiting > 0 {
				t.Errorf("%s: %d messages still wait", n.at, st.Waiting)
			}
			if waits := n.m.BarrierStats().Waiting; !n.dead && waits > 0 {
				t.Errorf("%s still waits for %d sets", n.at, waits)
			}
		}
		twice := 0
		for _, s := range f.sent {
			if seed%2 == 0 || parts[s.from] != parts[s.to] {
				continue
			}
			switch came := s.to.opened[s.text]; {
			case came == 0:
				t.Errorf("%s from %s to %s, urgent %t, sent at %s, never came", s.text, s.from.at, s.to.at, s.urgent, s.at.Sub(start))
			case came > 1:
				twice++
				t.Logf("%s from %s to %s, urgent %t, sent at %s, came %d times", s.text, s.from.at, s.to.at, s.urgent, s.at.Sub(start), came)
			}
		}
		if twice > len(f.sent)/200 { // a copy may wait at a broken link for longer than halves remember it
			t.Errorf("%d of %d messages came twice", twice, len(f.sent))
		}
		if t.Failed() {
			t.Fatalf("seed %d, %s", seed, w.dims)
		}
	}
	if clears == 0 || clears == ends || len(died) < 5 {
		t.Errorf("%d of %d ended clear, faults in the states %v: the test shows nothing", clears, ends, died)
	}
	t.Logf("%d of %d ended clear, faults in the states %v", clears, ends, died)
}

// waiting returns the number of messages that wait for the end of a procedure.
func (w *mesh) waiting() (n int) {
	for _, node := range w.nodes {
		if !node.dead {
			n += node.m.ProcedureStats().Waiting
		}
	}
	return n
}

// watcher observes all halves all the time.
type watcher struct {
	w     *mesh
	left  map[*meshNode]time.Time // when it left Normal
	begun time.Time               // the last order
	empty time.Time               // the last time that no half held a deferrable message
	seen  map[*lofamov1.ProcedureStatus]bool
}

func (v *watcher) look() {
	held, dead := 0, false
	for _, n := range v.w.nodes {
		held += n.m.marked(v.w.now)
		dead = dead || n.dead
		switch left, out := v.left[n]; {
		case n.dead:
		case !n.m.inhibited():
			delete(v.left, n)
		case !out:
			v.left[n] = v.w.now
		case v.w.now.Sub(left) > procedureLongest:
			v.w.t.Errorf("%s has been out of Normal since %s, and now it is %s", n.at, left.Sub(start), v.w.now.Sub(start))
		}
	}
	if held == 0 {
		v.empty = v.w.now
	}
	if v.seen == nil {
		v.seen = map[*lofamov1.ProcedureStatus]bool{}
	}
	for _, n := range v.w.nodes {
		for _, s := range n.statuses() {
			if v.seen[s] {
				continue
			}
			v.seen[s] = true
			if s.GetClear() && (dead || v.empty.Before(v.begun)) {
				v.w.t.Errorf("%s calls the torus clear: dead %t, last empty at %s, ordered at %s", n.at, dead, v.empty.Sub(start), v.begun.Sub(start))
			}
		}
	}
}

func (v *watcher) count() (clears, ends int) {
	for s := range v.seen {
		if s.GetError() == "" && s.GetState() == lofamov1.ProcedureState_PROCEDURE_NORMAL {
			ends++
			if s.GetClear() {
				clears++
			}
		}
	}
	return clears, ends
}

// The sender of an ordered procedure's state does not determine its members and times: the order does.
func TestProcedureUsesPlanOfItsOrder(t *testing.T) {
	w := newMesh(t, "2x2x1", 13, nil)
	w.run(100 * time.Millisecond)
	w.orderProcedure(w.node("0,0,0"), 1, nil)
	w.run(20 * time.Millisecond)
	n := w.node("1,1,0")
	is, want := n.m.procedure.machine, n.m.procedure.machine.Plan()
	lie := procedure.Message{
		Key: procedure.Key{Wave: is.Key().Wave + 1, Starter: 1, Run: 99}, State: procedure.SystemDrain, Round: 1, Order: is.Order(),
		Plan: procedure.Plan{Delay: procedure.MaxDelay, Hop: procedure.MaxDelay, DrainTimeout: procedure.MaxDrain, Absent: []int{0, 2, 3}},
	}
	n.m.onManage(w.now, express.Message{ID: express.ID{Origin: w.node("1,0,0").at, Epoch: 1, Number: 1 << 20},
		Topic: express.TopicManage, Body: lie.Append(nil)})
	if got := is.Plan(); is.Key() != lie.Key || got.Delay != want.Delay || got.Hop != want.Hop ||
		got.DrainTimeout != want.DrainTimeout || len(got.Absent) > 0 {
		t.Errorf("%+v by %+v: want %+v", is.Key(), got, want)
	}
}

// An order too long for a broadcast is refused and begins nothing, because the others could not verify it.
func TestTooLongProcedureOrderIsRefused(t *testing.T) {
	w := newMesh(t, "2x2x1", 11, func(c *Config) { c.MaxFrame = 1280 })
	n := w.node("0,0,0")
	o := &lofamov1.ProcedureOrder{Number: &lofamov1.OrderNumber{Term: 1, Count: 1}, Node: "n0-0-0", DelayUs: 300_000, HopUs: 50_000,
		DrainTimeoutMs: 1000}
	msg := &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: o}}
	long := bytes.Repeat([]byte("x"), n.m.expressRoom()-procedure.OrderOverhead+1)
	w.step(n, Opened{servicenet.Opened{Msg: msg, Raw: long, Name: "sup-0"}})
	if s := w.end(n); s.GetError() == "" || n.m.inhibited() {
		t.Errorf("%v", s)
	}
	w.step(n, Opened{servicenet.Opened{Msg: msg, Raw: long[1:], Name: "sup-0"}})
	if !n.m.inhibited() || len(n.m.procedure.unsaid) > 0 {
		t.Errorf("one that fits: %v", n.statuses())
	}
}

// Halves of an earlier version take no part, and hold nothing up: the drain times out, and ends.
func TestProcedureRunsBesideEarlierVersion(t *testing.T) {
	w := newMesh(t, "3x3x1", 10, nil)
	w.cfg.NoHops, w.cfg.NoExpress = true, true
	old := w.node("1,1,0")
	w.begin(old, Hops{})
	w.sessions()
	w.run(time.Second)
	w.orderProcedure(w.node("0,0,0"), 1, nil)
	f := &traffic{w: w}
	f.run(procedureLongest)
	w.run(time.Second)
	f.check(time.Second)
	for _, n := range w.nodes {
		if n == old {
			continue
		}
		if s := w.end(n); s.GetClear() || !slices.Contains(s.GetSilent(), uint32(w.dims.Rank(old.at))) {
			t.Errorf("%s: %v", n.at, s)
		}
	}
}

// A deferrable message only repeats facts: a digest, without any report of a change.
func TestOnlyDigestsAreDeferrable(t *testing.T) {
	digest, change := fault.Report{Digest: true}, fault.Report{}
	for _, test := range []struct {
		seal Seal
		want bool
	}{
		{Seal{Reports: []fault.Report{digest, digest}}, true}, {Seal{Reports: []fault.Report{digest, change}},
			false}, {Seal{Answer: &lofamov1.Answer{}}, false},
		{Seal{Order: &lofamov1.Message{}}, false},
	} {
		if deferrable(&test.seal) != test.want {
			t.Errorf("%+v may wait: %t", test.seal, !test.want)
		}
	}
}
