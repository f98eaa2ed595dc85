package bundle

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

// historySize is the maximum number of changes in a History.
const historySize = 4096

// History remembers the latest changes of register words that one half wrote or read: a ring that drops the oldest. The
// Valid bits, which flip with every write and read, do not count as changes. A half notes words under its mutex;
// bundles read them from another goroutine.
type History struct {
	mu    sync.Mutex
	began time.Time // the half's start
	last  map[watchdog.Addr]uint32
	ring  []change
	next  int
	total uint64
}

type change struct {
	after    time.Duration // since the start
	addr     watchdog.Addr
	old, new uint32
}

// NewHistory returns an empty History for a half that starts now.
func NewHistory(now time.Time) *History {
	return &History{began: now, last: map[watchdog.Addr]uint32{}}
}

// Note records a register's present value.
func (h *History) Note(now time.Time, a watchdog.Addr, v uint32) {
	if a == watchdog.AddrDNPWatchdog || a == watchdog.AddrHostWatchdog {
		v |= watchdog.ValidBit
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	old, known := h.last[a]
	if known && old == v {
		return
	}
	h.last[a] = v
	c := change{now.Sub(h.began), a, old, v}
	h.total++
	if len(h.ring) < historySize {
		h.ring = append(h.ring, c)
		return
	}
	h.ring[h.next] = c
	h.next = (h.next + 1) % historySize
}

// Text returns the history for display, oldest first.
func (h *History) Text() ([]byte, error) {
	h.mu.Lock()
	ring := append(append([]change(nil), h.ring[h.next:]...), h.ring[:h.next]...)
	began, total := h.began, h.total
	h.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "Changes of registers as this half saw them, since its start at %s: the last %d of %d.\n",
		began.UTC().Format(time.RFC3339Nano), len(ring), total)
	fmt.Fprintf(&b, "Valid bits are shown as set: they change at every write and read.\n\n")
	for _, c := range ring {
		name := ""
		if r, ok := watchdog.Lookup(c.addr); ok {
			name = r.Name
		}
		fmt.Fprintf(&b, "%14.6fs  %s  0x%08x → 0x%08x  %s\n", c.after.Seconds(), c.addr, c.old, c.new, name)
	}
	return b.Bytes(), nil
}
