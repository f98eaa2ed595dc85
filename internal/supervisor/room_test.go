package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// small is a file system in memory that can be made full, and have room again.
type small struct{ dir string }

func mountSmall(t *testing.T, dir string) small {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1g"); err != nil {
		requirements.Missing(t, "mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return small{dir}
}

// fill leaves no byte free.
func (s small) fill(t *testing.T) {
	t.Helper()
	supervisortest.Eventually(t, s.dir+" to be full", func() bool {
		var st unix.Statfs_t
		err := unix.Statfs(s.dir, &st)
		if err == nil {
			err = s.resize(st.Blocks - st.Bfree)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // it grows at the same time
			t.Fatal(err)
		}
		return err == nil && unix.Statfs(s.dir, &st) == nil && st.Bfree == 0
	})
}

func (s small) resize(blocks uint64) error {
	return unix.Mount("tmpfs", s.dir, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", blocks*uint64(os.Getpagesize())))
}

// TestFullDisksEndNoReplica: with all disks full at once, all replicas stay and the leader leads. Watches see faults at once, nothing is
// committed, and reports wait. Once a majority has room, all of them are committed.
func TestFullDisksEndNoReplica(t *testing.T) {
	c := supervisortest.New(t, supervisortest.Options{Replicas: 3})
	var disks []small
	for _, cfg := range c.Configs {
		disks = append(disks, mountSmall(t, cfg.DataDir))
	}
	var sups []*supervisor.Supervisor
	for _, cfg := range c.Configs {
		sups = append(sups, start(t, cfg))
	}
	leader := c.AwaitLeader(t)
	client, a := c.Client(t, c.Configs[leader].GRPC), c.Agents["n0-0-0"]
	seen, _ := watch(t, client, &lofamov1.WatchRequest{AsSeen: true})
	begin(t, seen)
	alarmed := func(i int) bool {
		list, err := c.Client(t, c.Configs[i].GRPC).ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		return err == nil && slices.ContainsFunc(list.GetSupervisors()[i].GetAlarms(), func(alarm string) bool {
			return strings.HasPrefix(alarm, "disk full: 0 MiB free") && strings.HasSuffix(alarm, ": nothing is committed")
		})
	}

	for _, d := range disks {
		d.fill(t)
	}
	var waiting []fault.ReportID
	for i := range 12 {
		state, want := fault.Failed, lofamov1.State_FAILED
		if i%2 == 1 {
			state, want = fault.Normal, lofamov1.State_NORMAL
		}
		id, b := a.Report(t, fault.HalfHost, false, temperature(state))
		a.Send(t, c.Configs[leader].Report, b)
		a.Await(t, id, lofamov1.Ack_RECEIVED)
		waiting = append(waiting, id)
		awaitEvent(t, seen, "n0-0-0", "temperature", want)
	}
	for i := range sups {
		supervisortest.Eventually(t, "the alarm of "+c.Configs[i].ID, func() bool { return alarmed(i) })
	}
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Failed))
	a.Send(t, c.Configs[leader].Report, b)
	a.Await(t, id, lofamov1.Ack_RECEIVED)
	awaitEvent(t, seen, "n0-0-0", "temperature", lofamov1.State_FAILED)
	if a.Count(id, lofamov1.Ack_COMMITTED) > 0 {
		t.Error("a report is committed while all disks are full")
	}
	if now := c.AwaitLeader(t); now != leader {
		t.Errorf("%s leads: want %s", c.Configs[now].ID, c.Configs[leader].ID)
	}

	for _, d := range disks[1:] {
		if err := d.resize(1 << 18); err != nil {
			t.Fatal(err)
		}
	}
	a.Await(t, id, lofamov1.Ack_COMMITTED) // without being sent again
	for _, id := range waiting {
		a.Await(t, id, lofamov1.Ack_COMMITTED)
	}
	if err := disks[0].resize(1 << 18); err != nil { // for its orderly end
		t.Fatal(err)
	}
}
