package daemon

import (
	"time"

	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// look checks the half: its word, and its process if the word has not moved.
func (c *child) look() recovery.Look {
	var l recovery.Look
	before := c.stores
	l.Stores, l.Readable = c.readStores()
	if p := c.running(); p != nil {
		l.Process = p.look(!l.Readable || l.Stores == before)
	}
	return l
}

// mendWithin is how long after damage to the register file a half may still write into the old one, or into none.
const mendWithin = 3 * half.CheckEvery

// readStores reads the number of the half's word, from the file that has the name now. The number counts as unreadable
// while the half may be writing to another file, unless the number moves.
func (c *child) readStores() (n uint32, readable bool) {
	before := c.stores
	n, ok := c.progress()
	if ok && n == before && c.registers.Check() != nil { // perhaps the half has another
		_ = c.registers.Close()
		c.registers, c.doubtUntil = nil, time.Now().Add(mendWithin)
		n, ok = c.progress()
	}
	if !ok {
		c.doubtUntil = time.Now().Add(mendWithin)
		return before, false
	}
	c.stores = n
	return n, n != before || time.Now().After(c.doubtUntil)
}

// progress reads the number from the open file, or else from the file that has the name.
func (c *child) progress() (uint32, bool) {
	if c.registers == nil {
		f, err := regfile.OpenReadOnly(c.d.statePath(half.RegisterFile))
		if err != nil {
			return 0, false
		}
		c.registers = f
	}
	n, err := c.registers.Progress(c.half)
	if err != nil {
		_ = c.registers.Close()
		c.registers = nil
	}
	return n, err == nil
}

// tests returns the half's self-test result from its lock file, if it is new.
func (c *child) tests() recovery.Event {
	now := time.Now()
	record, _ := c.known()
	l := record.Last
	proving := l != nil && l.Serving != 0 && l.Proven == 0
	if record.State != halfcore.Running || !proving && now.Before(c.testsAt) {
		return nil
	}
	c.testsAt = now.Add(half.CheckEvery)
	h, err := regfile.LastHolder(c.d.statePath(half.RegisterFile), c.half)
	switch {
	case err != nil || !h.Same(c.holder()) || h.Tests == "": // of a predecessor, perhaps with the same PID in another container
		return nil
	case h.Tests == regfile.Proven && proving:
		return recovery.Proven{}
	case h.Tests != regfile.Proven:
		return recovery.Wrong{Why: h.Tests}
	}
	return nil
}
