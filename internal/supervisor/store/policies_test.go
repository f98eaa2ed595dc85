package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

var at = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

func policy(name, text string) store.StoredPolicy {
	return store.StoredPolicy{Name: name, JSON: fmt.Appendf(nil, `{"spec":%q}`, text), By: "operator/ann", At: at}
}

func withdrawn(name string) store.StoredPolicy {
	return store.StoredPolicy{Name: name, By: "operator/bob", At: at, Deleted: true}
}

// led is a store with its leader's committer.
type led struct {
	*store.Etcd

	c *clientv3.Client
	w store.Committer
}

func lead(t testing.TB) led {
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
	return led{s, c, w}
}

// change commits changes to the present set.
func (l led) change(t *testing.T, changes ...store.StoredPolicy) {
	t.Helper()
	set, err := l.PolicySet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.commit(t, set, changes...); err != nil {
		t.Fatal(err)
	}
}

func (l led) commit(t *testing.T, set store.PolicySet, changes ...store.StoredPolicy) error {
	t.Helper()
	w, err := set.Write(changes)
	if err != nil {
		return err
	}
	_, err = l.w.Commit(t.Context(), w.Batch())
	return err
}

// said returns the stored policies as text.
func (l led) said(t *testing.T, history ...string) string {
	t.Helper()
	set, err := l.Policies(t.Context())
	if err != nil || set.Revision == 0 {
		t.Fatal(set.Revision, err)
	}
	return text(set.Policies) + l.former(t, history...)
}

func (l led) former(t *testing.T, names ...string) string {
	t.Helper()
	var b strings.Builder
	for _, name := range names {
		former, err := l.PolicyHistory(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("; before: " + text(former))
	}
	return b.String()
}

func text(policies []store.StoredPolicy) string {
	var out []string
	for _, p := range policies {
		if p.Deleted {
			out = append(out, fmt.Sprintf("%s %d withdrawn by %s%s", p.Name, p.Version, p.By, p.JSON))
			continue
		}
		out = append(out, fmt.Sprintf("%s %d %s", p.Name, p.Version, strings.Trim(strings.TrimPrefix(string(p.JSON), `{"spec":`), `"}`)))
		if p.By != "operator/ann" || !p.At.Equal(at) {
			out = append(out, "by", p.By, p.At.String())
		}
	}
	return strings.Join(out, ", ")
}

// Policies have versions, a bounded number of former ones is kept, and a withdrawn policy continues its numbers.
func TestPoliciesHaveBoundedVersions(t *testing.T) {
	l := lead(t)
	if got := l.said(t, "a"); got != "; before: " {
		t.Errorf("an empty store: %s", got)
	}
	l.change(t, policy("b", "one"), policy("a", "one"), policy("a-b", "one"))
	l.change(t, policy("a", "two"))
	if got, want := l.said(t, "a", "b"), "a 2 two, a-b 1 one, b 1 one; before: a 1 one; before: "; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	l.change(t, withdrawn("a"), policy("b", "two"))
	if got, want := l.said(t, "a", "b"),
		"a-b 1 one, b 2 two; before: a 3 withdrawn by operator/bob, a 2 two, a 1 one; before: b 1 one"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	l.change(t, policy("a", "four"))
	if got, want := l.said(t, "a"), "a 4 four, a-b 1 one, b 2 two; before: a 3 withdrawn by operator/bob, a 2 two, a 1 one"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for i := range store.MaxFormer + 3 {
		l.change(t, policy("a", fmt.Sprint(i)))
	}
	former, err := l.PolicyHistory(t.Context(), "a")
	if n := len(former); err != nil || n != store.MaxFormer || former[0].Version != store.MaxFormer+6 || former[n-1].Version != 7 {
		t.Errorf("%d former versions: %s, %v", n, text(former), err)
	}
}

// Of two changes of one set the second is refused, whichever policies they concern.
func TestPoliciesAreCompared(t *testing.T) {
	l := lead(t)
	set, err := l.PolicySet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.commit(t, set, policy("a", "one")); err != nil {
		t.Fatal(err)
	}
	if err := l.commit(t, set, policy("b", "one")); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a change of what is not so any more: %v", err)
	}
	if got := l.said(t); got != "a 1 one" {
		t.Errorf("%s", got)
	}
}

func TestPolicyWriteRefuses(t *testing.T) {
	var set store.PolicySet
	for _, tc := range []struct {
		changes []store.StoredPolicy
		want    string
	}{
		{nil, "given no change"},
		{[]store.StoredPolicy{withdrawn("a")}, "policy a: there is none to withdraw"},
		{[]store.StoredPolicy{{Name: "a"}}, "policy a: given a document of 0 bytes"},
		{[]store.StoredPolicy{policy("a", strings.Repeat("x", store.MaxPolicyJSON))}, "want 1 to 65536"},
	} {
		if _, err := set.Write(tc.changes); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: want %q", err, tc.want)
		}
	}
}

// A watcher sees every lasting set, the present one first.
func TestPolicyWatchSeesEveryLastingSet(t *testing.T) {
	l := lead(t)
	l.change(t, policy("a", "one"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := make(chan string)
	ended := make(chan error, 1)
	go func() {
		ended <- l.WatchPolicies(ctx, func(all store.PolicySet) {
			select {
			case seen <- text(all.Policies):
			case <-ctx.Done():
			}
		})
	}()
	await := func(want string) {
		t.Helper()
		var all []string
		for !slices.Contains(all, want) {
			select {
			case s := <-seen:
				all = append(all, s)
			case <-ctx.Done():
				t.Fatalf("seen %q, want %q", all, want)
			}
		}
	}
	await("a 1 one")
	l.change(t, policy("b", "one"))
	await("a 1 one, b 1 one")
	l.change(t, withdrawn("a"))
	await("b 1 one")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}

// A policy with a damaged value neither hides the others nor prevents their change or its own replacement.
func TestDamagedPolicyHidesNoOther(t *testing.T) {
	l := lead(t)
	l.change(t, policy("a", "one"), policy("b", "one"), policy("c", "one"))
	l.change(t, policy("b", "two"))
	damage := func() {
		t.Helper()
		if _, err := l.c.Put(t.Context(), store.Prefix+"policies/current/b", `{"version":`); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	set, err := l.Policies(t.Context())
	got := set.Policies
	if err != nil || len(got) != 3 || string(got[0].JSON) != `{"spec":"one"}` || got[1].Name != "b" ||
		string(got[1].JSON) != `{"version":` || got[1].Version != 0 || got[2].Version != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	l.change(t, policy("a", "two"))
	l.change(t, policy("b", "three"))
	if got, want := l.said(t, "b"), "a 2 two, b 3 three, c 1 one; before: b 1 one"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	damage()
	l.change(t, withdrawn("b"))
	if got, want := l.said(t, "b"), "a 2 two, c 1 one; before: b 3 withdrawn by operator/bob, b 1 one"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
