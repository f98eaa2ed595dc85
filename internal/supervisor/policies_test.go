package supervisor_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// TestPoliciesAtAnyReplica: an operator applies policies at a follower, every replica has them, watchers get the
// change, and the next leader continues.
func TestPoliciesAtAnyReplica(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	follower, other := (leader+1)%3, (leader+2)%3
	at := func(role pki.Role, i int) lofamov1.ResponseServiceClient {
		return lofamov1.NewResponseServiceClient(c.Conn(t, role, c.Configs[i].GRPC))
	}
	events, _ := watch(t, c.Client(t, c.Configs[other].GRPC), &lofamov1.WatchRequest{FieldSelector: "kind=POLICY_CHANGED"})
	begin(t, events)
	defaults, err := policy.DefaultYAML()
	if err != nil {
		t.Fatal(err)
	}
	applied, err := at(pki.RoleOperator, follower).ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: string(defaults)})
	if err != nil || len(applied.GetChanges()) < 8 || applied.GetRevision() == 0 {
		t.Fatalf("%v, %v", applied, err)
	}
	if ev := nextEvents(t, events).GetEvents()[0]; ev.GetPolicy() != applied.GetChanges()[0].GetName() ||
		ev.GetObserver() != "operator/someone" || ev.GetRevision() != applied.GetRevision() {
		t.Errorf("%v", ev)
	}
	for i := range c.Configs {
		list, err := at(pki.RoleViewer, i).ListPolicies(t.Context(), &lofamov1.ListPoliciesRequest{})
		if err != nil || len(list.GetPolicies()) != len(applied.GetChanges()) || list.GetRevision() < applied.GetRevision() ||
			list.GetPolicies()[0].GetBy() != "operator/someone" {
			t.Errorf("%s: %v, %v", c.Configs[i].ID, list, err)
		}
	}
	_, err = at(pki.RoleViewer, follower).ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: string(defaults)})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")

	stop(t, sups[leader])
	sups[leader] = nil
	next := c.AwaitLeader(t, follower, other)
	enforced := strings.ReplaceAll(string(defaults), "mode: observe-only", "mode: enforce")
	name := applied.GetChanges()[0].GetName()
	supervisortest.Eventually(t, "the next leader takes changes", func() bool {
		changed, err := at(pki.RoleOperator, next).ApplyPolicies(t.Context(),
			&lofamov1.ApplyPoliciesRequest{Documents: enforced, Expected: map[string]uint64{name: 1}})
		return err == nil && changed.GetChanges()[0].GetVersion() == 2
	})
	deleted, err := at(pki.RoleOperator, next).DeletePolicies(t.Context(),
		&lofamov1.DeletePoliciesRequest{Names: []string{name}, Expected: map[string]uint64{name: 2}})
	if err != nil || deleted.GetChanges()[0].GetKind() != lofamov1.PolicyChangeKind_POLICY_DELETED {
		t.Errorf("%v, %v", deleted, err)
	}
	former, err := at(pki.RoleViewer, next).GetPolicy(t.Context(), &lofamov1.GetPolicyRequest{Name: name, Version: 1})
	if err != nil || len(former.GetFormer()) != 3 || former.GetPolicy().GetMode() != lofamov1.PolicyMode_OBSERVE_ONLY {
		t.Errorf("%v, %v", former, err)
	}
}
