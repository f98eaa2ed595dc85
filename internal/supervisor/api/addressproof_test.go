package api

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
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

// TestManyNamesEndNoLimit: a name whose budget is spent stays refused, however many others come. Names of which nothing is spent any more
// make room.
func TestManyNamesEndNoLimit(t *testing.T) {
	t.Parallel()
	b, now := newBudgets(targetRate, 1), time.Unix(1000, 0)
	for i := range 2 * maxSources {
		if got := b.allow(fmt.Sprint(i), now); got != (i < maxSources) {
			t.Fatalf("name %d is allowed %v", i, got)
		}
	}
	if b.allow("0", now) {
		t.Error("other names have ended the limit of a name")
	}
	if !b.allow("later", now.Add(time.Second)) || len(b.of) != 1 {
		t.Errorf("%d names stay: want room once their budgets are whole", len(b.of))
	}
}

// TestTokensSpendNoBudgetOfNodesOwnClaim: holders of tokens have claimed a node's name as often as they can. The node still gets its new
// address by its own certificate.
func TestTokensSpendNoBudgetOfNodesOwnClaim(t *testing.T) {
	t.Parallel()
	names := view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "n1", {X: 1}: "n2"})
	e := &Enrolment{s: &Server{cfg: Config{Names: names}}, targets: newBudgets(targetRate, targetBurst),
		cfg: EnrolmentConfig{Lives: func(context.Context, fault.NodeID, []fault.NodeID) bool { return false }}}
	claim := topology.Node{ID: "n1", Service: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:7100")}}
	var err error
	for range 2 * targetBurst {
		_, err = e.silent(t.Context(), claim, false)
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("claims with tokens: %v: want the budget spent", err)
	}
	if silent, err := e.silent(t.Context(), claim, true); err != nil || len(silent) != 1 {
		t.Errorf("the node's own claim: %v, %v: want it looked at", silent, err)
	}
}
