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

// Enabled says whether this build has failpoints.
const Enabled = true

// armed is the one place of this package's state: this build is for the campaign alone.
var armed struct {
	any   atomic.Bool // spares the lock where nothing is armed
	mu    sync.Mutex
	by    map[Point]*standing
	roots map[string]living
	hits  atomic.Uint64
}

// living is what flips may hit, and the lock of who works on it.
type living struct {
	root  any
	owner sync.Locker
}

type standing struct {
	action Action
	delay  time.Duration
	skip   int
	times  int
	gate   string // with Hold
}

// Hit does what is wanted of the point, and returns what its caller is to do.
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

// stop has this process stand still. The signal goes to the calling thread, so that it is the point itself at which it stops.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// Stopped waits until a child of this process stands still, or has ended: then it returns false. It takes nothing from who waits for the
// end of the child.
func Stopped(pid int) (bool, error) {
	for {
		var now unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &now, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD): // somebody has heard of its end before
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

// take counts a hit and returns what is to be done.
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

// Packet makes what becomes of a packet go wrong: it returns how often the step is to be done, and may flip a bit of b.
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

// ArmAtStart arms what the file of a process says, and removes the file first: the next start is without.
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

// Live names something that lives in this process, for flips. They hold its owner's lock: a flip is a fault of the memory, and
// no race of ours with who works on it.
func Live(name string, root any, owner sync.Locker) {
	armed.mu.Lock()
	defer armed.mu.Unlock()
	if armed.roots == nil {
		armed.roots = map[string]living{}
	}
	armed.roots[name] = living{root, owner}
}

// flipLive flips a bit of what lives. The owners' locks are not taken under armed's: owners come by points with theirs held.
func flipLive(seed uint64) (Flipped, error) {
	armed.mu.Lock()
	all := maps.Clone(armed.roots)
	armed.mu.Unlock()
	roots := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		all[name].owner.Lock()
		defer all[name].owner.Unlock()
		roots[name] = all[name].root
	}
	return Flip(roots, seed)
}

// Mount serves POST /failpoint, whose body is an Order, DELETE /failpoint, after which nothing is armed and which answers what
// was, GET /failpoint, which answers how many points were hit and how many are armed, and POST /flip, whose body is a seed.
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
		var in struct{ Seed uint64 }
		if err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f, err := flipLive(in.Seed)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(f)
	})
}
