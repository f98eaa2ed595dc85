package servicenet

import (
	"bytes"
	"crypto/ecdh"
	"encoding/hex"
	"strings"
	"testing"
)

func private(t *testing.T, seed byte) *ecdh.PrivateKey {
	t.Helper()
	k, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{seed}, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestBothEndsAgree(t *testing.T) {
	a, b, other := private(t, 1), private(t, 2), private(t, 3)
	context := [][]byte{[]byte("transfer"), []byte("n0-0-0")}
	agree := func(k, peer *ecdh.PrivateKey, label string, context ...[]byte) [KeySize]byte {
		t.Helper()
		s, err := AgreeKey(k, peer.PublicKey().Bytes(), label, context...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := agree(a, b, "bulk", context...)
	if got := agree(b, a, "bulk", context...); got != want {
		t.Errorf("the ends have %x and %x", want, got)
	}
	for name, got := range map[string][KeySize]byte{
		"another label":           agree(b, a, "session", context...),
		"no context":              agree(b, a, "bulk"),
		"context in other pieces": agree(b, a, "bulk", []byte("transfern0"), []byte("-0-0")),
		"context joined":          agree(b, a, "bulk", []byte("transfern0-0-0")),
		"context with an end":     agree(b, a, "bulk", append(context, nil)...),
		"another peer":            agree(b, other, "bulk", context...),
		"oneself":                 agree(a, a, "bulk", context...),
	} {
		if got == want || got == [KeySize]byte{} {
			t.Errorf("%s: %x", name, got)
		}
	}
}

// TestAgreedKeysAreFixed pins the derived keys: they are part of the wire format.
func TestAgreedKeysAreFixed(t *testing.T) {
	s, err := AgreeKey(private(t, 1), private(t, 2).PublicKey().Bytes(), "bulk", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "87670ec583f1f86501ee42000a370ee1e00f5fb54201ec51d5f4ba22825b3cac"
	if got := hex.EncodeToString(s[:]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAgreeKeyRefuses(t *testing.T) {
	k := private(t, 1)
	good := private(t, 2).PublicKey().Bytes()
	order8, _ := hex.DecodeString("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")
	p256, err := ecdh.P256().NewPrivateKey(append(make([]byte, 31), 7))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		k     *ecdh.PrivateKey
		peer  []byte
		label string
		want  string
	}{
		{"no private key", nil, good, "x", "private key"},
		{"another curve", p256, good, "x", "private key"},
		{"no label", k, good, "", "label"},
		{"nothing", k, nil, "x", "given 0 bytes: want 32"},
		{"short", k, good[:31], "x", "given 31 bytes: want 32"},
		{"long", k, append(good, 0), "x", "given 33 bytes: want 32"},
		{"zero", k, make([]byte, KeySize), "x", "low order"},
		{"one", k, append([]byte{1}, make([]byte, KeySize-1)...), "x", "low order"},
		{"of order 8", k, order8, "x", "low order"},
	} {
		s, err := AgreeKey(tc.k, tc.peer, tc.label)
		if err == nil || !strings.Contains(err.Error(), tc.want) || s != [KeySize]byte{} {
			t.Errorf("%s: got %x, %v: want an error with %q", tc.name, s, err, tc.want)
		}
	}
}
