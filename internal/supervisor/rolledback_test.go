package supervisor_test

import (
	"slices"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestRolledBackStoreGivesNoOrders: when most nodes know a revision that the store has not reached, the supervisors run on an earlier copy
// of their data. They say so, also after a restart, and give no orders. One node that lies changes nothing.
// An operator withdraws a false alarm.
func TestRolledBackStoreGivesNoOrders(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	s := start(t, cfg)
	c.AwaitLeader(t)
	client := c.Client(t, cfg.GRPC)
	alarmed := func() bool {
		list, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		return err == nil && slices.ContainsFunc(list.GetSupervisors()[0].GetAlarms(), func(alarm string) bool {
			return strings.HasPrefix(alarm, "store rolled back: nodes know revision 1000000: ")
		})
	}
	digests := func() {
		for _, a := range c.Agents {
			id, b := a.Report(t, fault.HalfHost, true)
			a.Send(t, cfg.Report, b)
			a.Await(t, id, lofamov1.Ack_RECEIVED)
		}
	}
	a := c.Agents["n0-0-0"]
	a.SetViewRevision(1_000_000)
	mask := func(direction string, masked bool) {
		t.Helper()
		_, err := c.Reconfigure(t, cfg.GRPC).SetMask(t.Context(), &lofamov1.SetMaskRequest{
			Links: []*lofamov1.LinkName{{Node: string(a.ID), Direction: direction}}, Masked: masked, Reason: "for the test",
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	mask("X+", true)
	supervisortest.Eventually(t, "the order of a mask in spite of one node's lie", func() bool {
		digests()
		return a.Mask().GetMask() == 0x3e
	})
	for _, a := range c.Agents {
		a.SetViewRevision(1_000_000)
	}
	supervisortest.Eventually(t, "the alarm", func() bool {
		digests()
		return alarmed()
	})
	mask("X+", false)
	stop(t, s)
	for _, a := range c.Agents {
		a.SetViewRevision(0)
	}
	s = start(t, cfg)
	supervisortest.Eventually(t, "the alarm after a restart", alarmed)
	if m := a.Mask().GetMask(); m != 0x3e {
		t.Errorf("mask %#x: a rolled back store ordered another one", m)
	}
	resp, err := adminOf(t, c, 0).DisarmAlarms(t.Context(), &lofamov1.DisarmAlarmsRequest{})
	if err != nil || len(resp.GetDisarmed()) != 1 {
		t.Fatal(resp, err)
	}
	stop(t, s)
	start(t, cfg)
	c.AwaitLeader(t)
	mask("Y+", true)
	supervisortest.Eventually(t, "the order after the note was withdrawn", func() bool {
		digests()
		return a.Mask().GetMask() != 0x3e
	})
	if alarmed() {
		t.Error("the alarm lasts")
	}
}
