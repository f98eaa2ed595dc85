// Package alertmanager raises alerts in Alertmanager clusters. A fault becomes an alert of API version 2. The executor
// sends it to all members of one Alertmanager cluster and repeats it while the fault lasts; undoing the step resolves
// the alert. Alertmanager identifies an alert by its labels, so any supervisor may send it again without creating a
// second one. Alertmanager knows no fencing tokens. An alert from a supervisor that has lost leadership without
// noticing therefore lasts until its successor resolves it again, or for Config.Hold.
package alertmanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config lists the Alertmanagers and how to reach them.
type Config = config.Alertmanagers

// Executor sends alerts to one Alertmanager cluster. Do needs Run beside it.
type Executor struct {
	cfg      Config
	names    []string // of the Alertmanagers, for the log
	standing executor.Active
	log      *slog.Logger
	calls    []*executor.HTTPCaller
	guard    executor.Guard
	events   chan event
	settle   time.Duration // interval between a leader's queries for standing alerts
}

const (
	batch = 200 // maximum number of alerts in one request
	// settle is the interval at which a leader queries the standing alerts.
	settle = 10 * time.Second
	// maxNamed is the maximum number of members that the alert for a group fault lists.
	maxNamed = 32
)

// New returns an executor that maintains the alerts of the jobs from standing; nil: those that it has sent itself.
func New(cfg Config, standing executor.Active, log *slog.Logger) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newExecutor(cfg.Filled(), nil, standing, log)
}

// newExecutor returns an executor. allow refuses addresses that it must not connect to; nil: it refuses none.
func newExecutor(cfg Config, allow func(netip.Addr) error, standing executor.Active, log *slog.Logger) (*Executor, error) {
	x := &Executor{cfg: cfg, names: cfg.URLs, standing: standing, log: log, events: make(chan event), settle: settle}
	if _, err := x.header(); err != nil {
		return nil, err
	}
	for _, u := range cfg.URLs {
		c, err := executor.NewHTTPCaller(strings.TrimSuffix(u, "/")+"/api/v2/alerts", cfg.TLS, cfg.RequestTimeout.D(), allow)
		if err != nil {
			return nil, err
		}
		x.calls = append(x.calls, c)
	}
	return x, nil
}

// Kinds returns the kinds of actions that Executor carries out.
func Kinds() []response.Kind { return []response.Kind{response.Alertmanager} }

// Do implements executor.Executor. It returns when one Alertmanager has the alert or its end; the others receive it in
// the background. Sending twice does no harm, so Do need not check the state first.
func (x *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	return executor.RunAttempt(ctx, &x.guard, j, func(ctx context.Context) executor.Result { return x.attempt(ctx, j) })
}

func (x *Executor) attempt(ctx context.Context, j executor.Job) executor.Result {
	a := x.alert(j)
	heard := make(chan delivery, 1)
	if !x.tell(ctx, asked{a, j.Undo, heard}) {
		return outcome(j, delivery{})
	}
	var s delivery
	select {
	case s = <-heard:
	case <-ctx.Done():
		// Ask the keeper, which may be learning right now that an Alertmanager accepted the alert. It answers at once
		// unless it has stopped.
		back := make(chan delivery, 1)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		s = delivery{Left: true}
		if x.tell(end, givenUp{a.Key, heard, back}) {
			s = <-back
		}
	}
	return outcome(j, s)
}

// outcome returns the result of a job from the delivery state of its alert.
func outcome(j executor.Job, s delivery) executor.Result {
	var failed []string
	for i, why := range s.Why {
		if why != "" {
			failed = append(failed, fmt.Sprintf("alertmanager %d: %s", i, why))
		}
	}
	why := strings.Join(failed, "; ")
	switch {
	case s.Done > 0 && why == "":
		return executor.Done("")
	case s.Done > 0:
		return executor.Done("one Alertmanager has it, the others get it again: %s", why)
	case s.Left || j.Recheck:
		return executor.NotKnown("no alertmanager has answered: %s", why)
	default:
		return executor.Unchanged("no alertmanager was reached: %s", why)
	}
}

// alert builds the alert for a job. Its labels stay the same as long as the response exists.
func (x *Executor) alert(j executor.Job) alert {
	labels := map[string]string{"alertname": "LofamoNodeFault", "cluster": j.Cluster, "policy": j.Policy, "severity": j.Parameters["severity"]}
	what := j.Target.String()
	notes := map[string]string{"response": j.Response, "state": j.Fault.State.String(), "cause": j.Fault.Cause.String()}
	if j.Incident != "" {
		notes["incident"] = j.Incident
	}
	maps.Copy(labels, x.cfg.Labels)
	delete(labels, config.NoticeLabel)
	if j.Notice > 0 { // else Alertmanager would treat it as the earlier alert, and notify no receiver
		labels[config.NoticeLabel] = strconv.FormatUint(uint64(j.Notice), 10)
	}
	if j.Target.Group != "" {
		labels["alertname"], labels["group"] = "LofamoGroupFault", j.Target.Group
		if len(j.Members) > 0 {
			notes["members"] = members(j.Members)
			what += fmt.Sprintf(" (%d nodes)", len(j.Members))
		}
	} else {
		labels["node"], labels["component"] = string(j.Target.Node), j.Target.Component.String()
	}
	notes["summary"] = fmt.Sprintf("%s: %s is %s, cause %s", j.Cluster, what, j.Fault.State, j.Fault.Cause)
	if j.Fault.Detail != "" {
		notes["description"] = j.Fault.Detail
	}
	return alert{Key: alertKey(j.Response + "/" + strconv.Itoa(j.Step)), Labels: labels, Annotations: notes, StartsAt: j.Fault.Since}
}

func members(ids []fault.NodeID) string {
	var out []string
	for _, id := range ids[:min(len(ids), maxNamed)] {
		out = append(out, string(id))
	}
	if n := len(ids) - maxNamed; n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(out, " ")
}

// wire is an alert in the API's JSON form.
type wire struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

// post sends one request.
func (x *Executor) post(ctx context.Context, p post) sent {
	out := make([]wire, 0, len(p.Alerts))
	for _, a := range p.Alerts {
		out = append(out, wire{a.Labels, a.Annotations, a.StartsAt.UTC(), a.EndsAt.UTC(), x.cfg.Link})
	}
	body, err := json.Marshal(out)
	if err != nil {
		return sent{p, false, false, err.Error()}
	}
	header, err := x.header()
	if err != nil {
		return sent{p, false, false, err.Error()}
	}
	failpoint.Hit(failpoint.CallSending)
	a, err := x.calls[p.Target].Post(ctx, header, body, func() { failpoint.Hit(failpoint.CallSent) })
	switch {
	case err != nil:
		return sent{p, false, executor.MayHaveLeft(err), err.Error()}
	case a.Status != http.StatusOK:
		return sent{p, false, true, fmt.Sprintf("status %d", a.Status)} // not the body: it may quote the URL, which is a credential
	}
	return sent{p, true, true, ""}
}

// header returns the headers of a request.
func (x *Executor) header() (http.Header, error) {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "lofamo-supervisor")
	if x.cfg.BearerTokenFile == "" {
		return h, nil
	}
	b, err := os.ReadFile(x.cfg.BearerTokenFile)
	if err != nil {
		return nil, fmt.Errorf("bearer token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, errors.New("bearer token: want a text of ASCII without spaces")
	}
	h.Set("Authorization", "Bearer "+token)
	return h, nil
}
