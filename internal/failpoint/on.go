//go:build lofamo_failpoint

package failpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Enabled reports whether this build has failpoints.
const Enabled = true

// armed is this package's only state: this build is for tests only.
var armed struct {
	any   atomic.Bool // saves the lock while nothing is armed
	mu    sync.Mutex
	by    map[Point]*standing
	roots map[string]living
	hits  atomic.Uint64
}

// notes is set by a flip that the half is only to note.
var notes atomic.Bool

// OnlyNotesFlips reports whether a half that finds a flip goes on, so that a campaign sees its effects.
func OnlyNotesFlips() bool { return notes.Load() }

// living is the data that flips may hit, and its owner's lock.
type living struct {
	root  any
	owner sync.Locker
}

type standing struct {
	action Action
	delay  time.Duration
	skip   int
	times  int
	gate   string // for Hold
}

// Hit carries out the action armed at the point, or returns it for the caller to carry out.
func Hit(p Point) Action {
	if !armed.any.Load() {
		return Pass
	}
	s := take(p)
	switch s.action {
	case Delay:
		time.Sleep(s.delay)
	case Hang:
		select {}
	case Spin:
		for {
			armed.hits.Load()
		}
	case Crash:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case Panic:
		panic("failpoint " + string(p))
	case Exit:
		os.Exit(3)
	case Stop:
		stop()
	case Hold:
		hold(p, s.gate)
	case Drop, Corrupt, Double:
		return s.action
	default:
	}
	return Pass
}

// stop stops this process. The signal goes to the calling thread, so that the process stops exactly at the point.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// Stopped waits until a child of this process is stopped, or returns false if it has ended. It does not reap the child.
func Stopped(pid int) (bool, error) {
	for {
		var now unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &now, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD): // another caller has reaped it
			return false, nil
		case err != nil:
			return false, fmt.Errorf("wait for process %d to stand still: %w", pid, err)
		default:
			return now.Code == cldStopped, nil
		}
	}
}

// cldStopped is CLD_STOPPED of the kernel's siginfo.
const cldStopped = 5

// take counts a hit and returns the action.
func take(p Point) standing {
	armed.mu.Lock()
	defer armed.mu.Unlock()
	s := armed.by[p]
	switch {
	case s == nil:
		return standing{}
	case s.skip > 0:
		s.skip--
		return standing{}
	}
	if s.times--; s.times <= 0 {
		delete(armed.by, p)
	}
	armed.any.Store(len(armed.by) > 0)
	armed.hits.Add(1)
	return *s
}

// Packet applies the armed fault to a packet: it returns how often the step is done, and may flip a bit of b.
func Packet(p Point, b []byte) int {
	switch Hit(p) {
	case Drop:
		return 0
	case Corrupt:
		if len(b) > 0 {
			b[len(b)/2] ^= 0x10
		}
	case Double:
		return 2
	default:
	}
	return 1
}

// Arm arms a point.
func Arm(o Order) error {
	a, err := ParseAction(o.Action)
	if err != nil {
		return err
	}
	halves, daemon := Points()
	if all := slices.Concat(halves, daemon, ExecutorPoints(), FilePoints(), ActPoints(), KubernetesPoints(), CallPoints(),
		ResponderPoints()); !slices.Contains(all, o.Point) {
		return fmt.Errorf("point: given %q: want one of %v", o.Point, all)
	}
	armed.mu.Lock()
	defer armed.mu.Unlock()
	if armed.by == nil {
		armed.by = map[Point]*standing{}
	}
	armed.by[o.Point] = &standing{a, time.Duration(o.DelayMS) * time.Millisecond, o.Skip, max(1, o.Times), o.Gate}
	armed.any.Store(true)
	return nil
}

// ArmAtStart arms the points listed in a process' file. It removes the file first, so that the next start has none.
func ArmAtStart(dir, who string) error {
	path := filepath.Join(dir, File(who))
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, os.Remove(path)); err != nil {
		return fmt.Errorf("failpoints: %w", err)
	}
	var orders []Order
	if err := json.Unmarshal(b, &orders); err != nil {
		return fmt.Errorf("failpoints %s: %w", path, err)
	}
	for _, o := range orders {
		if err := Arm(o); err != nil {
			return fmt.Errorf("failpoints %s: %w", path, err)
		}
	}
	return nil
}

// Live registers data of this process for flips. A flip holds the owner's lock, because it simulates a memory fault and
// must not be a data race.
func Live(name string, root any, owner sync.Locker) {
	armed.mu.Lock()
	defer armed.mu.Unlock()
	if armed.roots == nil {
		armed.roots = map[string]living{}
	}
	armed.roots[name] = living{root, owner}
}

// flipLive flips a bit of live data. It does not take the owners' locks under armed's, since owners pass points while
// they hold theirs.
func flipLive(seed uint64, refs bool) (Flipped, error) {
	armed.mu.Lock()
	all := maps.Clone(armed.roots)
	armed.mu.Unlock()
	roots := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		all[name].owner.Lock()
		defer all[name].owner.Unlock()
		roots[name] = all[name].root
	}
	return Flip(roots, seed, refs)
}

// Mount serves four requests. POST /failpoint takes an Order. DELETE /failpoint disarms all points and returns the
// number that was armed. GET /failpoint returns the numbers of hits and of armed points. POST /flip takes a seed,
// whether to flip a pointer or length, and whether the half is only to note that its memory has changed.
func Mount(mux *http.ServeMux) {
	mux.HandleFunc("POST /failpoint", func(w http.ResponseWriter, r *http.Request) {
		var o Order
		err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&o)
		if err == nil {
			err = Arm(o)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("DELETE /failpoint", func(w http.ResponseWriter, _ *http.Request) {
		armed.mu.Lock()
		defer armed.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]uint64{"armed": uint64(len(armed.by))})
		clear(armed.by)
		armed.any.Store(false)
	})
	mux.HandleFunc("GET /failpoint", func(w http.ResponseWriter, _ *http.Request) {
		armed.mu.Lock()
		defer armed.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]uint64{"hits": armed.hits.Load(), "armed": uint64(len(armed.by))})
	})
	mux.HandleFunc("POST /flip", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Seed       uint64
			Refs, Note bool
		}
		if err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		notes.Store(in.Note)
		f, err := flipLive(in.Seed, in.Refs)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(f)
	})
}
