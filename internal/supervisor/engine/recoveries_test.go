package engine

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// served is the status that a daemon reports once a half serves again.
func served(restarts uint32) *lofamov1.RecoveryStatus {
	return &lofamov1.RecoveryStatus{
		State: lofamov1.RecoveryState_RUNNING, Restarts: restarts, Cause: "ended by signal 9", AgeNs: uint64(2 * time.Second), GoneUs: 1,
		ServingUs: 43_210, ProvenUs: 90_400,
		Resumption: lofamov1.Resumption_RESUMED,
	}
}

// healthy submits a digest with the status of the halves.
func (h *harness) healthy(seq fault.Seq, health servicenet.Health) fault.Report {
	d := memoryDigest("n1-0-0", seq, fault.Normal)
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathTorus, Hops: []fault.Hop{{Held: time.Second}}, List: []fault.Report{d}, Health: health,
			Words: Words(d, nil, health)},
		Answerer: h.box, Arrived: time.Now(),
	})
	return d
}

// publishedRecoveries waits for at least want events of recoveries and returns them, oldest first.
func publishedRecoveries(t *testing.T, h *harness, want int) (out []*lofamov1.Event) {
	t.Helper()
	for events := 1; len(out) < want; events++ {
		out = nil
		for _, ev := range awaitEvents(t, h, events) {
			if ev.GetKind() == lofamov1.EventKind_RECOVERY_CHANGED {
				out = append(out, ev)
			}
		}
	}
	return out
}

// TestEndOfLastBootIsToldOnce: each boot of a machine tells once how the boot before it ended. A later leader repeats nothing, and
// knows it for readers.
func TestEndOfLastBootIsToldOnce(t *testing.T) {
	s := memstore.New(100)
	h := start(t, s, nil)
	booted := func(boot uint32, line string) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
			LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Detail: line, Boot: boot}}}
	}
	const killed = "Kernel panic - not syncing: Attempted to kill init!"
	h.healthy(1, booted(7, killed))
	h.healthy(2, booted(7, killed))
	h.healthy(3, booted(8, "Kernel panic - not syncing: Fatal exception"))
	events := publishedRecoveries(t, h, 2)
	if len(events) != 2 || events[0].GetReason() != "last boot ended by: "+killed || events[0].GetComponent() != "host" ||
		events[0].GetObserver() != "n1-0-0/host" || events[0].GetRecovery() != nil || events[0].GetFrom() != events[0].GetTo() {
		t.Fatalf("%v", events)
	}
	again := start(t, s, nil)
	again.healthy(4, booted(8, "Kernel panic - not syncing: Fatal exception"))
	again.healthy(5, booted(9, "x"))
	if events = publishedRecoveries(t, again, 3); len(events) != 3 || events[2].GetReason() != "last boot ended by: x" {
		t.Errorf("%v", events)
	}
}

// TestEndOfLastBootIsShownWithoutRestatement: readers still see the end of the last boot after a digest that lacks it, such as the first
// one of a restarted half, and of a new leader that has no digest yet.
func TestEndOfLastBootIsShownWithoutRestatement(t *testing.T) {
	s := memstore.New(100)
	h := start(t, s, nil)
	running := func(boot *lofamov1.LastBoot) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
			LastBoot: boot}}
	}
	shown := func(h *harness) string { return h.node(t, "n1-0-0").Health[0].Said.GetLastBoot().GetEnd().String() }
	h.healthy(1, running(&lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_POWER_LOSS, Boot: 7}))
	publishedRecoveries(t, h, 1)
	h.healthy(2, running(nil))
	h.taken(t)
	if got := shown(h); got != "BOOT_POWER_LOSS" {
		t.Errorf("after a digest without the end of the last boot: %s", got)
	}
	if got := shown(start(t, s, nil)); got != "BOOT_POWER_LOSS" {
		t.Errorf("of a new leader: %s", got)
	}
}

// TestMissingLineOfLastBootIsFilledIn: the first digest of a boot came through the torus, without room for the kernel's line.
func TestMissingLineOfLastBootIsFilledIn(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	booted := func(boot uint32, line string) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{
			LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Detail: line, Boot: boot}}}
	}
	h.healthy(1, booted(7, ""))
	h.healthy(2, booted(7, "the line"))
	h.healthy(3, booted(7, ""))
	h.taken(t)
	if got := h.node(t, "n1-0-0").Health[0].Said.GetLastBoot().GetDetail(); got != "the line" {
		t.Errorf("shown: %q", got)
	}
	h.healthy(4, booted(8, "another"))
	if events := publishedRecoveries(t, h, 2); len(events) != 2 {
		t.Errorf("%d events, want one of each boot: %v", len(events), events)
	}
}

// Every reported recovery becomes one event, although no state changes. A later leader repeats no event.
func TestRecoveriesAreEvents(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	dnp := func(s *lofamov1.RecoveryStatus) servicenet.Health {
		return servicenet.Health{DNP: &lofamov1.HalfHealth{Recovery: s}}
	}
	h.healthy(1, dnp(&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING}))
	h.healthy(2, dnp(&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 1}))
	h.healthy(3, dnp(served(1)))
	events := publishedRecoveries(t, h, 1)
	if len(events) != 1 {
		t.Fatalf("%d events of recoveries: %v", len(events), events)
	}
	ev := events[0]
	const want = "restarted (ended by signal 9): serving again after 43ms, self-test passed after 90ms; it went on where it was"
	if ev.GetReason() != want {
		t.Errorf("said %q, want %q", ev.GetReason(), want)
	}
	if age := ev.GetAwarenessLatency().AsDuration(); age < 3*time.Second || age > time.Minute {
		t.Errorf("aware after %s: want the 2s that it was old and the 1s that it was held", age)
	}
	if ev.GetNode() != "n1-0-0" || ev.GetCoord() != "1,0,0" || ev.GetComponent() != "dnp" || ev.GetFrom() != ev.GetTo() ||
		ev.GetObserver() != "n1-0-0/host" ||
		ev.GetPath() != lofamov1.Path_TORUS || !proto.Equal(ev.GetRecovery(), served(1)) {
		t.Errorf("%v", ev)
	}

	h.healthy(4, dnp(served(1))) // no change
	h.healthy(5, servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: served(1)}, DNP: &lofamov1.HalfHealth{Recovery: served(4)}})
	if events = publishedRecoveries(t, h, 3)[1:]; len(events) != 2 || events[0].GetComponent() != "host" ||
		!strings.HasPrefix(events[1].GetReason(), "restarted 3 times since this was last told, the last time (ended by signal 9): serving") {
		t.Errorf("%v", events)
	}

	next := start(t, h.store, nil)
	next.healthy(6, servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: served(1)}, DNP: &lofamov1.HalfHealth{Recovery: served(4)}})
	given := &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 9,
		Reason: "next start after 1m0s: 5 restarts within 1m0s"}
	next.healthy(7, dnp(given))
	next.healthy(8, dnp(given))
	if events = publishedRecoveries(t, next, 4)[3:]; len(events) != 1 ||
		events[0].GetReason() != "given up: next start after 1m0s: 5 restarts within 1m0s" {
		t.Errorf("%v", events)
	}

	last := start(t, h.store, nil)
	last.healthy(9, dnp(given))
	last.healthy(10, dnp(&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 9, Resumption: lofamov1.Resumption_COLD,
		Cold: "no copy"}))
	if events = publishedRecoveries(t, last, 5)[4:]; len(events) != 1 ||
		events[0].GetReason() != "started again after it was given up; it began cold, its copy: no copy" {
		t.Errorf("%v", events)
	}
}

func TestRecoveryCountFollowsStatus(t *testing.T) {
	status := func(s lofamov1.RecoveryState, restarts uint32) *lofamov1.RecoveryStatus {
		return &lofamov1.RecoveryStatus{State: s, Restarts: restarts}
	}
	running, restarting, given := lofamov1.RecoveryState_RUNNING, lofamov1.RecoveryState_RESTARTING, lofamov1.RecoveryState_GIVEN_UP
	for _, tt := range []struct {
		name  string
		was   publishedHalf
		give  *lofamov1.RecoveryStatus
		young bool
		want  publishedHalf
		since uint32
		tell  bool
	}{
		{"no status", publishedHalf{restarts: 1}, nil, false, publishedHalf{restarts: 1}, 0, false},
		{"never restarted", publishedHalf{}, status(running, 0), false, publishedHalf{}, 0, false},
		{"once", publishedHalf{}, status(running, 1), true, publishedHalf{restarts: 1}, 1, true},
		{"once, of a former term", publishedHalf{}, status(running, 1), false, publishedHalf{restarts: 1}, 1, true},
		{"already published", publishedHalf{restarts: 1}, status(running, 1), false, publishedHalf{restarts: 1}, 0, false},
		{"under way", publishedHalf{restarts: 1}, status(restarting, 2), true, publishedHalf{restarts: 1}, 0, false},
		{"over", publishedHalf{restarts: 1}, status(running, 3), true, publishedHalf{restarts: 3}, 2, true},
		{"rebooted", publishedHalf{restarts: 5}, status(running, 0), false, publishedHalf{}, 0, false},
		{"rebooted, then restarted", publishedHalf{restarts: 5}, status(running, 2), true, publishedHalf{restarts: 2}, 1, true},
		{"the count falls", publishedHalf{restarts: 5}, status(running, 4), false, publishedHalf{restarts: 4}, 0, false},
		{"the count falls, late", publishedHalf{restarts: 5}, status(restarting, 4), false, publishedHalf{restarts: 4}, 0, false},
		{"the count fell, and the half is restarted", publishedHalf{restarts: 5}, status(restarting, 4), true,
			publishedHalf{restarts: 3}, 0, false},
		{"given up", publishedHalf{restarts: 1}, status(given, 6), true, publishedHalf{restarts: 6, givenUp: true}, 0, true},
		{"given up still", publishedHalf{restarts: 6, givenUp: true}, status(given, 6), false,
			publishedHalf{restarts: 6, givenUp: true}, 0, false},
		{"being started by hand", publishedHalf{restarts: 6, givenUp: true}, status(lofamov1.RecoveryState_STARTING, 6), false,
			publishedHalf{restarts: 6, givenUp: true}, 0, false},
		{"started by hand", publishedHalf{restarts: 6, givenUp: true}, status(running, 6), false, publishedHalf{restarts: 6}, 0, true},
	} {
		is, since, tell := follow(tt.was, tt.give, tt.young)
		if is != tt.want || since != tt.since || tell != tt.tell {
			t.Errorf("%s: %+v, %d, %v; want %+v, %d, %v", tt.name, is, since, tell, tt.want, tt.since, tt.tell)
		}
	}
}

// One half's outdated report about the other makes no recovery event and is not shown. A count that goes back does
// not mean new restarts, but a restart since the last event gets its event.
func TestOutdatedRecoveryReportIsIgnored(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	say := func(seq fault.Seq, by fault.Half, s *lofamov1.RecoveryStatus) {
		health := servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: s}}
		d := memoryDigest("n1-0-0", seq, fault.Normal)
		d.ID.Origin.Half = by
		h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{d}, Health: health, Words: Words(d, nil, health)},
			Answerer: h.box, Arrived: time.Now()})
	}
	say(1, fault.HalfHost, served(5))
	publishedRecoveries(t, h, 1)
	h.taken(t)
	old := served(4)
	old.AgeNs = uint64(time.Hour)
	for seq, s := range []*lofamov1.RecoveryStatus{
		old, {State: lofamov1.RecoveryState_RESTARTING, Restarts: 4, AgeNs: 1}, {State: lofamov1.RecoveryState_RESTARTING, Restarts: 5, AgeNs: 1},
	} {
		say(fault.Seq(1+seq), fault.HalfDNP, s)
		h.taken(t)
		if got := h.node(t, "n1-0-0").Health[0].Said.GetRecovery(); !proto.Equal(got, served(5)) {
			t.Errorf("after the DNP half's late %v: %v", s, got)
		}
	}
	say(2, fault.HalfHost, old) // the daemon was killed before it could write
	say(3, fault.HalfHost, &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 5, AgeNs: 1})
	again := served(5)
	again.AgeNs = 1
	say(4, fault.HalfHost, again)
	events := publishedRecoveries(t, h, 2)
	h.taken(t)
	if len(events) != 2 || !strings.HasPrefix(events[0].GetReason(), "restarted 5 times") ||
		!strings.HasPrefix(events[1].GetReason(), "restarted (ended") {
		t.Errorf("%v", events)
	}
}

func TestShortRecoveryTextIsComplete(t *testing.T) {
	r := recovered{status: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 5, Cause: "ended by signal 9"}}
	if want := "given up after 5 restarts, the last cause: ended by signal 9"; r.words() != want {
		t.Errorf("%q, want %q", r.words(), want)
	}
	if r.status.Cause = ""; r.words() != "given up" {
		t.Errorf("%q", r.words())
	}
}

// While the store blocks, recovery events of a half are merged.
func TestRecoveriesAreMerged(t *testing.T) {
	a, b := newBatch(), newBatch()
	of := func(since uint32) timedChange {
		return timedChange{recovered: &recovered{node: "n1-0-0", half: fault.HalfDNP, status: served(since), since: since}}
	}
	a.changes, b.changes = append(a.changes, of(1)), append(b.changes, of(2))
	a.reported["n1-0-0"], b.reported["n1-0-0"] = recoveries{1: {restarts: 1}}, recoveries{1: {restarts: 3}}
	a.merge(b)
	if len(a.changes) != 1 || a.changes[0].recovered.since != 3 || a.reported["n1-0-0"][1].restarts != 3 {
		t.Errorf("%+v, %+v", a.changes, a.reported)
	}
}

// The status of the halves is kept while it is restated. A later term does not know it.
func TestHealthIsVolatile(t *testing.T) {
	h, w := start(t, memstore.New(100), nil), new(wants)
	said := servicenet.Health{Host: &lofamov1.HalfHealth{
		Recovery: served(1), Tests: []*lofamov1.SelfTest{{Number: 10, State: lofamov1.TestState_PASSED, AgeMs: 100},
			{Number: 12, State: lofamov1.TestState_IDLE, AgeMs: 100}},
	}}
	d := h.healthy(1, said)
	awaitEvents(t, h, 2)
	h.taken(t)
	first := h.node(t, "n1-0-0").Health[0]
	if !proto.Equal(first.Said, said.Host) || first.At.IsZero() || !first.Heard.Equal(first.At) || !first.OldAt.After(first.At) {
		t.Fatalf("%+v", first)
	}
	d.ID.Seq = 2
	h.restate(w, d, Words(d, nil, said))
	h.taken(t)
	if second := h.node(t, "n1-0-0").Health[0]; !second.At.Equal(first.At) || !second.Heard.After(first.Heard) ||
		!second.OldAt.After(first.OldAt) || len(w.take()) > 0 {
		t.Errorf("%+v after %+v", second, first)
	}
	more := proto.CloneOf(said.Host)
	more.Tests[0].State = lofamov1.TestState_FAILING
	d.ID.Seq = 3
	h.restate(w, d, Words(d, nil, servicenet.Health{Host: more}))
	h.taken(t)
	if len(w.take()) != 1 {
		t.Error("a digest of which nobody has the words is not wanted whole")
	}
	d = memoryDigest("n1-0-0", 4, fault.Normal) // no room, or an agent of an earlier version
	h.whole(d, nil)
	h.taken(t)
	if e := h.node(t, "n1-0-0"); !proto.Equal(e.Health[0].Said, said.Host) || e.Health[1] != (view.Health{}) {
		t.Errorf("%+v", e.Health)
	}
	if e := start(t, h.store, nil).node(t, "n1-0-0"); e.Health != ([2]view.Health{}) {
		t.Errorf("a new term knows %+v", e.Health)
	}
}

// A digest by the torus has room for a few numbers only. The full status holds while they stay the same.
func TestShortHealthKeepsFullStatus(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	whole := servicenet.Health{Host: &lofamov1.HalfHealth{
		Recovery: served(1), Tests: []*lofamov1.SelfTest{{Number: 10, State: lofamov1.TestState_PASSED, AgeMs: 100}},
	}}
	short := func(restarts uint32) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: restarts}, Cut: true,
		}}
	}
	h.healthy(1, whole)
	awaitEvents(t, h, 2)
	h.taken(t)
	first := h.node(t, "n1-0-0").Health[0]
	h.healthy(2, short(1))
	h.taken(t)
	if second := h.node(t, "n1-0-0").Health[0]; !proto.Equal(second.Said, whole.Host) || !second.At.Equal(first.At) ||
		!second.OldAt.After(first.OldAt) {
		t.Errorf("%+v after %+v", second, first)
	}
	h.healthy(3, short(2))
	h.taken(t)
	if third := h.node(t, "n1-0-0").Health[0]; !proto.Equal(third.Said, short(2).Host) {
		t.Errorf("after another restart %+v, want what is said now", third)
	}
}

// TestMapKnowsHalvesThatAreGivenUp: each half reports that the daemon has given up the other one. The committed map and a later leader
// know it until the half runs again.
func TestMapKnowsHalvesThatAreGivenUp(t *testing.T) {
	const node = "n1-0-0"
	given := &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 5,
		Reason: "next start after 1m0s: 5 restarts within 1m0s"}
	running := &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 5}
	for _, tt := range []struct {
		half, by fault.Half
		want     [2]bool
	}{{fault.HalfHost, fault.HalfDNP, [2]bool{true, false}}, {fault.HalfDNP, fault.HalfHost, [2]bool{false, true}}} {
		say := func(h *harness, seq fault.Seq, s *lofamov1.RecoveryStatus) {
			health := servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: s}}
			if tt.half == fault.HalfDNP {
				health = servicenet.Health{DNP: &lofamov1.HalfHealth{Recovery: s}}
			}
			d := memoryDigest(node, seq, fault.Normal)
			d.ID.Origin.Half = tt.by
			reports := &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{d}, Health: health, Words: Words(d, nil, health)}
			h.Submit(Input{Reports: reports, Answerer: h.box, Arrived: time.Now()})
		}
		known := func(h *harness, when string, want [2]bool) {
			t.Helper()
			m, err := h.Map(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rank, ok := m.Rank(node); !ok || m.GivenUp(rank) != want {
				t.Errorf("%s half, %s: given up %v: want %v", tt.half, when, m.GivenUp(rank), want)
			}
		}
		h := start(t, memstore.New(100), nil)
		say(h, 1, given)
		publishedRecoveries(t, h, 1)
		known(h, "reported by the other", tt.want)
		next := start(t, h.store, nil)
		known(next, "at a later leader", tt.want)
		say(next, 2, running)
		publishedRecoveries(t, next, 2)
		known(next, "started again", [2]bool{})
	}
}

// TestDaemonReportsThatItGaveUpBothHalves: a daemon's report in place of the host half is told as events and committed, once. It is no
// sign of life of the half: no state of the node changes, and its new boot epoch is no new boot.
func TestDaemonReportsThatItGaveUpBothHalves(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	before := h.node(t, "n1-0-0").Status
	given := &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 5,
		Reason: "next start after 1m0s"}}
	health := servicenet.Health{Host: given, DNP: given}
	for epoch := range fault.Epoch(2) {
		r := fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 3 + epoch, Seq: 1}}
		h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{r}, Health: health, Words: Words(r, nil,
			health)},
			Answerer: h.box, Arrived: time.Now()})
		h.box.await(t, 1+int(epoch)) // committed
	}
	events := publishedRecoveries(t, h, 2)
	if len(events) != 2 || events[0].GetComponent() != "host" || events[1].GetComponent() != "dnp" ||
		events[0].GetReason() != "given up: next start after 1m0s" || events[1].GetReason() != events[0].GetReason() {
		t.Errorf("%v", events)
	}
	e := h.node(t, "n1-0-0")
	if e.GivenUp != [2]bool{true, true} || e.Status.State != before.State || e.Status.HostEpoch != before.HostEpoch {
		t.Errorf("given up %v, status %+v: want both, and %+v", e.GivenUp, e.Status, before)
	}
}
