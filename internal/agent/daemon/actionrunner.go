package daemon

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// ActionRunnerConfig configures an ActionRunner.
type ActionRunnerConfig struct {
	Node     fault.NodeID
	StateDir string
	Allowed  config.ResponsesConfig // at first; see Allow
	Sysfs    string                 // root of the kernel's sysfs
	Env      []string               // of check programs
	// Restart ends and restarts a half, and returns when it has passed its self-test, or cannot. note stores a message
	// for the next attempt before anything is done; earlier is the message of the previous attempt, or empty. nil: this
	// daemon restarts no halves.
	Restart func(ctx context.Context, half fault.Half, earlier string, note func(string) error) actions.Result
	Log     *slog.Logger
}

// ActionRunner runs the acts that responses request of a node (seed 001 §II: local readjustment), and keeps its
// ledger of them (package actions). Halves never run acts: they verify orders, pass them on by a socket that only the
// owner of the state directory may use, and ask for the outcome. The agent's configuration lists the allowed acts; by
// default there are none.
//
// Its methods are safe for concurrent use.
type ActionRunner struct {
	cfg     ActionRunnerConfig
	allowed atomic.Pointer[config.ResponsesConfig]

	mu sync.Mutex // of the ledger's file within this process; the lock file excludes other daemons of this node
	// busy holds the kinds with a running act: another act of the kind waits at its sender.
	busy map[string]bool
	// noticed: recording the processors' frequencies has begun; it happens once.
	noticed bool
	// ended holds results that could not be stored.
	ended map[actions.Attempt]actions.Result
	at    func() // for tests: called wherever the daemon may end in the middle of an act
	clock func() uint64
	store func(actions.Write) error // writes a frequency limit
	wg    sync.WaitGroup
	stop  context.Context
}

// NewActionRunner returns a runner. Its acts end with ctx.
func NewActionRunner(ctx context.Context, cfg ActionRunnerConfig) *ActionRunner {
	d := &ActionRunner{cfg: cfg, busy: map[string]bool{}, ended: map[actions.Attempt]actions.Result{}, stop: ctx, clock: freshness()}
	d.store = d.write
	d.allowed.Store(&cfg.Allowed)
	return d
}

// Allow replaces the list of allowed acts. The daemon of a half calls it when the half starts. It does not wait for the disk.
func (d *ActionRunner) Allow(half fault.Half, now config.ResponsesConfig) {
	d.allowed.Store(&now)
	if half != fault.HalfHost || !now.LimitFrequency {
		return
	}
	d.wg.Go(func() {
		d.mu.Lock()
		first := !d.noticed && !d.busy[actions.KindLimitFrequency]
		if first {
			d.noticed, d.busy[actions.KindLimitFrequency] = true, true
		}
		d.mu.Unlock()
		if !first {
			return
		}
		if err := d.notice(); err != nil {
			d.cfg.Log.Warn("cannot store the processors' frequencies: limits that are requested while the kernel throttles will fail", "err", err)
		}
		d.mu.Lock()
		delete(d.busy, actions.KindLimitFrequency)
		d.mu.Unlock()
	})
}

// freshness returns the clock of actions.Status.Fresh. The clock runs while the machine sleeps, and is the same for
// every process of a boot, so the age of an order that names an earlier daemon's answer is known too. It never returns
// 0.
func freshness() func() uint64 {
	boot, err := storage.BootID()
	if err != nil { // then the ledger cannot change either: no act begins
		return func() uint64 { return 1 }
	}
	base := binary.LittleEndian.Uint64(boot[:])
	return func() uint64 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
			return 1
		}
		return max(1, base+uint64(now.Nano()/int64(time.Millisecond)))
	}
}

func (d *ActionRunner) now() actions.Now { return actions.Now{Wall: time.Now(), Fresh: d.clock()} }

// Begin starts the daemon of a half: the outcome of its predecessor's running acts is not known any more.
func (d *ActionRunner) Begin(half fault.Half) error {
	if _, err := os.Lstat(filepath.Join(d.cfg.StateDir, actions.File)); !errors.Is(err, fs.ErrNotExist) {
		if err := d.change(func(l *actions.Ledger) (bool, error) { return l.Interrupt(half), nil }); err != nil {
			return err
		}
	}
	if half == fault.HalfHost && d.allowed.Load().LimitFrequency {
		d.mu.Lock()
		d.noticed = true
		d.mu.Unlock()
		return d.notice()
	}
	return nil
}

// Wait waits until no act is under way.
func (d *ActionRunner) Wait() { d.wg.Wait() }

// Ask answers an order, and begins its act if it is to be begun.
func (d *ActionRunner) Ask(o *actions.Order) actions.Status {
	s := d.answer(o)
	s.Fresh = d.clock() // after the time for the disk
	return s
}

func (d *ActionRunner) answer(o *actions.Order) actions.Status {
	allowed := d.allowed.Load().Kinds()
	if len(allowed) == 0 && !o.Undo && o.Ask { // for an order, the ledger may know an outcome
		return actions.Status{State: actions.Unchanged, Detail: "the agent's configuration enables no actions: see the key `responses`"}
	}
	if o.Ask {
		var s actions.Status
		err := d.change(func(l *actions.Ledger) (keep bool, err error) { s, keep = l.Look(d.now(), o); return keep, nil })
		if err != nil {
			return actions.Status{State: actions.Unchanged, Detail: err.Error()}
		}
		s.Allowed = allowed
		return d.orEnded(o.Attempt, s)
	}
	s, begin, refused, err := d.admit(o, allowed)
	switch {
	case refused: // with the ledger's name, without which the sender does not trust the status
		s.State, s.Detail = actions.Unchanged, err.Error()
	case err != nil: // an earlier order may have begun it: say nothing, and let the sender order again
		s = actions.Status{State: actions.None, Detail: err.Error()}
	}
	if !begin || err != nil {
		if s.State == actions.Stale || s.State == actions.None || err != nil { // the other states are known already
			d.cfg.Log.Warn("an action of a response is refused", "kind", o.Kind, "of", o.String(), "about", o.Target, "why", s.Detail)
		}
		return d.orEnded(o.Attempt, s)
	}
	d.hit(failpoint.ActAdmitted)
	if o.Kind == actions.KindEureka {
		s.Yours = true
		return s
	}
	d.wg.Go(func() { d.make(*o) })
	return s
}

// admit stores an attempt that is to be made. refused says that err is final; otherwise err comes from the ledger and
// may pass.
func (d *ActionRunner) admit(o *actions.Order, allowed []string) (s actions.Status, begin, refused bool, err error) {
	err = d.change(func(l *actions.Ledger) (bool, error) {
		heard := l.Hear(o.Heard)
		o.Late = actions.Late(o.Fresh, d.clock()) // here: the lock and the disk may have held it up too
		if s, begin = l.Admit(d.now(), o); !begin {
			return heard, nil
		}
		if err := d.may(o, allowed); err != nil { // an attempt that was not admitted may come again later
			begin, refused = false, true
			return false, err
		}
		return true, nil
	})
	if err == nil && begin {
		return s, true, false, nil
	}
	if begin { // it could not be stored
		d.mu.Lock()
		delete(d.busy, o.Kind)
		d.mu.Unlock()
	}
	return s, false, refused, err
}

// may returns the reason why an act may not begin; nil: it begins, and its kind is busy from now on. The caller holds
// the mutex.
func (d *ActionRunner) may(o *actions.Order, allowed []string) error {
	switch {
	case !o.Undo && !slices.Contains(allowed, o.Kind): // an undo needs no permission
		return fmt.Errorf("the agent's configuration does not allow %s", o.Kind)
	case o.Kind == actions.KindEureka:
		return nil
	case d.busy[o.Kind]:
		return fmt.Errorf("another act of kind %s is under way on this node", o.Kind)
	case d.stop.Err() != nil:
		return errors.New("the recovery daemon ends")
	}
	d.busy[o.Kind] = true
	return nil
}

// make makes an act, and stores its result.
func (d *ActionRunner) make(o actions.Order) {
	ctx, cancel := context.WithCancel(d.stop) // no deadline: the cause shows whether the daemon ended
	defer cancel()
	timer := time.AfterFunc(o.Timeout(), cancel)
	defer timer.Stop()
	d.cfg.Log.Warn("a response orders an action on this node", "kind", o.Kind, "of", o.String(), "undo", o.Undo, "about", o.Target,
		"parameters", o.Parameters)
	var r actions.Result
	if actions.Late(o.Fresh, d.clock()) { // storing took too long, or the daemon was stopped
		r = resultUnchanged("the order was delayed on this node: it names an answer of more than %s ago", actions.FreshFor)
	} else {
		r = d.act(ctx, &o)
	}
	d.hit(failpoint.ActMade)
	d.end(o.Attempt, r)
	d.mu.Lock()
	delete(d.busy, o.Kind)
	d.mu.Unlock()
	d.cfg.Log.Info("act ended", "kind", o.Kind, "of", o.String(), "state", actions.Name(r.State), "detail", r.Detail)
	d.hit(failpoint.ActKept)
}

// hit marks a step of an act at which the daemon may end.
func (d *ActionRunner) hit(p failpoint.Point) {
	failpoint.Hit(p)
	if d.at != nil {
		d.at()
	}
}

func (d *ActionRunner) act(ctx context.Context, o *actions.Order) actions.Result {
	switch o.Kind {
	case actions.KindRestartHalf:
		return d.restart(ctx, o)
	case actions.KindLimitFrequency:
		return d.frequency(o)
	case actions.KindCheck:
		return d.check(ctx, o)
	}
	return actions.Result{State: actions.Unchanged, Detail: fmt.Sprintf("kind %s is not known here", o.Kind)}
}

// Ended records the result of an act that a half carried out itself.
func (d *ActionRunner) Ended(e actions.Ended) {
	d.end(e.Attempt, actions.Result{State: e.State, Detail: e.Detail})
}

// end stores the result of an attempt. If the disk refuses it, this process remembers it as long as it lives.
func (d *ActionRunner) end(a actions.Attempt, r actions.Result) {
	err := d.change(func(l *actions.Ledger) (bool, error) { l.End(a, r); return true, nil })
	if err != nil {
		d.cfg.Log.Error("cannot store the outcome of an action", "of", a.String(), "err", err)
		d.mu.Lock()
		d.ended[a] = r
		d.mu.Unlock()
	}
}

func (d *ActionRunner) orEnded(a actions.Attempt, s actions.Status) actions.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.ended[a]; ok && s.State == actions.UnderWay {
		s.State, s.Detail = r.State, r.Detail
	}
	return s
}

// note returns the function that stores a message for the next attempt.
func (d *ActionRunner) note(a actions.Attempt) func(string) error {
	return func(word string) error {
		return d.change(func(l *actions.Ledger) (bool, error) { l.Note(a, word); return true, nil })
	}
}

// earlier returns the earlier attempts at the same step, the newest first.
func (d *ActionRunner) earlier(o *actions.Order) (out []actions.Entry, err error) {
	err = d.change(func(l *actions.Ledger) (bool, error) { out = l.Earlier(o); return false, nil })
	return out, err
}

// change calls do with the ledger, and stores the ledger on disk if do says so. It refuses an unreadable ledger,
// because a new one would admit attempts that the old one refused. A person must remove it.
func (d *ActionRunner) change(do func(*actions.Ledger) (keep bool, err error)) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lock, err := os.OpenFile(filepath.Join(d.cfg.StateDir, actions.Lock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("ledger of acts: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("ledger of acts: %w", err)
	}
	path := filepath.Join(d.cfg.StateDir, actions.File)
	fresh := false
	var l *actions.Ledger
	b, err := durable.Read(path, actions.MaxLedger)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l, fresh = &actions.Ledger{Life: rand.Uint64() | 1}, true
	case err == nil:
		l, err = actions.Decode(b)
	}
	if l == nil {
		return fmt.Errorf("%s cannot be read: no action runs until somebody removes it: %w", actions.File, err)
	}
	boot, err := storage.BootID()
	if err != nil {
		return err
	}
	l.Rebooted(hex.EncodeToString(boot[:]))
	keep, err := do(l)
	if err != nil || !keep && !fresh {
		return err
	}
	if b, err = l.Encode(); err != nil {
		return fmt.Errorf("ledger of acts: %w", err)
	}
	if err := durable.Replace(path, b); err != nil {
		return fmt.Errorf("%s cannot be written: %w", actions.File, err)
	}
	return nil
}
