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
	// DefaultSocket is where a node's host half listens unless its configuration says otherwise.
	DefaultSocket = "/var/lib/lofamo/agent/local.sock"
	// EnvSocket names the environment variable with the path of another socket.
	EnvSocket = "LOFAMO_SOCKET"
)

// maxSocketPath is what fits a socket address with its closing zero.
const maxSocketPath = 107

// Client speaks with the host half of this node. Its methods may be called from several goroutines.
type Client struct {
	path string
	conn *grpc.ClientConn
	api  lofamov1.LocalClient
}

// Dial returns a client for the socket at that path; empty: that of the environment (LOFAMO_SOCKET), or the default one. It does
// not connect yet: nobody need listen there. It fails with fs.ErrPermission where this process may not open the socket: calls
// would wait for ever.
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
	// A half that is restarted is back within a second: the connection is tried again as soon.
	again := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, fmt.Errorf("socket of the host half %s: %w", path, err)
	}
	return &Client{path: path, conn: conn, api: lofamov1.NewLocalClient(conn)}, nil
}

// Close ends the connection, and every call.
func (c *Client) Close() error { return c.conn.Close() }

// rest is between two attempts where the connection itself does not say when.
const rest = 50 * time.Millisecond

// persist calls do until the half has answered, whatever it is, or the context ends.
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

// isLost says that the connection broke: the host half has not answered. What it says itself has details.
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

// GoneError says which members of a barrier have not arrived, and are FAILED in the fault map: it will never be complete.
type GoneError struct {
	Nodes []string // the first 64
	Err   error
}

// Error returns what the half has said.
func (e *GoneError) Error() string { return e.Err.Error() }

// Unwrap returns the gRPC status.
func (e *GoneError) Unwrap() error { return e.Err }

// MissingError says which members of a barrier had not arrived when the time was over. Its chain has context.DeadlineExceeded.
type MissingError struct {
	Nodes []string // the first 64
	Err   error
}

// Error returns what the half has said.
func (e *MissingError) Error() string { return e.Err.Error() }

// Unwrap returns the gRPC status, and context.DeadlineExceeded.
func (e *MissingError) Unwrap() []error { return []error{e.Err, context.DeadlineExceeded} }

// explain makes errors that name nodes of those that do.
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
