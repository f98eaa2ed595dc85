package client_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// mute listens and never accepts: the kernel takes the connection and no byte ever comes, as with a stopped process.
func mute(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

// blackHole returns an address where the kernel drops every SYN, as a dead machine does: its listener's queue is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for {
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// rounds is the number of calls of each kind; docs/figures.md has the figures of 21. The quickest one counts: the machine may be busy.
var rounds = flag.Int("dead.rounds", 2, "number of calls past dead supervisors")

// within fails unless the quickest of some calls took at most a time.
func within(t *testing.T, what string, limit time.Duration, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%s: median %v, max %v of %d", what, took[len(took)/2], took[len(took)-1], len(took))
	if took[0] > limit {
		t.Errorf("%s takes %v or more: want at most %v", what, took[0], limit)
	}
}

// TestCallPassesDeadSupervisors: the first supervisors of the list are dead machines, or processes that say nothing.
func TestCallPassesDeadSupervisors(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	dead, silent := blackHole(t), mute(t)
	for name, first := range map[string][]string{
		"one machine": {dead}, "two machines": {dead, dead}, "one process": {silent}, "a machine and a process": {dead, silent},
	} {
		var reads, changes []time.Duration
		for range *rounds {
			for kind, took := range map[string]*[]time.Duration{"read": &reads, "change": &changes} {
				c := dialWithin(t, 0, dir, append(slices.Clone(first), s.Address)...)
				began := time.Now()
				var err error
				if kind == "read" {
					_, err = c.ListNodes(bounded(t), &lofamov1.ListNodesRequest{})
				} else {
					_, err = c.SetMaintenance(bounded(t), &lofamov1.SetMaintenanceRequest{})
				}
				if err != nil {
					t.Fatalf("%s dead, a %s: %v", name, kind, err)
				}
				*took = append(*took, time.Since(began))
				_ = c.Close()
			}
		}
		within(t, name+" dead, a read", 500*time.Millisecond, reads)
		within(t, name+" dead, a change", 500*time.Millisecond, changes)
	}
}

// TestStaleAnswerPassesDeadSupervisors: two of three machines are dead, so the third has no leader. No fresh answer can come.
func TestStaleAnswerPassesDeadSupervisors(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Nodes.Cluster = &lofamov1.ClusterInfo{Stale: true}
	s := clienttest.Serve(t, dir, m)
	dead := blackHole(t)
	for name, targets := range map[string][]string{"first": {dead, dead, s.Address}, "last": {s.Address, dead, dead}} {
		var took []time.Duration
		for range *rounds {
			c := dialWithin(t, 0, dir, targets...)
			began := time.Now()
			resp, err := c.ListNodes(bounded(t), &lofamov1.ListNodesRequest{})
			if err != nil || !resp.GetCluster().GetStale() {
				t.Fatalf("%v, %v: want the stale answer", resp, err)
			}
			took = append(took, time.Since(began))
			_ = c.Close()
		}
		within(t, "two machines dead and "+name+", a stale read", 500*time.Millisecond, took)
	}
}

// TestWatchMovesFromDeadSupervisor: the machine of the watched supervisor dies between two changes.
func TestWatchMovesFromDeadSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	var took []time.Duration
	for range *rounds {
		m := clienttest.NewMap()
		m.Commit(2, &lofamov1.Event{Node: "n2"})
		first, second := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
		l, address := newLine(t, first.Address)
		c := dialWithin(t, 0, dir, address, second.Address)
		var died time.Time
		err := c.Watch(bounded(t), client.WatchOptions{After: 1}, func(r *lofamov1.WatchResponse) error {
			if r.GetRevision() == 3 {
				return client.ErrStop
			}
			l.freeze(t)
			died = time.Now()
			m.Commit(3, &lofamov1.Event{Node: "n3"})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(died))
	}
	within(t, "a watch whose machine dies", 1500*time.Millisecond, took)
}

// TestContactIsLostAndFound: the only machine falls silent without a word, and then answers again at once.
func TestContactIsLostAndFound(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	l, address := newLine(t, s.Address)
	c := dialWithin(t, 0, dir, blackHole(t), address)
	if _, err := c.ListSupervisors(bounded(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	l.gate.Lock()
	began := time.Now()
	var got []client.Contact
	var took time.Duration
	c.Contact(ctx, func(x client.Contact) {
		if got = append(got, x); len(got) == 1 {
			took = time.Since(began)
			l.gate.Unlock()
			return
		}
		cancel()
	})
	if len(got) != 2 || !got[0].Lost || got[1].Lost || got[1].Supervisor != address || got[0].Since.After(began.Add(took)) {
		t.Fatalf("%+v: want a loss, and the same supervisor again", got)
	}
	if want := 1500 * time.Millisecond; took < want {
		t.Errorf("lost after %v: want %v or more", took, want)
	}
	if !got[1].Since.Equal(got[0].Since) {
		t.Errorf("lost at %v, found after a loss at %v", got[0].Since, got[1].Since)
	}
}
