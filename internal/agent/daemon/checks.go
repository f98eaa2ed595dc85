package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/sensor/script"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// This file runs the check programs of a node's peripherals for its host half, which must not start processes itself
// (half.CheckClient). It belongs in a process of the ordinary scheduling class. pkg/sensor/script interprets the exit
// codes.

// checkStarter holds the checks of one configuration.
type checkStarter struct {
	checks map[fault.Component]*startedCheck
}

// startedCheck is one check program. Only the holder of the turn runs it.
type startedCheck struct {
	turn   chan struct{} // capacity 1
	source sensor.Source
}

// newCheckStarter returns the starter of a validated configuration; nil: it has no checks.
func newCheckStarter(cfg sensor.Config) *checkStarter {
	s := &checkStarter{checks: map[fault.Component]*startedCheck{}}
	for i, c := range [...]fault.Component{fault.ComponentPeripheral0, fault.ComponentPeripheral1} {
		p := cfg.Peripherals[i]
		if p.Kind != sensor.PeripheralScript {
			continue
		}
		interval, timeout := p.ScriptTimes()
		s.checks[c] = &startedCheck{make(chan struct{}, 1), script.New(script.Config{
			Component: c, Command: p.Command, Env: sdnotify.Environment(os.Environ()), Interval: interval, Timeout: timeout,
		})}
	}
	if len(s.checks) == 0 {
		return nil
	}
	return s
}

// checkStopWait is how long Serve waits for checks that it kills.
const checkStopWait = 2 * time.Second

// Serve answers on l, which it closes, until ctx ends or l fails; then it kills the running checks.
func (s *checkStarter) Serve(ctx context.Context, l net.Listener) error {
	serving, end := context.WithCancel(ctx)
	defer end()
	srv := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return serving }, // ends every check
	}
	defer context.AfterFunc(serving, func() { _ = srv.Close() })()
	err := srv.Serve(l)
	end()
	s.wait()
	if ctx.Err() != nil {
		return nil // closed on request
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}

// wait takes every turn, so that no check runs, or gives up after stopWait.
func (s *checkStarter) wait() {
	late := time.After(checkStopWait)
	for _, c := range s.checks {
		select {
		case c.turn <- struct{}{}:
		case <-late:
			return
		}
	}
}

func (s *checkStarter) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+half.CheckPath, func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get(half.CheckParamComponent)
		component, err := fault.ParseComponent(name)
		c := s.checks[component]
		if err != nil || c == nil {
			http.Error(w, fmt.Sprintf("component %.40q has no check in this process's configuration", name), http.StatusNotFound)
			return
		}
		a := c.run(r.Context())
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // either side ends: without an answer the half asks the next starter
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a)
	})
	return mux
}

// run runs the check, after one that is being killed. ctx ends when the half goes away.
func (c *startedCheck) run(ctx context.Context) half.CheckAnswer {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return half.CheckAnswer{State: fault.Unknown.String(), Error: "check stopped"}
	}
	defer func() { <-c.turn }()
	r, err := c.source.Read(ctx)
	a := half.CheckAnswer{State: r.State.String(), Detail: r.Detail}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
