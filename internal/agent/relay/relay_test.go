package relay

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

func sample() Message {
	return Message{
		Kind: Up, Made: 2, Limit: 9,
		Hops:     []Hop{{grid.Coord{X: 4}, fault.HalfDNP, 3 * time.Millisecond}, {grid.Coord{Y: 5}, fault.HalfHost, 0}},
		Envelope: []byte("envelope"),
	}
}

func TestRoundTrip(t *testing.T) {
	up := sample()
	up.Kind, up.Dst, up.Hops = Up, grid.Coord{}, nil
	back := sample()
	back.Kind, back.Dst = Back, grid.Coord{X: 1, Y: 65535, Z: 3}
	down := sample()
	down.Kind, down.Hops, down.Dst = Down, nil, back.Dst
	waits := func(m Message) Message { m.MayWait = true; return m }
	for _, m := range []Message{sample(), up, back, down, waits(up), waits(sample()), waits(down)} {
		b, err := m.Append([]byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b[1:])
		if err != nil {
			t.Fatal(err)
		}
		if k := KindOf(b[1:]); k != m.Kind || KindOf(b[1:3]) != 0 || KindOf(b) != 0 {
			t.Errorf("kind %s, want %s and none of a part", k, m.Kind)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Error(d)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	good, err := sample().Append(nil)
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
		{"empty", nil, ErrShort},
		{"header only", good[:headerSize], ErrShort},
		{"hops only", good[:headerSize+2*hopSize], ErrShort},
		{"version", edit(0, 2), ErrVersion},
		{"kind", edit(1, 5), ErrField}, {"no kind", edit(1, 0), ErrField},
		{"hop count", edit(10, 9), ErrField},
		{"hop half", edit(headerSize+6, 3), ErrField},
		{"hop time", edit(headerSize+7, 0x7f), ErrField},
		{"negative hop time", edit(headerSize+7, 0xff), ErrField},
		{"oversized", append(bytes.Clone(good), make([]byte, MaxSize)...), ErrTooLong},
		{"oversized envelope", append(bytes.Clone(good), make([]byte, MaxEnvelope)...), ErrTooLong},
	} {
		if _, err := Decode(tc.b); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, m := range []Message{
		{Kind: Up},
		{Kind: 0, Envelope: []byte("x")},
		{Kind: Up, Envelope: make([]byte, MaxEnvelope+1)},
		{Kind: Up, Envelope: []byte("x"), Hops: make([]Hop, MaxRecorded+1)},
	} {
		if _, err := m.Append(nil); err == nil {
			t.Errorf("%+v encodes", m)
		}
	}
}

func TestHopsAfterTheLastAddUp(t *testing.T) {
	m := Message{Kind: Up, Envelope: []byte("x")}
	var before Message
	for i := range 12 {
		before = m
		m = m.AddHop(Hop{grid.Coord{X: i}, fault.HalfDNP, time.Duration(i+1) * time.Second})
	}
	if len(before.Hops) != MaxRecorded || len(m.Hops) != MaxRecorded {
		t.Fatalf("%d hops recorded", len(m.Hops))
	}
	sum := func(m Message) (d time.Duration) {
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
	for _, m := range []Message{{Kind: Up}, {Kind: Down, Dst: dst}} {
		m.MayWait, m.Made, m.Limit, m.Envelope = true, 1, 9, []byte("envelope")
		b, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		n := int(b[10]) // that version's output: the same header with a hop more, and on an up message its station
		if half := fault.Half(b[headerSize+6]); n == 1 && !half.Valid() || n > MaxRecorded || len(b) != headerSize+n*hopSize+len(m.Envelope) {
			t.Errorf("%s: %x", m.Kind, b)
		}
		b[2]++
		if m.Kind == Up {
			station := append(appendCoord(nil, grid.Coord{Z: 1}), byte(fault.HalfDNP), 0, 0, 0, 0, 0, 0, 0, 1)
			b[10]++
			b = slices.Insert(b, headerSize, station...)
		} else if at := coord(b[4:]); at != dst {
			t.Errorf("the destination is %s", at)
		}
		got, err := Decode(b)
		if err != nil || !got.MayWait || !got.Waits() || got.Kind == Up && len(got.Hops) != 1 || got.Made != 2 ||
			string(got.Envelope) != "envelope" {
			t.Errorf("%s: %+v, %v", m.Kind, got, err)
		}
	}
	for m, want := range map[*Message]bool{{Kind: Up}: false, {Kind: Down}: false, {Kind: Back}: true, {Kind: Test}: true} {
		if m.Waits() != want {
			t.Errorf("%s waits: %t", m.Kind, !want)
		}
	}
}

func TestSeen(t *testing.T) {
	now := time.Unix(0, 0)
	s := NewSeen(3, time.Second)
	msg := func(i int) Message { return Message{Kind: Up, Envelope: fmt.Append(nil, i)} }
	if !s.First(now, msg(1)) || s.First(now, msg(1)) {
		t.Error("the second copy is taken for the first")
	}
	other := msg(1)
	other.Kind = Down
	if !s.First(now, other) {
		t.Error("up and down are taken for the same")
	}
	later := msg(1)
	later.Made, later.Hops = 3, []Hop{{Half: fault.HalfDNP}}
	if s.First(now, later) {
		t.Error("a copy with other hops is taken for new")
	}
	if !s.First(now.Add(time.Second), msg(1)) {
		t.Error("never forgotten")
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
func TestSeenVisits(t *testing.T) {
	now := time.Unix(0, 0)
	msg := func(id string, made uint8) Message { return Message{Kind: Down, Made: made, Envelope: []byte(id)} }
	s := NewSeen(10, time.Second)
	for _, step := range []struct {
		made uint8
		want bool
	}{{3, true}, {3, false}, {2, false}, {5, true}, {4, false}, {7, true}, {8, true}, {9, true}, {10, true}, {11, true}, {12, true},
		{13, false}} {
		if got := s.Visit(now, msg("a", step.made)); got != step.want {
			t.Errorf("with %d hops: %t", step.made, got)
		}
	}
	s.Visit(now, msg("d", 1))
	s.Leaves(msg("d", 2), 0)
	s.Visit(now, msg("d", 4))
	s.Leaves(msg("d", 5), 4)
	if d := s.Left(msg("d", 5)); d != 1 {
		t.Errorf("left by %06b before this visit", d)
	}
	s.Visit(now, msg("d", 6))
	s.Leaves(msg("e", 1), 1) // unknown: it was not forwarded
	if d, e := s.Left(msg("d", 7)), s.Left(msg("e", 2)); d != 0b10001 || e != 0 {
		t.Errorf("left by %06b and %06b", d, e)
	}
	if !s.Visit(now.Add(time.Second), msg("a", 1)) {
		t.Error("never forgotten")
	}
	if s.First(now.Add(time.Second), msg("a", 20)) {
		t.Error("a visit is not remembered")
	}
	s.Visit(now, msg("b", 1))
	s.Spread(now, msg("b", 1))
	s.Spread(now, msg("c", 1))
	if s.Visit(now, msg("b", 2)) || s.Visit(now, msg("c", 2)) {
		t.Error("what went to all neighbours comes again")
	}
	if !s.Visit(now.Add(time.Second), msg("b", 2)) {
		t.Error("and for ever")
	}
	late := now.Add(3 * time.Second) // a message that waited here for a route, and then goes to all neighbours
	s.Spread(late, msg("c", 1))
	if s.Visit(late, msg("c", 2)) {
		t.Error("what has waited, and then went to all neighbours, comes again")
	}
}

func FuzzDecode(f *testing.F) {
	good, err := sample().Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, kind := range []Kind{Up, Down} {
		m := Message{Kind: kind, MayWait: true, Made: 1, Limit: 8, Envelope: []byte("e")}
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{1, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 'e'})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		again, err := m.Append(nil) // not always the same bytes: the message leaves out unused fields
		if err != nil {
			t.Fatalf("%x decodes to %+v, which does not encode: %v", b, m, err)
		}
		if got, err := Decode(again); err != nil || !cmp.Equal(got, m) {
			t.Fatalf("%x decodes to %+v, and then to %+v, %v", b, m, got, err)
		}
	})
}
