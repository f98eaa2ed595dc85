package store

import (
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refused adds ErrRefused to an error of a transaction that would fail in every attempt. It returns any other error unchanged.
func refused(err error) error {
	st, _ := status.FromError(err)
	switch {
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrDuplicateKey),
		// gRPC's limits of both ends share their code with temporary errors.
		st.Code() == codes.ResourceExhausted && strings.Contains(st.Message(), "message larger than max"):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// final reports whether an attempt to commit must not be repeated.
func final(err error) bool {
	return errors.Is(err, ErrNotLeader) || errors.Is(err, ErrOvertaken) || errors.Is(err, ErrConflict) || errors.Is(err, ErrRefused)
}
