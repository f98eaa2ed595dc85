package response_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// incidentPolicies notify once an incident: docs/responses.md has them.
const incidentPolicies = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: incident}
spec:
  mode: enforce
  match: fault.incident != "" && fault.duration >= duration("5s")
  steps:
  - {name: alert, executor: alertmanager, parameters: {severity: critical}}
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: group-incident}
spec:
  mode: enforce
  target: Group
  match: fault.incident != ""
  steps:
  - {name: alert, executor: alertmanager, parameters: {severity: critical}}
`

// TestIncidentIsNotifiedOnce plays a dead node with its links, a cut cable, and a rack whose nodes die one by one: each
// incident leads to one notification, however many parts fail with it.
func TestIncidentIsNotifiedOnce(t *testing.T) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(incidentPolicies))...)
	var told []string
	l.on = func(out response.Output) {
		for _, f := range out.Effects {
			told = append(told, f.Target.String())
		}
	}
	l.lead()
	l.until(l.now.Add(time.Minute)) // the grace of a new leader
	expect := func(what string, want ...string) {
		t.Helper()
		l.until(l.now.Add(time.Minute))
		slices.Sort(told)
		if !slices.Equal(told, want) {
			t.Errorf("%s: notified of %s: want %s", what, strings.Join(told, ", "), strings.Join(want, ", "))
		}
		told = nil
		l.land(response.Succeeded, "")
	}
	node := response.Target{Node: "n1-1-1", Component: fault.ComponentNode}
	roots := map[response.Target]string{node: "abcd-aaaaaaaa"}
	l.set(l.own(node.Node, fault.ComponentNode, fault.Failed))
	for d, id := range map[grid.Direction]fault.NodeID{grid.XPlus: "n0-1-1", grid.YPlus: "n1-0-1", grid.ZPlus: "n1-1-0"} {
		l.set(l.own(id, fault.Link(d), fault.Failed))
	}
	expect("a fault without an incident yet")
	l.step(response.IncidentsChanged{Roots: roots})
	expect("a dead node and three of its links", node.String())
	cable := response.Target{Node: "n3-3-3", Component: fault.Link(grid.XPlus)}
	roots[cable] = "abcd-bbbbbbbb"
	l.set(l.own(cable.Node, fault.Link(grid.XPlus), fault.Failed))
	l.set(l.own("n0-3-3", fault.Link(grid.XMinus), fault.Failed))
	l.step(response.IncidentsChanged{Roots: roots})
	expect("both ends of a cut cable", cable.String())
	expect("nothing new")
	rack := response.Target{Group: "label/rack=r2"}
	members := []fault.NodeID{"n2-0-0", "n2-1-0", "n2-2-0"}
	for i, id := range members {
		l.set(l.own(id, fault.ComponentNode, fault.Failed))
		roots[response.Target{Node: id, Component: fault.ComponentNode}] = "abcd-ddddddd" + string(rune('a'+i))
		l.step(response.IncidentsChanged{Roots: roots})
		l.until(l.now.Add(time.Second))
	}
	for _, id := range members {
		delete(roots, response.Target{Node: id, Component: fault.ComponentNode})
	}
	roots[rack] = "abcd-cccccccc"
	l.step(response.GroupChanged{Group: response.Group{ID: rack.Group, Kind: "LABEL", State: fault.Failed, Cause: fault.CauseNode,
		Members: members, Of: 16, Since: l.now, At: l.now}})
	l.step(response.IncidentsChanged{Roots: roots})
	expect("a rack whose nodes died within three seconds", rack.String())
}

// TestCableSickAtOneEndIsNotifiedOnce: a link is SICK at its receiving end. The incident may name either end, the second end
// may join later, and the leader may change meanwhile.
func TestCableSickAtOneEndIsNotifiedOnce(t *testing.T) {
	lower := response.Target{Node: "n1-1-1", Component: fault.Link(grid.YPlus)}
	upper := response.Target{Node: "n1-2-1", Component: fault.Link(grid.YMinus)}
	for _, named := range []response.Target{lower, upper} {
		for _, sick := range []response.Target{lower, upper} {
			for _, renames := range []bool{false, true} {
				t.Run(fmt.Sprintf("incident of %s, SICK at %s, renamed %t", named.Component, sick.Component, renames), func(t *testing.T) {
					cableSickAtOneEnd(t, named, sick, map[response.Target]response.Target{lower: upper, upper: lower}, renames)
				})
			}
		}
	}
}

// cableSickAtOneEnd plays an incident of a cable. If renames is set, it names the other end when that end joins.
func cableSickAtOneEnd(t *testing.T, named, sick response.Target, other map[response.Target]response.Target, renames bool) {
	l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(incidentPolicies))...)
	var told []string
	l.on = func(out response.Output) {
		for _, f := range out.Effects {
			told = append(told, f.Target.String())
		}
	}
	rooted := func(at response.Target) response.IncidentsChanged {
		return response.IncidentsChanged{Roots: map[response.Target]string{at: "abcd-aaaaaaaa"},
			Ends: map[response.Target]response.Target{at: other[at]}}
	}
	l.lead()
	l.until(l.now.Add(time.Minute)) // the grace of a new leader
	l.set(l.own(sick.Node, sick.Component, fault.Sick))
	l.step(rooted(named))
	l.until(l.now.Add(time.Minute))
	l.land(response.Succeeded, "")
	join := other[sick]
	l.set(l.own(join.Node, join.Component, fault.Sick))
	if renames {
		named = other[named]
		l.step(rooted(named))
	}
	l.until(l.now.Add(time.Minute))
	l.lead()
	l.step(rooted(named))
	l.until(l.now.Add(2 * time.Minute))
	if want := []string{sick.String()}; !slices.Equal(told, want) {
		t.Errorf("notified of %q: want %q", told, want)
	}
}

// incidentLab is a lab with the incident policies, which notes the targets of all notifications.
type incidentLab struct {
	*lab
	told []string
}

// newIncidentLab returns a lab whose leader is past its grace. Without policies, it has the incident policies.
func newIncidentLab(t *testing.T, policies ...*response.Policy) *incidentLab {
	t.Helper()
	if len(policies) == 0 {
		policies = parsed(t, []byte(incidentPolicies))
	}
	l := &incidentLab{lab: newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, policies...)}
	l.on = func(out response.Output) {
		for _, f := range out.Effects {
			l.told = append(l.told, f.Target.String())
		}
	}
	l.lead()
	l.until(l.now.Add(time.Minute)) // the grace of a new leader
	return l
}

// expect lets a minute pass, in which notifications succeed, and compares the notifications since the last call.
func (l *incidentLab) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	for range 6 {
		l.until(l.now.Add(10 * time.Second))
		l.land(response.Succeeded, "")
	}
	if !slices.Equal(l.told, want) {
		t.Errorf("%s: notified of %q: want %q", what, l.told, want)
	}
	l.told = nil
}

// rooted tells the engine the root cause of the only incident.
func (l *incidentLab) rooted(at response.Target, notice uint32, parts ...response.Target) {
	ev := response.IncidentsChanged{
		Roots: map[response.Target]string{at: "abcd-aaaaaaaa"}, Parts: map[response.Target]string{},
		Standing: map[string]uint32{"abcd-aaaaaaaa": notice},
	}
	for _, p := range parts {
		ev.Parts[p] = "abcd-aaaaaaaa"
	}
	l.step(ev)
}

var (
	movedLink = response.Target{Node: "n0-1-1", Component: fault.Link(grid.XPlus)}
	movedNode = response.Target{Node: "n1-1-1", Component: fault.ComponentNode}
	movedRack = response.Target{Group: "label/rack=r1"}
)

func (l *incidentLab) rack(s fault.State) {
	l.step(response.GroupChanged{Group: response.Group{ID: movedRack.Group, Kind: "LABEL", State: s, Cause: fault.CauseNode,
		Members: []fault.NodeID{"n1-1-1", "n1-2-1", "n1-3-1"}, Of: 16, Since: l.now, At: l.now}})
}

// TestMovedRootIsNotifiedOnce: the root cause of an incident moves from a link to a node to a rack, under several leaders.
func TestMovedRootIsNotifiedOnce(t *testing.T) {
	l := newIncidentLab(t)
	l.set(l.own(movedLink.Node, movedLink.Component, fault.Failed))
	l.rooted(movedLink, 0)
	l.expect(t, "a link", movedLink.String())
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0, movedLink)
	l.expect(t, "its node")
	l.lead()
	l.rooted(movedNode, 0, movedLink)
	l.until(l.now.Add(time.Minute))
	l.expect(t, "its node, under another leader")
	l.rack(fault.Failed)
	l.rooted(movedRack, 0, movedNode, movedLink)
	l.expect(t, "its rack")
	l.rack(fault.Normal)
	l.set(response.Fault{Node: movedNode.Node, Component: movedNode.Component, State: fault.Normal, Since: l.now})
	l.expect(t, "the end")
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0, movedLink)
	l.expect(t, "the node again, before the incident is CLOSED")
	l.set(response.Fault{Node: movedNode.Node, Component: movedNode.Component, State: fault.Normal, Since: l.now})
	l.step(response.IncidentsChanged{})
	l.until(l.now.Add(time.Minute))
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.step(response.IncidentsChanged{Roots: map[response.Target]string{movedNode: "abcd-bbbbbbbb"},
		Standing: map[string]uint32{"abcd-bbbbbbbb": 0}})
	l.expect(t, "the node in another incident", movedNode.String())
}

// TestFailedNotificationIsRepeatedForTheNextRoot: a notification that did not arrive does not cover the next one.
func TestFailedNotificationIsRepeatedForTheNextRoot(t *testing.T) {
	l := newIncidentLab(t)
	l.set(l.own(movedLink.Node, movedLink.Component, fault.Failed))
	l.rooted(movedLink, 0)
	l.until(l.now.Add(time.Minute))
	l.land(response.Unchanged, "no answer")
	l.told = nil
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0, movedLink)
	l.expect(t, "its node", movedNode.String())
}

// TestUnfinishedNotificationDoesNotCoverTheNextRoot: the first notification has no result yet, or waits for its retry, when the
// root cause moves. It fails only after the move.
func TestUnfinishedNotificationDoesNotCoverTheNextRoot(t *testing.T) {
	for _, retries := range []bool{false, true} {
		t.Run(fmt.Sprintf("retry pending %t", retries), func(t *testing.T) {
			text := strings.ReplaceAll(incidentPolicies, "executor: alertmanager,", "executor: alertmanager, retries: 3,")
			l := newIncidentLab(t, parsed(t, []byte(text))...)
			l.set(l.own(movedLink.Node, movedLink.Component, fault.Failed))
			l.rooted(movedLink, 0)
			l.until(l.now.Add(6 * time.Second))
			if !slices.Equal(l.told, []string{movedLink.String()}) {
				t.Fatalf("notified of %q: want the link", l.told)
			}
			l.told = nil
			if retries {
				l.land(response.Unchanged, "no answer")
			}
			first := l.flying
			l.flying = nil
			l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
			l.rooted(movedNode, 0, movedLink)
			l.until(l.now.Add(6 * time.Second))
			for _, f := range first {
				l.answer(f, response.Unchanged, "no answer")
			}
			l.expect(t, "its node", movedNode.String())
			l.rack(fault.Failed)
			l.rooted(movedRack, 0, movedNode, movedLink)
			l.expect(t, "its rack, after the node's notification")
		})
	}
}

// TestEscalationAfterAcknowledgementIsNotifiedAgain: somebody acknowledged a SICK node, which then fails, and dies with its rack.
func TestEscalationAfterAcknowledgementIsNotifiedAgain(t *testing.T) {
	l := newIncidentLab(t)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Sick))
	l.rooted(movedNode, 0)
	l.expect(t, "a SICK node", movedNode.String())
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.expect(t, "it fails without an acknowledgement")
	l.rooted(movedNode, 1)
	l.expect(t, "it fails after an acknowledgement", movedNode.String())
	l.rooted(movedNode, 1)
	l.lead()
	l.rooted(movedNode, 1)
	l.until(l.now.Add(time.Minute))
	l.expect(t, "another leader")
	l.rack(fault.Failed)
	l.rooted(movedRack, 1, movedNode)
	l.expect(t, "its rack, before the next acknowledgement")
	l.rooted(movedRack, 3, movedNode)
	l.expect(t, "its rack, after an acknowledgement of the node", movedRack.String())
}

// TestIncidentRecordListsResponses: responses to the root cause and to consequences are listed with their state and result, the
// newest ones, and move with their faults to another incident.
func TestIncidentRecordListsResponses(t *testing.T) {
	l := newIncidentLab(t)
	list := func(id string) (out []string, count int) {
		rec, _ := l.store["incident/"+id].(*response.IncidentRecord)
		if rec == nil {
			return nil, 0
		}
		for _, r := range rec.Responses {
			out = append(out, fmt.Sprintf("%s %s %s %s", r.Target, r.Step, r.State, r.Result))
		}
		return out, rec.Count
	}
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.until(l.now.Add(10 * time.Second))
	if got, _ := list("abcd-aaaaaaaa"); !slices.Equal(got, []string{"n1-1-1/node alert running "}) {
		t.Errorf("while it runs: %q", got)
	}
	l.land(response.Succeeded, "two took it")
	if got, n := list("abcd-aaaaaaaa"); n != 1 || !slices.Equal(got, []string{"n1-1-1/node alert done two took it"}) {
		t.Errorf("done: %d, %q", n, got)
	}
	l.lead()
	l.step(response.IncidentsChanged{Roots: map[response.Target]string{movedRack: "abcd-bbbbbbbb"},
		Parts: map[response.Target]string{movedNode: "abcd-bbbbbbbb"}, Standing: map[string]uint32{"abcd-bbbbbbbb": 0}})
	if got, _ := list("abcd-aaaaaaaa"); len(got) != 0 {
		t.Errorf("the incident that was merged still has %q", got)
	}
	if got, _ := list("abcd-bbbbbbbb"); len(got) != 1 {
		t.Errorf("the incident that continues it has %q", got)
	}
	var parts []response.Target
	for i := range 20 {
		f := l.own(l.topo.Nodes[i].ID, fault.ComponentMemory, fault.Failed)
		l.rooted(f.Target(), 0, parts...)
		l.set(f)
		l.until(l.now.Add(10 * time.Second))
		parts = append(parts, f.Target())
	}
	if got, n := list("abcd-aaaaaaaa"); len(got) != response.MaxIncidentResponses || n < 20 {
		t.Errorf("%d of %d responses are listed: want the newest %d", len(got), n, response.MaxIncidentResponses)
	}
}

// watchMemory is a policy whose responses to consequences fill the record of an incident.
const watchMemory = `
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: memory}
spec:
  mode: observe-only
  match: fault.component == "memory"
  steps:
  - {name: drain, executor: kubernetes.cordon}
`

// TestFullIncidentRecordKeepsItsNotification: responses to many consequences do not displace the notification of the root
// cause, nor the notice of its alert.
func TestFullIncidentRecordKeepsItsNotification(t *testing.T) {
	l := newIncidentLab(t, parsed(t, []byte(incidentPolicies+watchMemory))...)
	var notices []uint32
	note := l.on
	l.on = func(out response.Output) {
		note(out)
		for _, f := range out.Effects {
			notices = append(notices, f.Notice)
		}
	}
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Sick))
	l.rooted(movedNode, 0)
	l.expect(t, "a SICK node", movedNode.String())
	parts := []response.Target{movedNode}
	more := func() {
		for range 20 {
			f := l.own(l.topo.Nodes[len(parts)].ID, fault.ComponentMemory, fault.Failed)
			parts = append(parts, f.Target())
			l.set(f)
		}
	}
	joined := func() {
		t.Helper()
		rec := l.store["incident/abcd-aaaaaaaa"].(*response.IncidentRecord)
		if len(rec.Responses) != response.MaxIncidentResponses {
			t.Fatalf("%d responses are listed: want a full record", len(rec.Responses))
		}
	}
	more()
	l.rooted(movedNode, 0, parts...)
	joined()
	l.rooted(movedNode, 2, parts...)
	l.expect(t, "an escalation after an acknowledgement", movedNode.String())
	more()
	l.rooted(movedNode, 2, parts...)
	joined()
	rec := l.store["incident/abcd-aaaaaaaa"].(*response.IncidentRecord)
	if !slices.ContainsFunc(rec.Responses, func(x response.IncidentResponse) bool { return len(x.Notified) == 1 && x.Notice == 2 }) {
		t.Errorf("the alert's notice is lost: %+v", rec.Responses)
	}
	l.rack(fault.Failed)
	l.rooted(movedRack, 2, parts...)
	l.expect(t, "its rack")
	if want := []uint32{0, 2}; !slices.Equal(notices, want) {
		t.Errorf("notices %d: want %d", notices, want)
	}
}

// TestFullIncidentRecordKeepsPendingNotification: a response that has yet to notify stays in a full record, so that its
// notification covers the next root cause.
func TestFullIncidentRecordKeepsPendingNotification(t *testing.T) {
	l := newIncidentLab(t, parsed(t, []byte(incidentPolicies+watchMemory))...)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 3)
	l.until(l.now.Add(6 * time.Second)) // the notification has no result yet
	parts := []response.Target{movedNode}
	for i := range 20 {
		f := l.own(l.topo.Nodes[i].ID, fault.ComponentMemory, fault.Failed)
		parts = append(parts, f.Target())
		l.set(f)
	}
	l.rooted(movedNode, 3, parts...)
	l.expect(t, "a node", movedNode.String())
	l.rack(fault.Failed)
	l.rooted(movedRack, 3, parts...)
	l.expect(t, "its rack")
}

// TestMergedNotificationsKeepTheNewestNotice: more notified responses of one policy join than a record lists, each with an
// older notice than that of the incident. The one that notified after the escalation stays.
func TestMergedNotificationsKeepTheNewestNotice(t *testing.T) {
	l := newIncidentLab(t)
	const id = "abcd-aaaaaaaa"
	ev := response.IncidentsChanged{Roots: map[response.Target]string{movedNode: id}, Parts: map[response.Target]string{},
		Standing: map[string]uint32{id: 2}}
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	want := []string{movedNode.String()}
	for i := range 20 {
		f := l.own(l.topo.Nodes[i].ID, fault.ComponentMemory, fault.Failed)
		other := fmt.Sprintf("abcd-b%07d", i)
		ev.Roots[f.Target()], ev.Standing[other] = other, 0
		l.set(f)
		want = append(want, f.Target().String())
	}
	l.step(ev)
	l.until(l.now.Add(10 * time.Second))
	l.land(response.Succeeded, "")
	slices.Sort(l.told)
	slices.Sort(want)
	l.expect(t, "21 incidents", want...)
	merged := []response.Target{movedNode}
	for at := range ev.Roots {
		if at != movedNode {
			merged = append(merged, at)
		}
	}
	l.rooted(movedNode, 2, merged...)
	l.expect(t, "one incident")
	l.rack(fault.Failed)
	l.rooted(movedRack, 2, merged...)
	l.expect(t, "its rack")
}

// undoneAlerts is a policy whose alerts end with their faults.
const undoneAlerts = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: undone}
spec:
  mode: enforce
  match: fault.incident != ""
  undo: {onRecovery: true, after: 0s}
  steps:
  - {name: alert, executor: alertmanager, parameters: {severity: critical}}
`

// notedLab returns a lab with the policy undoneAlerts, and the notices of all steps and undos by target.
func notedLab(t *testing.T) (l *incidentLab, began, undone map[response.Target]uint32) {
	t.Helper()
	l = newIncidentLab(t, parsed(t, []byte(undoneAlerts))...)
	began, undone = make(map[response.Target]uint32), make(map[response.Target]uint32)
	note := l.on
	l.on = func(out response.Output) {
		note(out)
		for _, f := range out.Effects {
			if f.Undo {
				undone[f.Target] = f.Notice
			} else {
				began[f.Target] = f.Notice
			}
		}
	}
	return l, began, undone
}

// TestAlertKeepsItsNoticeInAnotherIncident: the undo of an alert has the alert's notice after the incident was merged into another one,
// also under another leader.
func TestAlertKeepsItsNoticeInAnotherIncident(t *testing.T) {
	for _, leads := range []bool{false, true} {
		l, began, undone := notedLab(t)
		l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
		l.rooted(movedNode, 2)
		l.expect(t, "an escalated incident", movedNode.String())
		merged := response.IncidentsChanged{Roots: map[response.Target]string{movedRack: "abcd-bbbbbbbb"},
			Parts: map[response.Target]string{movedNode: "abcd-bbbbbbbb"}, Standing: map[string]uint32{"abcd-bbbbbbbb": 0}}
		l.step(merged)
		if leads {
			l.lead()
			l.step(merged)
			l.until(l.now.Add(time.Minute))
		}
		l.set(response.Fault{Node: movedNode.Node, Component: movedNode.Component, State: fault.Normal, Since: l.now})
		l.expect(t, "the end", movedNode.String())
		if began[movedNode] != 2 || undone[movedNode] != 2 {
			t.Errorf("another leader %t: notice %d of the alert, %d of its undo: want 2", leads, began[movedNode], undone[movedNode])
		}
	}
}

// TestNoticeOfAnotherIncidentCoversNoEscalation: a response that joins from another incident has notified before the escalation of this
// one, however high its alert's notice is.
func TestNoticeOfAnotherIncidentCoversNoEscalation(t *testing.T) {
	l := newIncidentLab(t)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 3)
	l.expect(t, "an escalated incident", movedNode.String())
	merged := func(notice uint32) {
		l.step(response.IncidentsChanged{Roots: map[response.Target]string{movedRack: "abcd-bbbbbbbb"},
			Parts: map[response.Target]string{movedNode: "abcd-bbbbbbbb"}, Standing: map[string]uint32{"abcd-bbbbbbbb": notice}})
	}
	l.rack(fault.Failed)
	merged(0)
	l.expect(t, "its rack")
	merged(1)
	l.expect(t, "an escalation of the rack's incident", movedRack.String())
}

// TestFullIncidentRecordKeepsNoticesOfAlerts: responses whose alerts have no notice leave a full record first.
func TestFullIncidentRecordKeepsNoticesOfAlerts(t *testing.T) {
	l, began, undone := notedLab(t)
	const id = "abcd-aaaaaaaa"
	ev := response.IncidentsChanged{Roots: map[response.Target]string{}, Parts: map[response.Target]string{},
		Standing: map[string]uint32{id: 0}}
	const noted = response.MaxIncidentResponses - 1
	var all []response.Target
	for i := range 21 {
		f := l.own(l.topo.Nodes[i].ID, fault.ComponentMemory, fault.Failed)
		other := fmt.Sprintf("abcd-b%07d", i)
		ev.Roots[f.Target()], ev.Standing[other] = other, 0
		if i < noted {
			ev.Standing[other] = 3
		}
		all = append(all, f.Target())
		l.set(f)
	}
	l.step(ev)
	for range 3 {
		l.until(l.now.Add(10 * time.Second))
		l.land(response.Succeeded, "")
	}
	l.rooted(movedNode, 0, all...)
	for _, at := range all {
		l.set(response.Fault{Node: at.Node, Component: at.Component, State: fault.Normal, Since: l.now})
	}
	for range 3 {
		l.until(l.now.Add(10 * time.Second))
		l.land(response.Succeeded, "")
	}
	if len(began) != len(all) || !maps.Equal(began, undone) {
		t.Errorf("notices %v, of the undos %v: want the same", began, undone)
	}
}

// TestShortIncidentsArePruned: records of ended incidents are deleted beyond their bound, also while no incident stands. While
// the incidents are unknown, nothing is deleted.
func TestShortIncidentsArePruned(t *testing.T) {
	const bound, over = 2000, 10
	l := newIncidentLab(t)
	for i := range bound + over {
		rec := &response.IncidentRecord{Incident: fmt.Sprintf("abcd-%08d", i)}
		l.store[rec.Key()] = rec
	}
	count := func() (n int) {
		for _, r := range l.store {
			if _, ok := r.(*response.IncidentRecord); ok {
				n++
			}
		}
		return n
	}
	l.lead()
	l.now = l.now.Add(2 * time.Minute)
	l.step(response.Tick{})
	if n := count(); n != bound+over {
		t.Fatalf("%d records while the incidents are unknown: want all %d", n, bound+over)
	}
	l.step(response.IncidentsChanged{})
	l.now = l.now.Add(2 * time.Minute)
	l.step(response.Tick{})
	if n := count(); n != bound {
		t.Errorf("%d records: want %d", n, bound)
	}
}

// TestRecordIsEitherWrittenOrForgotten: a leader begins with too many records, and at once moves an open response from an ended
// incident to the one that continues it. The step that prunes the ended incident does not write its record too: the store refuses a
// transaction that puts and deletes one key.
func TestRecordIsEitherWrittenOrForgotten(t *testing.T) {
	l := newIncidentLab(t)
	l.set(l.own(movedNode.Node, movedNode.Component, fault.Failed))
	l.rooted(movedNode, 0)
	l.until(l.now.Add(10 * time.Second))
	for i := range 2000 {
		rec := &response.IncidentRecord{Incident: fmt.Sprintf("abcd-%08d", i),
			Responses: []response.IncidentResponse{{Since: l.now.Add(time.Hour)}}}
		l.store[rec.Key()] = rec
	}
	e, err := response.New(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	led := response.Led{Token: l.token + 1, Records: slices.Collect(maps.Values(l.store)), Faults: slices.Collect(maps.Values(l.faults))}
	var out response.Output
	for _, ev := range []response.Event{l.topo, response.SupervisorsChanged{Supervisors: l.sups}, response.PoliciesChanged{Policies: l.pols},
		response.IncidentsChanged{Roots: map[response.Target]string{movedRack: "abcd-bbbbbbbb"},
			Parts: map[response.Target]string{movedNode: "abcd-bbbbbbbb"}, Standing: map[string]uint32{"abcd-bbbbbbbb": 0}}, led} {
		out = e.Step(l.now, ev)
	}
	if !slices.Contains(out.Forget, "incident/abcd-aaaaaaaa") {
		t.Errorf("the engine forgets %q: want the incident that was merged", out.Forget)
	}
	written := map[string]bool{}
	for _, r := range out.Records {
		written[r.Key()] = true
	}
	for _, key := range out.Forget {
		if written[key] {
			t.Errorf("%s is written and forgotten in one step", key)
		}
	}
	if !written["incident/abcd-bbbbbbbb"] {
		t.Error("the incident that continues it has no record")
	}
}

// TestNotificationKeysAreDistinct: the keys of long parameters are bounded, and differ even if only the ends of the
// parameters differ.
func TestNotificationKeysAreDistinct(t *testing.T) {
	long := strings.Repeat("ä", 200)
	seen := map[string]bool{}
	for _, text := range []string{"", "a", long + "a", long + "b"} {
		key := response.NotificationKey(response.KubernetesEvent, map[string]string{"message": text, "reason": "Fault"})
		if seen[key] || len(key) > 128 || key == "" {
			t.Errorf("%q has the key %q", text, key)
		}
		seen[key] = true
	}
	if key := response.NotificationKey(response.KubernetesCordon, nil); key != "" {
		t.Errorf("a cordon has the key %q", key)
	}
}
