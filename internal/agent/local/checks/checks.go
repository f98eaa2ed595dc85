// Package checks lets the host half have the check programs of its peripherals run by another process of the node.
//
// The half itself starts no program. It is real-time, and would have to wait for a process of the ordinary class. On
// a loaded machine that takes longer than its DNP half waits for its watchdog word. Instead `lofamo-agent run`, or
// `lofamo-agent checks` beside a host half that runs alone, runs the checks (package starter), and the half asks on a
// Unix socket. If no process answers, the peripherals are UNKNOWN.
//
// A request is `POST /check?component=peripheral/0`, the answer an Answer in JSON when the check has ended. It
// carries no command: the command is in the configuration of the process that runs it. If a client disconnects, its
// check is killed.
package checks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
)

// Socket is the name of the socket in the state directory.
const Socket = "checks.sock"

// The request.
const (
	Path           = "/check"
	ParamComponent = "component"
)

// Answer is the result of a check.
type Answer struct {
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"` // why there is no result; the state is then UNKNOWN
}

// ErrNobody is in the chain of an error when no process runs checks.
var ErrNobody = errors.New("nobody runs checks here: want lofamo-agent run, or lofamo-agent checks")

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 10

// Client asks on the socket in a state directory.
func Client(stateDir string) sensor.Check {
	path := filepath.Join(stateDir, Socket)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // another process may run checks by the next request
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
	return func(ctx context.Context, c fault.Component) (sensor.Reading, error) {
		a, err := ask(ctx, client, c)
		if err != nil {
			return sensor.Reading{State: fault.Unknown}, fmt.Errorf("check %s: %w", c, err)
		}
		if a.Error != "" {
			return sensor.Reading{State: fault.Unknown, Detail: a.Detail}, errors.New(a.Error)
		}
		s, err := fault.ParseState(a.State)
		if err != nil {
			return sensor.Reading{State: fault.Unknown}, fmt.Errorf("check %s: %w", c, err)
		}
		return sensor.Reading{State: s, Detail: a.Detail}, nil
	}
}

func ask(ctx context.Context, client *http.Client, c fault.Component) (Answer, error) {
	to := "http://checks" + Path + "?" + url.Values{ParamComponent: {c.String()}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, http.NoBody)
	if err != nil {
		return Answer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Answer{}, explain(err)
	}
	if resp.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	var a Answer
	if err := json.Unmarshal(b, &a); err != nil {
		return Answer{}, fmt.Errorf("answer: %w", err)
	}
	return a, nil
}

// unavailable adds sensor.ErrUnavailable to an error's chain and nothing to its text, which must fit into a detail.
type unavailable struct{ error }

func (u unavailable) Unwrap() []error { return []error{u.error, sensor.ErrUnavailable} }

// explain returns in plain words why there is no answer.
func explain(err error) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return unavailable{fmt.Errorf("%w (%w)", ErrNobody, dial.Err)}
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("who runs checks does not answer: is it stopped?")
	case errors.Is(err, context.Canceled):
		return err
	}
	return unavailable{fmt.Errorf("who runs checks went away: %w", err)}
}
