package agent

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/lofamo/lofamo/pkg/fault"
)

// halfStatus is what the control socket says of a half.
type halfStatus struct {
	PID     int   `json:"pid"`
	Running bool  `json:"running"`
	SinceNS int64 `json:"since_ns"` // CLOCK_MONOTONIC of its start or end
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
		writeJSON(w, nodeStatus{Host: d.halves[fault.HalfHost].status(), DNP: d.halves[fault.HalfDNP].status()})
	})
	mux.Handle("/start", post(func(in startRequest) (any, error) {
		c, err := d.child(in.Half)
		if err != nil {
			return nil, err
		}
		c.ask()
		return nil, nil
	}))
	mux.Handle("/kill", post(func(in killRequest) (any, error) {
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
	return mux
}

func (d *daemon) child(name string) (*child, error) {
	h, err := fault.ParseHalf(name)
	if err != nil {
		return nil, err
	}
	return d.halves[h], nil
}

// ask asks for a half that does not run to be started.
func (c *child) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		return
	}
	select {
	case c.start <- struct{}{}:
	default: // asked for already
	}
}

func (c *child) status() halfStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := halfStatus{SinceNS: c.since}
	if c.process != nil {
		s.PID, s.Running = c.process.Pid, true
	}
	return s
}

func (c *child) signal(sig syscall.Signal) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil, errors.New("the " + c.half.String() + " half does not run")
	}
	t := monotonic()
	if err := c.process.Signal(sig); err != nil {
		return nil, fmt.Errorf("signal the %s half: %w", c.half, err)
	}
	return killAnswer{t}, nil
}
