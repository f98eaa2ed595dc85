//go:build !lofamo_failpoint

package failpoint

import (
	"net/http"
	"sync"
)

// Enabled says whether this build has failpoints.
const Enabled = false

// Hit does nothing.
func Hit(Point) Action { return Pass }

// Packet says that the step is to be done once.
func Packet(Point, []byte) int { return 1 }

// Mount serves nothing.
func Mount(*http.ServeMux) {}

// Live names nothing.
func Live(string, any, sync.Locker) {}

// ArmAtStart does nothing.
func ArmAtStart(string, string) error { return nil }
