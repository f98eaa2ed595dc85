package half

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// This file sends requests to the daemon that runs its node's actions, over a Unix socket in the state directory. Only the directory's
// owner may use the socket. The daemon answers at once with the action's progress. No call waits for the action to end.

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 10

// ErrNoActions is in the chain of an error when no action runner exists: nothing was begun.
var ErrNoActions = errors.New("no process runs actions here: want lofamo-agent run of this version")

// TellAction passes an order to the action runner of a state directory.
func TellAction(ctx context.Context, stateDir string, o *actions.Order) (actions.Status, error) {
	var s actions.Status
	b, err := askAction(ctx, filepath.Join(stateDir, actions.Socket(o.Half())), actions.PathAct, o)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return actions.Status{}, err
	}
	return s, nil
}

// EndedActions reports the end of an action that the caller itself performed.
func EndedActions(ctx context.Context, stateDir string, e actions.Ended) error {
	_, err := askAction(ctx, filepath.Join(stateDir, actions.Socket(fault.HalfHost)), actions.PathEnded, e)
	return err
}

func askAction(ctx context.Context, socket, path string, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://acts"+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{
		DisableKeepAlives: true, // the action runner may be another process by the next call
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return nil, fmt.Errorf("%w (%w)", ErrNoActions, dial.Err)
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return b, err
}
