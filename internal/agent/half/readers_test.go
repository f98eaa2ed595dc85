package half

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A reader is stuck when look after look finds it at the same message: not while it is idle, and not when it is found at another
// each time.
func TestReaderAtOneMessageIsStuck(t *testing.T) {
	var rs Readers
	waits := false
	look := func(times int, want string) {
		t.Helper()
		for range times {
			if got := rs.Stuck(func() bool { return waits }); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	look(10, "")
	for range 10 {
		rs.Mail.Begin()
		look(1, "")
		rs.Mail.End()
	}
	rs.Mail.Begin()
	look(stuckLooks, "")
	look(3, "readers are stuck: mailbox")
	rs.Mail.End()
	look(1, "")
	rs.Mail.Begin()
	waits = true // for a processor: a thread of the half
	look(stuckLooks+watchdog.MaxDoubts, "")
	look(1, "readers are stuck: mailbox")
	waits = false
	look(1, "readers are stuck: mailbox")
	rs.Ways[1].Begin()
	look(stuckLooks, "readers are stuck: mailbox")
	look(1, "readers are stuck: mailbox, way 1")
	rs.Mail.End()
	look(3, "readers are stuck: way 1")
	rs.Ways[1].End()
	rs.Ways[1].Begin()
	look(stuckLooks, "")
}
