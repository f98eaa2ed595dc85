package chanmask

import (
	"bytes"
	"errors"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMask(t *testing.T) {
	m := All.Without(grid.XMinus, grid.ZPlus)
	if m.Usable(grid.XMinus) || m.Usable(grid.ZPlus) || !m.Usable(grid.XPlus) {
		t.Errorf("mask %06b", m)
	}
	if got, want := m.String(), "masked X- Z+"; got != want {
		t.Errorf("%q: want %q", got, want)
	}
	if got := m.With(grid.XMinus, true).With(grid.ZPlus, true); got != All || got.String() != "all usable" {
		t.Errorf("restored: %v", got)
	}
	if _, err := Parse(0x40); err == nil {
		t.Error("a seventh channel was taken")
	}
}

// A link is used only while neither end masks it, and restored by both.
func TestLinkIsUsedOnlyWhileNeitherEndMasksIt(t *testing.T) {
	for _, c := range []struct{ mine, peer, used bool }{
		{false, false, true}, {true, false, false}, {false, true, false}, {true, true, false},
	} {
		if got := Used(All.With(grid.YPlus, !c.mine), grid.YPlus, c.peer); got != c.used {
			t.Errorf("masked here %t, there %t: used %t", c.mine, c.peer, got)
		}
	}
}

// The supervisors' orders apply in the order of their numbers, not of their arrival. In force are the channels that
// both masks leave usable.
func TestMaskOrdersApplyByNumber(t *testing.T) {
	s := Fresh()
	for _, c := range []struct {
		number  uint64
		mask    Mask
		verdict Verdict
		ordered Mask
	}{
		{0, 0, Stale, All},
		{7, 0x3e, Taken, 0x3e},
		{7, 0x3e, Known, 0x3e},
		{7, 0x3f, Stale, 0x3e},
		{6, 0x3f, Stale, 0x3e},
		{9, 0x3e, Taken, 0x3e},
		{8, 0x3f, Stale, 0x3e},
		{10, 0x3f, Taken, 0x3f},
	} {
		var v Verdict
		if s, v = s.Order(c.number, c.mask); v != c.verdict || s.Ordered != c.ordered {
			t.Errorf("order %d %v: %v, then %v: want %v, %v", c.number, c.mask, v, s.Ordered, c.verdict, c.ordered)
		}
	}
	s.Own = All.Without(grid.XPlus)
	s, _ = s.Order(11, All.Without(grid.XMinus))
	if got, want := s.InForce(), All.Without(grid.XPlus, grid.XMinus); got != want {
		t.Errorf("in force %v: want %v", got, want)
	}
}

func TestState(t *testing.T) {
	s := State{Own: 0x2f, Held: 0x08, Ordered: 0x3e, Number: 1<<40 + 3}
	if got, want := s.InForce(), Mask(0x26); got != want {
		t.Errorf("in force %v: want %v", got, want)
	}
	b := s.Append([]byte("x"))[1:]
	if got, err := Decode(b); got != s || err != nil {
		t.Errorf("%+v, %v: want %+v", got, err, s)
	}
	for i := range len(b) * 8 {
		bad := bytes.Clone(b)
		bad[i/8] ^= 1 << (i % 8)
		if got, err := Decode(bad); !errors.Is(err, ErrState) || got != Fresh() {
			t.Errorf("bit %d turned: %+v, %v", i, got, err)
		}
	}
	for n := range len(b) {
		if _, err := Decode(b[:n]); !errors.Is(err, ErrState) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	wide := State{Own: 0x7f, Ordered: All}.Append(nil)
	if _, err := Decode(wide); !errors.Is(err, ErrState) {
		t.Errorf("a seventh channel: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Fresh().Append(nil))
	f.Add(State{Own: 1, Ordered: 0x20, Number: 9}.Append(nil))
	f.Add([]byte("LFCM"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			if s != Fresh() {
				t.Errorf("%+v beside %v", s, err)
			}
			return
		}
		if !bytes.Equal(s.Append(nil), b) {
			t.Errorf("% x reads as %+v, which is % x", b, s, s.Append(nil))
		}
	})
}
