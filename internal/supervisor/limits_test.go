package supervisor_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestLongRequestsOnlyForCallsThatNeedThem sends requests of several lengths: each call has its own limit, and the
// longest topology is accepted.
func TestLongRequestsOnlyForCallsThatNeedThem(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	viewer, operator := c.Conn(t, pki.RoleViewer, cfg.GRPC), c.Conn(t, pki.RoleOperator, cfg.GRPC)
	_, err := lofamov1.NewFaultSupervisorClient(viewer).GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: strings.Repeat("x", 1<<20)})
	wantCode(t, "a name of 1 MiB", err, codes.ResourceExhausted, "larger than max")
	stream, err := lofamov1.NewFaultSupervisorClient(viewer).Watch(t.Context(), &lofamov1.WatchRequest{Node: strings.Repeat("x", 1<<20)})
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, "a watch of 1 MiB", err, codes.ResourceExhausted, "larger than max")
	check := func(bytes int) error {
		_, err := lofamov1.NewResponseServiceClient(viewer).CheckPolicies(t.Context(),
			&lofamov1.CheckPoliciesRequest{Documents: strings.Repeat("#", bytes)})
		return err
	}
	wantCode(t, "policies of 1 MiB", check(1<<20), codes.OK, "")
	wantCode(t, "policies of 2 MiB", check(2<<20), codes.ResourceExhausted, "request: given")
	apply := func(nodes, label int) error {
		topo := &lofamov1.Topology{Dims: "2x2x1"}
		for i := range nodes {
			topo.Nodes = append(topo.Nodes, &lofamov1.TopologyNode{Id: fmt.Sprintf("node-%d", i),
				Labels: map[string]string{"rack": strings.Repeat("r", label)}})
		}
		_, err := lofamov1.NewFaultSupervisorClient(operator).ApplyTopology(t.Context(),
			&lofamov1.ApplyTopologyRequest{Topology: topo, DryRun: true})
		return err
	}
	wantCode(t, "a topology of 10 MiB", apply(100_000, 60), codes.InvalidArgument, "topology")
	wantCode(t, "a topology of 40 MiB", apply(400, 100_000), codes.ResourceExhausted, "request: given")
}
