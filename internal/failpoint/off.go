//go:build !lofamo_failpoint

package failpoint

import (
	"net/http"
	"sync"
)

// Enabled reports whether this build has failpoints.
const Enabled = false

// Hit does nothing.
func Hit(Point) Action { return Pass }

// Packet returns 1: the step is done once.
func Packet(Point, []byte) int { return 1 }

// Mount serves nothing.
func Mount(*http.ServeMux) {}

// Live does nothing.
func Live(string, any, sync.Locker) {}

// OnlyNotesFlips returns false: there are none.
func OnlyNotesFlips() bool { return false }

// ArmAtStart does nothing.
func ArmAtStart(string, string) error { return nil }
