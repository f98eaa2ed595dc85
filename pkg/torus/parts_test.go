package torus

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestKeyring(t *testing.T) {
	start := time.Unix(1000, 0)
	var ours, theirs Keyring
	a1, b1 := pair(1, 1)
	a2, b2 := pair(2, 2)
	f := sample()
	sealed := func(session uint32, by Sealer) []byte {
		f.Session = session
		f.Seq++
		return encode(t, f, by)
	}
	opens := func(wire []byte) error {
		_, err := Decode(wire, MaxFrame, &ours)
		return err
	}

	if _, ok := ours.Current(); ok {
		t.Error("a new keyring has a session")
	}
	if _, err := f.Append(nil, &theirs); !errors.Is(err, ErrSession) {
		t.Errorf("sealing without a session: %v", err)
	}
	ours.Add(start, a1)
	theirs.Add(start, b1)
	old := sealed(1, &theirs)
	if err := opens(old); err != nil {
		t.Errorf("first session: %v", err)
	}
	ours.Add(start.Add(time.Minute), a2)
	theirs.Add(start.Add(time.Minute), b2)
	if id, ok := ours.Current(); !ok || id != 2 {
		t.Errorf("current session %d, %t", id, ok)
	}
	if err := opens(old); err != nil {
		t.Errorf("frame of the previous session on its way: %v", err)
	}
	if err := opens(sealed(2, &theirs)); err != nil {
		t.Errorf("second session: %v", err)
	}
	f.Session = 1
	if _, err := f.Append(nil, &ours); !errors.Is(err, ErrSession) {
		t.Errorf("sealing with the previous session: %v", err)
	}

	ours.Expire(start.Add(time.Minute + PreviousSessionLife - 1))
	if err := opens(old); err != nil {
		t.Errorf("just before the end of its life: %v", err)
	}
	ours.Expire(start.Add(time.Minute + PreviousSessionLife))
	if err := opens(old); !errors.Is(err, ErrSession) {
		t.Errorf("after its life: %v", err)
	}
	ours.Add(start.Add(time.Hour), a1)
	ours.Confirm(2)
	if err := opens(sealed(2, &theirs)); err != nil {
		t.Errorf("confirming the previous session forgot it: %v", err)
	}
	ours.Confirm(1)
	if err := opens(sealed(2, &theirs)); !errors.Is(err, ErrSession) {
		t.Errorf("after the new session was confirmed: %v", err)
	}
}

func TestDetail(t *testing.T) {
	states := rapid.SampledFrom([]LinkState{LinkUnknown, LinkNormal, LinkSick, LinkBroken})
	rapid.Check(t, func(t *rapid.T) {
		d := Detail{
			Rx: states.Draw(t, "rx"), Tx: states.Draw(t, "tx"), Silent: rapid.Bool().Draw(t, "silent"), Handshake: rapid.Bool().Draw(t, "handshake"),
			Restarting: rapid.Bool().Draw(t, "restarting"), ExpressDeaf: rapid.Bool().Draw(t, "deaf"),
		}
		if n := rapid.IntRange(0, math.MaxUint16).Draw(t, "age or loss"); d.Silent {
			d.HeardAge = time.Duration(n) * time.Millisecond
		} else {
			d.Loss = uint16(n)
		}
		if got, err := DecodeDetail(d.Encode()); err != nil || got != d {
			t.Fatalf("%+v becomes %+v, %v", d, got, err)
		}
	})
	long := Detail{Rx: LinkBroken, Tx: LinkUnknown, Silent: true, HeardAge: time.Hour}
	if got, err := DecodeDetail(long.Encode()); err != nil || got.HeardAge != math.MaxUint16*time.Millisecond {
		t.Errorf("an hour becomes %v, %v", got.HeardAge, err)
	}
	for _, tc := range []struct {
		word  uint32
		names string
	}{{0, "receiving state is 0"}, {5, "receiving state is 5"}, {2, "sending state is 0"}, {0x72, "sending state is 7"},
		{0x1022, "mask"}, {0x2a, "mask"}} {
		if _, err := DecodeDetail(tc.word); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("word %#x: %v, want an error that names %q", tc.word, err, tc.names)
		}
	}
	if got := long.String(); got != "rx BROKEN tx UNKNOWN silent after 1h0m0s" {
		t.Error(got)
	}
	if got := (Detail{Rx: LinkNormal, Tx: LinkNormal, Loss: LossUnits / 100}).String(); got != "rx NORMAL tx NORMAL losing 1 %" {
		t.Error(got)
	}
	if got := (Detail{Rx: LinkSick, Tx: LinkNormal, Restarting: true}).String(); got != "rx SICK tx NORMAL restarting" {
		t.Error(got)
	}
	if got := (Detail{Rx: LinkSick, Tx: LinkBroken, Handshake: true}).String(); got != "rx SICK tx BROKEN unheard" {
		t.Error(got)
	}
}

// naiveSequence is sequence with a map and no cleverness.
type naiveSequence struct {
	window      int
	first, high uint64
	got         map[uint64]bool // true: came or forgiven
	seen        map[uint64]bool // came
}

func (s *naiveSequence) accept(n uint64, forgive bool) seqVerdict {
	switch {
	case s.got == nil:
		s.got, s.seen, s.first, s.high = map[uint64]bool{n: true}, map[uint64]bool{n: true}, n, n
		return seqNext
	case n > s.high:
		for m := s.high + 1; m < n; m++ {
			s.got[m] = forgive
		}
		s.got[n], s.seen[n], s.high = true, true, n
		return seqNext
	case s.high-n >= replayWindow:
		return seqReplay
	case s.seen[n]:
		return seqDuplicate
	}
	s.seen[n] = true
	if held := s.high - n; held < uint64(s.window+reorderSlack) {
		s.got[n] = true
	}
	return seqLate
}

func (s *naiveSequence) judged() (frames, missing int) {
	for m := s.high - reorderSlack; m >= s.first && m+uint64(s.window+reorderSlack) > s.high; m-- {
		frames++
		if !s.got[m] {
			missing++
		}
	}
	return frames, missing
}

func TestSequenceAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(10, 100).Draw(t, "window")
		var s sequence
		s.init(window)
		naive := naiveSequence{window: window}
		n := uint64(1000)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				n += uint64(rapid.IntRange(2, 400).Draw(t, "jump"))
			case 1:
				n -= uint64(rapid.IntRange(0, 80).Draw(t, "back"))
			default:
				n += uint64(rapid.IntRange(1, 3).Draw(t, "step"))
			}
			forgive := rapid.IntRange(0, 9).Draw(t, "forgive") == 0
			_, got := s.accept(1, 1, n, forgive)
			if want := naive.accept(n, forgive); got != want {
				t.Fatalf("%d: verdict %d, want %d", n, got, want)
			}
			frames, missing := s.judged()
			if wf, wm := naive.judged(); frames != wf || missing != wm {
				t.Fatalf("after %d: %d of %d missing, want %d of %d", n, missing, frames, wm, wf)
			}
		}
	})
}

func TestSequenceOfSessionsAndEpochs(t *testing.T) {
	var s sequence
	s.init(10)
	for i, tc := range []struct {
		expect  uint32
		session uint32
		epoch   fault.Epoch
		n       uint64
		want    seqVerdict
		high    uint64
	}{
		{0, 5, 1, 100, seqNext, 100},   // without a handshake: the first session heard
		{0, 6, 1, 101, seqReplay, 100}, // never announced
		{0, 5, 2, 7, seqNext, 7},       // the peer's epoch grew: counting begins again
		{0, 5, 1, 101, seqReplay, 7},   // of the epoch before
		{6, 5, 2, 8, seqNext, 8},       // of the session before, as long as the new one is silent
		{0, 6, 1, 1, seqNext, 1},       // a new session may have a lower epoch: it is fresh
		{0, 5, 2, 9, seqReplay, 1},     // the session before is over
		{0, 6, 1, math.MaxUint64, seqNext, math.MaxUint64},
		{0, 6, 1, math.MaxUint64, seqDuplicate, math.MaxUint64},
	} {
		if tc.expect != 0 {
			s.expect(tc.expect)
		}
		if _, got := s.accept(tc.session, tc.epoch, tc.n, false); got != tc.want || s.high != tc.high {
			t.Errorf("step %d: verdict %d, highest %d; want %d, %d", i+1, got, s.high, tc.want, tc.high)
		}
	}
	var fresh sequence
	fresh.init(10)
	fresh.expect(3)
	if _, got := fresh.accept(2, 1, 1, false); got != seqReplay {
		t.Errorf("another session than the one awaited: verdict %d", got)
	}
}

func testConfig() LinkConfig {
	return LinkConfig{
		Dir: grid.XPlus, Src: grid.Coord{}, Dst: grid.Coord{X: 1}, Period: 25 * time.Millisecond, Misses: 2, Grace: 200 * time.Millisecond,
		SickRatio: 0.05, ClearRatio: 0.01, Window: 40, MinErrors: 3, HoldOff: 500 * time.Millisecond,
	}
}

func TestLinkConfigNamesAllBadFields(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	bad := LinkConfig{Dir: 9, Src: grid.Coord{X: -1}, Dst: grid.Coord{X: grid.MaxSize}, Grace: -1, SickRatio: 1,
		ClearRatio: math.NaN(), Window: 9, HoldOff: -1}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Dir 9: want 1 to 6", "Src -1,0,0", "Dst 65536,0,0", "Period 0s", "Misses 0: want 1 to 1000",
		"Grace", "SickRatio 1", "ClearRatio NaN", "Window 9: want 10 to", "MinErrors 0", "HoldOff"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("NewLink took it")
		}
	}()
	NewLink(bad, time.Unix(0, 0))
}

// TestFrameOfAnotherLinkIsRefused: an authentic frame of another link is not this link's.
func TestFrameOfAnotherLinkIsRefused(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLink(testConfig(), now)
	good := Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: 1, Epoch: 1}
	for _, change := range []func(*Frame){
		func(f *Frame) { f.Direction = grid.XPlus },
		func(f *Frame) { f.Src = grid.Coord{X: 2} },
		func(f *Frame) { f.Dst = grid.Coord{Y: 1} },
	} {
		f := good
		change(&f)
		if out := l.Step(now, FrameReceived{Frame: f}); out.Accepted || out.State != LinkUnknown {
			t.Errorf("%+v: accepted %t, state %s", f, out.Accepted, out.State)
		}
	}
	if out := l.Step(now, FrameReceived{Frame: good}); !out.Accepted || out.State != LinkNormal || !out.Changed {
		t.Errorf("its own frame: %+v", out)
	}
	if s := l.Stats(); s.Misrouted != 3 || s.Received != 1 || s.LastHeard != now {
		t.Errorf("%+v", s)
	}
	for kind, want := range map[BadKind]func(LinkStats) uint64{
		BadMAC: func(s LinkStats) uint64 { return s.MAC }, BadSession: func(s LinkStats) uint64 { return s.Sessions },
		BadMalformed: func(s LinkStats) uint64 { return s.Malformed },
	} {
		l.Step(now, FrameBad{Kind: kind, Count: 4})
		if got := want(l.Stats()); got != 4 {
			t.Errorf("%s counted %d times, want 4", kind, got)
		}
	}
}

// TestWakeEqualsDeadline: silence is declared by the tick at Wake and by none before, to the
// nanosecond, though heartbeats are due at other times.
func TestWakeEqualsDeadline(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLink(testConfig(), now)
	heard := now.Add(7*time.Millisecond + 3)
	out := l.Step(now, Tick{})
	if !out.SendHeartbeat || out.Wake != now.Add(25*time.Millisecond) {
		t.Fatalf("first tick: %+v", out)
	}
	l.Step(heard, FrameReceived{Frame: Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: 1, Epoch: 1}})
	deadline := heard.Add(75 * time.Millisecond)
	for out = l.Step(heard, Tick{}); out.State == LinkNormal; out = l.Step(out.Wake, Tick{}) {
		if out.Wake.After(deadline) {
			t.Fatalf("wakes at %v, after the deadline %v", out.Wake, deadline)
		}
		if out.Wake.Equal(deadline) {
			if early := l.Step(deadline.Add(-1), Tick{}); early.State != LinkNormal {
				t.Fatal("declared a nanosecond early")
			}
		}
	}
	if out.State != LinkBroken || !out.Detail.Silent || out.Detail.HeardAge != 75*time.Millisecond || out.Redial {
		t.Errorf("at the deadline: %+v", out)
	}
}

// TestNoRedialWhilePauseMayExplainSilence: a silent end requests a session only after the longest pause, or at once if the
// peer's kernel refuses its frames.
func TestNoRedialWhilePauseMayExplainSilence(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		grace time.Duration
		// refuse returns whether the kernel refuses frames so long after the last frame.
		refuse func(since time.Duration) bool
		want   time.Duration // from the last frame to Redial
	}{
		{"silent for longer than a pause", time.Second, func(time.Duration) bool { return false }, 300 * ms},
		{"a short grace", 200 * ms, func(time.Duration) bool { return false }, 100 * ms},
		{"refused since the last frame", time.Second, func(time.Duration) bool { return true }, 32 * ms},
		{"refused in the silence", time.Second, func(since time.Duration) bool { return since > 75*ms }, 101 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Grace = tc.grace
			now := time.Unix(1000, 0)
			l := NewLink(cfg, now)
			seq := uint64(0)
			hear := func() time.Time {
				seq++
				l.Step(now, FrameReceived{Frame: Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: seq, Epoch: 1,
					Flags: FlagAnswers}})
				return now
			}
			redial := func(heard time.Time, refuse func(time.Duration) bool) time.Duration {
				for now.Sub(heard) < time.Minute {
					out := l.Step(now, Tick{})
					if out.Redial {
						break
					}
					if (out.SendHeartbeat || out.SendAsk) && refuse(now.Sub(heard)) {
						if l.Step(now, Refused{}).SendAsk {
							l.Step(now, Refused{})
						}
					}
					now = now.Add(ms)
				}
				return now.Sub(heard)
			}
			if got := redial(hear(), tc.refuse); got < tc.want-2*ms || got > tc.want+2*ms {
				t.Errorf("Redial %v after the last frame, want %v", got, tc.want)
			}
			for range 100 { // the peer is back, for longer than the hold-off
				hear()
				l.Step(now, Tick{})
				now = now.Add(25 * ms)
			}
			want := min(300*ms, tc.grace/2)
			if got := redial(hear(), func(time.Duration) bool { return false }); got < want-2*ms || got > want+2*ms {
				t.Errorf("after a return and another silence: Redial %v after the last frame, want %v", got, want)
			}
		})
	}
}

// TestRedialWhilePeerStaysAway: a peer that has announced its absence may come back without the session. So this end requests another
// session long before the announced time is over, but not at once: a half that restarts resumes its session.
func TestRedialWhilePeerStaysAway(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{2 * time.Second: time.Second, 40 * time.Second: restartWait} {
		redialsWhilePeerStaysAway(t, grace, want)
	}
}

func redialsWhilePeerStaysAway(t *testing.T, grace, want time.Duration) {
	t.Helper()
	cfg := testConfig()
	cfg.Grace = grace
	now := time.Unix(1000, 0)
	l := NewLink(cfg, now)
	f := Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: 1, Epoch: 1}
	l.Step(now, FrameReceived{Frame: f})
	const back = 15 * time.Second
	for range 3 {
		f.Seq++
		l.Step(now, FrameReceived{Frame: RestartingFrame(f, Restarting{Back: back, Attempt: 1})})
	}
	left := now
	for !l.Step(now, Tick{}).Redial {
		if now = now.Add(cfg.Period); now.Sub(left) > back {
			break
		}
	}
	if got := now.Sub(left); got < want || got > want+2*cfg.Period {
		t.Errorf("grace %v: Redial %v after the announcement, want %v", grace, got, want)
	}
	if out := l.Step(now, Tick{}); out.State == LinkBroken || !out.Redial {
		t.Errorf("at the next tick: %v, Redial %t; want Redial at each tick before a frame of the peer arrives", out.Detail, out.Redial)
	}
	f.Seq++
	l.Step(now, FrameReceived{Frame: f})
	if out := l.Step(now, Tick{}); out.Redial || out.State != LinkNormal {
		t.Errorf("the peer is back: Redial %t, %v", out.Redial, out.Detail)
	}
}

// TestLinkInvariants throws random events at a machine. After a tick it never asks for a wake-up at once (that would
// be a busy loop). It calls no peer silent before the time, never while it doubts itself, and its outputs are
// consistent.
func TestLinkInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := testConfig()
		now := time.Unix(1000, 0)
		l := NewLink(cfg, now)
		heard, back, wake := now, now, time.Time{}
		session, seq := uint32(0), uint64(0)
		was := l.Detail()
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			late, announced, ran := false, time.Time{}, now
			if rapid.Bool().Draw(t, "at wake") && wake.After(now) {
				now = wake
			} else {
				now = now.Add(time.Duration(rapid.IntRange(0, 40_000).Draw(t, "µs")) * time.Microsecond)
				late = !wake.IsZero() && now.Sub(fault.Later(wake, ran)) > cfg.Period // the first step was promised for no time
			}
			var ev LinkEvent = Tick{}
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0:
				session++
				seq = 0
				ev = SessionStarted{session}
			case 1:
				ev = FrameBad{Kind: BadKind(rapid.IntRange(0, 6).Draw(t, "kind"))}
			case 2, 3, 4, 5:
				seq += uint64(rapid.IntRange(0, 4).Draw(t, "seq"))
				f := Frame{
					Type: TypeHeartbeat, Direction: grid.XMinus, Src: cfg.Dst, Dst: cfg.Src, Session: session, Epoch: 1, Seq: seq,
					Ack: rapid.Uint64Range(0, 10).Draw(t, "ack"), Flags: Flags(rapid.IntRange(0, 3).Draw(t, "flags")),
				}
				if rapid.IntRange(0, 3).Draw(t, "restarting") == 0 {
					r := Restarting{Back: time.Duration(rapid.IntRange(0, 300).Draw(t, "back")) * time.Millisecond}
					f, announced = RestartingFrame(f, r), now.Add(r.Back)
				}
				ev = FrameReceived{Frame: f}
			}
			out := l.Step(now, ev)
			switch {
			case out.Accepted && !announced.IsZero():
				back = announced
			case out.Accepted:
				heard, back = now, now
			}
			if out.SendHeartbeat {
				l.NextFrame(Status{Epoch: 1})
			}
			if _, tick := ev.(Tick); tick && !out.Wake.After(now) {
				t.Fatalf("at %v it wants to be woken at %v", now, out.Wake)
			}
			least := cfg.SilentAfter()
			if heard.Equal(time.Unix(1000, 0)) {
				least = min(least, cfg.Grace)
			}
			if out.Detail.Silent && !was.Silent && (now.Sub(heard) < least || now.Before(back) || late) {
				t.Fatalf("silent %v after it heard (late %t): %s", now.Sub(heard), late, out.Detail)
			}
			if out.Changed != (out.Detail != was) || out.State != out.Detail.State() || out.Late != late ||
				out.Detail.Restarting && out.Detail.Rx != LinkSick || out.Detail.Handshake != (out.Detail.Tx == LinkBroken) ||
				out.Detail.Silent != (out.Detail.Rx == LinkBroken) {
				t.Fatalf("%+v, was %s, late %t", out, was, late)
			}
			was, wake = out.Detail, out.Wake
		}
	})
}

// TestOnlyRefusedLinkIsSilentEarly tells a link that is silent by refusal from one that misses heartbeats.
func TestOnlyRefusedLinkIsSilentEarly(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		period time.Duration
		misses int
		detail Detail
		want   bool
	}{
		{25 * ms, 2, Detail{Silent: true, HeardAge: 31 * ms}, true},
		{25 * ms, 2, Detail{Silent: true, HeardAge: 74 * ms}, true},
		{25 * ms, 2, Detail{Silent: true, HeardAge: 75 * ms}, false},
		{25 * ms, 2, Detail{Silent: true, HeardAge: 5 * time.Second}, false},
		{25 * ms, 2, Detail{HeardAge: 31 * ms}, false},
		{2500 * time.Microsecond, 2, Detail{Silent: true, HeardAge: 7 * ms}, false}, // 7.5 ms, rounded down
		{2500 * time.Microsecond, 2, Detail{Silent: true, HeardAge: 3 * ms}, true},
	} {
		if got := tc.detail.Refused(LinkConfig{Period: tc.period, Misses: tc.misses}); got != tc.want {
			t.Errorf("period %s: %+v is refused: %t, want %t", tc.period, tc.detail, got, tc.want)
		}
	}
}

// TestSequenceKnowsWhetherASilenceLostFrames: only if every number since the silence has come, each once, was nothing lost.
func TestSequenceKnowsWhetherASilenceLostFrames(t *testing.T) {
	type frame struct {
		session uint32
		epoch   fault.Epoch
		n       uint64
	}
	for _, tc := range []struct {
		name   string
		frames []frame
		want   bool
	}{
		{"no frame", nil, false},
		{"the next one", []frame{{1, 1, 11}}, true},
		{"a gap", []frame{{1, 1, 12}}, false},
		{"a gap that is filled", []frame{{1, 1, 12}, {1, 1, 11}}, true},
		{"a gap and a duplicate", []frame{{1, 1, 12}, {1, 1, 12}}, false},
		{"a straggler from before", []frame{{1, 1, 9}}, false},
		{"a gap and a straggler from before", []frame{{1, 1, 9}, {1, 1, 12}}, false},
		{"a higher epoch", []frame{{1, 2, 11}}, false},
		{"a session that is not expected", []frame{{2, 1, 11}}, false},
	} {
		var s sequence
		s.init(100)
		for n := uint64(1); n <= 10; n++ {
			if n != 9 {
				s.accept(1, 1, n, false)
			}
		}
		s.fallSilent()
		for _, f := range tc.frames {
			s.accept(f.session, f.epoch, f.n, true) // forgiven gaps count as well
		}
		if got := s.lostNothing(); got != tc.want {
			t.Errorf("%s: nothing lost: %t, want %t", tc.name, got, tc.want)
		}
	}
	var s sequence
	s.init(100)
	s.accept(1, 1, 10, false)
	s.fallSilent()
	s.expect(2)
	s.accept(1, 1, 11, true)
	if !s.lostNothing() {
		t.Error("a frame of the old session, before the first of the new one: it continues the numbers")
	}
	s.accept(2, 1, 1, true)
	if s.lostNothing() {
		t.Error("a new session shows nothing about the silence")
	}
}
