package kubernetes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestWritesBeforeReads: of actions that start at once, each a read and a write, the first finish early, and the rate
// limit holds.
func TestWritesBeforeReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const acts, qps, burst, answer = 1000, 200, 400, 3 * time.Millisecond
		p := newPace(qps, burst)
		begin := time.Now()
		ended := make(chan time.Duration, acts)
		for range acts {
			go func() {
				if err := p.waitToRead(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(answer) // the API server's delay, on this bubble's clock
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				ended <- time.Since(begin)
			}()
		}
		var took []time.Duration
		for range acts {
			took = append(took, <-ended)
		}
		slices.Sort(took)
		// All 2*acts requests except the burst, at qps. Half of the acts use up the burst, mostly for their reads; each
		// further act takes at most two requests.
		last, half := time.Second*(2*acts-burst)/qps, time.Second*(acts-burst)/qps
		if d := took[acts/2-1]; d > half+50*time.Millisecond {
			t.Errorf("half of the acts took %s: want %s, and little more", d, half)
		}
		if d := took[acts-1]; d < last-10*time.Millisecond || d > last+50*time.Millisecond {
			t.Errorf("all acts took %s: want %s, and little more", d, last)
		}
	})
}

// TestReadGivesUp: a read that times out has not been sent, and others get their turn.
func TestReadGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(1, 1)
		if err := p.waitToRead(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := make(chan error)
		go func() { second <- p.waitToRead(t.Context()) }()
		synctest.Wait() // it has its turn, and waits for the rate
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := p.waitToRead(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the third: %v", err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		if err := p.waitToRead(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
