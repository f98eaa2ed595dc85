package awareness

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestAnswerWaitingInShellCountsInTime: a node answers just in time, and the answer waits in the shell's queues past its deadline.
func TestAnswerWaitingInShellCountsInTime(t *testing.T) {
	for _, behind := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
		w := accusedWorld(t, behind)
		host := w.actor("n1-1-1", fault.HalfHost)
		answered := false
		w.log = func(at time.Time, out Output) {
			for _, c := range out.Challenges {
				if c.Node == "n1-1-1" && !answered {
					answered = true
					w.send(at.Add(w.cfg.ChallengeNode-time.Millisecond+behind),
						Answered{Nonce: c.Nonce, Origin: host.origin, Epoch: 1, Path: fault.PathDirect})
				}
			}
			for _, c := range out.Changes {
				if c.Component == fault.ComponentNode && c.To == fault.Failed {
					t.Errorf("behind by %s: %s is FAILED at %s: %s", behind, c.Node, at.Sub(epoch0), c.Reason)
				}
			}
		}
		w.run(w.cfg.ChallengeNode + behind + 10*time.Millisecond)
	}
}

// TestDeadNodeFailsDespiteSlowShell checks that a dead node becomes FAILED even if the shell never catches up. The verdict is late by the
// shell's delay, plus a step or two.
func TestDeadNodeFailsDespiteSlowShell(t *testing.T) {
	var prompt time.Duration
	for _, behind := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond, time.Hour} {
		w := accusedWorld(t, behind)
		start, took := w.now, time.Duration(0)
		w.log = func(at time.Time, out Output) {
			for _, c := range out.Changes {
				if took == 0 && c.Node == "n1-1-1" && c.Component == fault.ComponentNode && c.To == fault.Failed {
					took = at.Sub(start)
				}
			}
		}
		w.run(2 * time.Second)
		if behind == 0 {
			prompt = took
		}
		if most := prompt + min(behind, w.cfg.DigestPeriod) + 2*w.m.slack(); took == 0 || took > most {
			t.Errorf("behind by %s: FAILED after %s; want at most %s", behind, took, most)
		}
	}
}

// TestSlowAnswersExtendWaits checks that the machine extends its waits when all answers exceed the allowed time, as earlier
// answers to a mere probe have shown. When only one half is slow, no other node benefits.
func TestSlowAnswersExtendWaits(t *testing.T) {
	const late = 150 * time.Millisecond
	for _, tc := range []struct {
		name   string
		all    time.Duration // additional delay of all answers
		one    time.Duration // additional delay of n0-0-0 alone
		dead   bool          // whether n1-1-1 is dead
		within time.Duration // limit for the verdict; 0: no verdict
		since  time.Duration // how long answers have been fast again
	}{
		{name: "all are late, and it lives", all: late},
		{name: "all are late, and it is dead", all: late, dead: true, within: 60*time.Millisecond + 2*late},
		{name: "one is slow, and it is dead", one: late, dead: true, within: 75 * time.Millisecond},
		{name: "all were late, and it is dead", all: late, dead: true, within: 75 * time.Millisecond, since: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
			w.slow = tc.all
			for _, h := range halves {
				w.actor("n0-0-0", h).slow = tc.one
				w.actor("n1-1-1", h).alive = !tc.dead
			}
			for _, id := range []fault.NodeID{"n0-0-0", "n0-0-1", "n0-0-2", "n0-2-0", "n2-2-2"} {
				w.step(GossipOpinion{Node: id})
			}
			w.run(2 * late)
			if tc.since > 0 {
				w.slow = 0
				w.run(tc.since)
			}
			w.silence("n1-1-1", false, 80*time.Millisecond)
			start, failed := w.now, time.Duration(0)
			w.log = func(at time.Time, out Output) {
				for _, c := range out.Changes {
					if c.Component == fault.ComponentNode && c.To == fault.Failed {
						failed = at.Sub(start)
					}
				}
			}
			w.run(time.Second)
			if failed > tc.within || failed == 0 && tc.within > 0 {
				t.Errorf("FAILED after %s; want within %s", failed, tc.within)
			}
		})
	}
}

// accusedWorld returns a world whose shell is behind. All neighbours of n1-1-1 accuse it, and no challenge reaches it.
func accusedWorld(t *testing.T, behind time.Duration) *world {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	w.behind = behind
	for _, h := range halves {
		w.actor("n1-1-1", h).alive = false
	}
	w.silence("n1-1-1", false, 80*time.Millisecond)
	return w
}

// TestEveryVerdictFollowsAChallenge checks that every verdict follows a challenge by all rails and the full time for an
// answer, however far behind the shell is in between, and even if it drops challenges.
func TestEveryVerdictFollowsAChallenge(t *testing.T) {
	for _, behind := range []time.Duration{0, 15 * time.Millisecond, 40 * time.Millisecond, 400 * time.Millisecond} {
		for _, until := range []time.Duration{time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond, time.Second} {
			for _, dropped := range []bool{false, true} {
				w := accusedWorld(t, behind)
				start, asked, failed := w.now, time.Time{}, false
				w.log = func(at time.Time, out Output) {
					for _, c := range out.Challenges {
						if c.Node != "n1-1-1" || c.Half != 0 || c.Again {
							continue
						}
						if dropped && at.Sub(start) <= until {
							w.m.NotAsked(c)
							continue
						}
						if asked.IsZero() {
							asked = at
						}
					}
					for _, c := range out.Changes {
						if c.Node != "n1-1-1" || c.Component != fault.ComponentNode || c.To != fault.Failed {
							continue
						}
						failed = true
						if asked.IsZero() || at.Sub(asked) < w.cfg.ChallengeNode/2 {
							t.Errorf("behind by %s for %s, dropping %t: FAILED at %s, asked by all rails at %s", behind, until, dropped, at.Sub(start),
								asked.Sub(start))
						}
					}
				}
				w.run(until)
				w.behind = 0
				w.run(3 * time.Second)
				if !failed {
					t.Errorf("behind by %s for %s, dropping %t: not FAILED", behind, until, dropped)
				}
			}
		}
	}
}

// scatter draws that many nodes, no two of them neighbours.
func scatter(w *world, count int, r *rand.Rand) (dead []grid.Coord) {
	near := map[grid.Coord]bool{}
	for _, rank := range r.Perm(w.dims.Nodes()) {
		c := w.dims.At(rank)
		if len(dead) == count {
			return dead
		}
		if near[c] {
			continue
		}
		dead = append(dead, c)
		near[c] = true
		for _, n := range w.dims.Neighbours(c) {
			near[n] = true
		}
	}
	panic("too many")
}

// TestScatteredDeathsChallengeNoOther: when many nodes die at once, none next to another, all are found dead as fast as
// one. No live node is challenged, however many of its neighbours are dead: its accusations have already arrived or are
// on their way.
func TestScatteredDeathsChallengeNoOther(t *testing.T) {
	w := blockWorld(t, grid.Dims{X: 10, Y: 10, Z: 10})
	r := rand.New(rand.NewPCG(1, 4))
	victims := scatter(w, 150, r)
	dead, failed, last := map[fault.NodeID]bool{}, map[fault.NodeID]bool{}, time.Duration(0)
	for _, c := range victims {
		id := w.cfg.IDs[c]
		dead[id] = true
		for _, h := range halves {
			w.actor(id, h).alive = false
		}
	}
	for _, c := range victims {
		for i, n := range w.dims.Neighbours(c) {
			a := w.actor(w.cfg.IDs[n], fault.HalfHost)
			a.held = time.Duration(r.IntN(10)) * time.Millisecond
			if i == 0 { // notices only after the verdict on the others
				a.held += w.cfg.ChallengeNode + 30*time.Millisecond
			}
			w.silenceBy(a, c, false, 80*time.Millisecond)
		}
	}
	start := w.now
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Challenges {
			if !dead[c.Node] {
				t.Errorf("%s: %s lives and is asked", at.Sub(start), c.Node)
			}
		}
		for _, c := range out.Changes {
			if c.Component == fault.ComponentNode && c.To == fault.Failed {
				failed[c.Node], last = true, at.Sub(start)
			}
		}
	}
	w.run(time.Second)
	if most := w.cfg.ChallengeNode + 20*time.Millisecond; len(failed) != len(victims) || last > most {
		t.Errorf("%d of %d FAILED, the last after %s; want all in %s", len(failed), len(victims), last, most)
	}
	for id := range failed {
		if !dead[id] {
			t.Errorf("%s lives and is FAILED", id)
		}
	}
}

// TestDoubtSpreadsSlowlyWhenBehind checks that live nodes with dead neighbours are challenged no faster than the shell
// can send, but are challenged in the end.
func TestDoubtSpreadsSlowlyWhenBehind(t *testing.T) {
	const window = 20 * time.Millisecond
	for _, behind := range []time.Duration{0, 100 * time.Millisecond} {
		w := blockWorld(t, grid.Dims{X: 10, Y: 10, Z: 10})
		w.behind = behind
		dead := map[fault.NodeID]bool{}
		for _, c := range scatter(w, 150, rand.New(rand.NewPCG(1, 4))) {
			id := w.cfg.IDs[c]
			dead[id] = true
			for _, h := range halves {
				w.actor(id, h).alive = false
			}
			for i, n := range w.dims.Neighbours(c) {
				if i > 0 { // the first one never notices
					w.silenceBy(w.actor(w.cfg.IDs[n], fault.HalfHost), c, false, 80*time.Millisecond)
				}
			}
		}
		asked, when, most := map[fault.NodeID]bool{}, []time.Time(nil), 0
		w.log = func(at time.Time, out Output) {
			for _, c := range out.Challenges {
				if !dead[c.Node] && !asked[c.Node] {
					asked[c.Node], when = true, append(when, at)
				}
			}
			for len(when) > 0 && at.Sub(when[0]) > window {
				when = when[1:]
			}
			most = max(most, len(when))
		}
		w.run(2 * time.Second)
		if len(asked) < 100 {
			t.Errorf("behind by %s: only %d are asked in the end", behind, len(asked))
		}
		if slowly := repeatBurst + int(window/repeatEvery); behind > 0 != (most <= slowly) {
			t.Errorf("behind by %s: %d are asked in %s; want at most %d only if it is behind", behind, most, window, slowly)
		}
	}
}

// TestReplayedLogCausesNoVerdict: a half without a supervisor for a minute replays its log from the beginning. A fault that is long
// over never becomes FAILED on the map, and no old statement makes a standing one NORMAL: the next digest describes the
// present.
func TestReplayedLogCausesNoVerdict(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, old   fault.State
		stands        fault.State
		age           time.Duration
		saidMeanwhile bool
	}{
		{name: "a fault that is over", before: fault.Normal, old: fault.Failed, stands: fault.Normal, age: time.Minute},
		{name: "a recovery that is over", before: fault.Failed, old: fault.Normal, stands: fault.Failed, age: time.Minute},
		{name: "a fault just as old as a word that counts", before: fault.Normal, old: fault.Failed, stands: fault.Normal, saidMeanwhile: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := startedWorld(t, grid.Dims{X: 2, Y: 1, Z: 1})
			id := w.id(0)
			host, hot := w.actor(id, fault.HalfHost), subject{id, fault.ComponentTemperature}
			w.say(host, hot, tc.before, fault.KindSelf, 0)
			w.run(w.cfg.DigestPeriod)
			seen := map[fault.State]bool{}
			w.log = func(_ time.Time, out Output) {
				for _, c := range out.Changes {
					if c.Node == id && c.Component == fault.ComponentTemperature {
						seen[c.To] = true
					}
				}
			}
			age := tc.age
			if age == 0 {
				age = w.m.window()
			}
			w.say(host, hot, tc.old, fault.KindSelf, age)
			host.says[hot] = statement{state: tc.stands, kind: fault.KindSelf, began: w.now}
			w.run(2 * w.cfg.DigestPeriod)
			if seen[tc.old] != tc.saidMeanwhile {
				t.Errorf("%s was said: %t; want %t", tc.old, seen[tc.old], tc.saidMeanwhile)
			}
			if got := w.state(id, fault.ComponentTemperature); got != tc.stands {
				t.Errorf("the temperature is %s, want %s", got, tc.stands)
			}
		})
	}
}

// TestLostMessagesAreNoSilence loses the reports of all halves for a long time. While the shell says that it may be the one
// that loses them, no state changes, not even that of a node that was UNKNOWN before. Afterwards each silence counts.
func TestLostMessagesAreNoSilence(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	lose := func(lost bool, of ...fault.NodeID) {
		for _, a := range w.order {
			if len(of) == 0 || slices.Contains(of, a.origin.Node) {
				a.lost = lost
			}
		}
	}
	lose(true, "n0-0-0")
	w.run(2 * w.cfg.Window())
	if got := w.state("n0-0-0", fault.ComponentNode); got != fault.Unknown {
		t.Fatalf("a silent node is %s", got)
	}
	changes := map[fault.NodeID]fault.State{}
	w.log = func(_ time.Time, out Output) {
		for _, c := range out.Changes {
			if c.Component == fault.ComponentNode {
				changes[c.Node] = c.To
			}
		}
	}
	lose(true)
	for range 100 {
		w.m.Lost(w.now)
		w.run(w.cfg.Window() / 10)
	}
	if len(changes) > 0 {
		t.Errorf("changes while the shell lost messages: %v", changes)
	}
	lose(false, "n1-1-1")
	w.run(w.cfg.Window()/2 - time.Millisecond)
	if len(changes) > 0 {
		t.Errorf("changes within a window of the last loss: %v", changes)
	}
	w.run(w.cfg.Window())
	delete(changes, "n0-0-0") // it has been UNKNOWN all the time
	if len(changes) != 25 || changes["n1-1-1"] != 0 {
		t.Errorf("a window after the last loss, want all 25 silent nodes UNKNOWN: %v", changes)
	}
	for id, to := range changes {
		if to != fault.Unknown {
			t.Errorf("%s is %s", id, to)
		}
	}
}

// TestLossesHoldOnlySilentNodes: losses hold back nothing while every node is heard, and no longer than a node is silent. The nodes that a
// new leader has yet to hear are not held because of losses.
func TestLossesHoldOnlySilentNodes(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	lose := func(lost bool, ids ...fault.NodeID) {
		for _, a := range w.order {
			if slices.Contains(ids, a.origin.Node) {
				a.lost = lost
			}
		}
	}
	lossy := func(want int, when string) {
		t.Helper()
		for range 30 {
			w.m.Lost(w.now)
			w.run(w.cfg.Window() / 10)
		}
		if got := w.m.Discounted(); got != want {
			t.Errorf("%s, losses hold %d nodes, want %d", when, got, want)
		}
	}
	lossy(0, "while all nodes are heard")
	lose(true, "n1-1-1", "n2-1-1")
	lossy(2, "while two nodes are silent")
	lose(false, "n1-1-1")
	lossy(1, "after one is heard again")
	w.run(2 * w.cfg.Window())
	if got := w.m.Discounted(); got != 0 || w.state("n2-1-1", fault.ComponentNode) != fault.Unknown {
		t.Errorf("a window after the losses, %d nodes are held", got)
	}
	m, err := New(w.cfg, w.now, w.m.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	m.Lost(w.now)
	if m.Step(w.now, Tick{}); m.Discounted() != 0 {
		t.Errorf("a new leader that has yet to hear all nodes holds %d because of losses", m.Discounted())
	}
}

// TestNewLeaderThatLosesMessagesWithdrawsNothing: a leader that has heard no node since its start keeps the committed states while
// messages are lost, and for a window after that.
func TestNewLeaderThatLosesMessagesWithdrawsNothing(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	m, err := New(w.cfg, w.now, w.m.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	now, end := w.now, w.now.Add(5*w.cfg.Window())
	unknown := 0
	for limit := end.Add(2 * w.cfg.Window()); now.Before(limit); now = now.Add(w.cfg.Window() / 10) {
		if !now.After(end) {
			m.Lost(now)
		}
		for _, c := range m.Step(now, Tick{}).Changes {
			if now.Before(end.Add(w.cfg.Window())) {
				t.Fatalf("%s after the last loss: %s %s is %s", now.Sub(end), c.Node, c.Component, c.To)
			}
			if c.Component == fault.ComponentNode && c.To == fault.Unknown {
				unknown++
			}
		}
	}
	if unknown != 27 {
		t.Errorf("two windows after the last loss %d nodes are UNKNOWN, want all 27", unknown)
	}
}

// TestLossesDelayNoVerdict compares the time of a dead node's verdict with and without losses.
func TestLossesDelayNoVerdict(t *testing.T) {
	failed := func(lossy bool) (after time.Duration) {
		w := accusedWorld(t, 0)
		start := w.now
		w.log = func(at time.Time, out Output) {
			for _, c := range out.Changes {
				if c.Node == "n1-1-1" && c.Component == fault.ComponentNode && c.To == fault.Failed {
					after = at.Sub(start)
				}
			}
		}
		for range 200 {
			if lossy {
				w.m.Lost(w.now)
			}
			w.run(10 * time.Millisecond)
		}
		return after
	}
	if with, without := failed(true), failed(false); without == 0 || with != without {
		t.Errorf("the dead node is FAILED after %s with losses, %s without", with, without)
	}
}
