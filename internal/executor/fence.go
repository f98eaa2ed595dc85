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

// ErrStale is what Fenced fails with where a higher token has been seen. Whatever else it fails with says only that nobody can
// tell, as where the context ends.
var ErrStale = errors.New("another leader is elected")

// FenceTime bounds one look at the highest token: a store that does not answer holds up who asks it for that long, and not for as
// long as the attempt has.
const FenceTime = 5 * time.Second

// WithFence gives the executors below a context a look at the highest token: still fails once the token of the attempt is lower,
// with ErrStale if it is known to be. It returns soon after the context that it is given has ended, which is one below that of
// who looks. One that asks more than once says Asks each time.
func WithFence(ctx context.Context, still func(context.Context) error) context.Context {
	return context.WithValue(ctx, fenceKey{}, still)
}

// Fenced fails once a token higher than that of the attempt has been seen, and where that cannot be said within FenceTime. An
// executor that looks before it acts asks again after it has looked: what it does not do then, it need not put back. Where nobody
// keeps a token it never fails.
func Fenced(ctx context.Context) error {
	_, err := FencedSince(ctx)
	return err
}

// FencedSince is Fenced for who has to know how old the word is by which it goes on: not older than asked.
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

// Asks is for what WithFence was given, and was given ctx: it asks now, for the first time or once more.
func Asks(ctx context.Context) {
	if asked, ok := ctx.Value(askedKey{}).(*time.Time); ok {
		*asked = time.Now()
	}
}

// Held is the result of an attempt that Fenced has kept from changing anything: stale only where a higher token is known.
func Held(err error) Result {
	if errors.Is(err, ErrStale) {
		return Stale("%v", err)
	}
	return Unchanged("it is not sure that this supervisor still leads: %v", err)
}
