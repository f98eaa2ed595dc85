package halfcore

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/config"
)

// OutboxConfig returns the settings of an outbox that follow from the periods. The service network counts as failed
// only after the direct rail has had no answer for more than two digest periods, so that one lost datagram is not
// enough. During a silence, rounds are less frequent than digests, because each costs neighbours more.
func OutboxConfig(p config.Periods, rails ...fault.Path) servicenet.OutboxConfig {
	c := servicenet.DefaultOutboxConfig(rails...)
	c.AckTimeout = p.AckTimeout
	c.AggregateDelay = min(c.AggregateDelay, p.AckTimeout)
	c.MaxAckTimeout = max(c.MaxAckTimeout, 2*p.AckTimeout)
	c.MaxBackoff = max(c.MaxBackoff, c.MaxAckTimeout)
	c.SilentBackoff = max(c.MaxBackoff, 2*p.DigestPeriod)
	c.NetworkDeadAfter = p.DigestPeriod * 12 / 5
	return c
}
