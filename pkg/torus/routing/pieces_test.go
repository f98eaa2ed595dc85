package routing

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var start = time.Unix(1000, 0)

func message(n int, fill byte) []byte { return bytes.Repeat([]byte{fill, 1, 2}, (n+2)/3)[:n] }

func split(t testing.TB, origin grid.Coord, m []byte) [][]byte {
	t.Helper()
	out, err := Split(origin, m, MaxPiece)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Pieces in any order, each as often as it likes, make the message once.
func TestPiecesInAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 23))
		m := message(MaxPiece+1+rnd.IntN(MaxMessage-MaxPiece), byte(seed))
		pieces := split(t, grid.Coord{X: 1, Y: 2, Z: 3}, m)
		all := slices.Concat(pieces, pieces[:rnd.IntN(len(pieces))])
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var r Reorder
		whole := 0
		for _, p := range all {
			got, missing, err := r.Take(start, 0, p)
			if err != nil || missing != nil {
				t.Fatalf("seed %d: %v, %v", seed, missing, err)
			}
			if got != nil {
				whole++
				if !bytes.Equal(got, m) {
					t.Fatalf("seed %d: another message", seed)
				}
			}
		}
		if s := r.Stats(); whole != 1 || s.Whole != 1 || int(s.Duplicates) != len(all)-len(pieces) || r.Incomplete(start) != nil {
			t.Fatalf("seed %d: %d times whole, %+v", seed, whole, s)
		}
	}
}

// Short frames give short pieces.
func TestPiecesOfShortFrames(t *testing.T) {
	const longest = 900
	m := message(5000, 3)
	pieces, err := Split(grid.Coord{}, m, longest)
	if err != nil || len(pieces) != 6 {
		t.Fatalf("%d pieces, %v", len(pieces), err)
	}
	var r Reorder
	for i, p := range pieces {
		got, _, err := r.Take(start, 0, p)
		if len(p) > longest || err != nil || (got != nil) != (i == len(pieces)-1) || got != nil && !bytes.Equal(got, m) {
			t.Errorf("piece %d of %d bytes: %v", i, len(p), err)
		}
	}
	for _, n := range []int{MinPiece - 1, MaxPiece + 1} {
		if _, err := Split(grid.Coord{}, m, n); err == nil {
			t.Errorf("pieces of %d bytes", n)
		}
	}
}

// A piece that does not come is reported missing after a while, and once. A later piece of the message starts an
// incomplete message of its own, which is reported missing too.
func TestMissingPieceIsNoticed(t *testing.T) {
	var r Reorder
	at := grid.Coord{X: 4}
	pieces := split(t, at, message(3*PieceSize, 7))
	for _, p := range pieces[1:] {
		if whole, _, err := r.Take(start, 0, p); whole != nil || err != nil {
			t.Fatal(whole, err)
		}
	}
	if m := r.Incomplete(start.Add(time.Second)); len(m) != 1 || m[0].Have != 2 || m[0].After != time.Second {
		t.Errorf("%v", m)
	}
	if m := r.Tick(start.Add(MissingAfter - 1)); m != nil {
		t.Errorf("too early: %v", m)
	}
	m := r.Tick(start.Add(MissingAfter))
	if len(m) != 1 || m[0].Origin != at || m[0].Have != 2 || m[0].Want != 3 || m[0].Altered ||
		!strings.Contains(m[0].String(), "1 of 3 pieces") {
		t.Fatalf("%v", m)
	}
	if m := r.Tick(start.Add(time.Hour)); m != nil {
		t.Errorf("said again: %v", m)
	}
	if whole, _, _ := r.Take(start.Add(time.Hour), 0, pieces[0]); whole != nil {
		t.Error("what was given up was kept")
	}
	if s := r.Stats(); s.Missing != 1 || s.Whole != 0 {
		t.Errorf("%+v", s)
	}
}

// A message may be repeated in the same bytes when it is forgotten, and not before.
func TestMessageMayRepeatOnlyWhenForgotten(t *testing.T) {
	var r Reorder
	pieces := split(t, grid.Coord{}, message(2*PieceSize, 9))
	take := func(at time.Time) (whole int) {
		for _, p := range pieces {
			if got, _, _ := r.Take(at, 0, p); got != nil {
				whole++
			}
		}
		return whole
	}
	if a, b, c := take(start), take(start.Add(remembered-1)), take(start.Add(remembered)); a != 1 || b != 0 || c != 1 {
		t.Errorf("whole %d, %d and %d times, want 1, 0 and 1", a, b, c)
	}
}

// A message that was changed on the way is reported, and not passed on.
func TestAlteredMessageIsReportedNotPassedOn(t *testing.T) {
	var r Reorder
	pieces := split(t, grid.Coord{}, message(2*PieceSize, 9))
	pieces[1][pieceHead] ^= 1
	_, _, err := r.Take(start, 0, pieces[0])
	whole, missing, err2 := r.Take(start, 0, pieces[1])
	if err != nil || err2 != nil || whole != nil || len(missing) != 1 || !missing[0].Altered ||
		!strings.Contains(missing[0].String(), "altered") {
		t.Errorf("%v, %v, %v, %v", whole, missing, err, err2)
	}
	if s := r.Stats(); s.Altered != 1 || r.Incomplete(start) != nil {
		t.Errorf("%+v", s)
	}
}

// No node can use the room of the others, and all of them together are bounded.
func TestReorderIsBounded(t *testing.T) {
	var r Reorder
	first := func(node, i int) []Missing {
		_, m, err := r.Take(start, 0, split(t, grid.Coord{X: node}, message(2*PieceSize+node, byte(i)))[0])
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first(1, 100)
	for i := range 50 {
		if m := first(0, i); (i >= maxOfOrigin) != (len(m) == 1) || len(m) == 1 && m[0].Origin != (grid.Coord{}) {
			t.Fatalf("message %d of one node: %v", i, m)
		}
	}
	for i := range 50 {
		if m := first(2+i, i); len(m) > 1 {
			t.Fatalf("%v", m)
		}
	}
	if n := len(r.Incomplete(start)); n != MaxReorder {
		t.Errorf("%d incomplete, want %d", n, MaxReorder)
	}
}

// A neighbour that forges origins displaces only messages that came through its own link: neither those of the origin that it forges,
// nor those of others.
func TestForgedOriginsDisplaceNoMessageOfAnotherLink(t *testing.T) {
	for name, forged := range map[string]func(i int) grid.Coord{
		"one origin":   func(int) grid.Coord { return grid.Coord{X: 9} },
		"many origins": func(i int) grid.Coord { return grid.Coord{X: 10 + i} },
	} {
		var r Reorder
		honest := grid.Coord{X: 9}
		m := message(2*PieceSize, 1)
		pieces := split(t, honest, m)
		if _, _, err := r.Take(start, grid.XPlus, pieces[0]); err != nil {
			t.Fatal(err)
		}
		for i := range 3 * MaxReorder {
			_, missing, err := r.Take(start, grid.YMinus, split(t, forged(i), message(2*PieceSize+1+i, 2))[0])
			if err != nil || slices.ContainsFunc(missing, func(m Missing) bool { return m.ID == MessageID(pieces[0][2:18]) }) {
				t.Errorf("%s: forged message %d: %v, %v", name, i, missing, err)
			}
		}
		if n := len(r.Incomplete(start)); n > MaxReorder {
			t.Errorf("%s: %d incomplete, want at most %d", name, n, MaxReorder)
		}
		if whole, _, err := r.Take(start, grid.ZMinus, pieces[1]); err != nil || !bytes.Equal(whole, m) { // by another way
			t.Errorf("%s: the honest message is lost: %v", name, err)
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for _, n := range []int{0, MaxPiece, MaxMessage + 1} {
		if _, err := Split(grid.Coord{}, make([]byte, n), MaxPiece); err == nil {
			t.Errorf("%d bytes are split", n)
		}
	}
}

func TestPieceRefused(t *testing.T) {
	good := split(t, grid.Coord{}, message(2*PieceSize, 1))[0]
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"empty": nil, "head only": good[:pieceHead], "mark": edit(0, 1), "version": edit(1, 2), "index": edit(24, 2),
		"one of one": edit(25, 1), "too many": edit(25, MaxPieces+1), "long": append(bytes.Clone(good), 0),
	} {
		var r Reorder
		if whole, missing, err := r.Take(start, 0, b); !errors.Is(err, ErrPiece) || whole != nil || missing != nil || r.Stats().Refused != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReorder(f *testing.F) {
	for _, p := range split(f, grid.Coord{X: 1}, message(2*PieceSize, 1)) {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Reorder
		if whole, missing, err := r.Take(start, 0, b); whole != nil || missing != nil || (err == nil) != (len(r.Incomplete(start)) == 1) {
			t.Fatalf("%x alone: %x, %v, %v", b, whole, missing, err)
		}
		p, err := decodePiece(b)
		if err != nil {
			return
		}
		if !IsPiece(b) || len(p.data) == 0 || len(p.data) > PieceSize || p.index >= p.count {
			t.Fatalf("%x decodes to %+v", b, p)
		}
	})
}

// TestFloodingOriginDisplacesNoMessageOfOtherOrigins: one origin keeps starting messages over four links and completes none. It displaces
// only its own messages. So messages of other origins complete over these links and over the other links.
func TestFloodingOriginDisplacesNoMessageOfOtherOrigins(t *testing.T) {
	liar := grid.Coord{X: 9}
	flooded := []grid.Direction{grid.XPlus, grid.XMinus, grid.YPlus, grid.YMinus}
	for _, by := range grid.Directions() {
		var r Reorder
		n := 0
		flood := func() {
			for range 3 * MaxReorder {
				n++
				if _, _, err := r.Take(start, flooded[n%len(flooded)], split(t, liar, message(2*PieceSize+n, 2))[0]); err != nil {
					t.Fatal(err)
				}
			}
		}
		flood()
		for origin := range 3 {
			m := message(2*PieceSize, byte(origin))
			pieces := split(t, grid.Coord{X: origin}, m)
			for i, p := range pieces {
				whole, _, err := r.Take(start, by, p)
				if last := i == len(pieces)-1; err != nil || last && !bytes.Equal(whole, m) {
					t.Errorf("by %s: a message of origin %d is lost: %v", by, origin, err)
				}
				flood()
			}
		}
	}
}
