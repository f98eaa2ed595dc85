package express

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMasterPeriod(t *testing.T) {
	for rank, want := range map[uint32]int{0: 0, 1: 1, 7: 1, 8: 2, 63: 2, 64: 3, 511: 3, 512: 4, 4095: 4, 1 << 31: 11} {
		if got := MasterPeriod(rank); got != want {
			t.Errorf("rank %d: period %d, want %d", rank, got, want)
		}
	}
}

// TestOneMasterInEachComponent: under any cuts and losses, all connected nodes come to the same master, the one of
// the highest priority among them. Where the delay is known, no node accepts another one first.
func TestOneMasterInEachComponent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawDims(t), rapid.Uint64().Draw(t, "seed"))
		w.noPing = true
		w.cutAtRandom(rapid.Float64Range(0, 0.6).Draw(t, "dead"), 0)
		w.loss = rapid.Float64Range(0, 0.3).Draw(t, "loss")
		short := rapid.Bool().Draw(t, "delay guessed too short")
		longest := 1 // of the present map
		for i := range w.nodes {
			longest = max(longest, slices.Max(w.distances(i)))
		}
		delay := NetworkDelay(longest, HopBound(w.period, 8))
		if short {
			delay = time.Millisecond
		}
		w.begin()
		ranks := w.rnd.Perm(len(w.nodes)) // of priority
		masters := make([]*Master, len(w.nodes))
		chosen := make([][]uint32, len(w.nodes))
		var apply func(i int, out MasterOutput)
		apply = func(i int, out MasterOutput) {
			if out.Chosen {
				chosen[i] = append(chosen[i], out.Rank)
			}
			if out.Claim != nil {
				if got := w.step(w.nodes[i], Raise{Topic: TopicMaster, Priority: 5, Body: out.Claim}); got.Err != nil {
					t.Fatal(got.Err)
				}
			}
			if !out.Wake.IsZero() {
				w.after(max(0, out.Wake.Sub(w.now)), func() { apply(i, masters[i].Tick(w.now)) })
			}
		}
		for i, n := range w.nodes {
			masters[i] = newMaster(uint32(ranks[i]), delay)
			n.heard = func(msg Message) {
				if msg.Origin == w.dims.At(i) {
					return
				}
				out, err := masters[i].Heard(w.now, msg.Body)
				if err != nil {
					t.Fatal(err)
				}
				apply(i, out)
			}
		}
		for i := range w.nodes { // all see the need within one delay
			w.after(time.Duration(w.rnd.Int64N(int64(delay))), func() {
				if masters[i].round == 0 {
					out, err := masters[i].Begin(w.now, 1)
					if err != nil {
						t.Fatal(err)
					}
					apply(i, out)
				}
			})
		}
		w.run(16*Settle(delay) + 2*Life)
		for i, d := range chosen {
			want := uint32(len(w.nodes))
			for j, hops := range w.distances(i) {
				if hops >= 0 {
					want = min(want, uint32(ranks[j]))
				}
			}
			if len(d) == 0 || d[len(d)-1] != want || !short && len(d) != 1 {
				t.Fatalf("%s, rank %d: chose %v, want %d", w.dims.At(i), ranks[i], d, want)
			}
		}
	})
}

// A round whose number is forged, or comes from a wrong clock, selects a master like any other. At all nodes that
// know of it, the next round begins once its messages have ceased.
func TestMasterRoundMadeUp(t *testing.T) {
	m, other := newMaster(3, time.Second), newMaster(5, time.Second)
	word := appendMaster(1<<64-1, noRank)
	for _, k := range []*Master{m, other} {
		if _, err := k.Heard(start, word); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Begin(start.Add(roundMemory-1), 5); !errors.Is(err, ErrInvalid) {
		t.Errorf("while words of it may come: %v", err)
	}
	// It speaks, and that is a word of the round, too.
	at := start.Add(m.at())
	if out := m.Tick(at); out.Claim == nil {
		t.Error("it does not take part in it")
	} else if _, err := other.Heard(at, out.Claim); err != nil || other.best != 3 {
		t.Errorf("who hears of it: %+v, %v", other, err)
	}
	if _, err := m.Begin(at.Add(roundMemory-1), 5); !errors.Is(err, ErrInvalid) {
		t.Errorf("while its own word is under way: %v", err)
	}
	at = at.Add(roundMemory)
	if _, err := m.Begin(at, 1<<64-1); !errors.Is(err, ErrInvalid) {
		t.Errorf("the same round again: %v", err)
	}
	out, err := m.Begin(at, 5)
	if err != nil || m.round != 5 {
		t.Fatalf("the next round: %+v, %v", m, err)
	}
	if _, err := other.Heard(at.Add(time.Millisecond), out.Claim); err != nil || other.round != 5 || other.chosen {
		t.Errorf("who hears of the next round: %+v, %v", other, err)
	}
}

func TestMasterRefuses(t *testing.T) {
	m := newMaster(3, time.Second)
	if _, err := m.Begin(start, 0); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := m.Begin(start, 5); err != nil {
		t.Error(err)
	}
	if _, err := m.Begin(start, 5); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := m.Heard(start, []byte{1}); !errors.Is(err, ErrPayload) {
		t.Error(err)
	}
	old := append(make([]byte, 7), 4, 0, 0, 0, 0) // round 4, rank 0
	if out, err := m.Heard(start, old); err != nil || m.heard {
		t.Errorf("a round that is over: %+v, %v", out, err)
	}
}

func newMaster(rank uint32, delay time.Duration) *Master {
	m := &Master{}
	m.Set(rank, delay)
	return m
}
