package half

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

// The host half has the check programs of its peripherals run by another process of the node.
//
// The half itself starts no program. It is real-time, and would have to wait for a process of the ordinary class. On
// a loaded machine that takes longer than its DNP half waits for its watchdog word. Instead `lofamo-agent run`, or
// `lofamo-agent checks` beside a host half that runs alone, runs the checks (package daemon), and the half asks on a
// Unix socket. If no process answers, the peripherals are UNKNOWN.
//
// A request is `POST /check?component=peripheral/0`, the answer a CheckAnswer in JSON when the check has ended. It
// carries no command: the command is in the configuration of the process that runs it. If a client disconnects, its
// check is killed.

// CheckSocket is the name of the socket in the state directory.
const CheckSocket = "checks.sock"

// The request.
const (
	CheckPath           = "/check"
	CheckParamComponent = "component"
)

// CheckAnswer is the result of a check.
type CheckAnswer struct {
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	Error  string `json:"error,omitempty"` // why there is no result; the state is then UNKNOWN
}

// ErrNoChecks is in the chain of an error when no process runs checks.
var ErrNoChecks = errors.New("no process runs checks here: start lofamo-agent run or lofamo-agent checks")

// maxCheckAnswer bounds an answer, in bytes.
const maxCheckAnswer = 16 << 10

// CheckClient asks on the socket in a state directory.
func CheckClient(stateDir string) sensor.Check {
	path := filepath.Join(stateDir, CheckSocket)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // another process may run checks by the next request
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
	return func(ctx context.Context, c fault.Component) (sensor.Reading, error) {
		a, err := askCheck(ctx, client, c)
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

func askCheck(ctx context.Context, client *http.Client, c fault.Component) (CheckAnswer, error) {
	to := "http://checks" + CheckPath + "?" + url.Values{CheckParamComponent: {c.String()}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, http.NoBody)
	if err != nil {
		return CheckAnswer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return CheckAnswer{}, explainNoCheck(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxCheckAnswer))
	if err != nil {
		return CheckAnswer{}, explainNoCheck(err)
	}
	if resp.StatusCode != http.StatusOK {
		return CheckAnswer{}, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	var a CheckAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		return CheckAnswer{}, fmt.Errorf("answer: %w", err)
	}
	return a, nil
}

// checkUnavailable adds sensor.ErrUnavailable to an error's chain and nothing to its text, which must fit into a detail.
type checkUnavailable struct{ error }

func (u checkUnavailable) Unwrap() []error { return []error{u.error, sensor.ErrUnavailable} }

// explainNoCheck returns in plain words why there is no answer.
func explainNoCheck(err error) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return checkUnavailable{fmt.Errorf("%w (%w)", ErrNoChecks, dial.Err)}
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the process that runs checks does not answer: is it stopped?")
	case errors.Is(err, context.Canceled):
		return err
	}
	return checkUnavailable{fmt.Errorf("the process that runs checks ended: %w", err)}
}
