package awareness

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

// spoken is the newest digest of a half, as first sent.
type spoken struct {
	fault.Delivery
	at     time.Time
	newest fault.Seq // of the digests with that content
}

// again returns the same digest sent at now, after a delay on its way: all ages have grown.
func (s spoken) again(seq fault.Seq, p fault.Path, held time.Duration, now time.Time) fault.Delivery {
	d := s.Delivery
	d.Path, d.Report.ID.Seq = p, seq
	d.Hops = []fault.Hop{{Node: "relay", Half: fault.HalfDNP, Held: held}}
	d.Report.Observations = nil
	for _, o := range s.Report.Observations {
		o.Age += now.Sub(s.at) - held
		d.Report.Observations = append(d.Report.Observations, o)
	}
	return d
}

// TestRestatedIsTheDigestAgain: of two machines, one receives every digest. The other receives Restated for every
// digest with unchanged content, and the digest only on Unknown. Both must produce the same output.
func TestRestatedIsTheDigestAgain(t *testing.T) {
	var applied, refused int
	rapid.Check(t, func(t *rapid.T) {
		cfg := testConfig(rapid.SampledFrom([]grid.Dims{{X: 2, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 1}, {X: 3, Y: 2, Z: 1}}).Draw(t, "dims"))
		cfg.HoldOff = time.Duration(rapid.SampledFrom([]int{0, 2}).Draw(t, "holdoff")) * time.Second
		cfg.Nonce = serialNonces()
		whole, _ := New(cfg, epoch0, nil)
		cfg.Nonce = serialNonces()
		brief, _ := New(cfg, epoch0, nil)
		now, wake := epoch0, time.Time{}
		seqs, said := map[fault.Origin]*fault.ReportID{}, map[fault.Origin]spoken{}
		var open []Challenge
		for i := range 60 {
			name := fmt.Sprint(i)
			at := now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, name+"wait")) * time.Millisecond)
			var ev, short Event = Tick{}, Tick{}
			if !wake.IsZero() && at.After(wake) && rapid.IntRange(0, 9).Draw(t, name+"late") > 0 {
				now = wake
			} else {
				now = at
				ev, short = drawSpeech(t, whole, seqs, said, open, now, name)
			}
			got := brief.Step(now, short)
			if got.Unknown {
				refused++
				if len(got.Changes)+len(got.Challenges) > 0 {
					t.Fatalf("step %d: %+v is unknown, and changes something: %+v", i, short, got)
				}
				got = brief.Step(now, ev)
			} else if _, ok := short.(Restated); ok {
				applied++
			}
			want := whole.Step(now, ev)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("step %d, %T: restated gives %+v\nthe digest %+v", i, ev, got, want)
			}
			open, wake = append(open, want.Challenges...), want.Wake
			for j := range whole.Len() {
				if g, w := brief.NodeAt(j), whole.NodeAt(j); !reflect.DeepEqual(g, w) {
					t.Fatalf("step %d, %T: restated gives %+v\nthe digest %+v", i, ev, g, w)
				}
			}
		}
	})
	if applied == 0 || refused == 0 {
		t.Errorf("%d applied and %d refused: want some of both", applied, refused)
	}
}

func serialNonces() func() [16]byte { return testConfig(grid.Dims{X: 1, Y: 1, Z: 1}).Nonce }

// drawSpeech draws an event, and its replacement if the event is a repeated digest.
func drawSpeech(t *rapid.T, m *Machine, seqs map[fault.Origin]*fault.ReportID, said map[fault.Origin]spoken, open []Challenge,
	now time.Time, name string) (ev, short Event) {
	o := m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(t, name+"who")].origin(rapid.SampledFrom(halves[:]).Draw(t, name+"whose"))
	s, ok := said[o]
	if !ok || rapid.IntRange(0, 2).Draw(t, name+"again") == 0 {
		ev := drawEvent(t, m, seqs, open, name)
		if e, ok := ev.(Evidence); ok && e.Report.Digest {
			if e.Report.Partial = rapid.IntRange(0, 5).Draw(t, name+"partial") == 0; !e.Report.Partial {
				said[e.Report.ID.Origin] = spoken{e.Delivery, now, e.Report.ID.Seq}
			}
			return e, e
		}
		return ev, ev
	}
	id := seqs[o]
	if id.Epoch != s.Report.ID.Epoch {
		delete(said, o)
		return Tick{}, Tick{}
	}
	if id.Seq != s.newest || rapid.IntRange(0, 5).Draw(t, name+"copy") > 0 {
		id.Seq++ // else it is a copy by another path
	}
	s.newest = id.Seq
	said[o] = s
	path := rapid.SampledFrom([]fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}).Draw(t, name+"path")
	held := min(time.Duration(rapid.IntRange(0, 20).Draw(t, name+"held"))*time.Millisecond, now.Sub(s.at))
	return Evidence{s.again(id.Seq, path, held, now)}, Restated{Origin: o, Epoch: id.Epoch, Seq: id.Seq, Path: path, Held: held}
}

// TestInapplicableRestatedChangesNothing checks that a Restated that cannot be applied sets Unknown and changes nothing, and that a known
// or unattributable one is ignored.
func TestInapplicableRestatedChangesNothing(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 1, Z: 1})
	host := w.actor("n0-0-0", fault.HalfHost)
	again := Restated{Origin: host.origin, Epoch: host.epoch, Seq: host.seq + 1, Path: fault.PathDirect}
	for name, tc := range map[string]struct {
		change  func(*Restated)
		unknown bool
	}{
		"of a later epoch":      {func(r *Restated) { r.Epoch++ }, true},
		"of one that never was": {func(r *Restated) { r.Origin.Half = fault.HalfDNP }, true},
		"of nobody":             {func(r *Restated) { r.Origin.Node = "x" }, false},
		"of no half":            {func(r *Restated) { r.Origin.Half = 0 }, false},
		"without a path":        {func(r *Restated) { r.Path = 0 }, false},
		"without a number":      {func(r *Restated) { r.Seq = 0 }, false},
		"of long ago":           {func(r *Restated) { r.Seq = 1 }, false},
	} {
		r := again
		tc.change(&r)
		before, _ := w.m.Node("n0-0-0")
		out := w.m.Step(w.now.Add(time.Millisecond), r)
		after, _ := w.m.Node("n0-0-0")
		if out.Unknown != tc.unknown || !reflect.DeepEqual(before, after) {
			t.Errorf("%s: unknown %t, want %t; %+v becomes %+v", name, out.Unknown, tc.unknown, before, after)
		}
	}
	w.now = w.now.Add(2 * time.Millisecond)
	if out := w.m.Step(w.now, again); out.Unknown {
		t.Error("the newest digest come again is unknown")
	}
	if n, _ := w.m.Node("n0-0-0"); !n.Life.Equal(w.now) || !n.RegistersAt.Equal(w.now) {
		t.Errorf("no sign of life: %+v", n)
	}
	host.seq = again.Seq
	w.say(host, subject{"n0-0-0", fault.ComponentMemory}, fault.Sick, fault.KindSelf, 0)
	w.step(w.queue[len(w.queue)-1].ev)
	again.Seq = host.seq + 1
	if out := w.m.Step(w.now, again); !out.Unknown || w.state("n0-0-0", fault.ComponentMemory) != fault.Sick {
		t.Errorf("a digest from before what the half said last is restated: %+v", out)
	}
}

// TestRestatedAllocatesNothing: a hundred thousand nodes report no news twice a second.
func TestRestatedAllocatesNothing(t *testing.T) {
	w := newBench(grid.Dims{X: 3, Y: 3, Z: 3})
	seq := fault.Seq(1)
	o := fault.Origin{Node: w.m.nodes[5].id, Half: fault.HalfHost}
	if n := testing.AllocsPerRun(100, func() {
		seq++
		w.m.Step(w.now, Restated{Origin: o, Epoch: 1, Seq: seq, Path: fault.PathDirect})
	}); n != 0 {
		t.Errorf("%v allocations a step, want none", n)
	}
}
