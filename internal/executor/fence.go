package executor

import (
	"context"
	"errors"
	"time"

	"github.com/lofamo/lofamo/internal/failpoint"
)

type (
	fenceKey struct{}
	askedKey struct{}
)

// ErrStale is the error of Fenced if a higher token is known. Any other error means only that the check failed, for
// example because the context ended.
var ErrStale = errors.New("another leader is elected")

// FenceTime is the timeout for one check of the highest token. An unresponsive store delays an attempt by that much,
// not by the attempt's whole timeout.
const FenceTime = 5 * time.Second

// WithFence gives the executors that receive the returned context a check of the highest token. still fails if the
// attempt's token is no longer the highest, with ErrStale if a higher one is known. It must return soon after the
// context passed to it ends, which is derived from the caller's. If it queries more than once, it calls Asks before
// each query.
func WithFence(ctx context.Context, still func(context.Context) error) context.Context {
	return context.WithValue(ctx, fenceKey{}, still)
}

// Fenced fails if a token higher than the attempt's has been seen, or if the check takes longer than FenceTime. An
// executor that checks its target before it acts calls Fenced after that check, so that it does not make a change that
// must be undone. Without a fence in ctx it never fails.
func Fenced(ctx context.Context) error {
	_, err := FencedSince(ctx)
	return err
}

// FencedSince is Fenced for callers that need the age of the answer: the answer is no older than asked.
func FencedSince(ctx context.Context) (asked time.Time, err error) {
	asked = time.Now()
	if still, ok := ctx.Value(fenceKey{}).(func(context.Context) error); ok {
		one, cancel := context.WithTimeout(context.WithValue(ctx, askedKey{}, &asked), FenceTime)
		defer cancel()
		if err = still(one); err != nil {
			return asked, err
		}
	}
	failpoint.Hit(failpoint.ExecutorFenced)
	return asked, nil
}

// Asks records the time of a query. The function given to WithFence calls it with its ctx before each query.
func Asks(ctx context.Context) {
	if asked, ok := ctx.Value(askedKey{}).(*time.Time); ok {
		*asked = time.Now()
	}
}

// Held returns the result of an attempt that Fenced has stopped. It is Stale only if a higher token is known.
func Held(err error) Result {
	if errors.Is(err, ErrStale) {
		return Stale("%v", err)
	}
	return Unchanged("cannot confirm that this supervisor still leads: %v", err)
}
