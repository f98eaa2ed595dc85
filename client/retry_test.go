package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestRoundsWaitForAReplica: with several rounds a read outlives an outage of all replicas, and the context ends it
// early.
func TestRoundsWaitForAReplica(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	address := deadAddress(t)
	c, err := client.New(client.Config{Targets: []string{address}, TLS: clienttest.ClientTLS(t, dir), Rounds: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.ListSupervisors(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read that its context ends: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.ListSupervisors(bounded(t))
		done <- err
	}()
	clienttest.ServeAt(t, dir, m, address)
	if err := <-done; err != nil {
		t.Errorf("a read while the replica starts: %v", err)
	}
}

// TestChangesAreNotRepeated: rounds are for reads. A change that may have happened is not sent twice.
func TestChangesAreNotRepeated(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Operators.Errs = []error{status.Error(codes.Internal, "unknown outcome"), nil}
	c, err := client.New(client.Config{Targets: []string{s.Address, s.Address}, TLS: clienttest.ClientTLS(t, dir), Rounds: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.SetMaintenance(bounded(t), &lofamov1.SetMaintenanceRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("%v, want the first error", err)
	}
	if n := len(s.Operators.Errs); n != 1 {
		t.Errorf("%d errors are left, want 1: one call", n)
	}
}

// TestCompactedHistory: a plain watch fails with ErrCompacted, a watch with Initial starts again with a complete list.
func TestCompactedHistory(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Initial = []*lofamov1.Event{{Node: "a"}, {Node: "b"}}
	m.Commit(7, &lofamov1.Event{Node: "a"})
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address)
	m.Compact(5)
	if err := c.Watch(bounded(t), client.WatchOptions{After: 3}, func(*lofamov1.WatchResponse) error { return nil }); !errors.Is(err,
		client.ErrCompacted) {
		t.Errorf("%v, want ErrCompacted", err)
	}
	var compacted, lists, events int
	opts := client.WatchOptions{Initial: true, Progress: func(_ string, err error) {
		if errors.Is(err, client.ErrCompacted) {
			compacted++
		}
	}}
	err := c.Watch(bounded(t), opts, func(r *lofamov1.WatchResponse) error {
		if !r.GetSynced() {
			return errors.New("a change without a list")
		}
		events += len(r.GetEvents())
		if lists++; lists == 2 {
			return client.ErrStop
		}
		m.Compact(9) // before the commit, which wakes the stream
		m.Commit(9, &lofamov1.Event{Node: "b"})
		return nil
	})
	if err != nil || compacted != 1 || lists != 2 || events != 4 {
		t.Errorf("%v, %d compactions, %d lists with %d events: want one compaction, two lists with two events each", err, compacted,
			lists, events)
	}
	if err := c.Watch(bounded(t), client.WatchOptions{Initial: true, After: 4}, nil); err == nil ||
		!strings.Contains(err.Error(), "want only one") {
		t.Errorf("Initial with After: %v", err)
	}
}
