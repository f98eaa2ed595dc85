package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
)

// Contents of google.rpc.ErrorInfo in refusals that a program can handle.
const (
	errorDomain = "lofamo"
	// reasonExpired: the requested data is no longer kept. Metadata "do" says how to continue.
	reasonExpired = "RESOURCE_EXPIRED"
	// reasonResume: the stream ended, and can be resumed after the revision in Metadata "revision".
	reasonResume = "RESUME"
	// reasonNoLeader: there is no leader, and nothing was changed.
	reasonNoLeader = "NO_LEADER"
	// reasonNothingChanged: the leader could not read the store before a change, so it changed nothing.
	reasonNothingChanged = "NOTHING_CHANGED"
	// reasonNotLeading: the replica that was asked as the leader does not lead, and nothing was changed.
	reasonNotLeading = "NOT_LEADING"
	// reasonSlow is reasonResume after the client read too slowly.
	reasonSlow = "SLOW_READER"
)

// invalid refuses a field of a request. The text says the given and the allowed value.
func invalid(field, format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, fmt.Sprintf(format, args...))
}

// withInfo returns a status with an ErrorInfo.
func withInfo(code codes.Code, reason, message string, metadata map[string]string) error {
	st := status.New(code, message)
	if detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain, Metadata: metadata}); err == nil {
		st = detailed
	}
	return st.Err()
}

// storeUnread refuses a change because the store could not be read before it.
func storeUnread(err error) error {
	return withInfo(codes.Unavailable, reasonNothingChanged, err.Error()+": nothing was changed", nil)
}

// isNotLeading reports whether a replica that was asked as the leader does not lead. Replicas of earlier versions give no
// reason: their text decides.
func isNotLeading(err error) bool {
	st := status.Convert(err)
	if st.Code() != codes.FailedPrecondition {
		return false
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason() == reasonNotLeading
		}
	}
	return strings.HasPrefix(st.Message(), engine.ErrNotLeading.Error())
}

// expired says that the position a request continues from is no longer kept, and what to do.
func expired(message, do string) error {
	return withInfo(codes.OutOfRange, reasonExpired, message+": "+do, map[string]string{"do": do})
}

// listAgain tells a client what to do when a watch cannot continue.
const listAgain = "list again and watch after the list's revision"

// resumable ends a stream that can be resumed after a revision.
func resumable(code codes.Code, reason string, revision uint64, format string, args ...any) error {
	at := strconv.FormatUint(revision, 10)
	return withInfo(code, reason, fmt.Sprintf(format, args...)+": resume after revision "+at, map[string]string{"revision": at})
}

// asExpired converts an expiredError into the API's error; false: err is none.
func asExpired(err error, do string) (error, bool) {
	var gone *expiredError
	if !errors.As(err, &gone) {
		return nil, false
	}
	return expired(gone.Error(), do), true
}
