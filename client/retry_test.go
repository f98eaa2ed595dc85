package client_test

import (
	"context"
	"errors"
	"slices"
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
	c, err := client.New(client.Config{Targets: []string{s.Address, s.Address}, TLS: clienttest.ClientTLS(t, dir), Rounds: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, code := range []codes.Code{codes.Internal, codes.Unavailable} {
		s.Operators.Errs = []error{status.Error(code, "unknown outcome"), nil}
		_, err := c.SetMaintenance(bounded(t), &lofamov1.SetMaintenanceRequest{})
		var unknown *client.UnknownOutcomeError
		if status.Code(err) != code || errors.As(err, &unknown) != (code == codes.Unavailable) {
			t.Errorf("%v, want the first error", err)
		}
		if n := len(s.Operators.Errs); n != 1 {
			t.Errorf("%s: %d errors are left, want 1: one call", code, n)
		}
	}
}

// TestWatchOfCompactedHistoryFailsOrStartsAgain: a plain watch fails with ErrCompacted, a watch with Initial starts
// again with a complete list.
func TestWatchOfCompactedHistoryFailsOrStartsAgain(t *testing.T) {
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

// TestWatchOutlivesOutageAndNamesGap stops the only supervisor. While it is down, changes are committed that it does not
// keep; while it starts, it does not know the node yet.
func TestWatchOutlivesOutageAndNamesGap(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	address := deadAddress(t)
	s := clienttest.ServeAt(t, dir, m, address)
	m.Commit(7, &lofamov1.Event{Node: "a"})
	c := dial(t, dir, address)
	var gaps [][2]uint64
	var got []uint64
	known := false
	opts := client.WatchOptions{After: 6, Node: "a", Gap: func(after, until uint64) {
		gaps = append(gaps, [2]uint64{after, until})
		m.Commit(21, &lofamov1.Event{Node: "a"})
	}, Progress: func(_ string, err error) {
		if status.Code(err) == codes.NotFound && !known {
			known = true
			s.Refuse(nil)
		}
	}}
	err := c.Watch(bounded(t), opts, func(r *lofamov1.WatchResponse) error {
		got = append(got, r.GetRevision())
		if len(got) > 1 {
			return client.ErrStop
		}
		s.Stop()
		m.Compact(20)
		m.Commit(20, &lofamov1.Event{Node: "a"})
		s = clienttest.ServeAt(t, dir, m, address)
		s.Refuse(status.Error(codes.NotFound, "no node a"))
		return nil
	})
	if err != nil || !known || !slices.Equal(got, []uint64{7, 21}) || !slices.Equal(gaps, [][2]uint64{{7, 20}}) {
		t.Errorf("%v, revisions %d, gaps %d, refused while it started: %t: want 7 and 21, a gap from 7 to 20", err, got, gaps, known)
	}
}

// TestWatchEndsAfterOutage: an outage that lasts longer than allowed ends a watch, at its start and later.
func TestWatchEndsAfterOutage(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	address := deadAddress(t)
	c := dial(t, dir, address)
	const outage = 400 * time.Millisecond
	var none *client.NoAnswerError
	begin := time.Now()
	err := c.Watch(bounded(t), client.WatchOptions{Outage: outage}, nil)
	if took := time.Since(begin); !errors.As(err, &none) || took < outage {
		t.Errorf("no supervisor at the start: %v after %v", err, took)
	}
	s := clienttest.ServeAt(t, dir, m, address)
	m.Commit(7, &lofamov1.Event{Node: "a"})
	err = c.Watch(bounded(t), client.WatchOptions{After: 6, Outage: outage}, func(*lofamov1.WatchResponse) error {
		s.Stop()
		begin = time.Now()
		return nil
	})
	if took := time.Since(begin); !errors.As(err, &none) || took < outage {
		t.Errorf("an outage: %v after %v", err, took)
	}
	if err := c.Watch(bounded(t), client.WatchOptions{Outage: -1}, nil); err == nil || !strings.Contains(err.Error(), "Outage") {
		t.Errorf("a negative bound: %v", err)
	}
}

// TestWatchResumesInMiddleOfRevision: a caller that took two of three changes gets the third, and then later revisions.
func TestWatchResumesInMiddleOfRevision(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address)
	m.Commit(6, &lofamov1.Event{Node: "old", Revision: 6, Index: 1})
	m.Commit(7, &lofamov1.Event{Node: "a", Revision: 7, Index: 1}, &lofamov1.Event{Node: "b", Revision: 7, Index: 2},
		&lofamov1.Event{Node: "c", Revision: 7, Index: 3})
	m.Commit(8, &lofamov1.Event{Node: "d", Revision: 8, Index: 1})
	for index, want := range map[uint32]string{0: "d", 1: "bcd", 2: "cd", 3: "d"} {
		var got strings.Builder
		err := c.Watch(bounded(t), client.WatchOptions{After: 7, AfterIndex: index}, func(r *lofamov1.WatchResponse) error {
			for _, ev := range r.GetEvents() {
				got.WriteString(ev.GetNode())
			}
			if r.GetRevision() == 8 {
				return client.ErrStop
			}
			return nil
		})
		if err != nil || got.String() != want {
			t.Errorf("after index %d: %q, %v: want %q", index, got.String(), err, want)
		}
	}
	if err := c.Watch(bounded(t), client.WatchOptions{AfterIndex: 1}, nil); err == nil ||
		!strings.Contains(err.Error(), "AfterIndex 1 without After") {
		t.Errorf("an index without a revision: %v", err)
	}
}

// TestReadOfMasksAsksNextSupervisor: the first supervisor cannot answer in time. A read, unlike a change, then goes to the next one.
func TestReadOfMasksAsksNextSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	a, b := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	a.Refuse(status.Error(codes.DeadlineExceeded, "no answer in time"))
	b.Operators.Masks = &lofamov1.ListMasksResponse{Revision: 7}
	if resp, err := dial(t, dir, a.Address, b.Address).ListMasks(bounded(t)); err != nil || resp.GetRevision() != 7 {
		t.Errorf("%v, %v: want the answer of the second supervisor", resp, err)
	}
}
