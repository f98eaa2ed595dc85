package pki

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// noted makes the registry remember a certificate of a node's host half that ends at a time.
func noted(r *Registry, node string, end time.Time) {
	r.note(NodeIdentity("c", fault.NodeID(node), fault.HalfHost),
		&x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}, nil)
}

// TestRegistryRemembersEveryNodeOfLargeCluster: an operator waits until the list of certificates has both halves of every node. Those of
// nodes that have left make room.
func TestRegistryRemembersEveryNodeOfLargeCluster(t *testing.T) {
	r, now := NewRegistry(), time.Now()
	const nodes = 27000
	for i := range 2 * nodes {
		noted(r, fmt.Sprintf("n%d", i), now.Add(-time.Minute))
	}
	if n := len(r.seen); n != 2*nodes {
		t.Errorf("%d certificates: want %d", n, 2*nodes)
	}
	for i := range maxSeen {
		noted(r, fmt.Sprintf("m%d", i), now.Add(time.Hour))
	}
	if n := len(r.seen); n != maxSeen {
		t.Errorf("%d certificates: want the %d that have not ended", n, maxSeen)
	}
	noted(r, "late", now.Add(time.Hour))
	if n := len(r.seen); n != maxSeen {
		t.Errorf("%d certificates: want at most %d", n, maxSeen)
	}
}
