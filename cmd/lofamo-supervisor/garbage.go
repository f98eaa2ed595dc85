package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A Go process collects garbage when its heap is twice as large as the live part. This is right while the process allocates much memory.
// Afterwards it is a waste: the heap of a large map would stay twice as large for hours.
const (
	mostGC  = 100 // percent, as in GOGC: Go's default
	leastGC = 10
	// collectEvery is the desired interval between collections. To reach it, the heap may grow by up to mostGC percent and mostRoom.
	collectEvery = 10 * time.Second
	// leastRoom lets a small heap grow as it would by default.
	leastRoom = 128 << 20
	// mostRoom bounds the growth of a large heap, so that a start does not double it. A heap above 5 GB may grow by leastGC percent.
	mostRoom = 512 << 20
	// calmTime is the number of seconds with few allocations after which the limit of the heap's growth falls.
	calmTime = 30
)

// collector adapts the garbage collector to the allocations of the last seconds. A larger rate counts at once, a smaller one after
// calmTime. Its zero value is ready for use.
type collector struct {
	rates [calmTime]uint64 // bytes allocated in each of the last seconds
	at    int
	total uint64 // bytes allocated up to the last second; 0: unknown
	now   int    // percent set; 0: none
}

// second notes all bytes allocated since the process began, and the live ones. It is called once a second, and returns the percentage to
// set, or 0 if the present one is near enough: each change stops the program for some microseconds.
func (c *collector) second(total, live uint64) int {
	if c.total == 0 {
		c.total = total
	}
	c.rates[c.at], c.total = total-c.total, total
	c.at = (c.at + 1) % calmTime
	room := uint64(leastRoom)
	for _, r := range c.rates {
		room = max(room, r*uint64(collectEvery/time.Second))
	}
	room = min(room, mostRoom)
	percent := mostGC
	if live > 0 {
		percent = int(min(mostGC, max(leastGC, 100*room/live)))
	}
	if d := percent - c.now; 4*max(d, -d) < c.now {
		return 0
	}
	c.now = percent
	return percent
}

// keepNoProfile switches Go's memory profile off, which grows to 2 MB in the first half hour. Go keeps the profile because etcd's profiling
// handlers are linked, but this program does not serve them.
func keepNoProfile() { runtime.MemProfileRate = 0 }

// tuneGarbage keeps the heap small while little is allocated, until the context ends. An operator's GOGC takes its place.
func tuneGarbage(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	var c collector
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			metrics.Read(s)
			if p := c.second(s[0].Value.Uint64(), s[1].Value.Uint64()); p != 0 {
				debug.SetGCPercent(p)
			}
		}
	}
}
