package checksum_test

import (
	"bytes"
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor/checksum"
)

func TestChangedBytesAreFound(t *testing.T) {
	key, other := []byte(checksum.Prefix+"a"), []byte(checksum.Prefix+"b")
	for _, value := range []string{"", "x", "a longer value"} {
		sealed := checksum.Seal(key, []byte(value))
		if got, ok := checksum.Open(key, sealed); !ok || string(got) != value {
			t.Errorf("%q: %q, %t", value, got, ok)
		}
		if _, ok := checksum.Open(other, sealed); ok {
			t.Errorf("%q: good under another key", value)
		}
		for i := range sealed {
			for bit := range 8 {
				sealed[i] ^= 1 << bit
				if _, ok := checksum.Open(key, sealed); ok {
					t.Errorf("%q: change of bit %d in byte %d not found", value, bit, i)
				}
				sealed[i] ^= 1 << bit
			}
		}
		if _, ok := checksum.Open(key, sealed[:len(sealed)-1]); ok {
			t.Errorf("%q: a missing byte not found", value)
		}
	}
	if got, ok := checksum.Open([]byte("other/key"), []byte("x")); !ok || string(got) != "x" {
		t.Error("a value of another program is refused")
	}
}

// FuzzOpen: only what Seal returns is good.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(checksum.Prefix+"a"), checksum.Seal([]byte(checksum.Prefix+"a"), []byte("x")))
	f.Fuzz(func(t *testing.T, key, sealed []byte) {
		if value, ok := checksum.Open(key, sealed); ok && !bytes.Equal(checksum.Seal(key, value), sealed) {
			t.Errorf("%q: %q is good: want %q", key, sealed, checksum.Seal(key, value))
		}
	})
}
