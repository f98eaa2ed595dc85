package servicenet

import (
	"encoding/hex"
	"strings"
	"testing"
)

// Both ends have the same secret, and it depends on every known value of the exchange.
func TestPathSecret(t *testing.T) {
	a, b := private(t, 1), private(t, 2)
	x := PathExchange{Half: "n0-0-0/host", Epoch: 3, ID: 7, Supervisor: "sup-1", Session: 9}
	secret := func(x PathExchange) [KeySize]byte {
		t.Helper()
		mine, err := x.Secret(a, b.PublicKey().Bytes())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := x.Secret(b, a.PublicKey().Bytes())
		if err != nil || theirs != mine {
			t.Errorf("the ends have %x and %x, %v", mine, theirs, err)
		}
		return mine
	}
	want := secret(x)
	const fixed = "4af4078533b5f468cdf7245f25b0905b0644633f5379a3d0637a74fe65437c5e"
	if got := hex.EncodeToString(want[:]); got != fixed { // it is part of the wire format
		t.Errorf("got %s, want %s", got, fixed)
	}
	for name, change := range map[string]func(*PathExchange){
		"half":       func(x *PathExchange) { x.Half = "n0-0-0/dnp" },
		"epoch":      func(x *PathExchange) { x.Epoch = 4 },
		"id":         func(x *PathExchange) { x.ID = 8 },
		"supervisor": func(x *PathExchange) { x.Supervisor = "sup-2" },
		"session":    func(x *PathExchange) { x.Session = 10 },
	} {
		y := x
		change(&y)
		if secret(y) == want {
			t.Errorf("another %s gives the same secret", name)
		}
	}
}

func TestPathSecretRefuses(t *testing.T) {
	_, err := PathExchange{Half: "n0-0-0/host", Supervisor: "sup-1", Session: 9}.Secret(private(t, 1), make([]byte, 31))
	if err == nil || !strings.Contains(err.Error(), "session 0x9 of n0-0-0/host with sup-1") ||
		!strings.Contains(err.Error(), "given 31 bytes: want 32") {
		t.Errorf("error %v: want one that names the session and the key", err)
	}
}
