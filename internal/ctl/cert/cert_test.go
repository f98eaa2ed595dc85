package cert

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestNodesAreRevokedWhole: a node stands for both halves, and the command refuses one half or a serial number of a node before it asks a supervisor.
func TestNodesAreRevokedWhole(t *testing.T) {
	ids, err := identities("c", []string{"node/n1"})
	if want := []pki.Identity{pki.NodeIdentity("c", "n1", fault.HalfHost), pki.NodeIdentity("c", "n1", fault.HalfDNP)}; err != nil || len(ids) != 2 || ids[0] != want[0] || ids[1] != want[1] {
		t.Errorf("node/n1: %v, %v: want %v", ids, err, want)
	}
	if _, err := identities("c", []string{"node/n1/dnp"}); err == nil || !strings.Contains(err.Error(), "want node/n1 for both") {
		t.Errorf("node/n1/dnp: %v: want an error that names node/n1", err)
	}
}
