package half

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// stuckLooks is after how many looks in a row, one a second, a reader is stuck that has been at the same message.
// Looks are counted and not time: of a machine that stood still nobody is accused.
const stuckLooks = 3

// reader takes what comes from outside. The half's watchdog word says nothing of it: one that hangs without the half's mutex would be
// missed by its senders alone.
type reader struct {
	count atomic.Uint64 // odd while it is at a message

	last  uint64 // as last looked at
	looks int    // at the same message
}

// Begin and end stand around the handling of a message.
func (r *reader) Begin() { r.count.Add(1) }
func (r *reader) End()   { r.count.Add(1) }

// look says whether the reader is stuck.
func (r *reader) look() bool {
	n := r.count.Load()
	if n%2 == 0 || n != r.last {
		r.last, r.looks = n, 0
		return false
	}
	r.looks++
	return r.looks >= stuckLooks
}

// Readers are those of a half: of its mailbox, and of its links (DNP) or service interfaces (host).
type Readers struct {
	Mail reader
	Ways [max(grid.NumDirections, servicenet.MaxInterfaces)]reader
}

// Stuck takes a look, under the half's mutex, and names those that are stuck.
func (rs *Readers) Stuck() string {
	var names []string
	if rs.Mail.look() {
		names = append(names, "mailbox")
	}
	for i := range rs.Ways {
		if rs.Ways[i].look() {
			names = append(names, fmt.Sprintf("way %d", i))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "readers are stuck: " + strings.Join(names, ", ")
}
