package bulk

import (
	"bytes"
	"crypto/ecdh"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

func privateKey(t testing.TB, seed byte) *ecdh.PrivateKey {
	t.Helper()
	k, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newKey(t testing.TB, mine, theirs byte, id Transfer, origin fault.Origin, supervisor string) *Key {
	t.Helper()
	k, err := NewKey(privateKey(t, mine), privateKey(t, theirs).PublicKey().Bytes(), id, origin, supervisor)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t testing.TB, k *Key, index uint32, data []byte) []byte {
	t.Helper()
	p, err := k.Seal([]byte("before"), index, data)
	if err != nil {
		t.Fatal(err)
	}
	return p[len("before"):]
}

func TestChunkRoundTrip(t *testing.T) {
	id := Transfer{1, 2, 3}
	long := strings.Repeat("s", MaxTarget)
	for _, target := range []string{"s", "supervisor-0", long} {
		a, b := newKey(t, 1, 2, id, self, target), newKey(t, 2, 1, id, self, target)
		for _, size := range []int{1, 15, ChunkSize} {
			data := bytes.Repeat([]byte{7}, size)
			p := sealed(t, a, 1<<31+5, data)
			if len(p) > MaxPacket || !IsChunk(p) {
				t.Fatalf("%d bytes, chunk: %v", len(p), IsChunk(p))
			}
			i, got, err := b.Open(p)
			if err != nil || i != 1<<31+5 || !bytes.Equal(got, data) {
				t.Fatalf("%s, %d bytes: got chunk %d of %d bytes, %v", target, size, i, len(got), err)
			}
			if h, err := ParseHeader(p); err != nil || h != (Header{id, i, target}) {
				t.Fatalf("got %+v, %v", h, err)
			}
			if got, err := Target(p); err != nil || got != target {
				t.Fatalf("for %q, %v", got, err)
			}
		}
	}
}

// TestEveryBitCounts flips each bit of a packet, and cuts it everywhere.
func TestEveryBitCounts(t *testing.T) {
	k := newKey(t, 1, 2, Transfer{1}, self, "s1")
	p := sealed(t, k, 3, []byte("some bytes"))
	for bit := range 8 * len(p) {
		q := bytes.Clone(p)
		q[bit/8] ^= 1 << (bit % 8)
		if _, _, err := k.Open(q); err == nil {
			t.Errorf("bit %d of byte %d: accepted", bit%8, bit/8)
		}
	}
	for n := range p {
		if _, _, err := k.Open(p[:n]); err == nil {
			t.Errorf("cut to %d bytes: accepted", n)
		}
	}
	if _, _, err := k.Open(append(p, 0)); err == nil {
		t.Error("with a byte more: accepted")
	}
}

func TestKeysAreBound(t *testing.T) {
	id := Transfer{1}
	p := sealed(t, newKey(t, 1, 2, id, self, "s1"), 0, []byte("x"))
	for name, k := range map[string]*Key{
		"another half":     newKey(t, 2, 1, id, fault.Origin{Node: self.Node, Half: fault.HalfDNP}, "s1"),
		"another node":     newKey(t, 2, 1, id, fault.Origin{Node: "n0", Half: self.Half}, "s1"),
		"another exchange": newKey(t, 2, 3, id, self, "s1"),
		"another target":   newKey(t, 2, 1, id, self, "s2"),
		"another transfer": newKey(t, 2, 1, Transfer{2}, self, "s1"),
	} {
		if _, _, err := k.Open(p); err == nil {
			t.Errorf("%s opens it", name)
		}
	}
}

func TestChunkRefusals(t *testing.T) {
	k := newKey(t, 1, 2, Transfer{1}, self, "s1")
	good := sealed(t, k, 3, []byte("x"))
	with := func(at int, v byte) []byte {
		p := bytes.Clone(good)
		p[at] = v
		return p
	}
	for _, tc := range []struct {
		name string
		p    []byte
		want string
	}{
		{"nothing", nil, "length"},
		{"an envelope", with(0, 0x0a), "first byte"},
		{"another version", with(1, 2), "version"},
		{"no target", with(targetAt-1, 0), "supervisor's id"},
		{"a long target", with(targetAt-1, MaxTarget+1), "supervisor's id"},
		{"a target beyond the end", with(targetAt-1, MaxTarget), "sealed part"},
		{"nothing sealed", good[:len(good)-1], "sealed part"},
		{"much sealed", append(bytes.Clone(good), make([]byte, ChunkSize)...), "sealed part"},
		{"too long", make([]byte, MaxPacket+1), "length"},
	} {
		if _, err := ParseHeader(tc.p); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want an error with %q", tc.name, err, tc.want)
		}
	}
	if IsChunk(nil) || IsChunk([]byte{0x0a}) {
		t.Error("taken for a chunk")
	}
	for _, n := range []int{0, ChunkSize + 1} {
		if _, err := k.Seal(nil, 0, make([]byte, n)); err == nil {
			t.Errorf("%d bytes are sealed", n)
		}
	}
	for _, target := range []string{"", strings.Repeat("s", MaxTarget+1)} {
		if _, err := NewKey(privateKey(t, 1), privateKey(t, 2).PublicKey().Bytes(), Transfer{1}, self, target); err == nil {
			t.Errorf("a key for %q", target)
		}
	}
	if _, err := NewKey(privateKey(t, 1), make([]byte, 32), Transfer{1}, self, "s1"); err == nil {
		t.Error("a key with nobody")
	}
	if _, err := ParseTransfer(make([]byte, 15)); err == nil {
		t.Error("a short name")
	}
}

func FuzzChunk(f *testing.F) {
	k := newKey(f, 1, 2, Transfer{1}, self, "s1")
	good := sealed(f, k, 3, []byte("some bytes"))
	f.Add(good)
	f.Add(good[:30])
	f.Add([]byte{chunkMark, chunkVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		i, data, openErr := k.Open(b)
		if err != nil {
			if openErr == nil {
				t.Fatal("opened without a header")
			}
			return
		}
		if !IsChunk(b) || len(h.Target) < 1 || len(h.Target) > MaxTarget {
			t.Fatalf("%+v", h)
		}
		if openErr == nil {
			if again := sealed(t, k, i, data); !bytes.Equal(again, b) {
				t.Fatalf("sealed again it is % x", again)
			}
		}
	})
}
