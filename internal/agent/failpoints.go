package agent

import (
	"log/slog"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// msgKept is the line of a half's log, at debug level, that says which reports entered its log and are safe in
// its copy: what stands there and is committed never, was lost. The injection campaign reads it.
const msgKept = "reports kept"

// armFailpoints arms the points of a half or of the daemon that starts, in a build that has them and where the
// configuration allows injection.
func armFailpoints(cfg config.Agent, who string, log *slog.Logger) {
	if !failpoint.Enabled || !cfg.Injection {
		return
	}
	if err := failpoint.ArmAtStart(cfg.StateDir, who); err != nil {
		log.Warn("failpoints", "err", err)
	}
}

// traceKept notes which reports are kept.
func (c *common) traceKept(reports []fault.Report) {
	if len(reports) == 0 || !c.debug {
		return
	}
	ids := make([]string, len(reports))
	for i := range reports {
		ids[i] = reports[i].ID.String()
	}
	c.log.Debug(msgKept, "reports", ids)
}
