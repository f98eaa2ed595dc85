package pieces_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/pieces"
)

var (
	near = netip.MustParseAddrPort("[2001:db8::1]:7000")
	far  = netip.MustParseAddrPort("192.0.2.1:7000")
)

// datagram is no piece itself: it begins with 1.
func datagram(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	return b
}

func TestDatagramsArriveWholeInAnyOrderOfTheirPieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	j := pieces.NewJoiner(4)
	for _, size := range []int{1, 76, pieces.MaxPayload, pieces.MaxPayload + 1, 1400, 1472, 2454, 2455, 8224} {
		b := datagram(size)
		all := pieces.Split(b)
		if (size <= pieces.MaxPayload) != (len(all) == 1) {
			t.Errorf("%d bytes became %d datagrams", size, len(all))
		}
		rnd.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		for i, p := range all {
			if len(p) > pieces.MaxPayload {
				t.Errorf("a piece has %d bytes", len(p))
			}
			whole, ok := j.Join(near, slices.Clone(p))
			if ok != (i == len(all)-1) || ok && !bytes.Equal(whole, b) {
				t.Errorf("%d bytes: piece %d of %d gave %d bytes, %t", size, i, len(all), len(whole), ok)
			}
			if _, again := j.Join(near, slices.Clone(p)); again && len(all) > 1 {
				t.Errorf("%d bytes: piece %d came twice and completed a datagram", size, i)
			}
		}
		j = pieces.NewJoiner(4) // the last piece came twice: the second copy waits
	}
}

func TestPiecesOfSendersDoNotMix(t *testing.T) {
	j := pieces.NewJoiner(4)
	a, b := pieces.Split(datagram(1400)), pieces.Split(bytes.Repeat([]byte{9}, 1400))
	if _, ok := j.Join(near, a[0]); ok {
		t.Error("one piece was a datagram")
	}
	copy(b[1][1:3], a[0][1:3]) // the same number
	if _, ok := j.Join(far, b[1]); ok {
		t.Error("pieces of two senders were a datagram")
	}
	if whole, ok := j.Join(near, a[1]); !ok || !bytes.Equal(whole, datagram(1400)) {
		t.Errorf("got %d bytes, %t", len(whole), ok)
	}
}

func TestOldestPiecesMakeRoom(t *testing.T) {
	j := pieces.NewJoiner(2)
	var late [][]byte
	for range 3 {
		p := pieces.Split(datagram(1400))
		j.Join(near, p[0])
		late = append(late, p[1])
	}
	for n, p := range late[1:] {
		if _, ok := j.Join(near, p); !ok {
			t.Errorf("datagram %d was dropped, though it was not the oldest", n+1)
		}
	}
	if _, ok := j.Join(near, late[0]); ok {
		t.Error("the oldest pieces were kept")
	}
}

func FuzzJoin(f *testing.F) {
	for _, p := range pieces.Split(datagram(3000)) {
		f.Add(p, p)
	}
	f.Add([]byte{0, 0, 1, 1, 2, 5}, []byte{0, 0, 1, 0, 2})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		j := pieces.NewJoiner(2)
		for _, p := range [][]byte{a, b} {
			if whole, ok := j.Join(near, p); ok && len(whole) > max(len(p), pieces.MaxPieces*pieces.MaxPayload) {
				t.Errorf("a datagram of %d bytes", len(whole))
			}
		}
	})
}
