package local

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/pkg/fault"
)

// The values of google.rpc.ErrorInfo (domain lofamo) for errors that a program can handle. An UNAVAILABLE without one
// comes from the connection, not from the half.
const (
	ReasonMissing = "MEMBERS_MISSING" // metadata nodes: the first 64, with commas
	ReasonGone    = "MEMBERS_GONE"    // the same
	ReasonNoLinks = "NO_LINKS"
	ReasonSilent  = "DNP_SILENT"
)

// maxNamed is the number of nodes in the metadata: an error travels in headers.
const maxNamed = 64

func withInfo(code codes.Code, reason string, nodes []fault.NodeID, format string, args ...any) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "lofamo"}
	if len(nodes) > 0 {
		names := make([]string, 0, maxNamed)
		for _, id := range nodes[:min(len(nodes), maxNamed)] {
			names = append(names, string(id))
		}
		info.Metadata = map[string]string{"nodes": strings.Join(names, ",")}
	}
	st := status.New(code, fmt.Sprintf(format, args...))
	if detailed, err := st.WithDetails(info); err == nil {
		st = detailed
	}
	return st.Err()
}

func unavailable(reason, format string, args ...any) error {
	return withInfo(codes.Unavailable, reason, nil, format, args...)
}
