package api

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A repeated request has the same keys, and needs no further use of its token while the node is known.
func TestRepeatedRequestNeedsNoFurtherUse(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	have := func(ids ...fault.NodeID) *topology.Topology {
		var nodes []topology.Node
		for _, id := range ids {
			nodes = append(nodes, topology.Node{ID: id, Spare: true, Joining: true})
		}
		return topology.New(grid.Dims{}, nodes, nil, 1)
	}
	used := []store.JoinUse{{Node: "n1", Keys: []byte("keys"), At: now}}
	for name, c := range map[string]struct {
		a        admittance
		have     *topology.Topology
		code     codes.Code
		repeated bool
	}{
		"the same":                 {admittance{node: "n1", keys: []byte("keys"), now: now.Add(time.Minute)}, have("n1"), codes.OK, true},
		"other keys":               {admittance{node: "n1", keys: []byte("else"), now: now}, have("n1"), codes.Unauthenticated, false},
		"an hour later":            {admittance{node: "n1", keys: []byte("keys"), now: now.Add(time.Hour)}, have("n1"), codes.OK, true},
		"after it was removed":     {admittance{node: "n1", keys: []byte("keys"), now: now}, have(), codes.Unauthenticated, false},
		"another node":             {admittance{node: "n2", keys: []byte("keys"), now: now}, have("n1"), codes.Unauthenticated, false},
		"without a token":          {admittance{node: "n1", now: now}, have("n1"), codes.AlreadyExists, false},
		"with evidence of a name":  {admittance{node: "n1", named: true, now: now}, have("n1"), codes.OK, false},
		"a new node by other ways": {admittance{node: "n3", named: true, now: now}, have("n1"), codes.OK, false},
	} {
		if len(c.a.keys) > 0 {
			c.a.token = &store.JoinToken{ID: "t", Uses: 1, Used: used}
		}
		if err := c.a.mayJoin(c.have); status.Code(err) != c.code || c.a.repeated != c.repeated {
			t.Errorf("%s: %v, repeated %v: want %s, %v", name, err, c.a.repeated, c.code, c.repeated)
		}
	}
}

// TestNodeThatNamesItselfIsNotManaged: a token for any new node names none, so no executor acts on the node. Evidence with a name leaves the
// labels as they are, and no node can mark itself as managed.
func TestNodeThatNamesItselfIsNotManaged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a       admittance
		managed bool
	}{
		"a token for any node":     {admittance{token: &store.JoinToken{}}, false},
		"a token that names it":    {admittance{token: &store.JoinToken{Node: "n1"}, named: true}, true},
		"the token of its own pod": {admittance{named: true}, true},
	} {
		own := map[string]string{"rack": "r7"}
		labels := c.a.labels(own)
		if fault.Managed(labels) != c.managed || labels["rack"] != "r7" || len(own) != 1 {
			t.Errorf("%s: labels %v, want managed %v", name, labels, c.managed)
		}
	}
	if labels := (&admittance{}).labels(map[string]string{fault.ManagedLabel: "true"}); fault.Managed(labels) {
		t.Errorf("labels %v: want a node that is not managed", labels)
	}
}
