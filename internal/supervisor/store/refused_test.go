package store

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestOnlyPermanentErrorsAreRefusals: a commit is retried after any error that a later attempt may not have.
func TestOnlyPermanentErrorsAreRefusals(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{rpctypes.ErrRequestTooLarge, true},
		{rpctypes.ErrTooManyOps, true},
		{rpctypes.ErrDuplicateKey, true},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (3145800 vs. 2097152)"), true},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3145800 vs. 2097152)"), true},
		{rpctypes.ErrNoSpace, false},
		{rpctypes.ErrTooManyRequests, false},
		{rpctypes.ErrTimeout, false},
		{status.Error(codes.ResourceExhausted, "overloaded"), false},
		{status.Error(codes.Unavailable, "connection refused"), false},
		{context.DeadlineExceeded, false},
	} {
		err := refused(tc.err)
		if errors.Is(err, ErrRefused) != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%v: %v: want a refusal: %t", tc.err, err, tc.want)
		}
	}
}
