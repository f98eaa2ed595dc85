package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
)

// restartPath is the path of restart requests, at the daemon's liveness socket. Daemons of earlier versions answer it
// with nothing, like any other path.
const restartPath = "/restart"

// restartWithin bounds the restart of one half, self-test included.
const restartWithin = 20 * time.Second

// rereadWithin bounds reading the configuration again before a person's restart.
const rereadWithin = 2 * time.Second

// RestartHalf makes a half's daemon restart it, like a half that has ended: neighbours are notified, and the new
// process resumes from the old one's copy, with the current program and configuration. It returns when the new process
// has passed its self-test. It does nothing while the other half does not serve, nor if the configuration has changed in a part that the
// daemon cannot change while it runs. The daemon of a node that has enrolled refuses a config, if given, that it does not read.
// The answer says in Stale why a node that has
// enrolled restarted the half without asking for the present settings.
func RestartHalf(ctx context.Context, stateDir, config string, h fault.Half) (RestartAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshWithin+rereadWithin+restartWithin+time.Second)
	defer cancel()
	path := filepath.Join(stateDir, local.LiveSocket(h))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+restartPath+"?"+url.Values{"config": {config}}.Encode(), nil)
	if err != nil {
		return RestartAnswer{}, fmt.Errorf("restart the %s half: %w", h, err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return RestartAnswer{}, fmt.Errorf("restart the %s half: %w: no process listens at %s", h, local.ErrNoDaemon, path)
	case err != nil:
		return RestartAnswer{}, fmt.Errorf("restart the %s half at %s: %w", h, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return RestartAnswer{}, fmt.Errorf("restart the %s half: the daemon's answer: %w", h, err)
	}
	var res RestartAnswer
	if len(b) == 0 {
		return RestartAnswer{}, fmt.Errorf("restart the %s half: the daemon is of an earlier version, and does nothing: end it with SIGKILL, "+
			"and the next one adopts the halves", h)
	}
	if err := json.Unmarshal(b, &res); err != nil {
		return RestartAnswer{}, fmt.Errorf("restart the %s half: the daemon's answer: %w", h, err)
	}
	if res.State != actions.Done {
		return RestartAnswer{}, fmt.Errorf("restart the %s half: %s", h, res.Detail)
	}
	return res, nil
}

// RestartAnswer is a daemon's answer to a person who has a half restarted.
type RestartAnswer struct {
	actions.Result
	Stale string `json:",omitempty"`
}

func (d *daemon) restartByPerson(w http.ResponseWriter, r *http.Request, h fault.Half) {
	if r.Method != http.MethodPost {
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
		return
	}
	var answer RestartAnswer
	if d.cfg.Own != nil {
		if err := d.cfg.Own(r.Context(), r.URL.Query().Get("config")); err != nil {
			answer.Result = resultUnchanged("the node's own configuration: %v", err)
			half.WriteJSON(w, answer)
			return
		}
	}
	if err := d.cfg.refresh(r.Context()); err != nil {
		d.log.Warn("get the current settings from the supervisors: failed; restarting the half with the stored ones", "err", err)
		answer.Stale = err.Error()
	}
	next, err := d.readAgain(rereadWithin)
	if err != nil {
		err = fmt.Errorf("%w: if only a newer version can read this configuration, %s, and repeat the command", err, replaceDaemon)
	} else {
		err = d.refusal(next)
	}
	if err != nil {
		answer.Result = resultUnchanged("%v", err)
		half.WriteJSON(w, answer)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), restartWithin)
	defer cancel()
	if c := d.halves[h]; c != nil {
		c.checked.Store(&next)
	}
	answer.Result = d.restartHalf(ctx, h, "", func(string) error { return nil })
	half.WriteJSON(w, answer)
}
