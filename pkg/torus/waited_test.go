package torus

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func heartbeat(seq uint64) Frame {
	return Frame{Type: TypeHeartbeat, Direction: grid.XMinus, Src: grid.Coord{X: 1}, Seq: seq, Epoch: 1}
}

// TestSilenceCountsFromArrival: a frame that was read late delays the verdict of silence by nothing, at any phase of arrival and reading.
func TestSilenceCountsFromArrival(t *testing.T) {
	period := testConfig().Period
	for arrival := time.Duration(0); arrival < period; arrival += time.Millisecond {
		now := time.Unix(1000, 0)
		l := NewLink(testConfig(), now)
		out := l.Step(now, Tick{})
		last, seq := now.Add(4*period+arrival), uint64(0)
		for out.State != LinkBroken {
			now = out.Wake
			for at := now.Add(-period); at.Before(now); at = at.Add(time.Millisecond) { // the frames since the tick before
				if at.Sub(time.Unix(1000, 0))%period == arrival && !at.After(last) {
					seq++
					l.Step(now, FrameReceived{Frame: heartbeat(seq), Waited: now.Sub(at), More: true})
				}
			}
			out = l.Step(now, Tick{})
			if now.Sub(last) > testConfig().SilentAfter() {
				t.Fatalf("arrival %s into a period: %s after the last frame the link is %s", arrival, now.Sub(last), out.State)
			}
		}
		if silent := now.Sub(last); silent != testConfig().SilentAfter() {
			t.Errorf("arrival %s into a period: silent after %s, want %s", arrival, silent, testConfig().SilentAfter())
		}
	}
}

// TestWaitingFramesAreJudgedTogether: the oldest of several frames that waited is older than the silence allowed, and the
// newest one is not.
func TestWaitingFramesAreJudgedTogether(t *testing.T) {
	cfg := testConfig()
	now := time.Unix(1000, 0)
	l := NewLink(cfg, now)
	l.Step(now, Tick{})
	l.Step(now, FrameReceived{Frame: heartbeat(1)})
	now = now.Add(cfg.SilentAfter() + 5*time.Millisecond)
	l.Step(now, FrameReceived{Frame: heartbeat(2), Waited: cfg.SilentAfter(), More: true})
	l.Step(now, FrameBad{Kind: BadMAC, More: true})
	l.Step(now, FrameReceived{Frame: heartbeat(3), Waited: 2 * time.Millisecond, More: true})
	if out := l.Step(now, Tick{}); out.State != LinkNormal || out.Detail.Silent {
		t.Errorf("%+v, want NORMAL", out)
	}
	if got := l.Stats().LastHeard; !got.Equal(now.Add(-2 * time.Millisecond)) {
		t.Errorf("last heard %s ago, want 2ms", now.Sub(got))
	}
}

// TestEndThatReadsAtTicksBesideOldOneStaysQuiet: an end that reads heartbeats at its ticks and one of an earlier version, which reads
// them at their arrival, call each other normal at any phase, with delay up to half a period and Misses-1 lost in a row.
func TestEndThatReadsAtTicksBesideOldOneStaysQuiet(t *testing.T) {
	cfg := testConfig()
	cfg.Misses, cfg.SickRatio, cfg.ClearRatio = 2, 0.6, 0.5
	random := rand.New(rand.NewPCG(1, 2))
	for phase := time.Duration(0); phase < cfg.Period; phase += cfg.Period / 10 {
		w := newPairWorld(cfg, phase)
		for range 2000 {
			delay, lose := time.Duration(random.Int64N(int64(cfg.Period/2))), random.IntN(20) == 0
			if out := w.next(delay, lose); out.State == LinkBroken || out.State == LinkSick {
				t.Fatalf("phase %s, %s after the start: %s %+v", phase, w.now.Sub(w.begun), out.State, out.Detail)
			}
		}
		for i, end := range w.ends {
			if s := end.link.State(); s != LinkNormal {
				t.Errorf("phase %s: end %d is %s", phase, i, s)
			}
		}
	}
}

// pairWorld is two ends of a link. The first reads frames at its ticks, the second at their arrival.
type pairWorld struct {
	begun, now time.Time
	ends       [2]*pairEnd
	lost       [2]int // in a row
}

type pairEnd struct {
	link *Link
	wake time.Time
	air  []arriving // frames to it, the oldest first
}

type arriving struct {
	at    time.Time
	frame Frame
}

func newPairWorld(cfg LinkConfig, phase time.Duration) *pairWorld {
	w := &pairWorld{begun: time.Unix(1000, 0)}
	w.now = w.begun
	other := cfg
	other.Dir, other.Src, other.Dst = cfg.Dir.Opposite(), cfg.Dst, cfg.Src
	w.ends[0] = &pairEnd{link: NewLink(cfg, w.begun), wake: w.begun}
	w.ends[1] = &pairEnd{link: NewLink(other, w.begun.Add(phase)), wake: w.begun.Add(phase)}
	return w
}

// next does the next tick or arrival that wakes an end. A frame that it sends is delayed or lost.
func (w *pairWorld) next(delay time.Duration, lose bool) LinkOutput {
	i := 0
	if w.ends[1].next(true).Before(w.ends[0].next(false)) {
		i = 1
	}
	end, other := w.ends[i], w.ends[1-i]
	w.now = end.next(i == 1)
	for len(end.air) > 0 && !end.air[0].at.After(w.now) {
		a := end.air[0]
		end.air = end.air[1:]
		end.wake = end.link.Step(w.now, FrameReceived{Frame: a.frame, Waited: w.now.Sub(a.at), More: i == 0}).Wake
	}
	out := end.link.Step(w.now, Tick{})
	end.wake = out.Wake
	if out.SendHeartbeat {
		f := end.link.NextFrame(Status{Epoch: 1})
		if w.lost[i]++; !lose || w.lost[i] >= end.link.cfg.Misses {
			w.lost[i] = 0
			at := w.now.Add(delay)
			if n := len(other.air); n > 0 && other.air[n-1].at.After(at) {
				at = other.air[n-1].at // in order
			}
			other.air = append(other.air, arriving{at, f})
		}
	}
	return out
}

func (e *pairEnd) next(arrivals bool) time.Time {
	if arrivals && len(e.air) > 0 && e.air[0].at.Before(e.wake) {
		return e.air[0].at
	}
	return e.wake
}

// TestStatusWordsAreShared: heartbeats with the same status differ in sequence number and acknowledgement only.
func TestStatusWordsAreShared(t *testing.T) {
	a, b := heartbeat(1), heartbeat(2)
	b.Ack = 1 << 40
	words := a.StatusWords()
	if other := b.StatusWords(); len(words) != len(other) || len(words)*4 != headerSize-16 {
		t.Fatalf("%d and %d words", len(words), len(other))
	}
	for i, w := range b.StatusWords() {
		if w != words[i] {
			t.Errorf("word at %d: %x and %x", w.At, w.Value, words[i].Value)
		}
	}
	for _, change := range []func(*Frame){
		func(f *Frame) { f.Host++ }, func(f *Frame) { f.DNP++ }, func(f *Frame) { f.Epoch++ }, func(f *Frame) { f.Session++ },
		func(f *Frame) { f.Flags ^= FlagHostDead }, func(f *Frame) { f.Direction = grid.XPlus }, func(f *Frame) { f.Src.X++ },
		func(f *Frame) { f.Dst.Z++ },
	} {
		f := heartbeat(1)
		change(&f)
		same := true
		for i, w := range f.StatusWords() {
			same = same && w == words[i]
		}
		if same {
			t.Errorf("%+v has the same words as %+v", f, a)
		}
	}
}
