package api

import (
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/fanout"
)

// What stands in the google.rpc.ErrorInfo of refusals that a program can do something about.
const (
	errorDomain = "lofamo"
	// reasonExpired: what was asked for is no longer kept. Metadata "do" says how to go on.
	reasonExpired = "RESOURCE_EXPIRED"
	// reasonResume: the stream ended, and can be resumed after Metadata "revision".
	reasonResume = "RESUME"
	// reasonNoLeader: nobody leads, and nothing was changed.
	reasonNoLeader = "NO_LEADER"
	// reasonSlow is reasonResume where the client read too slowly.
	reasonSlow = "SLOW_READER"
)

// invalid refuses a field of a request. The text says what was given and what is allowed.
func invalid(field, format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, fmt.Sprintf(format, args...))
}

// withInfo is a status with an ErrorInfo.
func withInfo(code codes.Code, reason, message string, metadata map[string]string) error {
	st := status.New(code, message)
	if detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain, Metadata: metadata}); err == nil {
		st = detailed
	}
	return st.Err()
}

// expired says that what a request goes on from is no longer kept, and what is to be done.
func expired(message, do string) error {
	return withInfo(codes.OutOfRange, reasonExpired, message+": "+do, map[string]string{"do": do})
}

// listAgain is what is to be done when a watch cannot go on.
const listAgain = "list again and watch after the list's revision"

// resumable ends a stream that can be resumed after a revision.
func resumable(code codes.Code, reason string, revision uint64, format string, args ...any) error {
	at := strconv.FormatUint(revision, 10)
	return withInfo(code, reason, fmt.Sprintf(format, args...)+": resume after revision "+at, map[string]string{"revision": at})
}

// asExpired turns a fanout.ExpiredError into the API's; false when err is none.
func asExpired(err error, do string) (error, bool) {
	var gone *fanout.ExpiredError
	if !errors.As(err, &gone) {
		return nil, false
	}
	return expired(gone.Error(), do), true
}
