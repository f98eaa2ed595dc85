package kubernetes

import (
	"context"

	"golang.org/x/time/rate"
)

// pace limits requests to a rate, with a burst after a pause. Reads wait for all other requests: a read begins an
// action, and started actions finish first. If a thousand actions start at once, half of them finish in half the time;
// otherwise all would finish near the end. And between an action's read and its write, when somebody else may write,
// there is no other action's read.
type pace struct {
	*rate.Limiter // for all requests except reads

	reading chan struct{} // capacity one: only one read at a time waits for the limiter
}

func newPace(qps, burst int) *pace {
	return &pace{Limiter: rate.NewLimiter(rate.Limit(qps), burst), reading: make(chan struct{}, 1)}
}

// waitToRead returns when a read may leave, or an error if ctx ends first.
func (p *pace) waitToRead(ctx context.Context) error {
	select {
	case p.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.reading }()
	return p.Wait(ctx)
}
