// Package ask is how a half asks whoever makes acts on its node (package doer): by a Unix socket in the state directory that only its owner may use. It is told
// at once how far an act has come, and waits for none.
package ask

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

	"github.com/lofamo/lofamo/internal/agent/acts"
)

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 10

// ErrNobody is in the chain of an error when no process makes acts: nothing was begun.
var ErrNobody = errors.New("nobody makes acts here: want lofamo-agent run of this version")

// Tell passes an order on to whoever makes acts in a state directory.
func Tell(ctx context.Context, stateDir string, o *acts.Order) (acts.Status, error) {
	var s acts.Status
	b, err := post(ctx, filepath.Join(stateDir, acts.Socket(o.Half())), acts.PathAct, o)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return acts.Status{}, err
	}
	return s, nil
}

// Ended says how an act has ended that was the caller's own to do.
func Ended(ctx context.Context, stateDir string, e acts.Ended) error {
	_, err := post(ctx, filepath.Join(stateDir, acts.Socket(fault.HalfHost)), acts.PathEnded, e)
	return err
}

func post(ctx context.Context, socket, path string, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://acts"+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{
		DisableKeepAlives: true, // who makes acts may be another one by the next
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			return nil, fmt.Errorf("%w (%w)", ErrNobody, dial.Err)
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
