package servicenet

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// answering is an outbox whose supervisors answer everything by the direct rail after 1 ms, except on the dead paths.
type answering struct {
	t          *testing.T
	o          *Outbox
	now        time.Time
	out        Output
	dead       func(PathID) bool
	leader     func(PathID) string // hint
	due        []pendingAck
	requests   int
	migrations int
	rails      [numPaths]int // reports sent, digests apart
}

func newAnswering(t *testing.T, o *Outbox) *answering {
	return &answering{t: t, o: o, now: epochStart, dead: func(PathID) bool { return false }, leader: func(PathID) string { return "" }}
}

func (a *answering) step(ev Event) { a.take(a.o.Step(a.now, ev)) }

func (a *answering) add(r fault.Report) {
	_, out := a.o.Add(a.now, r)
	a.take(out)
}

func (a *answering) take(out Output) {
	a.out = out
	a.migrations += len(out.Migrations)
	at := a.now.Sub(epochStart) + time.Millisecond
	for _, p := range out.Paths {
		if p.Request == nil {
			continue
		}
		a.requests++
		if !a.dead(p.Path) {
			a.due = append(a.due, pendingAck{at, Replied{Interface: p.Path.Interface, Supervisor: p.Path.Supervisor, Reply: &lofamov1.PathReply{
				Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: uint64(a.o.Epoch()), Id: p.Request.GetId(), Leader: a.leader(p.Path)}}})
		}
	}
	for _, s := range out.Send {
		for _, r := range s.Reports {
			if !r.Digest {
				a.rails[s.Path]++
			}
			if s.Path != fault.PathDirect || a.dead(PathID{s.Interface, s.Target}) {
				continue
			}
			for _, st := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
				ack := NewAcks(st, r.ID)[0]
				ack.Leader = a.leader(PathID{s.Interface, s.Target})
				a.due = append(a.due, pendingAck{at, Acked{Ack: ack, Supervisor: s.Target, Path: s.Path, Interface: s.Interface}})
			}
		}
	}
}

// pass lets the time pass, and does something every so often.
func (a *answering) pass(d, every time.Duration, do func()) {
	end, next := a.now.Add(d), a.now.Add(every)
	for {
		at := fault.Earliest(next, a.out.Wake)
		if len(a.due) > 0 {
			at = fault.Earliest(at, epochStart.Add(a.due[0].at))
		}
		if at.After(end) {
			a.now = end
			return
		}
		a.now = at
		switch {
		case len(a.due) > 0 && !epochStart.Add(a.due[0].at).After(at):
			ev := a.due[0].ev
			a.due = a.due[1:]
			a.step(ev)
		case !next.After(at):
			next = next.Add(every)
			do()
		default:
			a.step(Tick{})
		}
	}
}

// An attacker who forges ICMP errors endlessly for every path makes a half that gets answers change its path now and
// then, and not with each error.
func TestForgedErrorsFlipNoPathForEver(t *testing.T) {
	for name, interfaces := range map[string][]string{"one interface": {"a"}, "two interfaces": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultOutboxConfig(fault.PathDirect, fault.PathTorus)
			cfg.Interfaces = interfaces
			a := newAnswering(t, newTestOutboxOf(t, cfg))
			a.step(Supervisors{Targets: []string{"s0", "s1", "s2"}})
			a.pass(time.Second, 100*time.Millisecond, func() { a.add(fault.Report{Digest: true}) })
			a.requests, a.migrations = 0, 0
			n := 0
			const storm = 2 * time.Minute
			a.pass(storm, 2*time.Millisecond, func() {
				if n++; n%5 == 0 {
					a.add(sick(fault.ComponentMemory))
				}
				for _, p := range a.o.paths.all {
					a.step(PathFailed{Path: p.id, Why: "forged"})
				}
			})
			paths := len(a.o.paths.all)
			// Each path is believed at 0, 2, 6, 14, 30, 62 and 94 s, and with each there is a state or three.
			if most := 3 * 7 * paths; a.migrations > most || a.requests > 4*most {
				t.Errorf("%d changes and %d REQ in %v, want at most %d and %d", a.migrations, a.requests, storm, most, 4*most)
			}
			if a.rails[fault.PathTorus] > 7*paths*maxInFlight {
				t.Errorf("%d reports by the torus", a.rails[fault.PathTorus])
			}
			a.pass(time.Second, time.Second, func() {})
			if s := a.o.Stats(); s.Pending != 0 {
				t.Errorf("%d reports wait at the end", s.Pending)
			}
		})
	}
}

// Damaged packets, which anyone can send, hold up no escalation: without answers, the outbox tries the other rails
// almost as early as without them.
func TestDamageHoldsUpNoEscalation(t *testing.T) {
	o := newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus))
	o.Step(epochStart, Supervisors{Targets: []string{"s0"}})
	_, out := o.Add(epochStart, sick(fault.ComponentMemory))
	torus := time.Duration(0)
	sends := len(out.Send)
	for now := epochStart; now.Before(epochStart.Add(10 * time.Second)); now = now.Add(time.Millisecond) {
		out := o.Step(now, Damaged{Path: fault.PathDirect})
		sends += len(out.Send)
		for _, s := range out.Send {
			if torus == 0 && s.Path == fault.PathTorus {
				torus = now.Sub(epochStart)
			}
		}
	}
	if torus == 0 || torus > 250*time.Millisecond {
		t.Errorf("by the torus after %v, want at most 250ms", torus)
	}
	if sends > 100 {
		t.Errorf("%d datagrams for one report in 10 s", sends)
	}
}

func TestTorusDamageHoldsUpNoEscalation(t *testing.T) {
	o := newTestOutboxOf(t, DefaultOutboxConfig(fault.PathTorus))
	_, out := o.Add(epochStart, sick(fault.ComponentMemory))
	sends := len(out.Send)
	for now := epochStart; now.Before(epochStart.Add(10 * time.Second)); now = now.Add(time.Millisecond) {
		sends += len(o.Step(now, Damaged{Path: fault.PathTorus}).Send)
	}
	if sends > 30 {
		t.Errorf("%d datagrams for one report in 10 s, want at most 30", sends)
	}
}

// An acknowledgement of a report that the log no longer waits for may be a replay: it neither keeps a dead path in
// use nor prevents the report of the isolation.
func TestReplayedAcksProveNothing(t *testing.T) {
	cfg := DefaultOutboxConfig(fault.PathDirect)
	a := newAnswering(t, newTestOutboxOf(t, cfg))
	a.step(Supervisors{Targets: []string{"s0", "s1"}})
	a.add(sick(fault.ComponentMemory))
	a.pass(time.Second, 100*time.Millisecond, func() { a.add(fault.Report{Digest: true}) })
	old := fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: 1, Seq: 1}
	was := a.o.paths.primary
	replay := func(by string) {
		for st := lofamov1.Ack_RECEIVED; st <= lofamov1.Ack_STALE_EPOCH; st++ {
			ack := NewAcks(st, old)[0]
			ack.HighestEpoch = 1
			a.step(Acked{Ack: ack, Supervisor: by, Path: fault.PathDirect})
		}
	}
	a.dead = func(p PathID) bool { return p == was.id }
	a.pass(500*time.Millisecond, 5*time.Millisecond, func() {
		a.add(fault.Report{Digest: true})
		replay(was.id.Supervisor)
	})
	if a.o.paths.primary == was {
		t.Error("the dead path is still the primary")
	}
	a.dead = func(PathID) bool { return true }
	a.pass(2*cfg.NetworkDeadAfter, 5*time.Millisecond, func() {
		a.add(fault.Report{Digest: true})
		replay("s0")
		replay("s1")
	})
	if !a.out.Isolated || a.out.ServiceNetwork != fault.Failed {
		t.Errorf("isolated %t, service network %s: want true and FAILED", a.out.Isolated, a.out.ServiceNetwork)
	}
}

// Two supervisors that each take the other for the leader do not send a half to and fro without end.
func TestLeaderHintsFlipNoPathForEver(t *testing.T) {
	a := newAnswering(t, newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect)))
	a.leader = func(p PathID) string { return map[string]string{"s0": "s1", "s1": "s0"}[p.Supervisor] }
	a.step(Supervisors{Targets: []string{"s0", "s1", "s2"}})
	a.pass(time.Minute, 20*time.Millisecond, func() { a.add(fault.Report{Digest: true}) })
	if m := a.o.Stats().Migrations; m > 31 {
		t.Errorf("%d migrations in a minute, want at most one in %v", m, restFor)
	}
	if a.requests > 200 {
		t.Errorf("%d REQ in a minute", a.requests)
	}
}

// The same supervisors again leave the turns of the alternates unchanged.
func TestSupervisorsAgainKeepTurns(t *testing.T) {
	a := newAnswering(t, newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect)))
	ev := Supervisors{Targets: []string{"s0", "s1", "s2", "s3"}}
	a.step(ev)
	seen := map[string]bool{}
	for range 6 {
		a.pass(40*time.Millisecond, time.Hour, func() {})
		alternate := a.o.paths.alternate
		if alternate == nil {
			t.Fatalf("%s without an alternate", a.o.paths.state)
		}
		seen[alternate.id.Supervisor] = true
		a.step(ev)
		a.o.paths.alternate.misses = 0
		a.o.becomeMigrated(a.o.paths.primary, "test", &Output{})
		a.step(Tick{})
	}
	if len(seen) != 3 {
		t.Errorf("alternates %v, want each of the three in turn", seen)
	}
}

// A report that waits for a half's only path is sent when its interface is back, and not at the end of its backoff.
func TestInterfaceBackSendsWhatWaits(t *testing.T) {
	o := newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect))
	o.Step(epochStart, Supervisors{Targets: []string{"s0"}})
	o.Step(epochStart, RailDown{Path: fault.PathDirect})
	_, out := o.Add(epochStart, sick(fault.ComponentMemory))
	now := out.Wake
	for now.Before(epochStart.Add(3 * time.Second)) {
		now = o.Step(now, Tick{}).Wake
	}
	if out = o.Step(now.Add(-100*time.Millisecond), RailUp{Path: fault.PathDirect}); len(out.Send) == 0 {
		t.Errorf("nothing is sent, next %v later", out.Wake.Sub(now))
	}
}
