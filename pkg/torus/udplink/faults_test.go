package udplink

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func TestValidate(t *testing.T) {
	if err := (Faults{Block: true, Drop: 1, Corrupt: 0.5, Duplicate: 1, Reorder: 1, Delay: MaxDelay,
		Jitter: MaxDelay}).Validate(); err != nil {
		t.Error(err)
	}
	err := Faults{Drop: -0.1, Corrupt: math.NaN(), Duplicate: 2, Reorder: 1.5, Delay: -1, Jitter: MaxDelay + 1}.Validate()
	for _, want := range []string{"Drop -0.1: want 0 to 1", "Corrupt NaN", "Duplicate 2", "Reorder 1.5", "Delay -1ns: want 0 to 10s",
		"Jitter 10.000000001s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// TestNoFaultsNoHarm: a packet passes unchanged, with any random numbers.
func TestNoFaultsNoHarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 9000).Draw(t, "size")
		if got := (Faults{}).Fate(seeded(rapid.Uint64().Draw(t, "seed")), size); got != (Fate{Copies: 1}) {
			t.Errorf("%+v", got)
		}
	})
}

// TestOneBitInside: exactly one bit of the packet is flipped, and flipping it again restores the packet.
func TestOneBitInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packet := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "packet")
		f := Faults{Corrupt: 1}.Fate(seeded(rapid.Uint64().Draw(t, "seed")), len(packet))
		b := slices.Clone(packet)
		f.Flip(b)
		if same := slices.Equal(b, packet); same != (len(packet) == 0) {
			t.Errorf("%x is %x", packet, b)
		}
		f.Flip(b)
		if !slices.Equal(b, packet) {
			t.Errorf("%x twice flipped is %x", packet, b)
		}
	})
}

// TestFateDoesNotDependOnWhatCameBefore: the decision on the n-th packet does not depend on faults of the others.
func TestFateDoesNotDependOnWhatCameBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		bad := Faults{Drop: 0.3, Corrupt: 0.3, Duplicate: 0.3, Reorder: 0.3, Delay: time.Second, Jitter: time.Second}
		a, b := seeded(seed), seeded(seed)
		for range rapid.IntRange(0, 20).Draw(t, "before") {
			(Faults{}).Fate(a, 100)
			bad.Fate(b, 9)
		}
		if x, y := bad.Fate(a, 50), bad.Fate(b, 50); x != y {
			t.Errorf("%+v and %+v", x, y)
		}
	})
}

func TestShares(t *testing.T) {
	const n = 10000
	f := Faults{Drop: 0.5, Corrupt: 0.1, Duplicate: 0.2, Reorder: 0.3, Delay: time.Second, Jitter: time.Second}
	s := seeded(1)
	var lost, corrupted, doubled, overtaken int
	for range n {
		fate := f.Fate(s, 100)
		switch {
		case fate.Lost:
			lost++
			continue
		case fate.Delay < time.Second || fate.Delay >= 2*time.Second:
			t.Fatalf("delay %v", fate.Delay)
		}
		if fate.Corrupted {
			corrupted++
		}
		if fate.Copies == 2 {
			doubled++
		}
		if fate.Overtaken {
			overtaken++
		}
	}
	for _, tc := range []struct {
		what      string
		got, want int
	}{{"lost", lost, n / 2}, {"corrupted", corrupted, n / 20}, {"doubled", doubled, n / 10}, {"overtaken", overtaken, n * 3 / 20}} {
		if tc.got < tc.want*9/10 || tc.got > tc.want*11/10 {
			t.Errorf("%s: %d of %d, want some %d", tc.what, tc.got, n, tc.want)
		}
	}
	if !(Faults{Block: true}).Fate(s, 1).Lost {
		t.Error("a blocked direction lets pass")
	}
}
