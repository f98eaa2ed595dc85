package client_test

import (
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

// median returns the median and the maximum of durations.
func median(d []time.Duration) (middle, worst time.Duration) {
	slices.Sort(d)
	return d[len(d)/2], d[len(d)-1]
}

// deadRounds is the number of measured calls.
const deadRounds = 21

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
		for range deadRounds {
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
		for kind, took := range map[string][]time.Duration{"read": reads, "change": changes} {
			middle, worst := median(took)
			t.Logf("%s dead, a %s: median %v, max %v of %d", name, kind, middle, worst, len(took))
			if middle > 500*time.Millisecond {
				t.Errorf("%s dead, a %s takes %v at the median: want at most 500ms", name, kind, middle)
			}
		}
	}
}

// TestWatchMovesFromDeadSupervisor: the machine of the watched supervisor dies between two changes.
func TestWatchMovesFromDeadSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	var took []time.Duration
	for range deadRounds {
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
	middle, worst := median(took)
	t.Logf("median %v, max %v of %d", middle, worst, len(took))
	if middle > 1500*time.Millisecond {
		t.Errorf("a watch moves after %v at the median: want at most 1.5s", middle)
	}
}
