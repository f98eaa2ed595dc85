package half

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// The daemon learns from the kernel within a millisecond that a half's process has ended, and says so to the other
// half (halfcore.RecoveryRecord.Ended). That word alone convinces nobody: the other half asks the kernel itself. So a
// daemon that lies, or a late message about an earlier process, harms no healthy half.

// endedChecksEvery is the shortest time between two questions to the kernel about the other half's process.
const endedChecksEvery = 2 * time.Millisecond

// EndedChecks confirms messages about the end of the other half's process. The zero value is ready. Only the mailbox's
// goroutine uses it.
type EndedChecks struct{ next time.Time }

// Confirm returns how and how long ago the process of the other half has ended, if the message says so and the kernel
// confirms it: the message names the process that took the half's lock on the register file last, and that process is
// gone. Questions that come faster than endedChecksEvery go unanswered: the daemon repeats its record, and the
// watchdog judges in any case.
func (e *EndedChecks) Confirm(m mailbox.Message, registers string, other fault.Half) (how string, age time.Duration, ok bool) {
	r, err := halfcore.DecodeRecovery(m.Payload)
	if err != nil || r.Half != other || r.Ended == nil || r.State != halfcore.Stopped && r.State != halfcore.GivenUp {
		return "", 0, false
	}
	now := time.Now()
	if now.Before(e.next) {
		return "", 0, false
	}
	e.next = now.Add(endedChecksEvery)
	named := regfile.Holder{PID: r.Ended.PID, Start: r.Ended.Start, Space: r.Ended.Space}
	last, err := regfile.LastHolder(registers, other)
	if err != nil || last.Start == 0 || last.Space == 0 || !last.Same(named) || !named.Gone() {
		return "", 0, false
	}
	how = "has ended"
	if r.Last != nil {
		how, age = r.Last.Cause.String(), max(0, time.Duration(Monotonic()-r.Last.At))
	}
	return how, age, true
}
