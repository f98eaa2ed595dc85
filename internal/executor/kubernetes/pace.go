package kubernetes

import (
	"context"

	"golang.org/x/time/rate"
)

// pace lets requests go, so many a second and so many at once after a pause. Of those that wait reads are the last: a read begins
// an act, and what has been begun is ended first. Where a thousand acts want to begin at once, half of them are done after half
// of the time, while all would else be ended near its end; and between a read and its write, in which somebody else may write,
// lies no other's read.
type pace struct {
	*rate.Limiter // of what is no read

	reading chan struct{} // has room for one: the only read that has asked for its turn
}

func newPace(qps, burst int) *pace {
	return &pace{Limiter: rate.NewLimiter(rate.Limit(qps), burst), reading: make(chan struct{}, 1)}
}

// waitToRead returns when a read may go; an error: it did not get its turn.
func (p *pace) waitToRead(ctx context.Context) error {
	select {
	case p.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.reading }()
	return p.Wait(ctx)
}
