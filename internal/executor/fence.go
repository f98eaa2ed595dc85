package executor

import (
	"context"
	"errors"

	"github.com/lofamo/lofamo/internal/failpoint"
)

type fenceKey struct{}

// ErrStale is what Fenced fails with where a higher token has been seen. Whatever else it fails with says only that nobody can tell, as where the context ends.
var ErrStale = errors.New("another leader is elected")

// WithFence gives the executors below a context a look at the highest token: still fails once the token of the attempt is lower, with ErrStale if it is known
// to be.
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
