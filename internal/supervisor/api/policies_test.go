package api

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// leading commits operators' changes, as the engine does while it leads.
type leading struct{ w store.Committer }

func (leading) Topology(context.Context) (store.Topology, error) { return store.Topology{}, nil }

func (l leading) Change(ctx context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, error) {
	writes, err := change(store.Topology{})
	if err != nil {
		return 0, err
	}
	var rev uint64
	for _, w := range writes {
		if rev, err = l.w.Commit(ctx, w.Batch()); err != nil {
			return 0, err
		}
	}
	return rev, nil
}

// onEtcd returns the service on a real store.
func onEtcd(t *testing.T, m *memory) (*Responses, *store.Etcd) {
	t.Helper()
	c := supervisortest.NewEtcd(t, 1).Members[0].Client()
	s := store.NewEtcd(c, store.Options{MaxOps: embedded.MaxTxnOps})
	session, err := concurrency.NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	e := concurrency.NewElection(session, store.ElectionPrefix)
	if err := e.Campaign(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Writer(store.Fence{Key: e.Key(), Rev: e.Rev()}, store.Meta{Cluster: "test"}, snap)
	if err != nil {
		t.Fatal(err)
	}
	r := responsesOf(t, m, alone{})
	r.policies, r.s.cfg.Operators = s, leading{w}
	return r, s
}

// document returns a policy that taints. edit pairs replace text in it.
func document(name string, edit ...string) string {
	return strings.NewReplacer(edit...).Replace(fmt.Sprintf(`
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: %s}
spec:
  description: one of a test
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: taint, executor: kubernetes.taint, parameters: {key: %s, effect: NoSchedule}}
`, name, name))
}

// With these edits, a document has a step whose timeout is too long for a new policy.
const (
	tainting   = "kubernetes.taint, parameters: {key: a, effect: NoSchedule}"
	commanding = "command, parameters: {command: a}, timeout: 25h"
)

// said renders policy changes as one line.
func said(changes []*lofamov1.PolicyChange) string {
	var out []string
	for _, c := range changes {
		s := fmt.Sprintf("%s %s %d %s→%s", c.GetName(), strings.TrimPrefix(c.GetKind().String(), "POLICY_"), c.GetVersion(),
			short(c.GetFrom()), short(c.GetTo()))
		if c.GetOpen() > 0 {
			s += fmt.Sprintf(" %d open", c.GetOpen())
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func short(m lofamov1.PolicyMode) string {
	if m == lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED {
		return "-"
	}
	return m.String()
}

func TestAppliedPoliciesReportChanges(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	ann := callOf(t, pki.RoleOperator, "ann")
	apply := func(want string, req *lofamov1.ApplyPoliciesRequest) uint64 {
		t.Helper()
		resp, err := r.ApplyPolicies(ann, req)
		if err != nil {
			t.Fatal(err)
		}
		if got := said(resp.GetChanges()); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		return resp.GetRevision()
	}
	both := document("b") + "---" + document("a")
	apply("b CREATED 1 -→OBSERVE_ONLY, a CREATED 1 -→OBSERVE_ONLY", &lofamov1.ApplyPoliciesRequest{Documents: both, DryRun: true})
	if list, err := r.ListPolicies(ann, nil); err != nil || len(list.GetPolicies()) != 0 {
		t.Errorf("after a dry run: %v, %v", list, err)
	}
	rev := apply("b CREATED 1 -→OBSERVE_ONLY, a CREATED 1 -→OBSERVE_ONLY",
		&lofamov1.ApplyPoliciesRequest{Documents: both, Expected: map[string]uint64{"a": 0}})
	if again := apply("b UNCHANGED 1 OBSERVE_ONLY→OBSERVE_ONLY, a UNCHANGED 1 OBSERVE_ONLY→OBSERVE_ONLY",
		&lofamov1.ApplyPoliciesRequest{Documents: both}); again != 0 && again < rev {
		t.Errorf("revision %d after %d", again, rev)
	}
	apply("a RELABELLED 2 OBSERVE_ONLY→OBSERVE_ONLY",
		&lofamov1.ApplyPoliciesRequest{Documents: document("a", "{name: a}", "{name: a, labels: {team: x}}")})
	apply("a REPLACED 3 OBSERVE_ONLY→ENFORCE", &lofamov1.ApplyPoliciesRequest{Documents: document("a", "description: one of a test",
		"mode: enforce"), Expected: map[string]uint64{"a": 2}})

	list, err := r.ListPolicies(callOf(t, pki.RoleViewer, "eve"), nil)
	if err != nil || len(list.GetPolicies()) != 2 || list.GetRevision() < rev {
		t.Fatalf("%v, %v", list, err)
	}
	if p := list.GetPolicies()[0]; p.GetName() != "a" || p.GetVersion() != 3 || p.GetBy() != "operator/ann" ||
		p.GetMode() != lofamov1.PolicyMode_ENFORCE || len(p.GetDigest()) != 16 || p.GetAt() == nil ||
		strings.Join(p.GetSteps(), " ") != "kubernetes.taint" || !strings.Contains(p.GetDocument(), `"mode":"enforce"`) ||
		!strings.HasPrefix(p.GetMatch(), "fault.component") {
		t.Errorf("%v", p)
	}
	got, err := r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "a"})
	if err != nil || got.GetPolicy().GetVersion() != 3 || len(got.GetFormer()) != 2 || got.GetFormer()[0].GetVersion() != 2 ||
		got.GetFormer()[0].GetDocument() != "" || got.GetFormer()[1].GetDigest() == "" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "a", Version: 1}); err != nil ||
		got.GetPolicy().GetVersion() != 1 || !strings.Contains(got.GetPolicy().GetDocument(), "one of a test") {
		t.Errorf("%v, %v", got, err)
	}
	events, _, err := s.Events(t.Context(), 0, 0, nil)
	if err != nil || len(events) != 4 {
		t.Fatalf("%v, %v", events, err)
	}
	if ev := events[3]; ev.GetKind() != lofamov1.EventKind_POLICY_CHANGED || ev.GetPolicy() != "a" ||
		ev.GetObserver() != "operator/ann" || ev.GetEnded() ||
		ev.GetReason() != "policy a replaced, observe-only before, enforce now, version 3" || ev.GetTime() == nil {
		t.Errorf("%v", ev)
	}
}

func TestApplyPoliciesRefuses(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	ann := callOf(t, pki.RoleOperator, "ann")
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a")}); err != nil {
		t.Fatal(err)
	}
	long := document("a", "one of a test", strings.Repeat("x", 1000), "kubernetes.taint", "kubernetes.nonsense")
	for _, tc := range []struct {
		ctx  context.Context
		req  *lofamov1.ApplyPoliciesRequest
		code codes.Code
		text string
	}{
		{callOf(t, pki.RoleApprover, "ann"), &lofamov1.ApplyPoliciesRequest{Documents: document("b")}, codes.PermissionDenied, "want operator"},
		{ann, &lofamov1.ApplyPoliciesRequest{}, codes.InvalidArgument, "given no document"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a", "kubernetes.taint", "kubernetes.paint")}, codes.InvalidArgument,
			`spec.steps[0].executor: given "kubernetes.paint": want one of`},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a", tainting, commanding)}, codes.InvalidArgument,
			"policy a: spec.steps[0].timeout: given 25h: want at most 24h with command"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: long + strings.Repeat("---"+strings.ReplaceAll(long, "name: a", "nome: b"), 20)},
			codes.InvalidArgument, "policy check says all"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("b", "key: b", "key: a")}, codes.InvalidArgument,
			"policy a: spec.match: the same condition and the same steps as policy b"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("b", "key: b", "key: a"), DryRun: true}, codes.InvalidArgument,
			"the same condition"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a"), Expected: map[string]uint64{"a": 4}}, codes.Aborted,
			"policy a: it is at version 1 and 4 is expected"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("b"), Expected: map[string]uint64{"b": 1}}, codes.Aborted,
			"policy b: it is at version 0 and 1 is expected"},
		{ann, &lofamov1.ApplyPoliciesRequest{Documents: document("b"), Expected: map[string]uint64{"a": 1}}, codes.InvalidArgument,
			`expected: given "a": want names`},
	} {
		_, err := r.ApplyPolicies(tc.ctx, tc.req)
		refused(t, fmt.Sprintf("%.300s", tc.req), err, tc.code, tc.text)
	}
	r.s.cfg.MaxOps = 20
	var many []string
	for i := range 6 {
		many = append(many, document(fmt.Sprintf("p%d", i)))
	}
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: strings.Join(many, "---")}); err != nil {
		t.Errorf("6 policies: %v", err)
	}
	many = append(many, document("p6"), document("p7"), document("p8"), document("p9"))
	for i := range many {
		many[i] = strings.Replace(many[i], "one of a test", "another one", 1)
	}
	_, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: strings.Join(many, "---")})
	refused(t, "more than the store takes", err, codes.InvalidArgument, "policies: given 10 that change, which take 27 operations")
}

func TestCheckedPoliciesStayUnchanged(t *testing.T) {
	m := newMemory(t, twoApprovals)
	waiting(t, m)
	r, _ := onEtcd(t, m)
	ann := callOf(t, pki.RoleOperator, "ann")
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: twoApprovals}); err != nil {
		t.Fatal(err)
	}
	check := func(documents string) *lofamov1.CheckPoliciesResponse {
		t.Helper()
		resp, err := r.CheckPolicies(callOf(t, pki.RoleViewer, "eve"), &lofamov1.CheckPoliciesRequest{Documents: documents})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := check(strings.Replace(twoApprovals, "approvals: 2", "approvals: 1", 1) + "---" + document("new"))
	if got := said(resp.GetChanges()); got != "drain REPLACED 2 ENFORCE→ENFORCE 1 open, new CREATED 1 -→OBSERVE_ONLY" ||
		len(resp.GetErrors()) > 0 {
		t.Errorf("%s, %v", got, resp.GetErrors())
	}
	resp = check(document("a", "NoSchedule", "NoThing", "timeout", "x") + "---" + document("b", "spec:", "specs:"))
	if len(resp.GetErrors()) < 3 || len(resp.GetChanges()) > 0 ||
		!strings.Contains(resp.GetErrors()[0], `policy a: spec.steps[0].parameters.effect: given "NoThing"`) {
		t.Errorf("%q", resp.GetErrors())
	}
	if resp = check(document("a", tainting, commanding)); len(resp.GetErrors()) != 1 ||
		!strings.Contains(resp.GetErrors()[0], "given 25h: want at most 24h with command") {
		t.Errorf("%q", resp.GetErrors())
	}
	if resp = check(strings.Replace(twoApprovals, "name: drain}", "name: twin}", 1)); len(resp.GetErrors()) != 1 ||
		!strings.Contains(resp.GetErrors()[0], "the same steps") {
		t.Errorf("%q", resp.GetErrors())
	}
}

func TestDeletedPolicyReportsOpenResponses(t *testing.T) {
	m := newMemory(t, twoApprovals)
	waiting(t, m)
	r, s := onEtcd(t, m)
	ann := callOf(t, pki.RoleOperator, "ann")
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: twoApprovals + "---" + document("a") + "---" +
		document("b")}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		ctx  context.Context
		req  *lofamov1.DeletePoliciesRequest
		code codes.Code
		text string // of the error; or the changes made
	}{
		{ann, &lofamov1.DeletePoliciesRequest{}, codes.InvalidArgument, "names: given 0: want 1 to 200"},
		{callOf(t, pki.RoleApprover, "ann"), &lofamov1.DeletePoliciesRequest{Names: []string{"a"}}, codes.PermissionDenied, "want operator"},
		{ann, &lofamov1.DeletePoliciesRequest{Names: []string{"a", "x", "y"}}, codes.NotFound,
			`there is no policy "x", "y": nothing was changed`},
		{ann, &lofamov1.DeletePoliciesRequest{Names: []string{"a"}, Expected: map[string]uint64{"a": 2}}, codes.Aborted, "it is at version 1"},
		{ann, &lofamov1.DeletePoliciesRequest{Names: []string{"drain", "a", "a"}, DryRun: true}, codes.OK,
			"drain DELETED 2 ENFORCE→- 1 open, a DELETED 2 OBSERVE_ONLY→-"},
		{ann, &lofamov1.DeletePoliciesRequest{Names: []string{"drain", "a", "a"}}, codes.OK,
			"drain DELETED 2 ENFORCE→- 1 open, a DELETED 2 OBSERVE_ONLY→-"},
		{ann, &lofamov1.DeletePoliciesRequest{Names: []string{"a"}}, codes.NotFound, `there is no policy "a"`},
	} {
		resp, err := r.DeletePolicies(tc.ctx, tc.req)
		if tc.code != codes.OK {
			refused(t, tc.req.String(), err, tc.code, tc.text)
		} else if got := said(resp.GetChanges()); err != nil || got != tc.text {
			t.Errorf("%v: %s, %v\nwant %s", tc.req, got, err, tc.text)
		}
	}
	_, err := r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "a"})
	refused(t, "one that was withdrawn", err, codes.NotFound, `policy "a": it was withdrawn: version 2 was the last`)
	_, err = r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "x"})
	refused(t, "one that never was", err, codes.NotFound, `policy "x": there is none`)
	_, err = r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "b", Version: 9})
	refused(t, "a version that is not", err, codes.NotFound, "version 9: there is none")
	_, err = r.GetPolicy(ann, &lofamov1.GetPolicyRequest{})
	refused(t, "no name", err, codes.InvalidArgument, "name: given nothing")
	if got, err := r.GetPolicy(ann, &lofamov1.GetPolicyRequest{Name: "a", Version: 2}); err != nil || !got.GetPolicy().GetDeleted() ||
		got.GetPolicy().GetDocument() != "" {
		t.Errorf("%v, %v", got, err)
	}
	events, _, err := s.Events(t.Context(), 0, 0, nil)
	if err != nil || !events[len(events)-1].GetEnded() {
		t.Errorf("%v, %v", events, err)
	}
}

// plant stores policies as another version may have done, without any check.
func plant(t *testing.T, r *Responses, s *store.Etcd, policies ...store.StoredPolicy) {
	t.Helper()
	w, err := setOf(t, s).Write(policies)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.s.cfg.Operators.Change(t.Context(),
		func(store.Topology) ([]store.Write, error) { return []store.Write{w}, nil }); err != nil {
		t.Fatal(err)
	}
}

// TestAppliedPolicyWithControlCharactersIsRead: a policy that was put in force can be read from the store.
func TestAppliedPolicyWithControlCharactersIsRead(t *testing.T) {
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	ann := callOf(t, pki.RoleOperator, "ann")
	text := document("a", "one of a test", `"pasted\x7f \x85 \uffff text"`)
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: text}); err != nil {
		t.Fatal(err)
	}
	list, err := r.ListPolicies(ann, nil)
	if err != nil || list.GetPolicies()[0].GetDescription() != "pasted\x7f \u0085 \uffff text" {
		t.Errorf("%v, %v: want the description that was applied", list, err)
	}
	resp, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: text})
	if got := said(resp.GetChanges()); err != nil || got != "a UNCHANGED 1 OBSERVE_ONLY→OBSERVE_ONLY" {
		t.Errorf("again: %s, %v", got, err)
	}
}

// TestUnreadablePolicyCanBeReplaced: a document stored by another version is shown as unreadable, and can be replaced.
func TestUnreadablePolicyCanBeReplaced(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	ann := callOf(t, pki.RoleOperator, "ann")
	plant(t, r, s, store.StoredPolicy{Name: "a", JSON: []byte(`{"apiVersion":"lofamo.io/v7"}`)},
		store.StoredPolicy{Name: "b", JSON: []byte(`{"apiVersion":"lofamo.io/v7"}`)})
	list, err := r.ListPolicies(ann, nil)
	if err != nil || len(list.GetPolicies()) != 2 || !strings.Contains(list.GetPolicies()[0].GetDescription(), "cannot read the policy") ||
		list.GetPolicies()[0].GetMode() != 0 {
		t.Errorf("%v, %v", list, err)
	}
	resp, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("a")})
	if got := said(resp.GetChanges()); err != nil || got != "a REPLACED 2 -→OBSERVE_ONLY" {
		t.Errorf("%s, %v", got, err)
	}
	del, err := r.DeletePolicies(ann, &lofamov1.DeletePoliciesRequest{Names: []string{"b"}})
	if got := said(del.GetChanges()); err != nil || got != "b DELETED 2 -→-" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestHugePatternIsNeverCompiled: neither a check for a viewer nor an object nor a stored policy makes a supervisor compile a pattern that
// takes hundreds of megabytes.
func TestHugePatternIsNeverCompiled(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	r.KeptBy(testOrigin)
	pattern := "^(" + strings.Repeat("x?", 900) + "){1000}$"
	const failed = `fault.component == "memory" && fault.state == "FAILED"`
	huge := func(name string) string {
		return document(name, failed, fmt.Sprintf(`'"x".matches("%s") && %s'`, pattern, failed))
	}
	js, err := yaml.YAMLToJSON([]byte(huge("a")))
	if err != nil {
		t.Fatal(err)
	}
	plant(t, r, s, store.StoredPolicy{Name: "a", JSON: js})
	const want = "matches: given patterns of 1802002 instructions: want at most 1000"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := r.CheckPolicies(callOf(t, pki.RoleViewer, "vic"), &lofamov1.CheckPoliciesRequest{
		Documents: huge("p") + "---" + huge("q") + "---" + huge("r")})
	if err != nil || len(resp.GetErrors()) != 3 || !strings.Contains(resp.GetErrors()[0], want) {
		t.Errorf("check: %v, %v: want three errors", resp, err)
	}
	list, err := r.ListPolicies(callOf(t, pki.RoleViewer, "vic"), nil)
	if err != nil || len(list.GetPolicies()) != 1 || !strings.Contains(list.GetPolicies()[0].GetDescription(), want) {
		t.Errorf("stored: %v, %v", list, err)
	}
	out, _, err := r.Keep(t.Context(), []PolicyObject{
		wanting("b", "b", `fault.component`, fmt.Sprintf(`\"x\".matches(\"%s\") && fault.component`, pattern))}, true)
	if err != nil || out["b"].Reason != policyInvalid || !strings.Contains(out["b"].Message, want) {
		t.Errorf("object: %v, %v", out, err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 128<<20 {
		t.Errorf("they took %d MiB: want less than 128", taken>>20)
	}
}

// TestStoredPolicyWithLongTimeoutStaysInForce: an earlier version accepted a timeout that new policies may not have.
func TestStoredPolicyWithLongTimeoutStaysInForce(t *testing.T) {
	r, s := onEtcd(t, newMemory(t, twoApprovals))
	ann := callOf(t, pki.RoleOperator, "ann")
	docs, err := policy.Parse([]byte(document("a", tainting, commanding)))
	if err != nil {
		t.Fatal(err)
	}
	plant(t, r, s, store.StoredPolicy{Name: "a", JSON: docs[0].JSON})
	if resp, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: document("b")}); err != nil || len(resp.GetChanges()) != 1 {
		t.Errorf("another policy: %v, %v", resp, err)
	}
	whole := document("a", tainting, commanding) + "---" + document("b", "one of a test", "another one")
	resp, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: whole})
	const want = "a UNCHANGED 1 OBSERVE_ONLY→OBSERVE_ONLY, b REPLACED 2 OBSERVE_ONLY→OBSERVE_ONLY"
	if got := said(resp.GetChanges()); err != nil || got != want {
		t.Errorf("the file of both policies: %s, %v", got, err)
	}
	changed := document("a", tainting, commanding, "one of a test", "another one")
	_, err = r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: changed})
	refused(t, "a changed spec", err, codes.InvalidArgument, "policy a: spec.steps[0].timeout: given 25h: want at most 24h with command")
	list, err := r.ListPolicies(ann, nil)
	if err != nil || len(list.GetPolicies()) != 2 || list.GetPolicies()[0].GetMode() != lofamov1.PolicyMode_OBSERVE_ONLY {
		t.Errorf("%v, %v", list, err)
	}
}

// TestEveryResponseStateHasName: every state, step state and mode has its name.
func TestEveryResponseStateHasName(t *testing.T) {
	for s := response.Proposed; s <= response.Expired; s++ {
		if got := protoResponseState(s).String(); got != "RESPONSE_"+strings.ToUpper(s.String()) {
			t.Errorf("%s is %s", s, got)
		}
	}
	for s := response.Pending; s <= response.PutBack; s++ {
		got := protoResponse(&response.Response{Steps: []response.StepRecord{{State: s}}}).GetSteps()[0].GetState().String()
		if strings.TrimPrefix(got, "STEP_") != strings.ReplaceAll(strings.ToUpper(s.String()), " ", "_") {
			t.Errorf("%s is %s", s, got)
		}
	}
	g := protoResponse(&response.Response{Target: response.Target{Group: "label/rack=r7"}, FaultState: fault.Failed,
		FaultCause: fault.CauseNode, Undo: response.Undo{OnRecovery: true}})
	if g.GetComponent() != "" || g.GetGroup() != "label/rack=r7" || g.GetFaultState() != lofamov1.State_FAILED ||
		g.GetFaultCause() != lofamov1.Cause_NODE || g.GetUndoAfter() == nil || g.GetClosed() != nil {
		t.Errorf("%v", g)
	}
}

// TestFormerPoliciesAreForgotten changes one policy many times. The cache of documents keeps the versions that the store keeps, without
// their compiled conditions.
func TestFormerPoliciesAreForgotten(t *testing.T) {
	var d documents
	change := func(from, to uint64) uint64 {
		for n := from; n <= to; n++ {
			p := store.StoredPolicy{Name: "a", Version: n}
			docs, err := policy.Parse([]byte(document("a", "one of a test", fmt.Sprint("version ", n))))
			if err != nil {
				t.Fatal(err)
			}
			p.JSON = docs[0].JSON
			doc, err := d.of(p)
			if err != nil || doc.Description != fmt.Sprint("version ", n) || doc.Policy.Digest == "" || len(doc.Policy.Steps) != 1 {
				t.Fatalf("version %d: %+v, %v", n, doc, err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := change(1, 100)
	after := change(101, 300)
	if after > before+2<<20 {
		t.Errorf("200 more versions of a policy: %d kB more in use: want at most 2 MiB", (after-before)>>10)
	}
	if len(d.all) > store.MaxFormer+1 {
		t.Errorf("%d versions kept: want at most %d", len(d.all), store.MaxFormer+1)
	}
}
