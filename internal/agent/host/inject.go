package host

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/failpoint"
)

type hostInjection struct {
	BlockService bool `json:"block_service"`
	Interface    *int `json:"interface"` // number of the service interface; nil: all together. Gossip is on 0.
}

// cuts are the injected cuts of the service network. Those of single interfaces are independent of that of all.
type cuts struct {
	all bool
	one map[int]bool // by the number of the service interface
}

// blocked reports whether a service interface is cut.
func (c *cuts) blocked(k int) bool { return c.all || c.one[k] }

// socketCounters are the datagrams of one service interface's socket.
type socketCounters struct {
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	Blocked  uint64 `json:"blocked"` // dropped while it was blocked, both ways
}

// injectHandler serves the host half's fault injection: POST /inject {"block_service":true} blocks all service
// interfaces, with {"interface":0} only one. The end of one of these cuts leaves the others. GET /inject returns the counters
// of each interface, which show that no packet passes a blocked one. It is served only where the configuration allows
// injection.
func (h *hostHalf) injectHandler() http.Handler {
	mux := http.NewServeMux()
	var mu sync.Mutex // guards cut, and the order of changes
	cut := cuts{one: make(map[int]bool)}
	mux.HandleFunc("GET /inject", func(w http.ResponseWriter, _ *http.Request) {
		out := make([]socketCounters, 0, len(h.nets))
		for _, s := range h.nets {
			st := s.Stats()
			out = append(out, socketCounters{st.Sent, st.Received, st.Blocked})
		}
		half.WriteJSON(w, out)
	})
	mux.Handle("/inject", half.Post(func(in hostInjection) (any, error) {
		only := in.Interface
		if only != nil && (*only < 0 || *only >= len(h.nets)) {
			return nil, fmt.Errorf("interface: given %d: want 0 to %d", *only, len(h.nets)-1)
		}
		which := "all"
		if only != nil {
			which = strconv.Itoa(*only)
		}
		h.Log.Warn("fault injection", "block_service", in.BlockService, "interface", which)
		h.mu.Lock()
		g := h.gossip
		h.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		if only != nil {
			cut.one[*only] = in.BlockService
		} else {
			cut.all = in.BlockService
		}
		for k, s := range h.nets {
			s.Block(cut.blocked(k))
		}
		if g != nil {
			g.Block(cut.blocked(0))
		}
		return nil, nil
	}))
	failpoint.Mount(mux)
	h.window.Mount(mux)
	return mux
}
