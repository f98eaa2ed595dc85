package daemon

import (
	"fmt"
	"net/http"
	"syscall"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// halfStatus is the control socket's status of a half.
type halfStatus struct {
	PID     int   `json:"pid"`
	Running bool  `json:"running"`
	SinceNS int64 `json:"since_ns"` // CLOCK_MONOTONIC of its start or end

	Recovery halfcore.RecoveryRecord `json:"recovery"`
}

type nodeStatus struct {
	Host halfStatus `json:"host"`
	DNP  halfStatus `json:"dnp"`
}

type startRequest struct {
	Half string `json:"half"`
}

type killRequest struct {
	Half   string `json:"half"`
	Signal string `json:"signal"`
}

type killAnswer struct {
	MonotonicNS int64 `json:"monotonic_ns"` // just before the signal
}

// control serves run.sock, where the configuration allows injection: GET /status, POST /start
// {"half"}, POST /kill {"half","signal"}.
func (d *daemon) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		var s nodeStatus
		for h, c := range d.halves {
			if h == fault.HalfHost {
				s.Host = c.status()
			} else {
				s.DNP = c.status()
			}
		}
		half.WriteJSON(w, s)
	})
	mux.Handle("/start", half.Post(func(in startRequest) (any, error) {
		c, err := d.child(in.Half)
		if err != nil {
			return nil, err
		}
		c.ask()
		return nil, nil
	}))
	mux.Handle("/kill", half.Post(func(in killRequest) (any, error) {
		c, err := d.child(in.Half)
		if err != nil {
			return nil, err
		}
		sig, ok := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}[in.Signal]
		if !ok {
			return nil, fmt.Errorf("signal: given %q: want KILL, STOP or CONT", in.Signal)
		}
		return c.signal(sig)
	}))
	failpoint.Mount(mux)
	return mux
}

func (d *daemon) child(name string) (*child, error) {
	h, err := fault.ParseHalf(name)
	if err != nil {
		return nil, err
	}
	if c := d.halves[h]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("the %s half is another daemon's", h)
}
