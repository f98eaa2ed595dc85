package halfcore

import "time"

// MailClock tells how long messages from a half with another kernel were on their way. Their sender stamps them by the monotonic clock
// of its kernel, which began at another time and cannot be read here. MailClock compares each message with the fastest one: the time
// by which it took longer is the time that it waited. So the first message of a process appears not to have waited.
//
// The zero value is ready. It must not outlive the sender's process, because the next one may run after a boot of that kernel.
type MailClock struct {
	known bool
	least int64 // smallest difference of the two clocks between sending and arrival, in ns
	at    int64 // arrival of that message
}

// clockDrift bounds how much faster one kernel's clock is than the other's: 1 ns in clockDrift ns.
const clockDrift = 5000

// longest is longer than any kernel runs, in ns: 73 years.
const longest = 1 << 61

// Waited returns how long a message was on its way. Both times are in ns: sent by the clock of the sender's kernel, now by that of this
// one.
func (c *MailClock) Waited(sent, now int64) time.Duration {
	if sent < 0 || sent > longest || now < 0 || now > longest {
		return 0 // garbled
	}
	took := now - sent
	if least := c.least + (now-c.at)/clockDrift; c.known && took > least {
		return time.Duration(took - least)
	}
	*c = MailClock{true, took, now}
	return 0
}
