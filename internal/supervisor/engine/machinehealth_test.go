package engine

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestWatchdogStatementEndsWithStopAndBoot: no response may rest on a device that was disarmed at a stop, or armed in an earlier boot.
func TestWatchdogStatementEndsWithStopAndBoot(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	armed := servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
		HardwareWatchdog: &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 10_000, ContactWithinMs: 30_000, Boot: 7}}}
	report := func(epoch fault.Epoch, seq fault.Seq, stop fault.Stop) {
		id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: epoch, Seq: seq}
		well := []fault.Observation{{Node: "n1-0-0", Component: fault.ComponentMemory, State: fault.Normal, Kind: fault.KindSelf}}
		h.Submit(Input{
			Reports:  &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Stop: stop, Observations: well}}},
			Answerer: h.box, Arrived: time.Now()})
	}
	stated := func(what string, want bool) {
		t.Helper()
		h.taken(t)
		for deadline := time.Now().Add(wait); h.node(t, "n1-0-0").Watchdog.GetArmed() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: armed is %t, want %t", what, !want, want)
			}
		}
	}
	h.healthy(1, armed)
	stated("a digest", true)
	report(2, 2, fault.StopDaemon)
	stated("a stop", false)
	h.healthy(3, armed) // delayed
	h.settle(t, 1)
	stated("a digest from before the stop", false)
	report(2, 4, fault.StopOver)
	h.settle(t, 2)
	stated("the end of the stop, without a digest", false)
	h.healthy(5, armed)
	stated("a digest after the return", true)
	report(3, 1, 0)
	stated("a report of a newer epoch", false)
}

// TestOnePanicFromTwoReceiversIsOneEvent: both neighbours restate the packets of one panic for minutes.
func TestOnePanicFromTwoReceiversIsOneEvent(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	words := func(node string, serial uint32, line string) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: node, From: "10.7.0.1",
			End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: serial}}}}
	}
	const line = "Kernel panic - not syncing: Fatal exception"
	other := memoryDigest("n0-1-0", 1, fault.Normal)
	h.healthy(1, words("n0-0-0", 7, line))
	health := words("n0-0-0", 3, line)
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{other}, Health: health,
			Words: Words(other, nil, health)},
		Answerer: h.box, Arrived: time.Now()})
	h.healthy(2, words("n0-0-0", 7, line))
	h.healthy(3, words("n1-1-0", 8, line))
	events := publishedRecoveries(t, h, 2)
	if len(events) != 2 || events[0].GetNode() != "n0-0-0" || events[1].GetNode() != "n1-1-0" {
		t.Fatalf("%v", events)
	}
}

// TestLastWordsAreToldOnceForDeadNode: the last words of a kernel, which another node received, are one event of the dead node and
// change no state. A later leader knows them. They end with the machine's next boot.
func TestLastWordsAreToldOnceForDeadNode(t *testing.T) {
	s := memstore.New(100)
	h := start(t, s, nil)
	const line = "Kernel panic - not syncing: Fatal exception"
	words := func(node string, serial uint32, line string) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: node, From: "10.7.0.1",
			End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: serial, ReceivedBy: "forged"}}}}
	}
	h.healthy(1, words("n0-0-0", 7, line))
	h.healthy(2, words("n0-0-0", 7, line))
	h.healthy(3, words("n0-0-0", 8, "Kernel panic - not syncing: flood"))
	h.healthy(4, words("stranger", 9, line))
	h.healthy(5, words("n0-1-0", 10, line))
	events := publishedRecoveries(t, h, 2)
	const want = "last kernel words, received by n1-0-0/host from 10.7.0.1, not authenticated: " + line
	if len(events) != 2 || events[0].GetReason() != want || events[0].GetNode() != "n0-0-0" || events[1].GetNode() != "n0-1-0" ||
		events[0].GetObserver() != "n1-0-0/host" || events[0].GetFrom() != events[0].GetTo() {
		t.Fatalf("%v", events)
	}
	again := start(t, s, nil)
	again.healthy(6, words("n0-0-0", 7, line))
	again.healthy(7, words("n0-1-0", 11, "Kernel panic - not syncing: flood"))
	again.healthy(8, servicenet.Health{Host: &lofamov1.HalfHealth{LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_POWER_LOSS,
		Boot: 3}}})
	if events = publishedRecoveries(t, again, 3); len(events) != 3 || events[2].GetNode() != "n1-0-0" {
		t.Errorf("%v", events)
	}
}

// TestDNPHalfReceivesWordsOfItsHost: a DNP half states the last words of its own host in the report of the host's death, and again in
// digests. They are one event of the host, dated by their age. It may not state those of another machine.
func TestDNPHalfReceivesWordsOfItsHost(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	const line = "Kernel panic - not syncing: Fatal exception"
	words := func(node string, serial uint32) servicenet.Health {
		return servicenet.Health{DNP: &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: node, From: "192.168.100.1",
			End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: serial, AgeMs: 60_000}}}}
	}
	by := fault.Origin{Node: "n1-0-0", Half: fault.HalfDNP}
	submit := func(seq fault.Seq, digest bool, health servicenet.Health) {
		r := fault.Report{ID: fault.ReportID{Origin: by, Epoch: 2, Seq: seq}, Digest: digest, Observations: []fault.Observation{
			{Node: by.Node, Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindWatchdog}}}
		h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{r}, Health: health, Words: Words(r, nil, health)},
			Answerer: h.box, Arrived: time.Now()})
	}
	submit(1, false, words("n0-0-0", 5))
	before := time.Now()
	submit(2, false, words("n1-0-0", 6))
	publishedRecoveries(t, h, 1) // digests and other reports wait in different queues
	submit(3, true, words("n1-0-0", 6))
	h.healthy(1, servicenet.Health{Host: words("n0-1-0", 7).DNP}) // the last event
	events := publishedRecoveries(t, h, 2)
	const want = "last kernel words, received by n1-0-0/dnp from 192.168.100.1, not authenticated: " + line
	if len(events) != 2 || events[0].GetReason() != want || events[0].GetNode() != "n1-0-0" || events[0].GetComponent() != "host" ||
		events[0].GetObserver() != "n1-0-0/dnp" || events[1].GetNode() != "n0-1-0" {
		t.Fatalf("%v", events)
	}
	said := h.node(t, "n1-0-0").Health[0].Said.GetLastWords()
	if len(said) != 1 || said[0].GetReceivedBy() != "n1-0-0/dnp" || said[0].GetAgeMs() != 0 {
		t.Fatalf("%v", said)
	}
	if at := said[0].GetTime().AsTime().Sub(before); at < -61*time.Second || at > -59*time.Second {
		t.Errorf("words of a minute ago came at %s", at)
	}
}

// TestDelayedReportDoesNotRepeatOldWords: the report of an earlier death arrives after the report of a later death and after the next boot
// record. Its last kernel words make no event.
func TestDelayedReportDoesNotRepeatOldWords(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	death := func(seq fault.Seq, serial uint32) {
		id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfDNP}, Epoch: 2, Seq: seq}
		r := fault.Report{ID: id, Observations: []fault.Observation{
			{Node: "n1-0-0", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindWatchdog}}}
		health := servicenet.Health{DNP: &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: "n1-0-0", From: "192.168.100.1",
			End: lofamov1.BootEnd_BOOT_PANIC, Line: "Kernel panic - not syncing: " + strconv.Itoa(int(serial)), Serial: serial}}}}
		h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{r}, Health: health, Words: Words(r, nil, health)},
			Answerer: h.box, Arrived: time.Now()})
	}
	death(5, 7)
	publishedRecoveries(t, h, 1) // digests and other reports wait in different queues
	h.healthy(1, servicenet.Health{Host: &lofamov1.HalfHealth{LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Boot: 3}}})
	publishedRecoveries(t, h, 2)
	death(4, 6) // delayed
	death(6, 8)
	events := publishedRecoveries(t, h, 3)
	got := make([]string, len(events))
	for i, ev := range events {
		got[i] = ev.GetReason()
	}
	if len(got) != 3 || !strings.HasSuffix(got[0], "syncing: 7") || strings.Contains(got[1], "last kernel words") ||
		!strings.HasSuffix(got[2], "syncing: 8") {
		t.Errorf("reasons %q: want last kernel words in the first and the third only", got)
	}
}

// TestNextPanicIsNews: a second receiver of the same packets is a witness and no event. A panic with the same line that comes later, or
// from the same receiver, is another one, although no boot record came between.
func TestNextPanicIsNews(t *testing.T) {
	const line = "Kernel panic - not syncing: Fatal exception"
	was := &lofamov1.LastWords{End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: 7, ReceivedBy: "n1/host",
		Witnesses: []*lofamov1.WordsWitness{{ReceivedBy: "n2/host", Serial: 8}}}
	full := &lofamov1.LastWords{End: was.GetEnd(), Line: line, Serial: 7, ReceivedBy: "n1/host",
		Witnesses: slices.Repeat(was.GetWitnesses(), 3)}
	over := &lofamov1.LastWords{Serial: 7, ReceivedBy: "n1/host", Witnesses: was.GetWitnesses()}
	oops := &lofamov1.LastWords{End: lofamov1.BootEnd_BOOT_OOPS, Line: "Oops: 0002", Serial: 7, ReceivedBy: "n1/host"}
	for name, tt := range map[string]struct {
		was  *lofamov1.LastWords
		line string
		by   string
		no   uint32
		ago  time.Duration
		want wordsNews
	}{
		"the first":                                   {nil, line, "n1/host", 7, 0, wordsNew},
		"the same receiver again":                     {was, line, "n1/host", 7, time.Hour, wordsKnown},
		"a witness again":                             {was, line, "n2/host", 8, time.Hour, wordsKnown},
		"another receiver":                            {was, line, "n3/host", 9, 30 * time.Second, wordsWitnessed},
		"another receiver beyond the bound":           {full, line, "n3/host", 9, 30 * time.Second, wordsKnown},
		"another receiver, much later":                {was, line, "n3/host", 9, 2 * time.Minute, wordsNew},
		"the same receiver, another serial, soon":     {was, line, "n1/host", 8, 5 * time.Second, wordsKnown},
		"the same receiver, another serial, later":    {was, line, "n1/host", 8, time.Minute, wordsNew},
		"a witness, another serial, later":            {was, line, "n2/host", 9, 30 * time.Second, wordsNew},
		"another line, soon":                          {was, "Kernel panic - not syncing: flood", "n1/host", 8, 5 * time.Second, wordsKnown},
		"a panic after an oops, soon":                 {oops, line, "n1/host", 8, time.Second, wordsNew},
		"the same serial after the boot":              {over, line, "n1/host", 7, time.Hour, wordsKnown},
		"a witness's same serial after the boot":      {over, line, "n2/host", 8, time.Hour, wordsKnown},
		"the same line after the boot":                {over, line, "n1/host", 8, time.Second, wordsNew},
		"the same line by another one after the boot": {over, line, "n3/host", 8, time.Second, wordsNew},
	} {
		w := &lofamov1.LastWords{End: lofamov1.BootEnd_BOOT_PANIC, Line: tt.line, Serial: tt.no}
		if got := compareWords(tt.was, w, tt.by, tt.ago); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// armedBy submits a digest of n1-0-0 that states an armed watchdog, in an epoch.
func (h *harness) armedBy(epoch fault.Epoch, seq fault.Seq) {
	h.states(epoch, seq, &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 10_000, ContactWithinMs: 30_000, Boot: 7})
}

// states submits a digest of n1-0-0 that states this hardware watchdog.
func (h *harness) states(epoch fault.Epoch, seq fault.Seq, w *lofamov1.HardwareWatchdog) {
	d := memoryDigest("n1-0-0", seq, fault.Normal)
	d.ID.Epoch = epoch
	health := servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
		HardwareWatchdog: w}}
	h.Submit(Input{
		Reports:  &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{d}, Health: health, Words: Words(d, nil, health)},
		Answerer: h.box, Arrived: time.Now()})
}

// notice submits a report of n1-0-0 with a restart notice.
func (h *harness) notice(epoch fault.Epoch, seq fault.Seq, n fault.RestartNotice) {
	id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: epoch, Seq: seq}
	h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Restart: n}}},
		Answerer: h.box, Arrived: time.Now()})
}

// settle waits for the commit of the seq-th change that is unrelated to n1-0-0, so that all earlier inputs are committed too.
func (h *harness) settle(t *testing.T, seq fault.Seq) {
	t.Helper()
	h.taken(t)
	c := [...]fault.Component{fault.ComponentMemory, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage}[seq-1]
	id := fault.ReportID{Origin: fault.Origin{Node: "n0-1-0", Half: fault.HalfHost}, Epoch: 2, Seq: seq}
	h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Observations: []fault.Observation{
		{Node: "n0-1-0", Component: c, State: fault.Sick, Kind: fault.KindSelf}}}}}, Answerer: h.box, Arrived: time.Now()})
	for deadline := time.Now().Add(wait); view.StateOf(h.node(t, "n0-1-0").Status, c) != fault.Sick; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("an unrelated change to %s is not committed", c)
		}
	}
}

// awaitArmed waits until the committed map has, or has not, a statement that the watchdog of n1-0-0 is armed.
func (h *harness) awaitArmed(t *testing.T, what string, want bool) {
	t.Helper()
	h.taken(t)
	for deadline := time.Now().Add(wait); h.node(t, "n1-0-0").Watchdog.GetArmed() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: armed is %t, want %t", what, !want, want)
		}
	}
}

// TestWatchdogStatementEndsWithRestartNotice: a daemon that hands over to its successor announces restarts, and disarms the device when
// the notice is committed. Until the host half is back, no response may rest on the device. A restart of the DNP half leaves the device
// armed. If the restart is over in the same epoch, the leader asks for the statement again.
func TestWatchdogStatementEndsWithRestartNotice(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	epoch := memoryDigest("n1-0-0", 1, fault.Normal).ID.Epoch
	h.armedBy(epoch, 1)
	h.awaitArmed(t, "a digest", true)
	h.notice(epoch, 2, fault.RestartNotice{Half: fault.HalfDNP, Within: time.Second})
	h.awaitArmed(t, "a notice about the DNP half", true)
	h.notice(epoch, 3, fault.RestartNotice{Half: fault.HalfHost, Within: time.Second})
	h.awaitArmed(t, "a notice about the host half", false)
	h.armedBy(epoch, 4)
	h.settle(t, 1)
	h.awaitArmed(t, "a digest from before the device was disarmed", false)
	h.notice(epoch, 5, fault.RestartNotice{Half: fault.HalfHost})
	h.taken(t)
	w, d := new(wants), memoryDigest("n1-0-0", 6, fault.Normal)
	d.ID.Epoch = epoch
	health := servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
		HardwareWatchdog: &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 10_000, ContactWithinMs: 30_000, Boot: 7}}}
	h.restate(w, d, Words(d, nil, health))
	h.taken(t)
	if len(w.take()) != 1 {
		t.Error("after the restart the leader does not ask for the whole digest, so it never learns that the device is armed")
	}
	h.armedBy(epoch, 7)
	h.awaitArmed(t, "a digest after the restart", true)
	h.notice(epoch, 8, fault.RestartNotice{Half: fault.HalfHost, Within: time.Second})
	h.awaitArmed(t, "a second notice", false)
	h.armedBy(epoch+1, 1)
	h.awaitArmed(t, "a digest of the host half's next epoch", true)
}

// TestUnendedNoticeHidesWatchdogStatementForLimitedTime: the end of an announced restart may get lost. Some time later the leader requests
// a full digest, which states the device again.
func TestUnendedNoticeHidesWatchdogStatementForLimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, w := start(t, memstore.New(100), nil), new(wants)
		d := memoryDigest("n1-0-0", 1, fault.Normal)
		epoch := d.ID.Epoch
		words := Words(d, nil, servicenet.Health{})
		digest := func(seq fault.Seq) {
			d.ID.Seq = seq
			h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{d}, Words: words,
				Health: servicenet.Health{Host: &lofamov1.HalfHealth{
					Recovery:         &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
					HardwareWatchdog: &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 10_000, Boot: 7}}}}, Answerer: h.box, Arrived: time.Now()})
		}
		armed := func(what string, want bool) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := h.node(t, "n1-0-0").Watchdog.GetArmed(); got != want {
				t.Errorf("%s: armed is %t, want %t", what, got, want)
			}
		}
		restated := func(seq fault.Seq) (asked bool) {
			d.ID.Seq = seq
			h.restate(w, d, words)
			synctest.Wait()
			return len(w.take()) > 0
		}
		digest(1)
		armed("a digest", true)
		h.notice(epoch, 2, fault.RestartNotice{Half: fault.HalfHost, Within: 20 * time.Second})
		armed("a notice", false)
		digest(3)
		armed("a digest after the notice", false)
		if restated(4) {
			t.Error("during the restart the leader requests a full digest")
		}
		time.Sleep(11 * time.Minute)
		if !restated(5) {
			t.Error("long after the restart the leader requests no full digest, so it never learns that the device is armed")
		}
		digest(6)
		armed("a digest long after the restart", true)
	})
}

// TestNextLeaderKeepsWatchdogStatement: a later leader relies on the committed statement until the host half says otherwise, and on none
// that was taken back.
func TestNextLeaderKeepsWatchdogStatement(t *testing.T) {
	s := memstore.New(100)
	h := start(t, s, nil)
	epoch := memoryDigest("n1-0-0", 1, fault.Normal).ID.Epoch
	h.armedBy(epoch, 1)
	h.awaitArmed(t, "a digest", true)
	since := h.node(t, "n1-0-0").Watchdog.GetSince().AsTime()
	next := start(t, s, nil)
	next.awaitArmed(t, "the next leader", true)
	next.armedBy(epoch, 2)
	next.taken(t)
	if w := next.node(t, "n1-0-0").Watchdog; !w.GetSince().AsTime().Equal(since) || w.GetBoot() != 7 || w.GetTimeoutMs() != 10_000 {
		t.Errorf("%v, want the statement of %s", w, since)
	}
	next.notice(epoch, 3, fault.RestartNotice{Half: fault.HalfHost, Within: time.Second})
	next.awaitArmed(t, "a notice at the next leader", false)
	last := start(t, s, nil)
	last.awaitArmed(t, "the leader after it", false)
	last.armedBy(epoch, 4)
	last.settle(t, 1)
	last.awaitArmed(t, "a digest from before the device was disarmed", false)
	last.armedBy(epoch+1, 1)
	last.awaitArmed(t, "a digest at the last leader", true)
}

// TestNextLeaderTakesStatementAfterUnendedNotice: a node may never report the end of an announced restart. An armed device that was
// committed after the notice shows the next leader that the restart is over. So it follows the node's next statements.
func TestNextLeaderTakesStatementAfterUnendedNotice(t *testing.T) {
	s := memstore.New(100)
	h := start(t, s, nil)
	epoch := memoryDigest("n1-0-0", 1, fault.Normal).ID.Epoch
	h.armedBy(epoch, 1)
	h.notice(epoch, 2, fault.RestartNotice{Half: fault.HalfHost, Within: 20 * time.Second})
	h.awaitArmed(t, "a notice about the host half", false)
	h.armedBy(epoch+1, 1)
	h.awaitArmed(t, "a digest of the half's next epoch", true)
	next := start(t, s, nil)
	next.states(epoch+1, 2, &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 60_000, Boot: 7})
	next.settle(t, 1)
	if w := next.node(t, "n1-0-0").Watchdog; w.GetTimeoutMs() != 60_000 {
		t.Errorf("%v, want the statement with a timeout of 60 s", w)
	}
}

// TestStoredNoticeSuppressesStatementsOnlyUntilItIsOver: a new leader ignores a stored notice if a newer statement shows that it is over,
// or if the announced restart ended long ago.
func TestStoredNoticeSuppressesStatementsOnlyUntilItIsOver(t *testing.T) {
	now := time.Now()
	armed := &lofamov1.HardwareWatchdog{Armed: true}
	entry := func(r awareness.Restart, s awareness.Stop, w *lofamov1.HardwareWatchdog) view.Entry {
		return view.Entry{Status: awareness.NodeStatus{Restart: r, Stop: s}, Watchdog: w}
	}
	restart := awareness.Restart{Half: fault.HalfHost, Until: now.Add(time.Second)}
	stop := awareness.Stop{Reason: fault.StopReboot, Since: now, Until: now.Add(time.Hour)}
	for name, tc := range map[string]struct {
		e    view.Entry
		want bool
	}{
		"nothing announced":          {entry(awareness.Restart{}, awareness.Stop{}, nil), false},
		"a restart":                  {entry(restart, awareness.Stop{}, nil), true},
		"a restart, other clock":     {entry(awareness.Restart{Half: fault.HalfHost, Until: now.Add(-time.Minute)}, awareness.Stop{}, nil), true},
		"a restart, disarmed":        {entry(restart, awareness.Stop{}, &lofamov1.HardwareWatchdog{}), true},
		"a restart, armed since":     {entry(restart, awareness.Stop{}, armed), false},
		"an old restart":             {entry(awareness.Restart{Half: fault.HalfHost, Until: now.Add(-time.Hour)}, awareness.Stop{}, nil), false},
		"a restart of the DNP half":  {entry(awareness.Restart{Half: fault.HalfDNP, Until: now.Add(time.Second)}, awareness.Stop{}, nil), false},
		"a stop":                     {entry(awareness.Restart{}, stop, nil), true},
		"a stop, then an armed boot": {entry(awareness.Restart{}, stop, armed), false},
	} {
		if got := stillAnnounced(tc.e, now); got != tc.want {
			t.Errorf("%s: still announced %t, want %t", name, got, tc.want)
		}
	}
}

// TestKernelVerdictIsCommitted: the leader judges the kernel under a FAILED half, commits the verdict with the node and with its incident,
// and takes it back when the fault is gone. The machine's next boot proves that the kernel of the fault is dead, unless the fault was one
// of the agent alone.
func TestKernelVerdictIsCommitted(t *testing.T) {
	s := memstore.New(100)
	prompt := func(c *Config) {
		c.Awareness.ChallengeHalf, c.Awareness.ChallengeNode, c.Awareness.ChallengeSingle = 20*time.Millisecond, 20*time.Millisecond,
			20*time.Millisecond
	}
	h := start(t, s, prompt)
	const node = "n1-0-0"
	say := func(half fault.Half, epoch fault.Epoch, seq fault.Seq, health servicenet.Health, of fault.Component, st fault.State,
		kind fault.Kind) {
		t.Helper()
		id := fault.ReportID{Origin: fault.Origin{Node: node, Half: half}, Epoch: epoch, Seq: seq}
		d := fault.Report{ID: id, Digest: true, Platform: fault.PlatformSharedKernel,
			Observations: []fault.Observation{{Node: node, Component: of, State: st, Kind: kind}}}
		h.Submit(Input{
			Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{d}, Health: health,
				Words: Words(d, nil, health)},
			Answerer: h.box, Arrived: time.Now()})
		h.taken(t)
	}
	booted := func(boot uint32) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Boot: boot,
			Detail: "Kernel panic - not syncing: x", Heard: timestamppb.New(time.Now().Add(time.Hour)), Before: 99}}}
	}
	await := func(what string, of fault.Component, want fault.KernelDead) view.Entry {
		t.Helper()
		for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
			e := h.node(t, node)
			if e.KernelDead(of).Dead == want && (view.StateOf(e.Status, of) == fault.Failed) == (want != 0) {
				return e
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v of a %v %s; want %q", what, e.KernelDead(of), view.StateOf(e.Status, of), of, want)
			}
		}
	}
	say(fault.HalfHost, 1, 1, booted(7), fault.ComponentMemory, fault.Normal, fault.KindSelf)
	say(fault.HalfDNP, 1, 1, servicenet.Health{}, fault.ComponentHost, fault.Failed, fault.KindWatchdog)
	e := await("a dead agent", fault.ComponentHost, fault.KernelIsAlive)
	if next := start(t, s, nil).node(t, node); next.KernelDead(fault.ComponentHost) != e.KernelDead(fault.ComponentHost) {
		t.Errorf("the next leader has %+v, want %+v", next.Kernels, e.Kernels)
	}
	h = start(t, s, prompt)
	say(fault.HalfHost, 2, 1, booted(7), fault.ComponentMemory, fault.Normal, fault.KindSelf)
	say(fault.HalfDNP, 1, 2, servicenet.Health{}, fault.ComponentHost, fault.Normal, fault.KindWatchdog)
	await("its return", fault.ComponentHost, 0)

	// The DNP half dies with the machine, and is still FAILED when the host half is back.
	say(fault.HalfHost, 2, 2, booted(7), fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	await("a dead DNP half", fault.ComponentDNP, fault.KernelIsAlive)
	say(fault.HalfHost, 3, 1, booted(8), fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	await("a boot since", fault.ComponentDNP, fault.KernelIsDead)
	snap, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, in := range snap.Incidents {
		if in.GetNode() == node {
			got = append(got, in.GetComponent()+" "+in.GetKernel().GetDead().String()+" "+strconv.Quote(in.GetLastBoot()))
		}
	}
	slices.Sort(got)
	// The first proof stays: the agent had died before the machine.
	if want := []string{`host KERNEL_DEAD_NO "last boot ended by: Kernel panic - not syncing: x"`}; !slices.Equal(got, want) {
		t.Errorf("incidents %q, want %q", got, want)
	}
}

// TestBootIsProvenAlthoughDNPHalfRepeatsItFirst: the host half's own statement of a boot proves it, although the DNP half was first. A
// later restart of the agent in the same boot proves nothing.
func TestBootIsProvenAlthoughDNPHalfRepeatsItFirst(t *testing.T) {
	for name, direct := range map[string]bool{"the host half follows": true, "an earlier leader took the repetition": false} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New(100)
			h := start(t, s, nil)
			say := func(half fault.Half, epoch fault.Epoch, seq fault.Seq, boot uint32) {
				t.Helper()
				d := memoryDigest("n1-0-0", seq, fault.Normal)
				d.ID.Origin.Half, d.ID.Epoch = half, epoch
				ended := &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Boot: boot}
				health := servicenet.Health{Host: &lofamov1.HalfHealth{LastBoot: ended}}
				h.Submit(Input{
					Reports:  &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{d}, Health: health, Words: Words(d, nil, health)},
					Answerer: h.box, Arrived: time.Now()})
				h.taken(t)
			}
			stored := func(seq fault.Seq) *lofamov1.LastBoot {
				t.Helper()
				h.settle(t, seq)
				snap, err := s.Load(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range snap.Nodes {
					if n.GetId() == "n1-0-0" {
						return n.GetHostHealth().GetLastBoot()
					}
				}
				return nil
			}
			say(fault.HalfHost, 2, 1, 7)
			h.settle(t, 1)
			say(fault.HalfDNP, 2, 1, 8)
			if b := stored(2); b.GetBoot() != 8 || b.GetHeard() != nil {
				t.Fatalf("the DNP half's word: %v", b)
			}
			if !direct {
				h = start(t, s, nil)
			}
			say(fault.HalfHost, 3, 1, 8)
			first := stored(3)
			if (first.GetHeard() != nil) != direct {
				t.Fatalf("the host half's word: %v", first)
			}
			say(fault.HalfHost, 4, 1, 8)
			if again := stored(4); !again.GetHeard().AsTime().Equal(first.GetHeard().AsTime()) {
				t.Errorf("a restart of the agent: %v, want %v", again, first)
			}
			if events := publishedRecoveries(t, h, 2); len(events) != 2 {
				t.Errorf("%v", events)
			}
		})
	}
}
