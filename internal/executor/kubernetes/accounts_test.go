package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// A real API server says whose token it is: of which account, for which audience, and of the pod on which node. The shipped
// rights suffice.
func TestTokenOfPodNamesItsNode(t *testing.T) {
	ctx, s := context.Background(), cluster(t)
	node := aNode(t)
	for _, account := range []string{"lofamo-agent", "other", "asking"} {
		admin(t, http.MethodPost, "/api/v1/namespaces/lofamo/serviceaccounts", "", fmt.Sprintf(`{"metadata":{"name":%q}}`, account))
		admin(t, http.MethodPost, "/api/v1/namespaces/lofamo/pods", "", fmt.Sprintf(`{"metadata":{"name":"pod-%s"},"spec":{"nodeName":%q,
			"serviceAccountName":%q,"containers":[{"name":"c","image":"i"}]}}`, account, node, account))
	}
	// The shipped rights, for an account that has no others: other tests show that theirs may not list nodes.
	b, err := os.ReadFile(strings.Replace(manifest, "rbac", "rbac-enrolment", 1))
	if err == nil {
		const subject = "- kind: ServiceAccount\n  name: "
		err = s.Admin.Apply([]byte(strings.Replace(string(b), subject+"lofamo-supervisor", subject+"asking", 1)))
	}
	if err != nil {
		t.Fatal(err)
	}
	asking, err := s.Admin.TokenOf("lofamo", "asking")
	if err != nil {
		t.Fatal(err)
	}
	token := func(account, audience string, bound bool) string {
		t.Helper()
		ref := ""
		if bound {
			ref = fmt.Sprintf(`,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"pod-%s"}`, account)
		}
		var out struct{ Status struct{ Token string } }
		answer := admin(t, http.MethodPost, "/api/v1/namespaces/lofamo/serviceaccounts/"+account+"/token", "",
			fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":[%q]%s}}`, audience, ref))
		if err := json.Unmarshal(answer, &out); err != nil {
			t.Fatal(err)
		}
		return out.Status.Token
	}
	a, err := NewAccounts(kubeconfig(t, s.Addr, asking), "lofamo", []string{"lofamo/lofamo-agent"})
	if err != nil {
		t.Fatal(err)
	}
	good := token("lofamo-agent", "lofamo", true)
	if got, err := a.NodeOf(ctx, good); err != nil || got != node {
		t.Errorf("the token is of node %q, %v: want %s", got, err, node)
	}
	for why, bad := range map[string]string{
		"want one of system:serviceaccount:lofamo:lofamo-agent": token("other", "lofamo", true),
		"names no node": token("lofamo-agent", "lofamo", false),
		"refuses it":    token("lofamo-agent", "else", true),
		"the API":       "garbage",
	} {
		if _, err := a.NodeOf(ctx, bad); !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), why) {
			t.Errorf("error %v: want one with %q", err, why)
		}
	}
	if all, err := a.Nodes(ctx); err != nil || !all[node] || all["none"] {
		t.Errorf("nodes: %v, %v: want %s", all, err, node)
	}
	if _, err := a.Labels(ctx, node); err != nil {
		t.Error(err)
	}
	away, err := NewAccounts(kubeconfig(t, "127.0.0.1:1", "x"), "lofamo", []string{"lofamo/lofamo-agent"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := away.NodeOf(ctx, good); err == nil || errors.Is(err, ErrToken) {
		t.Errorf("error %v without an API server: want one that does not blame the token", err)
	}
}
