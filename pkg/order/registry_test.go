package order

import (
	"slices"
	"testing"
)

// TestRegistryFindsHandlers: each end finds the handler of a kind by its name, and no other.
func TestRegistryFindsHandlers(t *testing.T) {
	var r Registry[int]
	r.Register("peers", 2)
	r.Register("mask", 1)
	if h, ok := r.Of("mask"); !ok || h != 1 {
		t.Errorf("mask: %d, %t", h, ok)
	}
	if h, ok := r.Of("fan-curve"); ok {
		t.Errorf("a kind that nobody registered: %d", h)
	}
	if got := r.Kinds(); !slices.Equal(got, []string{"mask", "peers"}) {
		t.Errorf("kinds %q", got)
	}
}

// TestRegisterRefusesBadNames: a kind registered twice, and a name that the wire format forbids, are programming
// errors.
func TestRegisterRefusesBadNames(t *testing.T) {
	for _, kind := range []string{"mask", "", "Mask", "a b", "0123"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("kind %q was registered", kind)
				}
			}()
			var r Registry[int]
			r.Register("mask", 1)
			r.Register(kind, 2)
		}()
	}
}
