package half

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/threads"
)

// While the process is unknown, as that of a half under another kernel, the pauses between two questions for it grow from firstPause to
// lastPause.
const firstPause, lastPause = time.Second, time.Minute

// starvation asks the kernel whether the other half's process waits for a processor. It asks only while that half does not
// write its word, and only as often as the answer can matter. The zero value is ready.
type starvation struct {
	asked   time.Time      // for process
	pause   time.Duration  // until the next question while process is unknown
	process regfile.Holder // of the other half; zero: unknown
	empty   int            // reads in a row that found the word not valid
	account threads.Account
	at      time.Time // of account
}

// look reports whether the other half's process has mostly waited for a processor since the previous read. It returns false
// if this read or the previous one found the word valid, and if the process has ended or belongs to another PID namespace.
//
// The process is the one that last took the half's lock on the register file. look reads the lock's file only after it has
// found the word valid, because the disk may be the reason for a word that is not.
func (s *starvation) look(now time.Time, registers string, half fault.Half, valid bool) bool {
	if valid {
		unknown := s.process.PID == 0 && now.Sub(s.asked) >= s.pause // also if the lock was just being written
		if unknown || s.empty > 0 || s.replaced() {
			s.asked, s.pause = now, min(max(firstPause, 2*s.pause), lastPause)
			s.process, _ = regfile.LastHolder(registers, half) // without a lock: unknown
			if s.process.PID != 0 {
				s.pause = 0
			}
		}
		s.empty = 0
		return false
	}
	if s.empty++; s.empty > watchdog.MaxDoubts+watchdog.MaxMisses || !s.process.Exists() {
		return false
	}
	account, err := threads.Read(s.process.PID)
	if err != nil {
		return false
	}
	earlier, at, same := s.account, s.at, s.empty > 1
	s.account, s.at = account, now
	return same && account.Starved(earlier, now.Sub(at))
}

// replaced reports whether the process has ended although the half still writes its word. Then the half was restarted so fast that no read
// found the word empty. Each read makes this system call. The call never blocks, so it bypasses the Go scheduler.
func (s *starvation) replaced() bool {
	if s.process.PID <= 0 || s.process.Elsewhere(regfile.PIDNamespace()) {
		return false
	}
	_, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(s.process.PID), 0, 0)
	return errno == unix.ESRCH
}

// otherThreadWaits reports whether a thread of this process other than the calling one is ready to run. With GOMAXPROCS=1 it then
// waits for a processor, or has just returned from a system call.
func otherThreadWaits() bool {
	a, err := threads.Read(os.Getpid())
	return err == nil && a.Ready() > 1
}
