package halfcore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func sampleRelay() Relay {
	return Relay{
		Kind: RelayUp, Made: 2, Limit: 9,
		Hops:     []RelayHop{{grid.Coord{X: 4}, fault.HalfDNP, 3 * time.Millisecond}, {grid.Coord{Y: 5}, fault.HalfHost, 0}},
		Envelope: []byte("envelope"),
	}
}

func TestRelayRoundTrip(t *testing.T) {
	up := sampleRelay()
	up.Kind, up.Dst, up.Hops = RelayUp, grid.Coord{}, nil
	back := sampleRelay()
	back.Kind, back.Dst = RelayBack, grid.Coord{X: 1, Y: 65535, Z: 3}
	down := sampleRelay()
	down.Kind, down.Hops, down.Dst = RelayDown, nil, back.Dst
	waits := func(m Relay) Relay { m.MayWait = true; return m }
	for _, m := range []Relay{sampleRelay(), up, back, down, waits(up), waits(sampleRelay()), waits(down)} {
		b, err := m.Append([]byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeRelay(b[1:])
		if err != nil {
			t.Fatal(err)
		}
		if k := RelayKindOf(b[1:]); k != m.Kind || RelayKindOf(b[1:3]) != 0 || RelayKindOf(b) != 0 {
			t.Errorf("kind %s, want %s and none of a part", k, m.Kind)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Error(d)
		}
	}
}

func TestRelayDecodeRefuses(t *testing.T) {
	good, err := sampleRelay().Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for _, tc := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrRelayShort},
		{"header only", good[:relayHeaderSize], ErrRelayShort},
		{"hops only", good[:relayHeaderSize+2*relayHopSize], ErrRelayShort},
		{"version", edit(0, 2), ErrRelayVersion},
		{"kind", edit(1, 5), ErrRelayKind}, {"no kind", edit(1, 0), ErrRelayKind},
		{"hop count", edit(10, 9), ErrRelayField},
		{"hop half", edit(relayHeaderSize+6, 3), ErrRelayField},
		{"hop time", edit(relayHeaderSize+7, 0x7f), ErrRelayField},
		{"negative hop time", edit(relayHeaderSize+7, 0xff), ErrRelayField},
		{"oversized", append(bytes.Clone(good), make([]byte, MaxRelaySize)...), ErrRelayTooLong},
		{"oversized envelope", append(bytes.Clone(good), make([]byte, MaxRelayEnvelope)...), ErrRelayTooLong},
	} {
		if _, err := DecodeRelay(tc.b); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
	}
}

func TestRelayAppendRefuses(t *testing.T) {
	for _, m := range []Relay{
		{Kind: RelayUp},
		{Kind: 0, Envelope: []byte("x")},
		{Kind: RelayUp, Envelope: make([]byte, MaxRelayEnvelope+1)},
		{Kind: RelayUp, Envelope: []byte("x"), Hops: make([]RelayHop, MaxRelayRecorded+1)},
	} {
		if _, err := m.Append(nil); err == nil {
			t.Errorf("%+v encodes", m)
		}
	}
}

func TestHopsAfterLastAddUp(t *testing.T) {
	m := Relay{Kind: RelayUp, Envelope: []byte("x")}
	var before Relay
	for i := range 12 {
		before = m
		m = m.AddHop(RelayHop{grid.Coord{X: i}, fault.HalfDNP, time.Duration(i+1) * time.Second})
	}
	if len(before.Hops) != MaxRelayRecorded || len(m.Hops) != MaxRelayRecorded {
		t.Fatalf("%d hops recorded", len(m.Hops))
	}
	sum := func(m Relay) (d time.Duration) {
		for _, h := range m.Hops {
			d += h.Held
		}
		return d
	}
	if sum(m) != 78*time.Second || sum(before) != 66*time.Second {
		t.Errorf("sums %s and %s, want 78s and 66s", sum(m), sum(before))
	}
}

// A relay of an earlier version reads a marked message like one without the mark, and forwards the mark: it copies the
// destination of an up message, and the recorded hops of a down message, and looks at neither.
func TestMarkPassesThroughEarlierVersion(t *testing.T) {
	dst := grid.Coord{X: 1, Y: 65535, Z: 3}
	for _, m := range []Relay{{Kind: RelayUp}, {Kind: RelayDown, Dst: dst}} {
		m.MayWait, m.Made, m.Limit, m.Envelope = true, 1, 9, []byte("envelope")
		b, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		n := int(b[10]) // that version's output: the same header with a hop more, and on an up message its station
		if half := fault.Half(b[relayHeaderSize+6]); n == 1 && !half.Valid() || n > MaxRelayRecorded ||
			len(b) != relayHeaderSize+n*relayHopSize+len(m.Envelope) {
			t.Errorf("%s: %x", m.Kind, b)
		}
		b[2]++
		if m.Kind == RelayUp {
			station := append(appendRelayCoord(nil, grid.Coord{Z: 1}), byte(fault.HalfDNP), 0, 0, 0, 0, 0, 0, 0, 1)
			b[10]++
			b = slices.Insert(b, relayHeaderSize, station...)
		} else if at := relayCoord(b[4:]); at != dst {
			t.Errorf("the destination is %s", at)
		}
		got, err := DecodeRelay(b)
		if err != nil || !got.MayWait || !got.Waits() || got.Kind == RelayUp && len(got.Hops) != 1 || got.Made != 2 ||
			string(got.Envelope) != "envelope" {
			t.Errorf("%s: %+v, %v", m.Kind, got, err)
		}
	}
	for m, want := range map[*Relay]bool{{Kind: RelayUp}: false, {Kind: RelayDown}: false, {Kind: RelayBack}: true, {Kind: RelayTest}: true} {
		if m.Waits() != want {
			t.Errorf("%s waits: %t", m.Kind, !want)
		}
	}
}

func TestRelayedCopyIsAcceptedOnce(t *testing.T) {
	now := time.Unix(0, 0)
	s := NewRelaysSeen(3, time.Second)
	msg := func(i int) Relay { return Relay{Kind: RelayUp, Envelope: fmt.Append(nil, i)} }
	if !s.First(now, msg(1)) || s.First(now, msg(1)) {
		t.Error("the second copy is taken for the first")
	}
	other := msg(1)
	other.Kind = RelayDown
	if !s.First(now, other) {
		t.Error("up and down are taken for the same")
	}
	later := msg(1)
	later.Made, later.Hops = 3, []RelayHop{{Half: fault.HalfDNP}}
	if s.First(now, later) {
		t.Error("a copy with other hops is taken for new")
	}
	if !s.First(now.Add(time.Second), msg(1)) {
		t.Error("never forgotten")
	}
	for _, step := range []struct {
		left uint8
		want bool
	}{{1, true}, {1, false}, {0, false}, {3, true}, {2, false}, {AllHops, true}, {AllHops, false}} {
		if got := s.Flood(now, msg(0), step.left); got != step.want {
			t.Errorf("a copy with %d hops left goes on: %t", step.left, got)
		}
	}
	for i := 2; i < 100; i++ {
		s.First(now, msg(i))
	}
	if len(s.at) > 3 || len(s.ring) > 3 {
		t.Errorf("%d and %d remembered, want at most 3", len(s.at), len(s.ring))
	}
}

// A routed message may pass again with more hops, but not with as many, not endlessly, and not after this node has sent
// it to all neighbours.
func TestRoutedMessageMayReturnWithMoreHops(t *testing.T) {
	now := time.Unix(0, 0)
	msg := func(id string, made uint8) Relay { return Relay{Kind: RelayDown, Made: made, Envelope: []byte(id)} }
	s := NewRelaysSeen(10, time.Second)
	for _, step := range []struct {
		made uint8
		want bool
	}{{3, true}, {3, false}, {2, false}, {5, true}, {4, false}, {7, true}, {8, true}, {9, true}, {10, true}, {11, true}, {12, true},
		{13, false}} {
		if got := s.Visit(now, msg("a", step.made), AllHops); got != step.want {
			t.Errorf("with %d hops: %t", step.made, got)
		}
	}
	s.Visit(now, msg("d", 1), AllHops)
	s.Leaves(msg("d", 2), 0)
	s.Visit(now, msg("d", 4), AllHops)
	s.Leaves(msg("d", 5), 4)
	if d := s.Left(msg("d", 5)); d != 1 {
		t.Errorf("left by %06b before this visit", d)
	}
	s.Visit(now, msg("d", 6), AllHops)
	s.Leaves(msg("e", 1), 1) // unknown: it was not forwarded
	if d, e := s.Left(msg("d", 7)), s.Left(msg("e", 2)); d != 0b10001 || e != 0 {
		t.Errorf("left by %06b and %06b", d, e)
	}
	if !s.Visit(now.Add(time.Second), msg("a", 1), AllHops) {
		t.Error("never forgotten")
	}
	if s.First(now.Add(time.Second), msg("a", 20)) {
		t.Error("a visit is not remembered")
	}
	s.Visit(now, msg("b", 1), AllHops)
	s.Spread(now, msg("b", 1), AllHops)
	s.Spread(now, msg("c", 1), AllHops)
	if s.Visit(now, msg("b", 2), AllHops) || s.Visit(now, msg("c", 2), AllHops) {
		t.Error("what went to all neighbours comes again")
	}
	if !s.Visit(now.Add(time.Second), msg("b", 2), AllHops) {
		t.Error("and for ever")
	}
	for _, step := range []struct {
		made, left uint8
		want       bool
	}{{19, 1, true}, {19, 1, false}, {12, 8, true}, {2, 1, false}, {2, AllHops, true}, {2, AllHops, false}, {3, 1, true}} {
		if got := s.Visit(now, msg("f", step.made), step.left); got != step.want {
			t.Errorf("with %d hops, and %d left: %t", step.made, step.left, got)
		}
	}
	s.Spread(now, msg("g", 19), 1)
	if !s.Visit(now, msg("g", 2), AllHops) {
		t.Error("what went to all neighbours with one hop left ends a better copy")
	}
	late := now.Add(3 * time.Second) // a message that waited here for a route, and then goes to all neighbours
	s.Spread(late, msg("c", 1), AllHops)
	if s.Visit(late, msg("c", 2), AllHops) {
		t.Error("what has waited, and then went to all neighbours, comes again")
	}
}

func FuzzDecodeRelay(f *testing.F) {
	good, err := sampleRelay().Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, kind := range []RelayKind{RelayUp, RelayDown} {
		m := Relay{Kind: kind, MayWait: true, Made: 1, Limit: 8, Envelope: []byte("e")}
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{1, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 'e'})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeRelay(b)
		if err != nil {
			return
		}
		again, err := m.Append(nil) // not always the same bytes: the message leaves out unused fields
		if err != nil {
			t.Fatalf("%x decodes to %+v, which does not encode: %v", b, m, err)
		}
		if got, err := DecodeRelay(again); err != nil || !cmp.Equal(got, m) {
			t.Fatalf("%x decodes to %+v, and then to %+v, %v", b, m, got, err)
		}
	})
}
