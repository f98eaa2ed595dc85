package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const (
	// DefaultSocket is the default socket of a node's host half.
	DefaultSocket = "/var/lib/lofamo/agent/local.sock"
	// EnvSocket names the environment variable with the path of another socket.
	EnvSocket = "LOFAMO_SOCKET"
)

// maxSocketPath is the longest path that fits a socket address with its terminating zero.
const maxSocketPath = 107

// Client connects to the host half of this node. Its methods may be called from several goroutines.
type Client struct {
	path string
	conn *grpc.ClientConn
	api  lofamov1.LocalClient
}

// Dial returns a client for the socket at that path; empty: the one in the environment (LOFAMO_SOCKET), or the default.
// It does not connect yet, so there need not be a listener. It fails with fs.ErrPermission if this process may not open
// the socket, because calls would wait for ever.
func Dial(socket string) (*Client, error) {
	path, err := filepath.Abs(cmp.Or(socket, os.Getenv(EnvSocket), DefaultSocket))
	if err != nil {
		return nil, fmt.Errorf("socket of the host half: %w", err)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket of the host half %s: given a path of %d bytes: want at most %d", path, len(path), maxSocketPath)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("socket of the host half %s: %w: want a user who may write to it", path, err)
	}
	// A restarted half is back within a second, so reconnect attempts must be frequent.
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithNoProxy(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, fmt.Errorf("socket of the host half %s: %w", path, err)
	}
	return &Client{path: path, conn: conn, api: lofamov1.NewLocalClient(conn)}, nil
}

// Close ends the connection and every call.
func (c *Client) Close() error { return c.conn.Close() }

// rest is the pause between two attempts if the connection itself does not set one.
const rest = 50 * time.Millisecond

// persist calls do until the half has answered, successfully or not, or the context ends.
func (c *Client) persist(ctx context.Context, what string, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
		if !isLost(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

// isLost reports that the connection broke before the host half answered. The half's own errors have details.
func isLost(err error) bool {
	if errors.Is(err, io.EOF) {
		return true
	}
	st, ok := status.FromError(err)
	return ok && st.Code() == codes.Unavailable && infoOf(st) == nil
}

func infoOf(st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "lofamo" {
			return info
		}
	}
	return nil
}

// GoneError lists members of a barrier that have not arrived and are FAILED in the fault map: the barrier will never be
// complete.
type GoneError struct {
	Nodes []string // the first 64
	Err   error
}

// Error returns the half's message.
func (e *GoneError) Error() string { return e.Err.Error() }

// Unwrap returns the gRPC status.
func (e *GoneError) Unwrap() error { return e.Err }

// MissingError lists members of a barrier that had not arrived at the deadline. Its chain has context.DeadlineExceeded.
type MissingError struct {
	Nodes []string // the first 64
	Err   error
}

// Error returns the half's message.
func (e *MissingError) Error() string { return e.Err.Error() }

// Unwrap returns the gRPC status, and context.DeadlineExceeded.
func (e *MissingError) Unwrap() []error { return []error{e.Err, context.DeadlineExceeded} }

// explain converts errors that list nodes to their types.
func explain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	info := infoOf(st)
	if info == nil {
		return err
	}
	var nodes []string
	if list := info.GetMetadata()["nodes"]; list != "" {
		nodes = strings.Split(list, ",")
	}
	switch info.GetReason() {
	case "MEMBERS_GONE":
		return &GoneError{Nodes: nodes, Err: err}
	case "MEMBERS_MISSING":
		return &MissingError{Nodes: nodes, Err: err}
	}
	return err
}
