package supervisor_test

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestPolicyWithoutItsSourceNamesTheKey: supervisors without Kubernetes and without an executor process warn of policies that require
// conditions of either, when they check and apply them, in the list, and in the explanation of a fault that such a policy is for.
func TestPolicyWithoutItsSourceNamesTheKey(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	c.AwaitLeader(t, 0)
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, c.Configs[0].GRPC))
	const documents = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: both}
spec:
  match: fault.state == "FAILED" && fault.component == "memory"
  outside: [{condition: lofamo.io/HardwareCritical}, {condition: KernelDeadlock}]
  steps: [{name: cordon, executor: kubernetes.cordon}]
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: neither}
spec:
  match: fault.state == "FAILED"
  steps: [{name: cordon, executor: kubernetes.cordon}]
`
	wrong := func(warnings []string) bool {
		return len(warnings) != 2 || !strings.Contains(warnings[0], "set responses.executors.process, and controllers.nodes in") ||
			!strings.HasSuffix(warnings[1], "condition KernelDeadlock, whose source (Kubernetes) is not configured: "+
				"set responses.executors.kubernetes.evidence: true")
	}
	checked, err := operator.CheckPolicies(t.Context(), &lofamov1.CheckPoliciesRequest{Documents: documents})
	if err != nil || wrong(checked.GetChanges()[0].GetWarnings()) || len(checked.GetChanges()[1].GetWarnings()) != 0 {
		t.Errorf("check: %v, %v", checked, err)
	}
	applied, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: documents})
	if err != nil || wrong(applied.GetChanges()[0].GetWarnings()) || len(applied.GetChanges()[1].GetWarnings()) != 0 {
		t.Errorf("apply: %v, %v", applied, err)
	}
	list, err := operator.ListPolicies(t.Context(), &lofamov1.ListPoliciesRequest{})
	if err != nil || wrong(list.GetPolicies()[0].GetWarnings()) || len(list.GetPolicies()[1].GetWarnings()) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	a := c.Agents["n0-0-0"]
	report, b := a.Report(t, fault.HalfHost, false,
		fault.Observation{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf})
	a.Deliver(t, report, b, c.Configs[0].Report)
	client := c.Client(t, c.Configs[0].GRPC)
	explained := func(component string) string {
		x, err := client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "n0-0-0", Component: component})
		if err != nil {
			return err.Error()
		}
		return strings.Join(x.GetBecause(), "\n")
	}
	const want = "policy both: the policy starts no response: it requires condition lofamo.io/HardwareCritical, whose source"
	supervisortest.Eventually(t, "the explanation of the failed memory names the key", func() bool {
		return strings.Contains(explained("memory"), want)
	})
	if got := explained("host"); strings.Contains(got, "policy both") {
		t.Errorf("%s: want no word about a policy for other parts", got)
	}
}
