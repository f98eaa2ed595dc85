package supervisor_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestOperatorsMaskIsKeptAtBothEnds: an operator masks a link at any replica. The leader tells both ends until both confirm, every replica
// shows the mask, and nodes that lose it get it again, also from the next leader. Restoring works the same way.
func TestOperatorsMaskIsKeptAtBothEnds(t *testing.T) {
	c, sups, leader := three(t, supervisortest.Options{Dims: "3x1x1"})
	follower, other := (leader+1)%3, (leader+2)%3
	masks := c.Reconfigure(t, c.Configs[follower].GRPC)
	a, b := c.Agents["n0-0-0"], c.Agents["n1-0-0"]
	link := []*lofamov1.LinkName{{Node: "1,0,0", Direction: "X-"}} // by its upper end
	set := func(masked, force bool, reason string, links ...*lofamov1.LinkName) (*lofamov1.SetMaskResponse, error) {
		return masks.SetMask(t.Context(), &lofamov1.SetMaskRequest{Links: links, Masked: masked, Reason: reason, Force: force})
	}
	for _, tc := range []struct {
		what, reason string
		links        []*lofamov1.LinkName
		code         codes.Code
		text         string
	}{
		{"no reason", " ", link, codes.InvalidArgument, "reason: given 1 bytes"},
		{"no links", "flaky", nil, codes.InvalidArgument, "links: given 0: want 1 to 48"},
		{"no such node", "flaky", []*lofamov1.LinkName{{Node: "nobody", Direction: "X+"}}, codes.NotFound, "nobody"},
		{"no such link", "flaky", []*lofamov1.LinkName{{Node: "n0-0-0", Direction: "Z+"}}, codes.InvalidArgument, "no link Z+"},
		{"no direction", "flaky", []*lofamov1.LinkName{{Node: "n0-0-0", Direction: "up"}}, codes.InvalidArgument, "direction"},
	} {
		_, err := set(true, false, tc.reason, tc.links...)
		wantCode(t, tc.what, err, tc.code, tc.text)
	}
	_, err := lofamov1.NewReconfigureClient(c.Conn(t, pki.RoleViewer, c.Configs[leader].GRPC)).SetMask(t.Context(),
		&lofamov1.SetMaskRequest{Links: link, Masked: true, Reason: "x"})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")
	_, err = set(false, false, "", link...)
	wantCode(t, "what is not masked", err, codes.NotFound, "not masked")

	b.Kill(fault.HalfDNP) // it does not answer
	resp, err := set(true, false, "flaky", link...)
	if err != nil || len(resp.GetMasks()) != 1 || resp.GetMasks()[0].GetNode() != "n0-0-0" || resp.GetMasks()[0].GetDirection() != "X+" ||
		resp.GetMasks()[0].GetBy() != "operator/someone" {
		t.Fatalf("%v, %v", resp, err)
	}
	waiting := func(at lofamov1.ReconfigureClient) []string { // while one mask exists
		list, err := at.ListMasks(t.Context(), &lofamov1.ListMasksRequest{})
		if err != nil || list.GetStale() || len(list.GetMasks()) != 1 {
			return []string{"no list"}
		}
		return list.GetMasks()[0].GetWaiting()
	}
	supervisortest.Eventually(t, "one end that has it, one that is waited for", func() bool {
		w := waiting(masks)
		return len(w) == 1 && w[0] == "n1-0-0" && a.Mask().GetMask() == 0x3e
	})
	b.Revive(fault.HalfDNP)
	supervisortest.Eventually(t, "both ends have it", func() bool { return len(waiting(masks)) == 0 && b.Mask().GetMask() == 0x3d })
	for _, cfg := range c.Configs {
		client := c.Client(t, cfg.GRPC)
		supervisortest.Eventually(t, "both ends are shown as masked by "+cfg.ID, func() bool {
			links, err := client.ListLinks(t.Context(), &lofamov1.ListLinksRequest{})
			n := 0
			for _, l := range links.GetLinks() {
				if m := l.GetMask(); m.GetReason() == "flaky" &&
					(l.GetNode() == "n0-0-0" && l.GetDirection() == "X+" || l.GetNode() == "n1-0-0" && l.GetDirection() == "X-") {
					n++
				} else if m != nil {
					t.Errorf("%v is shown as masked", l)
				}
			}
			return err == nil && n == 2
		})
	}
	second := &lofamov1.LinkName{Node: "n1-0-0", Direction: "X+"}
	supervisortest.Eventually(t, "somebody leads", func() bool { // the leader may change on a busy machine
		_, err = set(true, false, "flaky", second)
		return status.Code(err) != codes.Unavailable
	})
	wantCode(t, "what would cut the torus", err, codes.InvalidArgument, "no way through the torus")

	// The next leader continues.
	stop(t, sups[leader])
	sups[leader] = nil
	next := c.AwaitLeader(t, follower, other)
	masks = c.Reconfigure(t, c.Configs[next].GRPC)
	supervisortest.Eventually(t, "the next leader knows that both ends have it", func() bool { return len(waiting(masks)) == 0 })
	a.LoseMask(t, c.Configs[next].Report)
	supervisortest.Eventually(t, "who has lost it gets it again", func() bool { return a.Mask().GetMask() == 0x3e })
	if _, err := masks.SetMask(t.Context(), &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{second}, Masked: true, Reason: "by force",
		Force: true}); err != nil {
		t.Error(err)
	}
	supervisortest.Eventually(t, "a mask by force is in force", func() bool { return b.Mask().GetMask() == 0x3c })
	if _, err := masks.SetMask(t.Context(), &lofamov1.SetMaskRequest{Links: append(link, second)}); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "both ends are restored", func() bool { return a.Mask().GetMask() == 0x3f && b.Mask().GetMask() == 0x3f })
	events, err := c.Client(t, c.Configs[next].GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var told []bool
	for _, ev := range events.GetEvents() {
		if ev.GetKind() == lofamov1.EventKind_MASK_CHANGED {
			told = append(told, ev.GetEnded())
		}
	}
	if len(told) != 4 || told[0] || told[1] || !told[2] || !told[3] {
		t.Errorf("events of masks, ended: %v", told)
	}
}
