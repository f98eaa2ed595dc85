package api

import (
	"net/netip"
	"testing"
	"time"
)

// A proof is good for a while, for the keys, the listener and the address for which it was made.
func TestAddressProofIsGoodForItsClaimantAlone(t *testing.T) {
	t.Parallel()
	p := newAddressProofs()
	a, b := netip.MustParseAddrPort("10.0.0.1:7100"), netip.MustParseAddrPort("10.0.0.2:7100")
	of := func(address netip.AddrPort) []byte { return p.proof(0, []byte("keys"), []byte("listening"), address) }
	for name, c := range map[string]struct {
		after           time.Duration
		keys, listening string
		proofs          [][]byte
		good            bool
	}{
		"its own":            {0, "keys", "listening", [][]byte{of(a), of(b)}, true},
		"in the next period": {2*proofTime - 1, "keys", "listening", [][]byte{of(a), of(b)}, true},
		"late":               {2 * proofTime, "keys", "listening", [][]byte{of(a), of(b)}, false},
		"of other keys":      {0, "else", "listening", [][]byte{of(a), of(b)}, false},
		"of another request": {0, "keys", "else", [][]byte{of(a), of(b)}, false},
		"in another order":   {0, "keys", "listening", [][]byte{of(b), of(a)}, false},
		"one is missing":     {0, "keys", "listening", [][]byte{of(a)}, false},
		"none":               {0, "keys", "listening", nil, false},
		"empty ones":         {0, "keys", "listening", [][]byte{nil, nil}, false},
	} {
		now := p.begun.Add(c.after)
		if got := p.good(now, []byte(c.keys), []byte(c.listening), []netip.AddrPort{a, b}, c.proofs); got != c.good {
			t.Errorf("%s: good is %v: want %v", name, got, c.good)
		}
	}
	if q := newAddressProofs(); q.good(q.begun, []byte("keys"), []byte("listening"), []netip.AddrPort{a, b}, [][]byte{of(a), of(b)}) {
		t.Error("another supervisor's proofs are good")
	}
}

// Nodes of a cluster on several machines have no loopback addresses, and no node has an address of a supervisor.
func TestNoNodeHasLoopbackOrSupervisorsAddress(t *testing.T) {
	t.Parallel()
	at := func(text string) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(text)} }
	own := func() map[netip.AddrPort]string {
		return map[netip.AddrPort]string{at("10.0.0.9:7945")[0]: "the report address"}
	}
	for text, may := range map[string][2]bool{ // in a cluster on one machine too
		"10.0.0.1:7100": {true, true}, "127.0.0.1:7100": {false, true}, "[::1]:7100": {false, true}, "[::ffff:127.0.0.1]:7100": {false, true},
		"10.0.0.9:7945": {false, false}, "[::ffff:10.0.0.9]:7945": {false, false}, "10.0.0.9:7100": {true, true},
	} {
		for i, local := range []bool{false, true} {
			e := &Enrolment{cfg: EnrolmentConfig{Own: own, Local: local}}
			if err := e.mayHave(at(text)); (err == nil) != may[i] {
				t.Errorf("%s, cluster on one machine %v: %v: want it accepted %v", text, local, err, may[i])
			}
		}
	}
}
