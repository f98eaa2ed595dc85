package half

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/bounded"
)

// maxBody bounds the body of a request to a control socket, in bytes.
const maxBody = 4096

// ServeUnix serves HTTP on a Unix socket that only the owner may use, until ctx ends. The caller holds the lock that
// excludes other servers: a socket left by a dead process is removed.
func ServeUnix(ctx context.Context, path string, h http.Handler) error {
	l, err := ListenUnix(ctx, path)
	if err != nil {
		return err
	}
	return Serve(ctx, l, h)
}

// ListenUnix listens on a socket that only the owner may use. It replaces the socket of an earlier incarnation.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("control socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("control socket %s: there is a %s in the way: want a socket or nothing", path, info.Mode())
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// Before bind, the mode of the descriptor becomes the mode of the file: others can connect at no moment.
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// lastAnswers is the time that a stopping server gives requests that have begun.
const lastAnswers = time.Second

// Serve runs a small HTTP server until ctx ends. It then finishes the requests that have begun, for lastAnswers at most: the process
// may exit when Serve returns. A client that has sent no whole header does not delay
// it, and gets no answer. A panic in h ends the process.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv, ended := bounded.HTTPServer(endOnPanic(h)), make(chan struct{})
	var silent silentConns
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		bounded.HTTPState(c, state)
		silent.note(c, state)
	}
	srv.RegisterOnShutdown(silent.close)
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bound, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if srv.Shutdown(bound) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(l) // returns when Shutdown begins
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// silentConns holds the connections of a server that have not sent the header of a request yet. Shutdown treats them as busy for 5 s, and
// so would use up lastAnswers.
type silentConns struct{ conns sync.Map }

func (s *silentConns) note(c net.Conn, state http.ConnState) {
	if state == http.StateNew {
		s.conns.Store(c, nil)
		return
	}
	s.conns.Delete(c)
}

func (s *silentConns) close() {
	s.conns.Range(func(c, _ any) bool {
		_ = c.(net.Conn).Close()
		return true
	})
}

// endOnPanic makes a panic of a handler end the process. net/http would close the connection and go on: the next requests
// would panic too. No watchdog would see it, because a half's steps go on and a daemon has none.
func endOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				words := fmt.Sprintf("%v, while serving %s %s:\n%s", p, r.Method, r.URL.Path, debug.Stack())
				go panic(words) // net/http would recover a panic of this goroutine
				select {}
			}
		}()
		h.ServeHTTP(w, r)
	})
}

// Post answers a POST request with the result of do. The body must be one strict JSON object.
func Post[T any](do func(T) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "want POST", http.StatusMethodNotAllowed)
			return
		}
		var in T
		dec := json.NewDecoder(io.LimitReader(r.Body, maxBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			http.Error(w, "request: "+err.Error(), http.StatusBadRequest)
			return
		}
		out, err := do(in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		WriteJSON(w, out)
	})
}

// WriteJSON answers a request with v, or with {} for nil.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if v == nil {
		v = struct{}{}
	}
	_ = json.NewEncoder(w).Encode(v) // the client went away
}
