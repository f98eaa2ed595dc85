package agent

import "testing"

// A reader is stuck when look after look finds it at the same message: not while it is idle, and not when it is found at another
// each time.
func TestReadersStuck(t *testing.T) {
	var rs readers
	look := func(times int, want string) {
		t.Helper()
		for range times {
			if got := rs.stuck(); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	look(10, "")
	for range 10 {
		rs.mail.begin()
		look(1, "")
		rs.mail.end()
	}
	rs.mail.begin()
	look(stuckLooks, "")
	look(5, "readers are stuck: mailbox")
	rs.ways[1].begin()
	look(stuckLooks, "readers are stuck: mailbox")
	look(1, "readers are stuck: mailbox, way 1")
	rs.mail.end()
	look(3, "readers are stuck: way 1")
	rs.ways[1].end()
	rs.ways[1].begin()
	look(stuckLooks, "")
}
