package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// slowly has the test's own binary run a program on a slow disk:
//
//	e2e.test slowly SOCKET PROGRAM ARGUMENT…
//
// fsync and fdatasync of the program wait for the test, which gets the kernel's listener for them through the
// socket (seccomp_unotify(2)). Everything else of the program is as ever, and it keeps the process id.
const slowly = "slowly"

func runSlowly(socket string, argv []string) error {
	runtime.LockOSThread() // the filter is this thread's, which becomes the program
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("reach the test: %w", err)
	}
	listener, err := listenForSyncs()
	if err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(listener), nil); err != nil {
		return fmt.Errorf("hand the listener over: %w", err)
	}
	return fmt.Errorf("run %s: %w", argv[0], unix.Exec(argv[0], argv, os.Environ()))
}

// listenForSyncs has every sync of this thread, and of any program that it executes, wait for the holder of the
// listener.
func listenForSyncs() (listener int, err error) {
	const number = 0 // of the call, in the filter's data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("give up new privileges: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// A signal must not have a call begin again, and wait again.
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 0, fmt.Errorf("listen for syncs: %w", errno)
	}
	return int(fd), nil
}

// slowDisk is the disk of all programs that run slowly.
type slowDisk struct {
	socket  *net.UnixListener
	delay   atomic.Int64 // of a sync
	delayed atomic.Int64 // syncs
	wg      sync.WaitGroup
}

// newSlowDisk returns a disk at the machine's own speed, until the test slows it down. It must live longer than the
// test's cluster.
func newSlowDisk(t *testing.T) *slowDisk {
	t.Helper()
	// A kernel from before 5.19 has no such listeners.
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV|
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0); errno != unix.EFAULT {
		requirements.Missing(t, "this kernel does not let syncs wait: %v", errno)
	}
	dir, err := os.MkdirTemp("", "lofamo-e2e-") // t.TempDir's name is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &slowDisk{}
	d.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	d.wg.Go(func() { d.accept(t) })
	t.Cleanup(func() {
		_ = d.socket.Close()
		d.wg.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// command is cluster.Options.Command: the supervisors run slowly.
func (d *slowDisk) command(t *testing.T) func(member string, argv []string) []string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(_ string, argv []string) []string {
		if filepath.Base(argv[0]) != "lofamo-supervisor" {
			return argv
		}
		return append([]string{self, slowly, d.socket.Addr().String()}, argv...)
	}
}

func (d *slowDisk) accept(t *testing.T) {
	for {
		conn, err := d.socket.AcceptUnix()
		if err != nil {
			return // the test ends
		}
		listener, err := receiveFile(conn)
		_ = conn.Close()
		if err != nil {
			t.Error(err)
			continue
		}
		d.wg.Go(func() {
			defer func() { _ = unix.Close(listener) }()
			if err := d.serve(listener); err != nil {
				t.Error(err)
			}
		})
	}
}

func receiveFile(conn *net.UnixConn) (fd int, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return 0, fmt.Errorf("receive the listener: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return 0, fmt.Errorf("receive the listener: %d messages, %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return 0, fmt.Errorf("receive the listener: %w", err)
	}
	return fds[0], nil
}

// notification and answer are seccomp_notif and seccomp_notif_resp.
type notification struct {
	ID         uint64
	PID, Flags uint32
	_          [8]uint64
}

type answer struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// serve delays the syncs of one process until it ends.
func (d *slowDisk) serve(listener int) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for syncs: %w", err)
		}
		if p[0].Revents&unix.POLLIN == 0 {
			if p[0].Revents != 0 { // no process is left that could sync
				return nil
			}
			continue
		}
		var n notification
		switch _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno {
		case 0:
			calls.Go(func() {
				d.wait()
				// A process that was killed meanwhile needs no answer.
				a := answer{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
				_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
			})
		case unix.EINTR, unix.ENOENT: // killed before we saw it
		default:
			return fmt.Errorf("receive a sync: %w", errno)
		}
	}
}

// wait lasts as long as a sync. Waiting calls continue at once when the disk recovers.
func (d *slowDisk) wait() {
	begun := time.Now()
	for slow := true; slow; {
		delay := time.Duration(d.delay.Load())
		if slow = time.Since(begun) < delay; slow {
			time.Sleep(min(delay-time.Since(begun), 10*time.Millisecond))
		}
	}
	if d.delay.Load() > 0 {
		d.delayed.Add(1)
	}
}

func (d *slowDisk) set(delay time.Duration) { d.delay.Store(int64(delay)) }

// replica is one supervisor of a trial, with a connection of its own.
type replica struct {
	cluster.SupervisorInfo
	api *client.Client
}

func (t trial) replicas() (out []replica) {
	t.Helper()
	for _, s := range t.Cluster.Info().Supervisors {
		out = append(out, replica{s, t.at(s.ID, pki.RoleViewer)})
	}
	return out
}

// slow reports whether a replica calls its store slow, in its answers and in its metrics.
func (r replica) slow(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := r.api.ListSupervisors(ctx)
	return err == nil && slices.ContainsFunc(resp.GetSupervisors(), func(s *lofamov1.Supervisor) bool {
		return s.GetId() == r.ID && slices.ContainsFunc(s.GetAlarms(), func(a string) bool { return strings.HasPrefix(a, "store slow: ") })
	}) && scrape(t, r.HTTP).total("lofamo_alarm", `alarm="store slow"`) == 1
}

// writes keeps the store busy until it is stopped: without writes, no slowness shows.
func (t trial) writes() (stop func()) {
	t.Helper()
	store := t.store(t.leaderFirst()[0])
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			wctx, cancel := context.WithTimeout(ctx, time.Second)
			_, _ = store.Put(wctx, foreignKeys+"busy", fmt.Sprint(n)) // it may well be too slow
			cancel()
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// TestSlowDiskRaisesAlarmOnly: row 12. On all supervisors, syncs are slow, and etcd's log and database wait for them: this has its own
// alarm, reports stay with their senders until they are committed, no node is called FAILED, and all
// recovers with the disks.
func TestSlowDiskRaisesAlarmOnly(t *testing.T) {
	t.Parallel()
	const sender = "n0-0-0"
	disk := newSlowDisk(t)
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: patient(), Command: disk.command(t)})
	http := l.Cluster.Info().Nodes[0].HTTP
	for _, stage := range []struct {
		sync   time.Duration
		victim string // a node whose host is killed meanwhile
		late   bool   // the map shows it meanwhile; otherwise raft and the leader's lease fail, as without a quorum
	}{
		{120 * time.Millisecond, "n1-1-0", true},
		{2 * time.Second, "n1-0-0", false},
	} {
		try(t, l, stage.sync.String()+" a sync", func(t trial) {
			replicas := t.replicas()
			stop := t.writes()
			defer stop()
			disk.set(stage.sync)
			defer disk.set(0)
			for _, r := range replicas {
				eventually(t.T, r.ID+" to call its store slow", func() bool { return r.slow(t.T) })
			}
			t.inject(stage.victim, simple(cluster.KillHost))
			for name, v := range map[string]float64{"temperature": 110, "voltage": 20, "power": 5000} {
				t.inject(sender, sensor(name, v))
			}
			if stage.late {
				// Where the processor is busy too, the lease may be lost now and then.
				ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
				s, err := t.Wait(ctx, t.mark, lab.Becomes(stage.victim, "host", failed))
				cancel()
				if err != nil {
					t.Fatalf("with %s a sync %s is not told of: %v", stage.sync, stage.victim, err)
				}
				t.Logf("known after %s; %d syncs were delayed", s.GetAwarenessLatency().AsDuration(), disk.delayed.Load())
			} else {
				// Leaders that follow one another commit now and then: how many wait at once is not known.
				eventually(t.T, "reports to be kept by their sender", func() bool {
					return scrape(t.T, http).total("lofamo_agent_reports_pending", "") > 0
				})
			}
			stop()
			disk.set(0)
			t.becomes(stage.victim, "host", failed)
			for _, c := range []string{"temperature", "voltage", "power"} {
				t.becomes(sender, c, failed)
			}
			t.awaitWorkedOff(http)
			eventually(t.T, "no store to be called slow", func() bool {
				return !slices.ContainsFunc(replicas, func(r replica) bool { return r.slow(t.T) })
			})
			t.once(stage.victim, "host", failed)
			t.once(sender, "temperature", failed)
			t.othersWereSpared(sender, stage.victim)
			t.neverFailed()
		})
	}
}
