package supervisor_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// committed returns the committed part of a list of nodes, without current evidence.
func committed(t *testing.T, c *supervisortest.Cluster, replica int) map[string]*lofamov1.Node {
	t.Helper()
	list := supervisortest.Fresh(t, c.Client(t, c.Configs[replica].GRPC).ListNodes, &lofamov1.ListNodesRequest{})
	out := make(map[string]*lofamov1.Node)
	for _, n := range list.GetNodes() {
		out[n.GetId()] = n
	}
	return out
}

// forget removes the fields that no store keeps.
func forget(n *lofamov1.Node) *lofamov1.Node {
	n = proto.CloneOf(n)
	n.Age, n.Registers, n.Delivery, n.DeliveryAge, n.DeliveryOld = nil, nil, nil, nil, false
	for _, c := range n.GetComponents() {
		c.Evidence = nil
	}
	return n
}

// TestAllReplicasRestart: all replicas restart at once, and the history is lost meanwhile. The map equals the
// committed one, to the last field, and no age is known until a node reports.
func TestAllReplicasRestart(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	c.Storm(t, []string{c.Configs[0].Report, c.Configs[1].Report, c.Configs[2].Report}, func() {})
	before := committed(t, c, leader)
	if _, err := etcdClient(t, c.Configs[leader]).Delete(t.Context(), store.Prefix+"events/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for i := range sups {
		_ = sups[i].Stop(t.Context()) // the last cannot resign without a quorum
	}
	for i := range sups {
		s, err := launch(t, c.Configs[i]) // three stops it: the last one cannot resign without a quorum
		if err != nil {
			t.Fatal(err)
		}
		sups[i] = s
	}
	leader = c.AwaitLeader(t)
	after := committed(t, c, leader)
	if len(after) != len(before) || len(after) != c.Dims.Nodes() {
		t.Fatalf("%d nodes after the restart, %d before", len(after), len(before))
	}
	for id, n := range after {
		if n.GetAge() != nil || n.GetRegisters() != nil {
			t.Errorf("%s has an age of %v before it has spoken", id, n.GetAge())
		}
		if was := forget(before[id]); !proto.Equal(forget(n), was) {
			t.Errorf("%s is\n%v\nand was\n%v", id, forget(n), was)
		}
		if n.GetState() != lofamov1.State_SICK {
			t.Errorf("%s is %s after the storm", id, n.GetState())
		}
	}
	events, err := c.Client(t, c.Configs[leader].GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || len(events.GetEvents()) != 0 {
		t.Errorf("%d events of a history that is lost, %v", len(events.GetEvents()), err)
	}
}
