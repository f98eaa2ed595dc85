package half

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
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

// look returns for how many looks in a row the reader has been at one message.
func (r *reader) look() int {
	n := r.count.Load()
	if n%2 == 0 || n != r.last {
		r.last, r.looks = n, 0
		return 0
	}
	r.looks++
	return r.looks
}

// Readers holds the readers of a half: of its mailbox, and of its links (DNP) or service interfaces (host).
type Readers struct {
	Mail reader
	Ways [max(grid.NumDirections, servicenet.MaxInterfaces)]reader
}

// Stuck checks all readers, under the half's mutex, and returns the names of those that are stuck. While a thread of this
// process waits for a processor, it returns none for another watchdog.MaxDoubts looks, because the reader may wait for that thread.
func (rs *Readers) Stuck(threadWaits func() bool) string {
	var names []string
	most := 0
	note := func(name string, looks int) {
		if looks >= stuckLooks {
			names = append(names, name)
		}
		most = max(most, looks)
	}
	note("mailbox", rs.Mail.look())
	for i := range rs.Ways {
		note(fmt.Sprintf("way %d", i), rs.Ways[i].look())
	}
	if len(names) == 0 || most < stuckLooks+watchdog.MaxDoubts && threadWaits() {
		return ""
	}
	return "readers are stuck: " + strings.Join(names, ", ")
}
