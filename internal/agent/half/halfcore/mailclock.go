package halfcore

import "time"

// MailClock measures the delay of messages from a half with another kernel. The sender stamps each message with its own
// monotonic clock, whose origin is unknown here. MailClock takes the fastest of the newest messages as its reference: the delay
// of another message is the excess over that one. So the first message has delay 0.
//
// References are replaced, because the two clocks drift apart, and one of them may stand still while its machine is suspended.
//
// The zero value is ready. Use a new MailClock for each process of the sender: its kernel may have booted in between.
type MailClock struct {
	recent, before reference
}

// reference is the fastest of the messages that arrived within mailClockSpan after since.
type reference struct {
	known bool
	took  int64 // arrival minus time of sending, in ns
	since int64
}

// mailClockSpan is how long messages share a reference, in ns. The last two references count, so an error by drift or by a
// suspended sender lasts for two spans with messages. Recovery records come more often than every span.
const mailClockSpan = int64(15 * time.Second)

// Delay returns the delay of a message. sent is in ns by the sender's clock, now in ns by this kernel's clock. The delay is 0
// for a time that is out of range.
func (c *MailClock) Delay(sent, now int64) time.Duration {
	const most = int64(maxUptime / 2) // no difference overflows
	if sent < -most || sent > most || now < 0 || now > most {
		return 0
	}
	took := now - sent
	switch r := &c.recent; {
	case !r.known:
		*r = reference{true, took, now}
	case now-r.since >= mailClockSpan:
		c.before, *r = *r, reference{true, took, now}
	default:
		r.took = min(r.took, took)
	}
	least := c.recent.took
	if c.before.known {
		least = min(least, c.before.took)
	}
	return time.Duration(took - least)
}
