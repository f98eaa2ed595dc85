package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxAnswer is the maximum size of a BMC's answer, in bytes.
const maxAnswer = 4 << 20

// Minimum and maximum pause between two polls of a running task.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
)

// authorities returns the authorities for the BMC's certificate, or nil for the host's.
func (b BMC) authorities() (*x509.CertPool, error) {
	return authoritiesIn(b.CAFile)
}

func authoritiesIn(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile %s: no certificate in it", path)
	}
	return pool, nil
}

// redfish requests a reset once. An error before that request means that the BMC has reset nothing.
func (b BMC) redfish(ctx context.Context, password string) executor.Result {
	roots, err := b.authorities()
	if err != nil {
		return executor.Unchanged("%s", err)
	}
	sent := &sentTransport{base: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute,
	}}
	client, err := gofish.ConnectContext(ctx, gofish.ClientConfig{
		Endpoint: strings.TrimSuffix(b.Address, "/"), Username: b.Username, Password: password, BasicAuth: true, NoModifyTransport: true,
		HTTPClient: &http.Client{Transport: sent, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // do not send the password to another server
		}},
	})
	if err != nil {
		return executor.Unchanged("%s: %s", b.Address, plain(err))
	}
	system, err := schemas.GetComputerSystem(client, b.System)
	if err != nil {
		return executor.Unchanged("%s%s: %s", b.Address, b.System, plain(err))
	}
	if b.Serial != "" && system.SerialNumber != b.Serial {
		return executor.Unchanged("%s%s: serial number %q: want %q: this is another machine", b.Address, b.System, system.SerialNumber, b.Serial)
	}
	kind := schemas.ResetType(b.Reset)
	if can, err := system.GetSupportedResetTypes(); err == nil && len(can) > 0 && !slices.Contains(can, kind) {
		return executor.Unchanged("%s%s: reset %s: the system allows %s", b.Address, b.System, kind, fault.List(can))
	}
	target, err := b.resetTarget(system)
	if err != nil {
		return executor.Unchanged("%s%s: %s", b.Address, b.System, err)
	}
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	before := system.PowerState
	resp, task, err := schemas.PostWithTask(client, target, map[string]schemas.ResetType{"ResetType": kind}, nil, false)
	if err != nil {
		return b.refused(err, sent.posted.Load())
	}
	if resp != nil { // nil for a task
		_ = resp.Body.Close()
	}
	if task != nil && task.TaskMonitor != "" {
		if err := b.follow(ctx, client, task.TaskMonitor); err != nil {
			return executor.NotKnown("%s%s: %s was accepted, and then: %s", b.Address, b.System, kind, plain(err))
		}
	}
	now := "not said"
	if s, err := schemas.GetComputerSystem(client, b.System); err == nil {
		now = string(s.PowerState)
	}
	return executor.Done("the BMC says that %s is done; power was %s, is %s; %s", kind, before, now, proves)
}

// resetTarget returns the path of the system's reset action. The library's own Reset (0.21.0) calls another action of
// the system, which removes a resource block.
func (b BMC) resetTarget(system *schemas.ComputerSystem) (string, error) {
	var raw struct {
		Actions struct {
			Reset struct {
				Target string `json:"target"`
			} `json:"#ComputerSystem.Reset"`
		}
	}
	if err := json.Unmarshal(system.RawData, &raw); err != nil {
		return "", err
	}
	// Only a path of this service below the system gets a request with the password.
	target := raw.Actions.Reset.Target
	if !strings.HasPrefix(target, strings.TrimSuffix(b.System, "/")+"/") || strings.Contains(target, "..") {
		return "", fmt.Errorf("its Reset is at %q: want a path below it", target)
	}
	return target, nil
}

// refused returns the result of a reset that was not accepted. A 4xx status means that it was not begun, except for a
// request timeout. A 3xx status does not mean that: 303 is a common answer to a POST that was carried out.
func (b BMC) refused(err error, posted bool) executor.Result {
	if code := httpStatus(err); code >= 400 && code < 500 && code != http.StatusRequestTimeout {
		return executor.Unchanged("%s%s: %s", b.Address, b.System, plain(err))
	}
	if !posted {
		return executor.Unchanged("%s%s: %s", b.Address, b.System, plain(err))
	}
	return executor.NotKnown("%s%s: %s", b.Address, b.System, plain(err))
}

// httpStatus returns the HTTP status of a service's answer; 0 if the error is no answer.
func httpStatus(err error) int {
	var e *schemas.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.HTTPReturnedStatusCode
}

// follow waits for the end of a task at its monitor. The monitor returns 202 while the task runs, then either the
// answer to the original request (DSP0266, asynchronous operations) or the task with its state.
func (b BMC) follow(ctx context.Context, client *gofish.APIClient, monitor string) error {
	u, err := url.Parse(monitor)
	if err != nil {
		return err
	}
	if own, _ := url.Parse(b.Address); u.Host != "" && u.Host != own.Host {
		return fmt.Errorf("its task is at another host, %s", u.Host)
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		resp, err := client.Get(u.RequestURI())
		if err != nil {
			return err
		}
		var task struct {
			TaskState schemas.TaskState
			Messages  []struct{ Message string }
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		if len(body) > 0 && json.Unmarshal(body, &task) != nil {
			task.TaskState = "" // the answer to the original request
		}
		switch task.TaskState {
		case schemas.CompletedTaskState:
			return nil
		case schemas.ExceptionTaskState, schemas.KilledTaskState, schemas.CancelledTaskState, schemas.InterruptedTaskState:
			var said strings.Builder
			for _, m := range task.Messages {
				said.WriteString(": " + m.Message)
			}
			return fmt.Errorf("its task ended as %s%s", task.TaskState, said.String())
		case "":
			if resp.StatusCode != http.StatusAccepted {
				return nil
			}
		default:
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("its task has not ended: %w", ctx.Err())
		}
	}
}

// plain returns an error in one line.
func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// sentTransport records whether a POST has left this host, and bounds answers.
type sentTransport struct {
	base   http.RoundTripper
	posted atomic.Bool
}

func (t *sentTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost {
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() { t.posted.Store(true) }}))
	}
	resp, err := t.base.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}
