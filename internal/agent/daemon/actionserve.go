package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// maxActionBody bounds a request, in bytes: an order is one datagram.
const maxActionBody = 16 << 10

// Handler serves the socket of the daemon that looks after a half.
func (d *ActionRunner) Handler(half fault.Half) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+actions.PathAct, func(w http.ResponseWriter, r *http.Request) {
		var o actions.Order
		if !readRequest(w, r, &o) {
			return
		}
		if o.Half() != half {
			http.Error(w, fmt.Sprintf("acts of kind %s are for the daemon of the %s half", o.Kind, o.Half()), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d.Ask(&o)) // a client that is gone asks again
	})
	mux.HandleFunc("POST "+actions.PathEnded, func(w http.ResponseWriter, r *http.Request) {
		var e actions.Ended
		if readRequest(w, r, &e) {
			d.Ended(e)
		}
	})
	return mux
}

func readRequest(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxActionBody)).Decode(into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}
