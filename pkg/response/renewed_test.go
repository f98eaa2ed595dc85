package response_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// toldChat notifies a chat of each incident, and of its end.
const toldChat = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: told}
spec:
  mode: enforce
  match: fault.incident != "" && fault.duration >= duration("5s")
  steps:
  - {name: tell, executor: webhook.notify, parameters: {target: chta}}
  undo: {onRecovery: true, after: 30s}
`

// repaired changes the policy of toldChat.
func (l *incidentLab) repaired(t *testing.T, oldNew ...string) {
	t.Helper()
	l.pols = parsed(t, []byte(strings.NewReplacer(oldNew...).Replace(toldChat)))
	l.step(response.PoliciesChanged{Policies: l.pols})
}

// failedNotification returns a lab in which the notification of a standing fault has failed.
func failedNotification(t *testing.T) *incidentLab {
	t.Helper()
	l := newIncidentLab(t, parsed(t, []byte(toldChat))...)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.until(l.now.Add(time.Minute))
	l.land(response.Unchanged, "no target of this name")
	if r := l.e.Responses(); len(r) != 1 || r[0].State != response.Failed {
		t.Fatalf("responses %+v: want one that failed", r)
	}
	l.told = nil
	return l
}

// TestRepairedPolicyTellsStandingFaults: the notification of a standing fault failed. A repair of the policy, or another condition with the
// same step, notifies once.
func TestRepairedPolicyTellsStandingFaults(t *testing.T) {
	l := failedNotification(t)
	l.repaired(t, "chta", "chat")
	l.expect(t, "the repaired policy", movedNode.String())
	l.repaired(t, "chta", "chat", `"5s"`, `"6s"`)
	l.expect(t, "another condition of a policy that has notified")
	l.repaired(t, "chta", "desk")
	l.expect(t, "another target of a policy that has notified", movedNode.String())
	l.lead()
	l.rooted(movedNode, 0)
	l.until(l.now.Add(time.Minute))
	l.expect(t, "another leader")
	if open := l.e.Responses(); len(open) > 3 {
		t.Errorf("%d open responses: want one for each notification that needs an end, and the newest", len(open))
	}
}

// TestRepairDuringRetriesTellsStandingFaults: the policy is repaired while its notification waits for the next attempt.
func TestRepairDuringRetriesTellsStandingFaults(t *testing.T) {
	l := newIncidentLab(t, parsed(t, []byte(strings.Replace(toldChat, "{target: chta}", "{target: chta}, retries: 5", 1)))...)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.until(l.now.Add(6 * time.Second))
	l.land(response.Unchanged, "no target of this name")
	l.told = nil
	l.repaired(t, "chta", "chat")
	l.expect(t, "the repaired policy", movedNode.String())
}

// TestRetryOfReplacedPolicyIsRefused: a response of an earlier version of its policy does nothing more, and a retry says so.
func TestRetryOfReplacedPolicyIsRefused(t *testing.T) {
	failing := strings.NewReplacer("webhook.notify, parameters: {target: chta}", "kubernetes.label, parameters: {key: x}").Replace(toldChat)
	l := newIncidentLab(t, parsed(t, []byte(failing))...)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.until(l.now.Add(time.Minute))
	l.land(response.Unchanged, "no answer")
	open := l.e.Responses()
	if len(open) != 1 || open[0].State != response.Failed {
		t.Fatalf("responses %+v: want one that failed", open)
	}
	l.step(response.PoliciesChanged{Policies: parsed(t, []byte(strings.Replace(failing, "key: x", "key: z", 1)))})
	if err := l.ask("operator/ann", response.Retry, open[0].ID); err == nil || !strings.Contains(err.Error(), "its policy was changed") {
		t.Errorf("retry of a response whose policy was replaced: %v", err)
	}
}

// TestRepairedTargetTellsStandingFaults: a failed notification is repeated once its target appears or changes, and when another leader
// begins, which may be configured differently.
func TestRepairedTargetTellsStandingFaults(t *testing.T) {
	l := failedNotification(t)
	targets := func(revision uint64) {
		l.step(response.PoliciesChanged{Policies: l.pols, Targets: map[string]uint64{"chta": revision, "other": 1}})
	}
	l.step(response.PoliciesChanged{Policies: l.pols, Targets: map[string]uint64{"other": 1}})
	l.expect(t, "another target")
	if err := l.ask("operator/ann", response.Retry, l.e.Responses()[0].ID); err == nil || !strings.Contains(err.Error(),
		`target "chta": there is none of this name: want other`) {
		t.Errorf("retry without the target: %v", err)
	}
	targets(5)
	l.until(l.now.Add(time.Second))
	l.land(response.Unchanged, "status 404")
	if len(l.told) != 1 {
		t.Errorf("notified %q once the target exists: want one attempt", l.told)
	}
	l.told = nil
	targets(5)
	l.expect(t, "the same target")
	targets(6)
	l.expect(t, "its repair", movedNode.String())
	targets(7)
	l.expect(t, "a change of a target that has its notification")
}

// TestRecoveryIsToldAtIncidentsEnd: the root cause moves from a link to its node, and the link is well again first. The message of recovery
// waits for the end of the incident.
func TestRecoveryIsToldAtIncidentsEnd(t *testing.T) {
	l := newIncidentLab(t, parsed(t, []byte(toldChat))...)
	l.set(l.own(movedLink.Node, movedLink.Component, fault.Failed))
	l.rooted(movedLink, 0)
	l.expect(t, "a link", movedLink.String())
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0, movedLink)
	l.expect(t, "its node")
	l.set(response.Fault{Node: movedLink.Node, Component: movedLink.Component, State: fault.Normal, Since: l.now})
	l.rooted(movedNode, 0)
	l.expect(t, "the link is well, and its node is not")
	l.set(response.Fault{Node: movedNode.Node, Component: movedNode.Component, State: fault.Normal, Since: l.now})
	l.step(response.IncidentsChanged{Standing: map[string]uint32{"abcd-aaaaaaaa": 0}})
	l.expect(t, "the incident recovers", movedLink.String())
	if open := l.e.Responses(); len(open) != 0 {
		t.Errorf("%d responses are open after the end of the incident", len(open))
	}
}

// TestNotificationHoldsBackNoUndo: the fault of a node has ended while its incident is OPEN. What the policy did to the node is undone.
func TestNotificationHoldsBackNoUndo(t *testing.T) {
	const taint = "{name: taint, executor: kubernetes.taint, parameters: {key: x, effect: NoSchedule}}"
	tainting := strings.Replace(toldChat, "steps:", "steps:\n  - "+taint, 1)
	l := newIncidentLab(t, parsed(t, []byte(tainting))...)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.expect(t, "a dead node", movedNode.String(), movedNode.String())
	l.set(response.Fault{Node: movedNode.Node, Component: movedNode.Component, State: fault.Normal, Since: l.now})
	l.expect(t, "its recovery", movedNode.String(), movedNode.String())
}
