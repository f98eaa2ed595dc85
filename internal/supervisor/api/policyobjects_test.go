package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

const testOrigin = "kubernetes/fabric"

// wanting returns an object with the spec of document(key).
func wanting(name, key string, edit ...string) PolicyObject {
	return PolicyObject{Name: name, Spec: []byte(strings.NewReplacer(edit...).Replace(fmt.Sprintf(`{"match":
		"fault.component == \"memory\"","mode":"observe-only",
		"steps":[{"name":"taint","executor":"kubernetes.taint","parameters":{"key":%q,"effect":"NoSchedule"}}]}`, key)))}
}

// keep calls Keep, and renders the standing.
func keep(t *testing.T, r *Responses, complete bool, objects ...PolicyObject) (said string, more bool) {
	t.Helper()
	out, more, err := r.Keep(t.Context(), objects, complete)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(out)) {
		st := out[name]
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %v %s %s %d", name, st.Accepted, st.Reason, st.Mode, st.Version)))
	}
	return strings.Join(lines, ", "), more
}

// inForce renders the policies of the store.
func inForce(t *testing.T, s *store.Etcd) string {
	t.Helper()
	set, err := s.Policies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range set.Policies {
		out = append(out, fmt.Sprintf("%s %d %s", p.Name, p.Version, p.By))
	}
	return strings.Join(out, ", ")
}

// TestUnreadablePolicyOfObjectIsNotInForce: an earlier version put the policy of an object in force, and this one reads neither the policy
// nor the object. The object does not say that the policy stays in force.
func TestUnreadablePolicyOfObjectIsNotInForce(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	plant(t, r, s, store.StoredPolicy{Name: "a", By: testOrigin, JSON: []byte(`{"apiVersion":"lofamo.io/v7"}`)})
	out, _, err := r.Keep(t.Context(), []PolicyObject{wanting("a", "a", "memory", "no such part")}, true)
	if st := out["a"]; err != nil || st.Accepted || st.Reason != policyInvalid ||
		!strings.HasPrefix(st.Message, "version 1 cannot be read and starts no new responses: ") {
		t.Errorf("%+v, %v", out["a"], err)
	}
}

// TestKeptPoliciesFollowObjects: policies appear, change and go with their objects, an invalid object leaves the last policy in force,
// and an unchanged list commits nothing.
func TestKeptPoliciesFollowObjects(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	for i, step := range []struct {
		complete   bool
		objects    []PolicyObject
		said, then string
	}{
		{true, nil, "", ""},
		{true, []PolicyObject{wanting("a", "a"), wanting("b", "b")}, "a true InForce observe-only 1, b true InForce observe-only 1",
			"a 1 kubernetes/fabric, b 1 kubernetes/fabric"},
		{true, []PolicyObject{wanting("a", "a"), wanting("b", "b", "observe-only", "enforce")},
			"a true InForce observe-only 1, b true InForce enforce 2", "a 1 kubernetes/fabric, b 2 kubernetes/fabric"},
		{true, []PolicyObject{wanting("a", "a", "memory", "nothing"), wanting("b", "b", "observe-only", "enforce")},
			"a false Invalid observe-only 1, b true InForce enforce 2", "a 1 kubernetes/fabric, b 2 kubernetes/fabric"},
		{true, []PolicyObject{{Name: "a", Bad: "the object is too large"}, wanting("c", "b", "observe-only", "enforce")},
			"a false Invalid observe-only 1, c true InForce enforce 1", "a 1 kubernetes/fabric, c 1 kubernetes/fabric"},
		{true, []PolicyObject{wanting("a", "b"), wanting("c", "b", "observe-only", "enforce")},
			"a false Conflict observe-only 1, c true InForce enforce 1", "a 1 kubernetes/fabric, c 1 kubernetes/fabric"},
		{true, []PolicyObject{wanting("a", "a", `"kubernetes.taint","parameters":{"key":"a","effect":"NoSchedule"}`,
			`"command","parameters":{"command":"a"},"timeout":"25h"`), wanting("c", "b", "observe-only", "enforce")},
			"a false Invalid observe-only 1, c true InForce enforce 1", "a 1 kubernetes/fabric, c 1 kubernetes/fabric"},
		{false, []PolicyObject{wanting("d", "d")}, "d true InForce observe-only 1",
			"a 1 kubernetes/fabric, c 1 kubernetes/fabric, d 1 kubernetes/fabric"},
		{true, nil, "", ""},
	} {
		said, more := keep(t, r, step.complete, step.objects...)
		if then := inForce(t, s); said != step.said || more || then != step.then {
			t.Errorf("step %d: %s, more %v, then %s\nwant %s, then %s", i, said, more, then, step.said, step.then)
		}
		events, _, err := s.Events(t.Context(), 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := keep(t, r, step.complete, step.objects...); again != step.said {
			t.Errorf("step %d again: %s\nwant %s", i, again, step.said)
		}
		if after, _, err := s.Events(t.Context(), 0, 0, nil); err != nil || len(after) != len(events) {
			t.Errorf("step %d: %d events, then %d, %v: the same list was committed again", i, len(events), len(after), err)
		}
	}
	events, _, err := s.Events(t.Context(), 0, 0, nil)
	if err != nil || len(events) != 9 {
		t.Fatalf("%d events, %v: want 9", len(events), err)
	}
	if ev := events[2]; ev.GetObserver() != testOrigin || ev.GetReason() != "policy b replaced, observe-only before, enforce now, version 2" {
		t.Errorf("%v", ev)
	}
}

// TestPolicyOfObjectIsChangedThere: people cannot change a policy that comes from an object, and no object takes over a policy of people.
// Without the setting people may change and withdraw it.
func TestPolicyOfObjectIsChangedThere(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	ann := callOf(t, pki.RoleOperator, "ann")
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("mine")}); err != nil {
		t.Fatal(err)
	}
	objects := []PolicyObject{wanting("a", "a"), wanting("mine", "other")}
	said, _ := keep(t, r, true, objects...)
	if want := "a true InForce observe-only 1, mine false NameTaken  0"; said != want {
		t.Errorf("%s: want %s", said, want)
	}
	change := func() error {
		_, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a")})
		return err
	}
	for _, dry := range []bool{true, false} {
		_, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("new") + "---" + document("a"), DryRun: dry})
		refused(t, "apply", err, codes.FailedPrecondition, "policy a: it comes from kubernetes/fabric: change or delete the FaultPolicy object a")
		_, err = r.DeletePolicies(ann, &lofamov1.DeletePoliciesRequest{Names: []string{"mine", "a"}, DryRun: dry})
		refused(t, "delete", err, codes.FailedPrecondition, "policy a: it comes from kubernetes/fabric")
	}
	resp, err := r.CheckPolicies(ann, &lofamov1.CheckPoliciesRequest{Documents: document("a")})
	if err != nil || len(resp.GetErrors()) != 1 || !strings.HasPrefix(resp.GetErrors()[0], "policy a: it comes from") {
		t.Errorf("%v, %v", resp, err)
	}
	list, err := r.ListPolicies(ann, nil)
	if err != nil || list.GetPolicies()[0].GetBy() != testOrigin {
		t.Errorf("%v, %v", list, err)
	}
	if got := inForce(t, s); got != "a 1 kubernetes/fabric, mine 1 operator/ann" {
		t.Error(got)
	}
	// The same document is no change: a file of all policies can still be applied.
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: list.GetPolicies()[0].GetDocument()}); err != nil {
		t.Error(err)
	}
	if _, err := r.DeletePolicies(ann, &lofamov1.DeletePoliciesRequest{Names: []string{"mine"}}); err != nil {
		t.Fatal(err)
	}
	said, _ = keep(t, r, true, objects...)
	if want := "a true InForce observe-only 1, mine true InForce observe-only 3"; said != want {
		t.Errorf("%s: want %s", said, want)
	}
	r.origin = ""
	if err := change(); err != nil {
		t.Error(err)
	}
	if got := inForce(t, s); got != "a 2 operator/ann, mine 3 kubernetes/fabric" {
		t.Error(got)
	}
	r.origin = testOrigin
	if said, _ = keep(t, r, true, wanting("a", "a")); said != "a false NameTaken  0" {
		t.Error(said)
	}
	if got := inForce(t, s); got != "a 2 operator/ann" {
		t.Errorf("%s: want the policy of a person alone", got)
	}
}

// TestManyObjectsAreCommittedInParts: one commit changes few policies, and the rest follows. There are at most as many policies as people
// may put in force.
func TestManyObjectsAreCommittedInParts(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	r.s.cfg.MaxOps = 40 // 8 policies take 20 and more
	var objects []PolicyObject
	for i := range 2*maxKept + 1 {
		name := fmt.Sprintf("p%02d", i)
		objects = append(objects, wanting(name, name))
	}
	rounds := func(want int, objects ...PolicyObject) {
		t.Helper()
		for n := 1; ; n++ {
			_, more := keep(t, r, true, objects...)
			if !more || n > want {
				if n != want {
					t.Errorf("%d commits: want %d", n, want)
				}
				return
			}
		}
	}
	rounds(3, objects...)
	if got := strings.Count(inForce(t, s), testOrigin); got != len(objects) {
		t.Errorf("%d policies: want %d", got, len(objects))
	}
	for i := range objects {
		objects[i] = wanting(objects[i].Name, objects[i].Name, "observe-only", "enforce")
	}
	rounds(3, objects...)
	var docs []*policy.Document
	for i := range policy.MaxDocuments {
		d, err := documentOf(wanting(fmt.Sprintf("x%03d", i), fmt.Sprintf("x%03d", i)))
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, d)
	}
	together := map[string]*policy.Document{}
	for _, d := range docs[:policy.MaxDocuments-1] {
		together[d.Name] = d
	}
	if err := conflict(together, docs[0]); err != nil {
		t.Error(err)
	}
	together["y"] = docs[policy.MaxDocuments-1]
	one, err := documentOf(wanting("z", "z"))
	if err != nil {
		t.Fatal(err)
	}
	if err := conflict(together, one); err == nil || !strings.Contains(err.Error(), "at most 200") {
		t.Errorf("%v", err)
	}
}

// TestObjectsExchangeTheirPolicies: objects may take over the condition and the steps of each other in one commit.
func TestObjectsExchangeTheirPolicies(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	ann := callOf(t, pki.RoleOperator, "ann")
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("mine",
		`fault.component == "memory" && fault.state == "FAILED"`, `fault.component == "memory"`)}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		objects []PolicyObject
		want    string
	}{
		{[]PolicyObject{wanting("a", "a"), wanting("b", "b"), wanting("c", "c")},
			"a true InForce observe-only 1, b true InForce observe-only 1, c true InForce observe-only 1"},
		{[]PolicyObject{wanting("a", "b"), wanting("b", "a"), wanting("c", "c")},
			"a true InForce observe-only 2, b true InForce observe-only 2, c true InForce observe-only 1"},
		{[]PolicyObject{wanting("a", "c"), wanting("b", "b"), wanting("c", "a")},
			"a true InForce observe-only 3, b true InForce observe-only 3, c true InForce observe-only 2"},
		// A new object takes over from one that changes.
		{[]PolicyObject{wanting("a", "x"), wanting("b", "b"), wanting("c", "a"), wanting("d", "c")},
			"a true InForce observe-only 4, b true InForce observe-only 3, c true InForce observe-only 2, d true InForce observe-only 1"},
		// The last of the row would take over the policy of a person.
		{[]PolicyObject{wanting("a", "b"), wanting("b", "mine"), wanting("c", "a"), wanting("d", "c")},
			"a false Conflict observe-only 4, b false Conflict observe-only 3, c true InForce observe-only 2, d true InForce observe-only 1"},
		// The other object is invalid.
		{[]PolicyObject{wanting("a", "b"), wanting("b", "x", "NoSchedule", "Never"), wanting("c", "a"), wanting("d", "c")},
			"a false Conflict observe-only 4, b false Invalid observe-only 3, c true InForce observe-only 2, d true InForce observe-only 1"},
		// Two objects want the same.
		{[]PolicyObject{wanting("a", "b"), wanting("b", "y"), wanting("c", "b"), wanting("d", "c")},
			"a true InForce observe-only 5, b true InForce observe-only 4, c false Conflict observe-only 2, d true InForce observe-only 1"},
	} {
		revision := setOf(t, s).Revision
		if said, more := keep(t, r, true, step.objects...); said != step.want || more {
			t.Errorf("%s, more %v: want %s", said, more, step.want)
		}
		if got := setOf(t, s).Revision; got > revision+1 {
			t.Errorf("%d revisions: want one commit", got-revision)
		}
		if said, more := keep(t, r, true, step.objects...); said != step.want || more {
			t.Errorf("again: %s, more %v: want %s", said, more, step.want)
		}
	}
}

// TestExchangeFitsOneCommit: an exchange waits for a commit that has room for it, and one that is larger than any commit is refused.
func TestExchangeFitsOneCommit(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	row := func(of, shift int) (out []PolicyObject) {
		for i := range of {
			out = append(out, wanting(fmt.Sprintf("p%02d", i), fmt.Sprintf("k%02d", (i+shift)%of)))
		}
		return out
	}
	all := func(objects ...PolicyObject) (said string) {
		for range 10 {
			var more bool
			if said, more = keep(t, r, true, objects...); !more {
				break
			}
		}
		return said
	}
	all(row(maxKept, 0)...)
	if said := all(row(maxKept, 1)...); strings.Count(said, "true InForce observe-only 2") != maxKept {
		t.Errorf("%s: want an exchange of %d", said, maxKept)
	}
	objects := append([]PolicyObject{wanting("a", "new")}, row(maxKept, 2)...)
	said, more := keep(t, r, true, objects...)
	if said != "a true InForce observe-only 1" || !more {
		t.Errorf("%s, more %v: want an exchange that waits", said, more)
	}
	if said = all(objects...); strings.Count(said, "true InForce observe-only 3") != maxKept {
		t.Errorf("%s: want an exchange of %d after another change", said, maxKept)
	}
	all(row(maxKept+1, 0)...)
	if said = all(row(maxKept+1, 1)...); strings.Count(said, "false Conflict") != maxKept+1 {
		t.Errorf("%s: want conflicts", said)
	}
}

// TestLastFiringIsShown: the standing has the time of the policy's last response.
func TestLastFiringIsShown(t *testing.T) {
	m := newMemory(t, twoApprovals)
	waiting(t, m)
	r, _ := onEtcd(t, m)
	r.KeptBy(testOrigin)
	out, _, err := r.Keep(t.Context(), []PolicyObject{wanting("drain", "d"), wanting("other", "e")}, true)
	if err != nil || out["drain"].Fired.IsZero() || !out["other"].Fired.IsZero() {
		t.Errorf("%+v, %v", out, err)
	}
}

// notLeading refuses every change.
type notLeading struct{}

func (notLeading) Topology(context.Context) (store.Topology, error) {
	return store.Topology{}, engine.ErrNotLeading
}

func (notLeading) Change(context.Context, func(store.Topology) ([]store.Write, error)) (uint64, error) {
	return 0, engine.ErrNotLeading
}

// TestReplicaThatDoesNotLeadKeepsNothing: before its term, and after it, a replica changes nothing and states nothing.
func TestReplicaThatDoesNotLeadKeepsNothing(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	r.s.cfg.Operators = notLeading{}
	begin := time.Now()
	out, more, err := r.Keep(t.Context(), []PolicyObject{wanting("a", "a")}, true)
	if len(out) != 0 || !more || err != nil {
		t.Errorf("%v, more %v, %v", out, more, err)
	}
	if got, took := inForce(t, s), time.Since(begin); got != "" || took > changeTime {
		t.Errorf("%q in force after %s: want none, at once", got, took)
	}
}

// before calls a function at the beginning of each change.
type before struct {
	Operators
	call func()
}

func (b before) Change(ctx context.Context, prepare func(store.Topology) ([]store.Write, error)) (uint64, error) {
	return b.Operators.Change(ctx, func(top store.Topology) ([]store.Write, error) {
		b.call()
		return prepare(top)
	})
}

// TestObjectsAreParsedBeforeTheCommit: no object is parsed while operators' changes wait.
func TestObjectsAreParsedBeforeTheCommit(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	objects := []PolicyObject{wanting("a", "a")}
	r.s.cfg.Operators = before{r.s.cfg.Operators, func() { objects[0].Spec = []byte("{}") }}
	if said, _ := keep(t, r, true, objects...); said != "a true InForce observe-only 1" {
		t.Errorf("%s: want a policy in force", said)
	}
	if got := inForce(t, s); got != "a 1 kubernetes/fabric" {
		t.Error(got)
	}
}

// TestReadingOfManyObjectsContinues: objects that one call had no time to read follow in the next, and delay no withdrawal. What was read
// stays when the time of a call is over.
func TestReadingOfManyObjectsContinues(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	gone := wanting("gone", "gone")
	keep(t, r, true, gone)
	objects := []PolicyObject{wanting("a", "a"), wanting("b", "b"), wanting("c", "c")}
	late := time.Now().Add(-time.Second)
	for i := range objects {
		if err := r.describe(t.Context(), objects, late); err != nil {
			t.Fatal(err)
		}
		if len(r.given) != i+1 {
			t.Errorf("call %d: %d objects are read: want %d", i, len(r.given), i+1)
		}
		if i == 0 {
			p, out := r.planKeep(setOf(t, s), objects, true, time.Now(), documentOf)
			if len(p.stored) != 2 || !p.stored[0].Deleted || p.stored[1].Name != "a" || len(out) != 1 {
				t.Errorf("%d changes, %v: want a withdrawal and one new policy", len(p.stored), out)
			}
		}
	}
	objects[0] = wanting("a", "x")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.describe(ended, objects, late); err == nil || len(r.given) != 3 {
		t.Errorf("%v, %d objects: want an error, and no loss", err, len(r.given))
	}
	objects[1] = wanting("b", "x")
	if err := r.describe(t.Context(), objects, late); err != nil || len(r.given) != 2 {
		t.Errorf("%v, %d objects: want no outdated one", err, len(r.given))
	}
	if err := r.describe(t.Context(), nil, late); err != nil || len(r.given) != 0 {
		t.Errorf("%v, %d objects: want none", err, len(r.given))
	}
}

// setOf returns the policies of the store.
func setOf(t *testing.T, s *store.Etcd) store.PolicySet {
	t.Helper()
	set, err := s.PolicySet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return set
}
