package store_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/storetest"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// elect replaces the election key, if any: its holder is deposed.
func elect(t *testing.T, c *clientv3.Client) store.Fence {
	t.Helper()
	const key = store.ElectionPrefix + "/test"
	if _, err := c.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Put(t.Context(), key, "s1")
	if err != nil {
		t.Fatal(err)
	}
	return store.Fence{Key: key, Rev: resp.Header.Revision}
}

func load(t *testing.T, s *store.Etcd) store.Responses {
	t.Helper()
	r, err := s.LoadResponses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// batch returns n responses with a line each.
func batch(from, n int) store.ResponseBatch {
	var b store.ResponseBatch
	for i := range n {
		r := &response.Response{
			ID: fmt.Sprintf("r1-%d", from+i), Mode: response.Enforce, State: response.Proposed, Target: response.Target{Node: "n",
				Component: fault.ComponentHost}, Token: 1, Version: 1,
			Steps: []response.StepRecord{{Step: response.Step{Name: "a", Kind: response.KubernetesEvent}, State: response.Pending}},
		}
		b.Records = append(b.Records, r)
		b.Decisions = append(b.Decisions, response.Decision{At: time.Unix(1_800_000_000, 0), Act: response.Proposes, Response: r.ID,
			Policy: "p", Target: r.Target})
	}
	return b
}

// verify reads the whole audit and verifies its chain, from the head's cut to its newest line.
func verify(t *testing.T, s *store.Etcd) (first, last uint64) {
	t.Helper()
	lines, head, err := s.Audit(t.Context(), 0, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var c response.AuditChecker
	for _, l := range lines {
		text, err := l.Marshal()
		if err == nil {
			err = c.Check(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	seq, hash := c.Last()
	if len(lines) == 0 || lines[0].Seq != head.First || lines[0].Prev != head.Cut || hash != fmt.Sprintf("%x", head.Hash) ||
		seq != head.Last || (head.First > 1) == head.CutAt.IsZero() {
		t.Fatalf("%d lines, head %+v", len(lines), head)
	}
	return head.First, head.Last
}

func TestResponseRecordsAreStored(t *testing.T) {
	e := supervisortest.NewEtcd(t, 1)
	c := e.Members[0].Client()
	s := store.NewEtcd(c, store.Options{MaxOps: 40})
	ctx := t.Context()

	t.Run("split, and read back", func(t *testing.T) {
		w := s.ResponseWriter(elect(t, c), load(t, s), store.AuditLimits{})
		var seen []response.Record
		b := batch(0, 100)
		b.Records = append(b.Records, &response.Breaker{Open: true, Token: 1})
		commits := 0
		if err := w.Commit(ctx, b, func(r []response.Record, _ time.Time) { seen, commits = append(seen, r...), commits+1 }); err != nil {
			t.Fatal(err)
		}
		if len(seen) != 101 || commits != 3 {
			t.Errorf("%d records in %d commits", len(seen), commits)
		}
		own, err := s.OwnResponses(ctx)
		if got := load(t, s); err != nil || len(got.Records) != 101 || len(own.Records) != 101 || got.Unread != nil {
			t.Errorf("%d and %d records, %v, %v", len(got.Records), len(own.Records), got.Unread, err)
		}
		if first, last := verify(t, s); first != 1 || last != 100 {
			t.Errorf("lines %d to %d", first, last)
		}
	})
	t.Run("pages of the audit", func(t *testing.T) {
		var all []response.AuditLine
		for from := uint64(1); ; {
			lines, _, err := s.Audit(ctx, from, 7)
			if err != nil {
				t.Fatal(err)
			}
			if len(lines) == 0 {
				break
			}
			all = append(all, lines...)
			from = lines[len(lines)-1].Seq + 1
		}
		if whole, _, err := s.Audit(ctx, 0, 1000); err != nil || !reflect.DeepEqual(all, whole) || len(all) != 100 {
			t.Errorf("%d lines by pages, %d at once, %v", len(all), len(whole), err)
		}
	})
	t.Run("a fence that has fallen", func(t *testing.T) {
		from := load(t, s)
		stale := s.ResponseWriter(elect(t, c), from, store.AuditLimits{})
		w := s.ResponseWriter(elect(t, c), from, store.AuditLimits{})
		if err := stale.Commit(ctx, batch(200, 1), nil); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("%v", err)
		}
		if err := w.Commit(ctx, batch(300, 1), nil); err != nil {
			t.Error(err)
		}
		if first, last := verify(t, s); first != 1 || last != 101 {
			t.Errorf("lines %d to %d", first, last)
		}
	})
	t.Run("what was cut is said", func(t *testing.T) {
		w := s.ResponseWriter(elect(t, c), load(t, s), store.AuditLimits{Lines: 60})
		for i := range 40 {
			b := batch(400+10*i, 10)
			if i%2 == 1 {
				b = store.ResponseBatch{Forget: []string{b.Records[0].Key()}, Decisions: b.Decisions[:3]}
			}
			if err := w.Commit(ctx, b, nil); err != nil {
				t.Fatal(err)
			}
			if first, last := verify(t, s); last-first+1 > 60+10+32+1 && i > 10 {
				t.Errorf("lines %d to %d", first, last)
			}
		}
	})
	t.Run("cut by size", func(t *testing.T) {
		w := s.ResponseWriter(elect(t, c), load(t, s), store.AuditLimits{Bytes: 5000})
		if err := w.Commit(ctx, batch(1000, 5), nil); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(ctx, batch(1010, 5), nil); err != nil {
			t.Fatal(err)
		}
		if _, head, err := s.Audit(ctx, 0, 1); err != nil || head.Last-head.First > 40 {
			t.Errorf("%+v, %v", head, err)
		}
		verify(t, s)
	})
	t.Run("damage", func(t *testing.T) {
		for _, kv := range []store.KV{{Key: "responses/records/response/r1-0", Value: []byte("{}")},
			{Key: "responses/records/other", Value: []byte("{}")}} {
			if _, err := c.Put(ctx, store.Prefix+kv.Key, string(kv.Value)); err != nil {
				t.Fatal(err)
			}
		}
		if got := load(t, s); len(got.Unread) != 2 {
			t.Errorf("%v", got.Unread)
		}
		_, head, err := s.Audit(ctx, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%sresponses/audit/%020d", store.Prefix, head.First)
		resp, err := c.Get(ctx, key)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%s: %v", key, err)
		}
		if _, err := c.Put(ctx, key, strings.Replace(string(resp.Kvs[0].Value), `"seq"`, `"seq" `, 1)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Audit(ctx, 0, 10); err == nil {
			t.Error("a line in another form is read")
		}
	})
}

// TestRecordBothWrittenAndForgottenIsRefused: etcd takes no transaction that puts and deletes one key. The commit fails at once.
func TestRecordBothWrittenAndForgottenIsRefused(t *testing.T) {
	e := supervisortest.NewEtcd(t, 1)
	c := e.Members[0].Client()
	s := store.NewEtcd(c, store.Options{})
	w := s.ResponseWriter(elect(t, c), load(t, s), store.AuditLimits{})
	b := batch(0, 1)
	b.Forget = []string{b.Records[0].Key()}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.Commit(ctx, b, nil); !errors.Is(err, store.ErrRefused) {
		t.Errorf("%v: want a refusal", err)
	}
	b.Forget = nil
	if err := w.Commit(t.Context(), b, nil); err != nil {
		t.Errorf("the next commit: %v", err)
	}
}

// TestOvertakenCommitIsNotCalledUncommitted: an attempt succeeds, its answer is lost, and another leader writes before the next attempt.
// The writer cannot know whether its batch was committed, and does not say that it was not.
func TestOvertakenCommitIsNotCalledUncommitted(t *testing.T) {
	e := supervisortest.NewEtcd(t, 1)
	c := e.Members[0].Client()
	plain := store.NewEtcd(c, store.Options{})
	var overtake func()
	lossy := clientv3.NewCtxClient(t.Context())
	lossy.KV = &storetest.LossyKV{KV: c.KV, Lose: func(*clientv3.TxnResponse) bool {
		if overtake == nil {
			return false
		}
		overtake()
		overtake = nil
		return true
	}}
	s := store.NewEtcd(lossy, store.Options{})
	w := s.ResponseWriter(elect(t, c), load(t, plain), store.AuditLimits{})
	if err := w.Commit(t.Context(), batch(0, 1), nil); err != nil {
		t.Fatal(err)
	}
	overtake = func() {
		next := plain.ResponseWriter(elect(t, c), load(t, plain), store.AuditLimits{})
		if err := next.Commit(t.Context(), batch(10, 1), nil); err != nil {
			t.Error(err)
		}
	}
	if err := w.Commit(t.Context(), batch(20, 1), nil); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("%v: want %v", err, store.ErrOvertaken)
	}
	if err := w.Commit(t.Context(), batch(30, 1), nil); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("an attempt that was refused at once: %v: want %v", err, store.ErrNotLeader)
	}
	meta := store.Meta{Cluster: "test"}
	snap := func() store.Snapshot {
		snap, err := plain.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	writer := func(of *store.Etcd) store.Committer {
		w, err := of.Writer(elect(t, c), meta, snap())
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	b := store.Batch{Events: []*lofamov1.Event{{Node: "n0-0-0", Component: "host"}}}
	m := writer(s)
	if _, err := m.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	overtake = func() {
		if _, err := writer(plain).Commit(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Commit(t.Context(), b); !errors.Is(err, store.ErrOvertaken) {
		t.Errorf("the map: %v: want %v", err, store.ErrOvertaken)
	}
}

// A commit whose answer was lost is recognised, and not made twice. It does not return the time of its sending, as a
// commit with an answer does: after a retry it is unknown which of the attempts succeeded.
func TestResponsesAnswerLost(t *testing.T) {
	e := supervisortest.NewEtcd(t, 1)
	c := e.Members[0].Client()
	lost, tries := false, 0 // whether to lose the next answer; how often it was sent
	lossy := clientv3.NewCtxClient(t.Context())
	lossy.KV = &storetest.LossyKV{KV: c.KV, Lose: func(*clientv3.TxnResponse) bool {
		was := lost
		lost = false
		return was
	}}
	s := store.NewEtcd(lossy, store.Options{OnRetry: func(int, error) { tries++ }})
	w := s.ResponseWriter(elect(t, c), load(t, s), store.AuditLimits{})
	for i := range 5 {
		for _, loses := range []bool{true, false} {
			lost, tries = loses, 1
			var at time.Time
			before := time.Now()
			if err := w.Commit(t.Context(), batch(10*i, 3), func(_ []response.Record, sent time.Time) { at = sent }); err != nil {
				t.Fatal(err)
			}
			// A slow disk may cause a retry, although no answer is lost.
			if at.IsZero() && tries == 1 || !at.IsZero() && (loses || at.Before(before)) {
				t.Errorf("lost %t, sent %d times: sent at %v, begun at %v", loses, tries, at, before)
			}
		}
	}
	if first, last := verify(t, s); first != 1 || last != 30 {
		t.Errorf("lines %d to %d", first, last)
	}
}
