package half

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// stuckLooks is the number of successive looks, one a second, after which a reader counts as stuck at one message. It
// counts looks instead of time, so that a paused machine does not make a reader suspect.
const stuckLooks = 3

// reader tracks a goroutine that receives messages. The half's watchdog word does not cover it: if the reader hangs
// without the half's mutex, only its senders notice.
type reader struct {
	count atomic.Uint64 // odd while it is at a message

	last  uint64 // as last looked at
	looks int    // at the same message
}

// Begin and End enclose the handling of a message.
func (r *reader) Begin() { r.count.Add(1) }
func (r *reader) End()   { r.count.Add(1) }

// look reports whether the reader is stuck.
func (r *reader) look() bool {
	n := r.count.Load()
	if n%2 == 0 || n != r.last {
		r.last, r.looks = n, 0
		return false
	}
	r.looks++
	return r.looks >= stuckLooks
}

// Readers holds the readers of a half: of its mailbox, and of its links (DNP) or service interfaces (host).
type Readers struct {
	Mail reader
	Ways [max(grid.NumDirections, servicenet.MaxInterfaces)]reader
}

// Stuck checks all readers, under the half's mutex, and returns the names of those that are stuck. While a thread of this
// process waits for a processor, it returns none, because the reader may wait for that thread.
func (rs *Readers) Stuck(threadWaits func() bool) string {
	var names []string
	if rs.Mail.look() {
		names = append(names, "mailbox")
	}
	for i := range rs.Ways {
		if rs.Ways[i].look() {
			names = append(names, fmt.Sprintf("way %d", i))
		}
	}
	if len(names) == 0 || threadWaits() {
		return ""
	}
	return "readers are stuck: " + strings.Join(names, ", ")
}
