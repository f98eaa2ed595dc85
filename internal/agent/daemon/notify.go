package daemon

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// managed is the daemon's state towards the service manager that has started it: the last notification, and whether the
// manager waits for the daemon to be ready.
//
//	starting ──all decided──► ready ──SIGHUP──► asking ──all loops have taken it──► starting
type managed struct {
	to *sdnotify.Notifier // nil: there is no service manager

	mu     sync.Mutex
	asking bool
	ready  bool
	over   bool // the daemon is ending
}

// startingPatience is the extension, beyond the time of a start, that the daemon requests from the manager whenever a
// half without a decision starts another attempt.
const startingPatience = 2 * recovery.MaxBackoff

// goesOn suppresses the notification of a stop: the halves stop, and the daemon itself continues.
func (m *managed) goesOn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
}

// tellManager reports the state of the halves to the service manager. The daemon is ready when each half either serves,
// or does not and is not started again. A half that cannot run is no reason to end the daemon, because that would end
// the other half too.
func (d *daemon) tellManager() {
	if d.manager.to == nil {
		return
	}
	d.manager.mu.Lock()
	defer d.manager.mu.Unlock()
	decided, words := true, ""
	for _, h := range d.cfg.halves() {
		r, known := d.halves[h].known()
		switch r.State {
		case halfcore.Running, halfcore.GivenUp, halfcore.Stopped:
			decided = decided && known
		default:
			decided = false
		}
		if words != "" {
			words += "; "
		}
		words += h.String() + " half " + halfWords(r, known)
	}
	d.manager.to.Status(words)
	switch {
	case d.manager.ready || d.manager.asking || d.manager.over:
	case decided:
		d.manager.ready = true
		d.manager.to.Ready()
	default:
		d.manager.to.Patience(d.cfg.Agent.Recovery.StartWithin.D() + startingPatience)
	}
}

// halfWords describes the state of a half in words.
func halfWords(r halfcore.RecoveryRecord, known bool) string {
	var last string
	if r.Last != nil {
		last = r.Last.Cause.String()
	}
	switch {
	case !known || r.State == halfcore.Starting:
		return "is being started"
	case r.State == halfcore.Restarting:
		return fmt.Sprintf("is being restarted: it %s", last)
	case r.State == halfcore.GivenUp:
		return "is given up: " + r.Reason
	case r.State == halfcore.Stopped:
		return "does not run"
	case r.Total == 0 || last == "":
		return "serves"
	}
	return fmt.Sprintf("serves (restarts: %d, at last because it %s)", r.Total, last)
}

// stopping notifies the service manager, once, that the daemon stops.
func (d *daemon) stopping() {
	d.manager.mu.Lock()
	defer d.manager.mu.Unlock()
	if !d.manager.over {
		d.manager.over = true
		d.manager.to.Stopping()
	}
}

// known returns the half's record, and whether the daemon already knows if the half runs.
func (c *child) known() (halfcore.RecoveryRecord, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record, c.begun
}

// reload starts the halves that were given up, on a person's request (SIGHUP). It notifies the service manager when
// their states are decided.
func (d *daemon) reload(ctx context.Context) {
	d.manager.mu.Lock()
	d.manager.asking, d.manager.ready = true, false
	d.manager.to.Reloading(half.Monotonic())
	d.manager.mu.Unlock()
	for _, c := range d.halves {
		c.ask()
	}
	for _, c := range d.halves {
		for len(c.asked) > 0 && c.goesRound(ctx) { // the loop may take either channel first
		}
		c.goesRound(ctx) // now the request has been handled
	}
	d.manager.mu.Lock()
	d.manager.asking = false
	d.manager.mu.Unlock()
	d.tellManager()
}

// goesRound waits until the half's loop returns to its beginning. It returns false if ctx ends first.
func (c *child) goesRound(ctx context.Context) bool {
	select {
	case c.round <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveSigns sends keep-alives to the service manager, each after all loops have gone round.
func (d *daemon) giveSigns(ctx context.Context) {
	every := d.manager.to.Every()
	if every == 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for d.stuck(ctx) == "" {
		d.manager.to.Alive()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// stuck waits until every loop of the daemon has gone round. If ctx ends first, it returns a text that names the stuck
// loop; empty: all have gone round.
func (d *daemon) stuck(ctx context.Context) string {
	for _, h := range d.cfg.halves() {
		if !d.halves[h].goesRound(ctx) {
			return fmt.Sprintf("the loop of the %s half does not go round", h)
		}
	}
	select {
	case d.round <- struct{}{}:
		return ""
	case <-ctx.Done():
		return "the loop that reminds the halves does not go round"
	}
}

// liveWithin is how long a loop may take to go round before it is reported as stuck: it starts processes and writes
// files.
const liveWithin = 2 * time.Second

// serveLive answers liveness requests about the daemon of a half, until ctx ends. The daemon does not need it.
func (d *daemon) serveLive(ctx context.Context, h fault.Half) {
	err := half.ServeUnix(ctx, d.statePath(local.LiveSocket(h)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == restartPath {
			d.restartByPerson(w, r, h)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), liveWithin)
		defer cancel()
		if why := d.stuck(ctx); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
		}
	}))
	if err != nil {
		d.log.Warn("lofamo-agent status --live will not be answered", "half", h.String(), "err", err)
	}
}
