package agent

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
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// maxBody bounds the body of a request to a control socket, in bytes.
const maxBody = 4096

// serveUnix serves HTTP on a Unix socket that only the owner may use, until ctx ends. The caller
// holds the lock that says that no other process serves it: a socket left by a dead one is removed.
func serveUnix(ctx context.Context, path string, h http.Handler) error {
	l, err := listenUnix(ctx, path)
	if err != nil {
		return err
	}
	return serve(ctx, l, h)
}

// listenUnix listens on a socket that only the owner may use. One that an earlier life left is replaced.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
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
		// Before bind the mode of the descriptor is the mode that the file will get: there is no moment
		// in which others could connect.
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

// serve runs a small HTTP server until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := bounded.HTTPServer(h)
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(bound) != nil {
			_ = srv.Close()
		}
	})
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// post answers POST requests whose body is one strict JSON object, by what do returns.
func post[T any](do func(T) (any, error)) http.Handler {
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
		writeJSON(w, out)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if v == nil {
		v = struct{}{}
	}
	_ = json.NewEncoder(w).Encode(v) // the client went away
}

type hostInjection struct {
	BlockService bool `json:"block_service"`
	Interface    *int `json:"interface"` // number of the service interface; nil: all. Gossip is on 0.
}

// socketCounters are the datagrams of one service interface's socket.
type socketCounters struct {
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	Blocked  uint64 `json:"blocked"` // dropped while it was blocked, both ways
}

// injectHandler serves the host half's fault injection: POST /inject {"block_service":true}, of all
// service interfaces or {"interface":0} of one. GET /inject answers with the counters of each, which
// show that nothing passes where something is blocked. It is served only where the configuration allows
// injection.
func (h *hostHalf) injectHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /inject", func(w http.ResponseWriter, _ *http.Request) {
		out := make([]socketCounters, 0, len(h.nets))
		for _, s := range h.nets {
			st := s.Stats()
			out = append(out, socketCounters{st.Sent, st.Received, st.Blocked})
		}
		writeJSON(w, out)
	})
	mux.Handle("/inject", post(func(in hostInjection) (any, error) {
		only := in.Interface
		if only != nil && (*only < 0 || *only >= len(h.nets)) {
			return nil, fmt.Errorf("interface: given %d: want 0 to %d", *only, len(h.nets)-1)
		}
		which := "all"
		if only != nil {
			which = strconv.Itoa(*only)
		}
		h.log.Warn("fault injection", "block_service", in.BlockService, "interface", which)
		for k, s := range h.nets {
			if only == nil || *only == k {
				s.Block(in.BlockService)
			}
		}
		h.mu.Lock()
		g := h.gossip
		h.mu.Unlock()
		if g != nil && (only == nil || *only == 0) {
			g.Block(in.BlockService)
		}
		return nil, nil
	}))
	failpoint.Mount(mux)
	return mux
}

type dnpInjection struct {
	Dir    string         `json:"dir"`
	Mangle *mangleRequest `json:"mangle"`
	Heal   bool           `json:"heal"` // all links
}

type mangleRequest struct {
	BlockIn    bool    `json:"block_in"`
	BlockOut   bool    `json:"block_out"`
	DropIn     float64 `json:"drop_in"`
	DropOut    float64 `json:"drop_out"`
	CorruptIn  float64 `json:"corrupt_in"`
	CorruptOut float64 `json:"corrupt_out"`
	DupOut     float64 `json:"dup_out"`
	DelayOut   string  `json:"delay_out"` // a duration such as "5ms"
}

func (r mangleRequest) mangle() (udplink.Mangle, error) {
	m := udplink.Mangle{
		BlockIn: r.BlockIn, BlockOut: r.BlockOut, DropIn: r.DropIn, DropOut: r.DropOut,
		CorruptIn: r.CorruptIn, CorruptOut: r.CorruptOut, DupOut: r.DupOut,
	}
	if r.DelayOut != "" {
		var err error
		if m.DelayOut, err = time.ParseDuration(r.DelayOut); err != nil {
			return m, fmt.Errorf("mangle: delay_out: given %q: want a duration such as \"5ms\"", r.DelayOut)
		}
	}
	return m, m.Validate()
}

// injectHandler serves the DNP half's fault injection on its own end of a link: POST /inject
// {"dir":"X+","mangle":{…}} or {"heal":true}.
func (d *dnpHalf) injectHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/inject", post(func(in dnpInjection) (any, error) {
		if in.Heal {
			d.log.Warn("fault injection", "heal", true)
			for _, l := range d.links {
				if l != nil {
					l.Mangle(udplink.Mangle{})
				}
			}
			return nil, nil
		}
		dir, err := grid.ParseDirection(in.Dir)
		if err != nil {
			return nil, err
		}
		l := d.links[dir.Index()]
		if l == nil {
			return nil, fmt.Errorf("direction %s: the %s torus has no such link", dir, d.topo.Dims)
		}
		if in.Mangle == nil {
			return nil, errors.New("mangle: missing")
		}
		m, err := in.Mangle.mangle()
		if err != nil {
			return nil, err
		}
		d.log.Warn("fault injection", "link", dir.String(), "mangle", fmt.Sprintf("%+v", m))
		l.Mangle(m)
		return nil, nil
	}))
	failpoint.Mount(mux)
	return mux
}
