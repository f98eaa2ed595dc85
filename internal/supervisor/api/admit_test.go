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

// TestLabelsFollowEvidence: a node keeps what operators have labelled, and the labels of Kubernetes win over all. A token for any name
// confirms none, so no executor acts on the node, and evidence with a name confirms that of a known node too. A machine gets no label of
// a stranger whose name it takes.
func TestLabelsFollowEvidence(t *testing.T) {
	t.Parallel()
	anyName, silent := &store.JoinToken{}, []fault.NodeID{"n1"}
	strange := topology.Node{ID: "n1", Spare: true, Joining: true, Labels: map[string]string{"rack": "x", "fan": "loud",
		fault.ManagedLabel: "false"}}
	placed, confirmed := strange, strange
	placed.Joining = false
	confirmed.Labels = map[string]string{"rack": "x", "fan": "loud", fault.ManagedLabel: "true"}
	for name, c := range map[string]struct {
		a       admittance
		old     topology.Node
		rack    string
		kept    bool
		managed bool
	}{
		"new, a token for any name":          {admittance{token: anyName}, topology.Node{}, "r7", false, false},
		"new, a token that names it":         {admittance{token: &store.JoinToken{Node: "n1"}, named: true}, topology.Node{}, "r7", false, true},
		"new, a token with patterns":         {admittance{token: &store.JoinToken{Names: []string{"n*"}}}, topology.Node{}, "r7", false, true},
		"new, the token of its own pod":      {admittance{named: true}, topology.Node{}, "r7", false, true},
		"known, its own certificate":         {admittance{named: true, own: true}, placed, "x", true, false},
		"a spare with its own certificate":   {admittance{named: true, own: true, silent: silent}, strange, "x", true, false},
		"known, a token that names it":       {admittance{token: &store.JoinToken{Node: "n1"}, named: true}, placed, "x", true, true},
		"known, the token of its own pod":    {admittance{named: true}, placed, "x", true, true},
		"a stranger's, a token for any name": {admittance{token: anyName, silent: silent}, strange, "r7", false, false},
		"a stranger's, a token with patterns": {admittance{token: &store.JoinToken{Names: []string{"n*"}}, silent: silent}, strange, "r7",
			false, true},
		"confirmed, another machine":         {admittance{token: anyName, silent: silent}, confirmed, "r7", false, false},
		"confirmed, its request is repeated": {admittance{token: anyName, silent: silent, repeated: true}, confirmed, "x", true, true},
	} {
		c.a.node = "n1"
		own := map[string]string{"rack": "r7", "zone": "mine"}
		got := c.a.labels(own, c.old, map[string]string{"zone": "z2"})
		if _, kept := got["fan"]; fault.Managed(got) != c.managed || got["rack"] != c.rack || kept != c.kept || got["zone"] != "z2" ||
			own["zone"] != "mine" {
			t.Errorf("%s: labels %v: want rack %s, the former ones kept %v, managed %v", name, got, c.rack, c.kept, c.managed)
		}
	}
	if labels := (&admittance{}).labels(map[string]string{fault.ManagedLabel: "true"}, topology.Node{}, nil); fault.Managed(labels) {
		t.Errorf("labels %v: want a node that is not managed", labels)
	}
}
