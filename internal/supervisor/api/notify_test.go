package api

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// A URL and a secret whose parts must appear nowhere.
const (
	hookURL    = "https://hooks.example:8443/services/T0/hunter2"
	hookSecret = "whsec_aHVudGVyM2h1bnRlcjNodW50ZXIzaHVudGVyMw=="
)

// telling is a policy that notifies a target.
func telling(name, target string) string {
	return document(name, "kubernetes.taint, parameters: {key: "+name+", effect: NoSchedule}",
		"webhook.notify, parameters: {target: "+target+"}")
}

// notifying returns the service on a real store, with one configured target.
func notifying(t *testing.T) (*Responses, *[]notify.Target) {
	t.Helper()
	r, _ := onEtcd(t, newMemory(t, twoApprovals))
	var tested []notify.Target
	r.Notify(Notifier{
		Configured: []ConfiguredTarget{{Name: "desk", Kinds: []response.Kind{response.WebhookNotify}, URL: hookURL, Signed: true}},
		Test: func(_ context.Context, to notify.Target) error {
			if tested = append(tested, to); to.Format == notify.Teams {
				return errors.New("it answers with status 404")
			}
			return nil
		},
	})
	return r, &tested
}

// TestUnknownTargetIsRefused: check, apply and dry run refuse a policy that names a target which does not exist, with the field, the value
// and the targets that do.
func TestUnknownTargetIsRefused(t *testing.T) {
	r, _ := notifying(t)
	ann := callOf(t, pki.RoleOperator, "ann")
	add(t, r, &lofamov1.AddNotifyTargetRequest{Name: "chat", Url: hookURL, Format: lofamov1.NotifyFormat_NOTIFY_SLACK})
	add(t, r, &lofamov1.AddNotifyTargetRequest{Name: "ops", Url: "http://ops.example:9093", Format: lofamov1.NotifyFormat_NOTIFY_ALERTMANAGER})
	for _, tc := range []struct{ doc, want string }{
		{telling("a", "chta"), "policy a: spec.steps[0].parameters.target: given chta: there is none of this name: want chat, desk"},
		{telling("a", "ops"), "given ops: there is none of this name: want chat, desk"},
		{strings.Replace(telling("a", "chat"), "webhook.notify", "webhook.remediate", 1),
			"given chat: want the name of a target, and there is none"},
		{document("a", tainting, "alertmanager, parameters: {severity: info, target: chat}"), "given chat: there is none of this name: want ops"},
	} {
		checked, err := r.CheckPolicies(ann, &lofamov1.CheckPoliciesRequest{Documents: tc.doc})
		if err != nil || len(checked.GetErrors()) != 1 || !strings.Contains(checked.GetErrors()[0], tc.want) {
			t.Errorf("check: %v, %v: want %q", checked, err, tc.want)
		}
		for _, dry := range []bool{true, false} {
			_, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: tc.doc, DryRun: dry})
			refused(t, "apply", err, codes.InvalidArgument, tc.want)
		}
	}
	for _, good := range []string{telling("a", "chat"), telling("a", "desk"),
		document("a", tainting, "alertmanager, parameters: {severity: info, target: ops}"),
		document("a", tainting, "alertmanager, parameters: {severity: info}")} {
		if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: good}); err != nil {
			t.Error(err)
		}
	}
}

// TestObjectWithUnknownTargetIsNotAccepted: a FaultPolicy object cannot name such a target either.
func TestObjectWithUnknownTargetIsNotAccepted(t *testing.T) {
	r, _ := notifying(t)
	r.KeptBy(testOrigin)
	object := func(target string) PolicyObject {
		docs, err := policy.Parse([]byte(telling("a", target)))
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Spec json.RawMessage }
		if err := json.Unmarshal(docs[0].JSON, &doc); err != nil {
			t.Fatal(err)
		}
		return PolicyObject{Name: "a", Spec: doc.Spec}
	}
	if got, _ := keep(t, r, true, object("chta")); got != "a false Invalid  0" {
		t.Errorf("an unknown target: %q", got)
	}
	if got, _ := keep(t, r, true, object("desk")); got != "a true InForce observe-only 1" {
		t.Errorf("a known target: %q", got)
	}
}

func add(t *testing.T, r *Responses, req *lofamov1.AddNotifyTargetRequest) *lofamov1.AddNotifyTargetResponse {
	t.Helper()
	resp, err := r.AddNotifyTarget(callOf(t, pki.RoleOperator, "ann"), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestTargetLifeCycle adds, lists, tests, replaces and removes targets, with their policies. No answer shows a URL or a secret.
func TestTargetLifeCycle(t *testing.T) {
	r, tested := notifying(t)
	ann := callOf(t, pki.RoleOperator, "ann")
	req := &lofamov1.AddNotifyTargetRequest{Name: "chat", Url: hookURL, Secret: hookSecret}
	resp := add(t, r, req)
	if got, want := said(resp.GetChanges()), "notify.chat CREATED 1 -→ENFORCE, notify-group.chat CREATED 1 -→ENFORCE"; got != want ||
		resp.GetReplaced() {
		t.Errorf("added: %s, replaced %t: want %s", got, resp.GetReplaced(), want)
	}
	if again := add(t, r, req); len(again.GetChanges()) != 0 || !again.GetReplaced() {
		t.Errorf("added again: %v: want it replaced, and its policies as they are", again)
	}
	list, err := r.ListNotifyTargets(callOf(t, pki.RoleViewer, "eve"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range list.GetTargets() {
		got = append(got, strings.TrimSpace(strings.Join([]string{x.GetName(), x.GetHost(), x.GetBy(), strings.Join(x.GetPolicies(), ",")}, " ")))
		if !x.GetSigned() || x.GetFingerprint() != (notify.Target{URL: hookURL}).Fingerprint() || x.GetConfigured() != (x.GetName() == "desk") {
			t.Errorf("listed: %v", x)
		}
	}
	want := "chat hooks.example:8443 operator/ann notify-group.chat,notify.chat; desk hooks.example:8443"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("listed: %s: want %s", text, want)
	}
	if text := protojson.Format(list) + protojson.Format(resp); strings.Contains(text, "hunter") || strings.Contains(text, "aHVudGVy") {
		t.Errorf("an answer shows a credential: %s", text)
	}
	for _, name := range []string{"chat", "desk"} {
		if _, err := r.TestNotifyTarget(ann, &lofamov1.TestNotifyTargetRequest{Name: name}); err != nil {
			t.Error(err)
		}
	}
	if x := *tested; len(x) != 2 || x[0].URL != hookURL || x[0].Secret != hookSecret || x[1].Name != "desk" {
		t.Errorf("tested %v", x)
	}
	// Another format needs other steps: the made policies follow.
	ops := add(t, r, &lofamov1.AddNotifyTargetRequest{
		Name: "chat", Url: "http://a.example:9093", Format: lofamov1.NotifyFormat_NOTIFY_ALERTMANAGER})
	want = "notify.chat REPLACED 2 ENFORCE→ENFORCE, notify-group.chat REPLACED 2 ENFORCE→ENFORCE"
	if got := said(ops.GetChanges()); got != want {
		t.Errorf("another format: %s: want %s", got, want)
	}
	removed, err := r.RemoveNotifyTarget(ann, &lofamov1.RemoveNotifyTargetRequest{Name: "chat"})
	if err != nil || len(removed.GetChanges()) != 2 {
		t.Errorf("removed: %v, %v: want it gone with two policies", removed, err)
	}
	list, err = r.ListNotifyTargets(ann, nil)
	policies, err2 := r.ListPolicies(ann, nil)
	if err := errors.Join(err, err2); err != nil || len(list.GetTargets()) != 1 || len(policies.GetPolicies()) != 0 {
		t.Errorf("after the removal: %v, %v, %v", list, policies, err)
	}
}

// TestObservingPolicyNotifiesNobody: a policy that only observes keeps AddNotifyTarget from making its own no more.
func TestObservingPolicyNotifiesNobody(t *testing.T) {
	r, _ := notifying(t)
	ann := callOf(t, pki.RoleOperator, "ann")
	chat := &lofamov1.AddNotifyTargetRequest{Name: "chat", Url: hookURL, Format: lofamov1.NotifyFormat_NOTIFY_SLACK}
	add(t, r, chat)
	_, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: telling("own", "chat")})
	_, err2 := r.DeletePolicies(ann, &lofamov1.DeletePoliciesRequest{Names: policiesOf("chat")})
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	again := add(t, r, chat)
	if got, want := said(again.GetChanges()), "notify.chat"; !strings.Contains(got, want) {
		t.Errorf("changes %q: want %s again", got, want)
	}
	if got, want := strings.Join(again.GetTarget().GetPolicies(), " "), "notify-group.chat notify.chat own"; got != want {
		t.Errorf("policies that name the target: %s: want %s", got, want)
	}
}

// TestRefusedTargetChangesNothing: each refusal names the field or the policy, and shows no credential.
func TestRefusedTargetChangesNothing(t *testing.T) {
	r, _ := notifying(t)
	ann := callOf(t, pki.RoleOperator, "ann")
	add(t, r, &lofamov1.AddNotifyTargetRequest{Name: "teams", Url: hookURL, Format: lofamov1.NotifyFormat_NOTIFY_TEAMS})
	if _, err := r.ApplyPolicies(ann, &lofamov1.ApplyPoliciesRequest{Documents: telling("own", "teams")}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		req  *lofamov1.AddNotifyTargetRequest
		code codes.Code
		want string
	}{
		{&lofamov1.AddNotifyTargetRequest{Name: "Chat", Url: "ftp://hunter2"}, codes.InvalidArgument, `name: given "Chat"`},
		{&lofamov1.AddNotifyTargetRequest{Name: "chat", Url: "ftp://hunter2"}, codes.InvalidArgument, `url: given the scheme "ftp"`},
		{&lofamov1.AddNotifyTargetRequest{Name: "chat", Url: hookURL, Secret: "hunter2"}, codes.InvalidArgument, "secret: want whsec_"},
		{&lofamov1.AddNotifyTargetRequest{Name: "chat", Url: hookURL, Format: 9}, codes.InvalidArgument, "format: given 9: want one of"},
		{&lofamov1.AddNotifyTargetRequest{Name: "desk", Url: hookURL}, codes.FailedPrecondition,
			"target desk: the supervisors' configuration has it"},
		{&lofamov1.AddNotifyTargetRequest{Name: "teams", Url: "http://a.example", Format: lofamov1.NotifyFormat_NOTIFY_ALERTMANAGER},
			codes.FailedPrecondition, "format: given alertmanager: policy own names target teams"},
	} {
		_, err := r.AddNotifyTarget(ann, tc.req)
		refused(t, "add", err, tc.code, tc.want)
		if strings.Contains(err.Error(), "hunter") {
			t.Errorf("the error shows a credential: %v", err)
		}
	}
	_, err := r.TestNotifyTarget(ann, &lofamov1.TestNotifyTargetRequest{Name: "teams"})
	refused(t, "test", err, codes.FailedPrecondition, "target teams: it answers with status 404")
	_, err = r.TestNotifyTarget(ann, &lofamov1.TestNotifyTargetRequest{Name: "taems"})
	refused(t, "test", err, codes.NotFound, `target "taems": there is none of this name: want teams`)
	_, err = r.RemoveNotifyTarget(ann, &lofamov1.RemoveNotifyTargetRequest{Name: "taems"})
	refused(t, "remove", err, codes.NotFound, "want teams")
	_, err = r.RemoveNotifyTarget(ann, &lofamov1.RemoveNotifyTargetRequest{Name: "teams"})
	refused(t, "remove", err, codes.FailedPrecondition, "policy own names it")
	_, err = r.RemoveNotifyTarget(ann, &lofamov1.RemoveNotifyTargetRequest{Name: "desk"})
	refused(t, "remove", err, codes.FailedPrecondition, "configuration has it")
	list, err := r.ListNotifyTargets(ann, nil)
	if err != nil || len(list.GetTargets()) != 2 {
		t.Errorf("%v, %v: want the two targets as before", list, err)
	}
}
