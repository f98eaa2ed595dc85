package store

import (
	"context"
	"testing"
	"time"
)

// RunFrom is like Run for a replica that has lost leases: its first lease lives for ttl seconds.
func (c Campaigner) RunFrom(ctx context.Context, ttl int, work func(context.Context, Fence) error) {
	c.run(ctx, &leaseLength{shortest: c.TTL, ttl: ttl, first: c.ShortenAfter, wait: c.ShortenAfter}, work)
}

// TestLeaseGrowsWithLossesAndShrinksWithoutThem: a lease that is lost soon after it was shortened delays the next shortening.
func TestLeaseGrowsWithLossesAndShrinksWithoutThem(t *testing.T) {
	r := &leaseLength{shortest: 1, ttl: 1, first: time.Minute, wait: time.Minute}
	want := func(what string, ttl int, wait time.Duration) {
		t.Helper()
		if r.ttl != ttl || r.wait != wait {
			t.Errorf("%s: a lease of %d s, shorter after %s: want %d s, %s", what, r.ttl, r.wait, ttl, wait)
		}
	}
	for _, ttl := range []int{2, 4, 8, 8} {
		r.lost()
		want("lost again", ttl, time.Minute)
	}
	for _, ttl := range []int{4, 2, 1} {
		r.shortened(r.kept())
		want("kept", ttl, time.Minute)
	}
	for _, minutes := range []int{2, 4, 8, 16, 32, 60, 60} {
		r.lost()
		want("lost after it became shorter", 2, time.Duration(minutes)*time.Minute)
		r.shortened(r.kept())
	}
	if got := r.kept(); got != 1 {
		t.Errorf("the shortest lease may become %d s", got)
	}
	want("kept at last", 1, time.Minute)
	r.lost()
	want("lost later", 2, time.Minute)
	long := &leaseLength{shortest: 10, ttl: 10, first: time.Minute, wait: time.Minute}
	if long.lost(); long.ttl != 10 {
		t.Errorf("a lease of %d s: want that of the configuration", long.ttl)
	}
}
