package host

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/failpoint"
)

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

// injectHandler serves the host half's fault injection: POST /inject {"block_service":true} blocks all service
// interfaces, with {"interface":0} only one. GET /inject returns the counters of each, which show that no packet
// passes a blocked one. It is served only where the configuration allows injection.
func (h *hostHalf) injectHandler() http.Handler {
	mux := http.NewServeMux()
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
	h.window.Mount(mux)
	return mux
}
