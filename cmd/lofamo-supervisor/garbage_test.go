package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

const mb = 1 << 20

// TestHeapGrowsLessWhileLittleIsAllocated: a burst lets the heap grow at once, a small one to its double and a large one by mostRoom. The
// memory comes back after calmTime.
func TestHeapGrowsLessWhileLittleIsAllocated(t *testing.T) {
	var c collector
	total := uint64(1000 * mb)
	for i, step := range []struct {
		seconds    int
		rate, live uint64 // MB, MB/s
		want       int    // percent after these seconds
	}{
		{1, 0, 800, 100 * 128 / 800},
		{1, 200, 800, 100 * 512 / 800},          // a burst
		{calmTime - 1, 1, 800, 100 * 512 / 800}, // its last seconds still count
		{1, 1, 800, 100 * 128 / 800},            // calm
		{1, 40, 800, 50},                        // room for ten seconds
		{calmTime, 40, 810, 50},                 // little has changed
		{calmTime, 1, 300, 100 * 128 / 300},     // a smaller heap has the least room
		{calmTime, 1, 100, mostGC},              // a small one grows as by default
		{1, 50, 300, mostGC},                    // its double is less than the most room
		{calmTime, 0, 0, mostGC},                // not collected yet
		{calmTime, 1, 6000, leastGC},            // a very large one
	} {
		for range step.seconds {
			total += step.rate * mb
			if p := c.second(total, step.live*mb); p < 0 || p != 0 && (p < leastGC || p > mostGC) {
				t.Fatalf("step %d: %d %%", i, p)
			}
		}
		if c.now != step.want {
			t.Errorf("step %d: %d %%, want %d %%", i, c.now, step.want)
		}
	}
}

// TestFirstSecondsKeepDefault: a process that has just started collects as any other.
func TestFirstSecondsKeepDefault(t *testing.T) {
	var c collector
	if p := c.second(5*mb, 4*mb); p != mostGC {
		t.Errorf("%d %%, want %d %%", p, mostGC)
	}
	if p := c.second(6*mb, 4*mb); p != 0 {
		t.Errorf("%d %% set again", p)
	}
}

// TestOperatorsGOGCStays: without GOGC the program sets the percentage, else it does not.
func TestOperatorsGOGCStays(t *testing.T) {
	const other = 123
	defer debug.SetGCPercent(debug.SetGCPercent(other))
	for gogc, want := range map[string]uint64{"123": other, "": mostGC} {
		t.Setenv("GOGC", gogc)
		debug.SetGCPercent(other)
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go tuneGarbage(ctx)
			time.Sleep(2 * time.Second)
			s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			if metrics.Read(s); s[0].Value.Uint64() != want {
				t.Errorf("GOGC %q: %d %%, want %d %%", gogc, s[0].Value.Uint64(), want)
			}
		})
	}
}

// TestNoMemoryProfileIsKept: with Go's default rate, all of these 64 allocations would be in the profile. Each processor had chosen its
// next sample before the rate changed, so up to one allocation of each processor may still be recorded.
func TestNoMemoryProfileIsKept(t *testing.T) {
	keepNoProfile()
	sampled := func() (n int64) {
		for range 3 { // collections, which put what was allocated before them into the profile
			runtime.GC()
		}
		records := make([]runtime.MemProfileRecord, 1000)
		count, ok := runtime.MemProfile(records, true)
		if !ok {
			t.Fatalf("the profile of memory has %d stacks", count)
		}
		for _, r := range records[:count] {
			n += r.AllocObjects
		}
		return n
	}
	before := sampled()
	for range 64 {
		kept = make([]byte, mb)
	}
	if more := sampled() - before; more > 16 {
		t.Errorf("the profile of memory has %d more allocations", more)
	}
}

var kept []byte
