package supervisor_test

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestTwoReportAddresses: a report is answered from the address at which it arrived, by the leader and by a follower.
func TestTwoReportAddresses(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{Sockets: 2})
	a := c.Agents["n0-0-0"]
	for i, comp := range []fault.Component{fault.ComponentMemory, fault.ComponentPower, fault.ComponentVoltage} {
		for _, addr := range c.Configs[(leader+i)%3].Reports() {
			id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: comp, State: fault.Sick, Kind: fault.KindSelf})
			a.Send(t, addr, b)
			for _, st := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
				if ack := a.Await(t, id, st); ack.Addr != addr {
					t.Errorf("%s of what was sent to %s came from %s", st, addr, ack.Addr)
				}
			}
		}
	}
}

// TestReportsAreListedAtAnyReplica: every replica lists the leader's received reports and the senders' delivery status.
func TestReportsAreListedAtAnyReplica(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{})
	follower := (leader + 1) % 3
	a, relay := c.Agents["n0-1-0"], c.Agents["n1-1-0"]
	id, b := a.Report(t, fault.HalfDNP, false, temperature(fault.Sick))
	relay.Send(t, c.Configs[leader].Report, relay.Relay(t, b, id.Origin, 2_000_000))
	relay.Await(t, id, lofamov1.Ack_COMMITTED)
	digest, b := a.Report(t, fault.HalfHost, true, temperature(fault.Normal))
	a.Send(t, c.Configs[follower].Report, b)
	a.Await(t, digest, lofamov1.Ack_RECEIVED)
	for i, cfg := range c.Configs {
		client := c.Client(t, cfg.GRPC)
		var resp *lofamov1.ListReportsResponse
		supervisortest.Eventually(t, "the digest to be listed", func() bool {
			var err error
			resp, err = client.ListReports(t.Context(), &lofamov1.ListReportsRequest{Node: "0,1,0", Digests: true})
			return err == nil && len(resp.GetSenders()) > 0
		})
		if s := resp.GetSenders()[0]; s.GetNode() != "n0-1-0" || s.GetDelivery().GetPrimary() != "eth0>s1" {
			t.Errorf("replica %d: sender %v", i, s)
		}
		if list := resp.GetReports(); len(list) != 2 || !list[0].GetDigest() || !list[1].GetCommitted() ||
			list[1].GetPath() != lofamov1.Path_TORUS ||
			len(list[1].GetHops()) != 3 || list[1].GetCommit().AsDuration() <= 0 {
			t.Errorf("replica %d: reports %v", i, list)
		}
		if node := freshNode(t, client, "n0-1-0"); node.GetDelivery().GetState() != lofamov1.PathState_MIGRATED {
			t.Errorf("replica %d: delivery %v", i, node.GetDelivery())
		}
	}
}
