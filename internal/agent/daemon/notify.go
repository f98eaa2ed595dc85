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
	"github.com/lofamo/lofamo/internal/agent/local/status"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// managed is what the service manager that has started the daemon was told, and whether it waits for the daemon to be ready.
//
//	starting ──all decided──► ready ──SIGHUP──► asking ──all loops have taken it──► starting
type managed struct {
	to *sdnotify.Notifier // nil: none wants to hear

	mu     sync.Mutex
	asking bool
	ready  bool
	over   bool // the daemon ends
}

// startingPatience is what the manager is asked for beyond the time of a start, whenever a half that was not decided on takes another.
const startingPatience = 2 * recovery.MaxBackoff

// tellManager tells the service manager how the halves fare, and that the daemon is ready when each half serves, or does not and is not
// started again. A half that cannot run is no reason to end the daemon, which would end the other half with it.
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
		case recovery.Running, recovery.GivenUp, recovery.Stopped:
			decided = decided && known
		default:
			decided = false
		}
		if words != "" {
			words += "; "
		}
		words += h.String() + " half " + faring(r, known)
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

// faring says in words how a half fares.
func faring(r recovery.Record, known bool) string {
	var last string
	if r.Last != nil {
		last = r.Last.Cause.String()
	}
	switch {
	case !known || r.State == recovery.Starting:
		return "is being started"
	case r.State == recovery.Restarting:
		return fmt.Sprintf("is being restarted: it %s", last)
	case r.State == recovery.GivenUp:
		return "is given up: " + r.Reason
	case r.State == recovery.Stopped:
		return "does not run"
	case r.Total == 0 || last == "":
		return "serves"
	}
	return fmt.Sprintf("serves (restarts: %d, at last because it %s)", r.Total, last)
}

// stopping says that the daemon ends, and stops what it looks after.
func (d *daemon) stopping() {
	d.manager.mu.Lock()
	defer d.manager.mu.Unlock()
	if !d.manager.over {
		d.manager.over = true
		d.manager.to.Stopping()
	}
}

// known returns the half's record, and whether it is known by now whether the half runs.
func (c *child) known() (recovery.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record, c.begun
}

// reload starts the halves that were given up, because a person asks for it (SIGHUP). The service manager hears when that is decided.
func (d *daemon) reload(ctx context.Context) {
	d.manager.mu.Lock()
	d.manager.asking, d.manager.ready = true, false
	d.manager.to.Reloading(half.Monotonic())
	d.manager.mu.Unlock()
	for _, c := range d.halves {
		c.ask()
	}
	for _, c := range d.halves {
		for len(c.asked) > 0 && c.goesRound(ctx) { // of the two it may take either
		}
		c.goesRound(ctx) // what was asked for is done
	}
	d.manager.mu.Lock()
	d.manager.asking = false
	d.manager.mu.Unlock()
	d.tellManager()
}

// goesRound waits until the half's loop comes to its beginning; it says false when ctx ends before.
func (c *child) goesRound(ctx context.Context) bool {
	select {
	case c.round <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// giveSigns gives the service manager signs of life, each when all loops have gone round.
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

// stuck waits until every loop of the daemon has gone round. When ctx ends before, it says which has not; empty: all have.
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

// liveWithin is how long a loop may take to go round until it is said that it does not: it starts processes and writes files.
const liveWithin = 2 * time.Second

// serveLive answers those who ask whether the daemon of a half goes round, until ctx ends. The daemon does not need it.
func (d *daemon) serveLive(ctx context.Context, h fault.Half) {
	err := half.ServeUnix(ctx, d.statePath(status.LiveSocket(h)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
