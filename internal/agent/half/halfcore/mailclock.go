package halfcore

import "time"

// MailClock measures the delay of messages from a half with another kernel. The sender stamps each message with its own
// monotonic clock, whose origin is unknown here. MailClock takes the fastest message as its reference: the delay of another
// message is the excess over that one. So the first message has delay 0, and so has one whose excess the clocks' drift may explain.
//
// The zero value is ready. Use a new MailClock for each process of the sender: its kernel may have booted in between.
type MailClock struct {
	known bool
	least int64 // arrival minus time of sending of the reference message, in ns
	at    int64 // arrival of the reference message
}

// clockDrift bounds the drift between the two clocks: at most 1 ns in clockDrift ns, 200 ppm.
const clockDrift = 5000

// Delay returns the delay of a message. sent is in ns by the sender's clock, now in ns by this kernel's clock. The delay is 0
// for a time that is out of range.
func (c *MailClock) Delay(sent, now int64) time.Duration {
	if sent < 0 || sent > int64(maxUptime) || now < 0 || now > int64(maxUptime) {
		return 0
	}
	took := now - sent
	if least := c.least + (now-c.at)/clockDrift; c.known && took > least {
		return time.Duration(took - least)
	}
	*c = MailClock{true, took, now}
	return 0
}
