package half

import (
	"log/slog"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// msgKept is a debug line in a half's log. It names the reports that entered the half's log and are safe in its copy.
// A report that appears there and is never committed was lost. The injection campaign reads the line.
const msgKept = "reports kept"

// ArmFailpoints arms the failpoints of a starting half or daemon, in a build that has them and if the configuration
// allows injection.
func ArmFailpoints(cfg config.Agent, who string, log *slog.Logger) {
	if !failpoint.Enabled || !cfg.Injection {
		return
	}
	if err := failpoint.ArmAtStart(cfg.StateDir, who); err != nil {
		log.Warn("failpoints", "err", err)
	}
}

// msgReplaced is such a line for ids that will not be committed any more, because another report replaces them.
const msgReplaced = "reports replaced"

// traceReports notes which reports are kept, and which are replaced by others.
func (c *Common) traceReports(e servicenet.SenderEffects) {
	if !c.debug {
		return
	}
	kept := make([]fault.ReportID, len(e.Keep))
	for i := range e.Keep {
		kept[i] = e.Keep[i].ID
	}
	c.traceIDs(msgKept, kept)
	c.traceIDs(msgReplaced, e.Replaced)
}

func (c *Common) traceIDs(msg string, ids []fault.ReportID) {
	if len(ids) == 0 {
		return
	}
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = id.String()
	}
	c.Log.Debug(msg, "reports", text)
}
