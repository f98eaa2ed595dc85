package view

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Health is what was said of a half of a node, in whole, and when the same was last heard: digests that say nothing new
// come without it.
type Health struct {
	Said             *lofamov1.HalfHealth // nil: nothing was said; not changed any more
	At, Heard, OldAt time.Time
}

// render counts ages on to now. What happened once grows older since it was said in whole; modules that are tested all the
// time were tested as lately as then when it was last heard.
func (h Health) render(now time.Time, d *lofamov1.DeliveryStatus) *lofamov1.HalfHealth {
	if h.Said == nil {
		return nil
	}
	out := proto.CloneOf(h.Said)
	since, heard := max(0, now.Sub(h.At)), max(0, now.Sub(h.Heard))
	if r := out.GetRecovery(); r != nil {
		if r.GetAgeNs() > 0 {
			r.AgeNs += uint64(since)
		}
		r.UntilMs -= uint32(min(int64(r.GetUntilMs()), since.Milliseconds()))
	}
	for _, t := range out.GetTests() {
		by := heard
		if t.GetState() == lofamov1.TestState_IDLE {
			by = since
		}
		t.AgeMs = uint32(min(int64(t.GetAgeMs())+by.Milliseconds(), 1<<32-1))
		t.Module = moduleName(t.GetNumber(), d)
	}
	out.AgeNs = min(out.GetAgeNs()+uint64(heard), uint64(servicenet.MaxAge))
	out.Old = Old(h.OldAt, now)
	return out
}

// modules are the names of self-tested modules by their number, but for links and the direct rail.
var modules = map[uint32]string{7: "relay", 8: "gossip", 9: "report-path", 10: "mailbox", 11: "register-path", 12: "bulk"}

// directNumber is the number of the direct rail by service interface 0.
const directNumber = 16

// moduleName is how people know a module: the direct rail by the name of its interface, where the node has said it.
func moduleName(number uint32, d *lofamov1.DeliveryStatus) string {
	if dirs := grid.Directions(); number >= 1 && int(number) <= len(dirs) {
		return fault.Link(dirs[number-1]).String()
	}
	if name, ok := modules[number]; ok {
		return name
	}
	if number < directNumber || number >= directNumber+servicenet.MaxInterfaces {
		return fmt.Sprintf("module/%d", number)
	}
	k := int(number - directNumber)
	if rails := d.GetRails(); k < len(rails) && strings.HasPrefix(rails[k].GetName(), "direct/") {
		return rails[k].GetName()
	}
	return fmt.Sprintf("direct/%d", k)
}
