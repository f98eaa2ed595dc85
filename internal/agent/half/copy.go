package half

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// copyFileSuffix follows the half's name in the name of its copy.
const copyFileSuffix = ".backup"

// CopyPath is the name of a half's copy.
func CopyPath(stateDir string, half fault.Half) string {
	return filepath.Join(stateDir, half.String()+copyFileSuffix)
}

// resumption is a half's copy, and the state from which the half resumes: none if Numbers has no epoch.
type resumption struct {
	File    *storage.CopyFile
	Numbers storage.Numbers // as last stored
	checkAt time.Time
	rescued []storage.CopiedReport // of a copy that is no good otherwise
	Sensors []sensor.Reading       // before the restart, also if the half begins cold

	kept []sensor.Reading // as last stored; the sensors' goroutine owns it

	Mu     sync.Mutex // for broken: supervisors' sessions are stored from elsewhere
	Broken Condition
}

// OpenCopy opens the half's copy and decides whether the half resumes from it. The caller must hold the half's lock
// on the register file.
func (c *Common) OpenCopy(cs *Closers) {
	boot, bootErr := storage.BootID()
	file, err := storage.OpenCopy(CopyPath(c.Config.StateDir, c.Half),
		storage.CopyIdentity{Node: c.Config.Node, Half: c.Half, Boot: boot, Place: c.Topo.Coord.String()})
	c.Copy = &resumption{File: file}
	c.Copy.judge(c.Log, err)
	cs.Add(file.Close)
	if why := file.Cold(); why != "" {
		c.Log.Info("beginning cold", "why", why)
		return
	}
	if c.Copy.Sensors, err = sensor.DecodeReadings(file.Sensors(), bootTime()); err != nil {
		c.Log.Warn("sensors begin without their earlier states", "err", err)
	}
	n, known := file.Numbers()
	last := storage.ReadEpoch(c.epochPath())
	var why string
	switch {
	case bootErr != nil:
		why = bootErr.Error()
	case !known || n.Epoch < 1 || n.Epoch > servicenet.MaxEpoch:
		why = "the copy's numbers are lost"
	case last != 0 && n.Epoch > last+servicenet.MaxEpochJump: // a bit flipped in memory before it was stored
		why = fmt.Sprintf("the copy is of boot epoch %d, and the last that was begun is %d", n.Epoch, last)
	case last > n.Epoch:
		why = fmt.Sprintf("a later life had boot epoch %d, the copy is of %d", last, n.Epoch)
	default:
		why = c.Distrust()
	}
	if why != "" {
		c.Copy.rescued = file.Reports()
		sensors := slices.Clone(file.Sensors())
		c.Log.Warn("beginning cold", "why", why)
		c.Copy.judge(c.Log, file.GoCold(why))
		c.Copy.Note(c.Log, file.StoreSensors(sensors)) // the next process needs them, if this one ends before it has read its own
		return
	}
	c.Copy.Numbers = n
	if s := file.Stats(); s.Lost > 0 || s.Mended > 0 {
		c.Log.Warn("the copy was damaged", "mended", s.Mended, "lost", s.Lost)
	}
}

// coldAttempt is the restart in a row from which on a crashing half begins cold. A half that crashes each time after
// it has run well begins cold with the last restart of the budget. With a budget of fewer restarts it begins cold at
// the start after the daemon gave it up.
const coldAttempt = 3

// Distrust returns why the half must not resume from its copy although every cell is good, or "" if it may. State
// that was wrong before it was stored has a good checksum, and would crash each later incarnation of the half as
// well.
func (c *Common) Distrust() string {
	r, err := halfcore.DecodeRecovery([]byte(os.Getenv(RecoveryEnv)))
	if err != nil || r.Half != c.Half || r.Last == nil || r.Last.Serving != 0 { // no daemon, or recovered
		return ""
	}
	restarting := r.State == halfcore.Restarting
	if !mayBlameCopy(r.Last.Cause, restarting) {
		return ""
	}
	switch failed := r.Last.Attempt - 1; {
	case failed >= min(coldAttempt-1, r.Budget):
		return fmt.Sprintf("restarts that failed: %d in a row", failed)
	case r.GaveUp:
		return "it was given up"
	case restarting && r.Restarts >= max(r.Budget, coldAttempt): // crashes after the self-test
		return fmt.Sprintf("%d restarts within %s: the budget is spent", r.Restarts, r.Window)
	}
	return ""
}

// mayBlameCopy reports whether the copy may have caused an end of the half. A half that failed to start has not read
// the copy. One that exited with code 1, ExitMemory or a refusal has named another cause; a panic exits with code 2. A SIGKILL,
// or a stop that makes the half hang, may come from outside at any moment, even several times in a row. The copy gets
// the blame for these only once the daemon gave up the half.
func mayBlameCopy(c halfcore.Cause, restarting bool) bool {
	switch c.Kind {
	case halfcore.NotStarted:
		return false
	case halfcore.Exited:
		return c.Code > 1 && !Refused(c.Code) && !c.Memory()
	case halfcore.Killed:
		return !restarting || c.Code != int(syscall.SIGKILL)
	default:
		return !restarting
	}
}

// BeginEpoch returns the half's boot epoch: the one of its copy, or the next one.
func (c *Common) BeginEpoch() (fault.Epoch, error) {
	if e := c.Copy.Numbers.Epoch; e != 0 {
		c.Log.Info("continuing from the copy of an earlier process", "epoch", e, "seq", c.Copy.Numbers.Seq)
		if storage.ReadEpoch(c.epochPath()) != e {
			if err := storage.SetEpoch(c.epochPath(), e); err != nil {
				c.Log.Warn("boot epoch not kept", "err", err)
			}
		}
		return e, nil
	}
	e, err := c.nextEpoch()
	if err == nil {
		c.storeNumbers(storage.Numbers{OutboxSnapshot: servicenet.OutboxSnapshot{Epoch: e}})
	}
	return e, err
}

// storeNumbers must run before any message with one of the numbers leaves.
func (c *Common) storeNumbers(n storage.Numbers) {
	if n != c.Copy.Numbers {
		c.Copy.Numbers = n
		c.Copy.Note(c.Log, c.Copy.File.StoreNumbers(n))
	}
}

// judge remembers whether the copy works.
func (r *resumption) judge(log *slog.Logger, err error) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Broken.Set(log, "copy", err)
}

// Note records a failed store. One success is no evidence about other stores.
func (r *resumption) Note(log *slog.Logger, err error) {
	if err != nil {
		r.judge(log, err)
	}
}

// MaintainCopy looks after the file once a second.
func (c *Common) MaintainCopy(now time.Time) {
	if now.Before(c.Copy.checkAt) {
		return
	}
	c.Copy.checkAt = now.Add(CheckEvery)
	made, err := c.Copy.File.Maintain()
	c.Copy.judge(c.Log, err)
	if made {
		c.Log.Info("new copy made")
	}
}

// Wrong returns the sensors that were SICK or FAILED before the restart.
func (r *resumption) Wrong() []sensor.Reading {
	return slices.DeleteFunc(slices.Clone(r.Sensors), func(s sensor.Reading) bool { return s.State <= fault.Normal })
}

// keepReadings stores the sensors' states when one has changed.
func (r *resumption) keepReadings(log *slog.Logger, readings []sensor.Reading) {
	same := func(a, b sensor.Reading) bool {
		return a.Source == b.Source && a.State == b.State && a.Window == b.Window && a.Until.Equal(b.Until)
	}
	if slices.EqualFunc(r.kept, readings, same) {
		return
	}
	r.kept = slices.Clone(readings)
	b, err := sensor.EncodeReadings(readings, bootTime())
	if err == nil {
		err = r.File.StoreSensors(b)
	}
	r.Note(log, err)
}

// bootTime returns when the machine started, as a time of this process. It counts the time in suspend.
func bootTime() time.Time { return time.Now().Add(-time.Duration(storage.SinceBoot())) }

// opinionsFor is the longest absence after which a half still trusts its stored link states. Restarts by a daemon
// take less. After a longer one its neighbours may have been restarted as well, as in a restart of the whole cluster,
// and the stored states show only their shutdown.
const opinionsFor = time.Second

// Links returns the state from which the links resume, and their sessions.
func (r *resumption) Links() (out dnpcore.Resume, sessions [grid.NumDirections]*torus.Session) {
	out.Outbox = r.Numbers.OutboxSnapshot
	if r.Numbers.Epoch == 0 {
		return dnpcore.Resume{}, sessions
	}
	for i, d := range grid.Directions() {
		if c, s, ok := r.File.Link(d); ok && s.ID != 0 {
			if r.File.LinkAge(d) > opinionsFor {
				c = c.Forget()
			}
			out.Links[i], out.Has[i] = c, true
			sessions[i] = torus.ResumeSession(s.ID, s.Tx, s.Rx, c.TxSeq)
		}
	}
	return out, sessions
}
