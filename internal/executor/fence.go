package executor

import (
	"context"

	"github.com/lofamo/lofamo/internal/failpoint"
)

type fenceKey struct{}

// WithFence gives the executors below a context a look at the highest token: still fails once the token of the attempt is lower.
func WithFence(ctx context.Context, still func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, still)
}

// Fenced fails once a token higher than that of the attempt has been seen. An executor that looks before it acts asks again after it
// has looked: what it does not do then, it need not put back. Where nobody keeps a token it never fails.
func Fenced(ctx context.Context) error {
	if still, ok := ctx.Value(fenceKey{}).(func() error); ok {
		if err := still(); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.ExecutorFenced)
	return nil
}
