package half

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// MsgMemory begins the line in a half's log about memory that has changed. The injection campaign reads it.
const MsgMemory = "memory has changed between two steps"

// logWait is the time for writing the log's queue before a half ends, so that no earlier line is lost.
const logWait = 20 * time.Millisecond

// Guard is a half's one mutex, and can watch over the memory of the half's machine while it is free (see Watch): Unlock takes
// checksums of all of that memory, and Lock compares them. Only a holder of the mutex may change the memory, so a
// difference is a fault of the memory, such as a flipped bit, that no code of the half has used yet.
//
// The half then ends. Its copy outside the process is as the last holder left it, and a new process resumes from that:
// no report is lost, none is sent twice, and no wrong word leaves the half. If restarts for this reason go on, the half
// only warns, because the reason may be a mistake in its own code, which would end halves everywhere.
//
// A fault while the mutex is held is not found, nor one in memory that has locks of its own.
type Guard struct {
	mu   sync.Mutex
	seal *seal // nil: not watching yet
	log  *slog.Logger
	warn bool                 // do not end the half
	end  func(damaged string) // ends the half; tests replace it
	many Repeats              // of warnings
}

// Watch begins to watch the memory behind root, a pointer, if the configuration asks for it (checkMemory). The caller holds
// the mutex.
func (g *Guard) Watch(c *Common, root any) {
	if !c.Config.CheckMemory {
		return
	}
	g.seal, g.log, g.warn = newSeal(root), c.Log, doubtsMemory(c.Half, os.Getenv(RecoveryEnv))
	if g.warn {
		c.Log.Warn("changed memory will not end this half: too many restarts")
	}
	g.end = func(damaged string) {
		g.log.Error(MsgMemory+": ending, to resume from the copy", "block", damaged)
		time.Sleep(logWait) // no step begins meanwhile
		os.Exit(halfcore.ExitMemory)
	}
}

// Lock waits for the mutex and checks the memory.
func (g *Guard) Lock() {
	g.mu.Lock()
	if g.seal == nil {
		return
	}
	if bad := g.seal.check(); bad != "" {
		if g.warn || failpoint.OnlyNotesFlips() {
			g.many.Warn(g.log, time.Now(), MsgMemory+": "+bad)
			return
		}
		g.end(bad)
	}
}

// Unlock records the memory, and releases the mutex.
func (g *Guard) Unlock() {
	if g.seal != nil {
		g.seal.take()
	}
	g.mu.Unlock()
}

// Unwatched returns the mutex alone: what its holder changes is a fault. It is for injected faults.
func (g *Guard) Unwatched() sync.Locker { return &g.mu }

// memoryRestarts is the number of restarts within the daemon's window from which on a half whose last one found its
// memory changed does not end for that reason again.
const memoryRestarts = 3

// doubtsMemory reports whether the half was restarted too often because its memory had changed.
func doubtsMemory(half fault.Half, record string) bool {
	r, err := halfcore.DecodeRecovery([]byte(record))
	return err == nil && r.Half == half && r.Last != nil && r.Last.Cause.Memory() && r.Restarts >= min(memoryRestarts, r.Budget)
}
