// Package webhook calls external receivers: webhook.notify sends a message, webhook.remediate requests an action.
// docs/webhooks.md describes the messages, their signatures and the receivers' duties; attempt.go has the order of
// requests.
//
// Exactly-once execution depends on the receiver: it deduplicates by key and attempt, and refuses a token lower than
// one that it has seen. So any supervisor may repeat a request, and can query an unknown outcome. The executor calls
// only receivers that the configuration or an operator has named, and never a URL from a receiver's answer.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config lists the receivers.
type Config = config.Webhooks

// Executor calls receivers. It is safe for concurrent use.
type Executor struct {
	cluster    string
	configured map[string]*target
	guard      executor.Guard

	mu    sync.RWMutex
	added map[string]*target // by operators

	now func() time.Time
	// hurry divides the pauses between requests. It is 1 outside tests.
	hurry time.Duration
}

type target struct {
	name     string
	kinds    []string
	contract bool
	format   notify.Format
	secrets  func() ([][]byte, error)
	call     *executor.HTTPCaller
	slots    chan struct{} // held by a request in progress
	from     notify.Target // of an added target
}

// atOnce is the maximum number of concurrent requests to one target: a storm of responses must not become a storm of
// connections.
const atOnce = 16

// New returns an executor of a cluster for the configured targets, if there are any. It reads their files once, to report errors.
func New(cluster string, cfg *Config) (*Executor, error) {
	x := &Executor{cluster: cluster, now: time.Now, hurry: 1}
	if cfg == nil {
		return x, nil
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var err error
	named := executor.Named(cfg.Filled().Targets, func(t config.WebhookTarget) string { return t.Name })
	x.configured, err = executor.BuildAll(named, newTarget)
	if err != nil {
		return nil, err
	}
	return x, nil
}

func newTarget(name string, t config.WebhookTarget) (*target, error) {
	var allowed []netip.Prefix
	for _, a := range t.Addresses {
		allowed = append(allowed, netip.MustParsePrefix(a)) // Validate has parsed it
	}
	call, err := executor.NewHTTPCaller(t.URL, t.TLS, t.RequestTimeout.D(),
		func(ip netip.Addr) error { return config.CheckAddress(ip, allowed) })
	secrets := func() ([][]byte, error) { return readSecrets(t.SecretFiles) }
	if err == nil {
		_, err = secrets()
	}
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", name, err)
	}
	return &target{name: name, kinds: t.Kinds, contract: t.Answers == config.AnswersContract, format: notify.Generic, secrets: secrets,
		call: call, slots: make(chan struct{}, atOnce)}, nil
}

// addedTarget returns a target that an operator has added.
func addedTarget(t notify.Target) (*target, error) {
	call, err := executor.NewHTTPCaller(t.URL, config.ClientTLS{}, notify.RequestTimeout, notify.CheckAddress)
	if err != nil {
		return nil, err
	}
	secrets := func() ([][]byte, error) {
		if t.Secret == "" {
			return nil, nil
		}
		secret, err := notify.ParseSecret(t.Secret)
		return [][]byte{secret}, err
	}
	return &target{name: t.Name, kinds: []string{config.WebhookNotify}, format: t.Format, secrets: secrets, call: call,
		slots: make(chan struct{}, atOnce), from: t}, nil
}

// SetTargets replaces the targets that operators have added. It leaves out those of an Alertmanager. A configured target has precedence
// over an added one.
func (x *Executor) SetTargets(all []notify.Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.added
	x.added = make(map[string]*target, len(all))
	for _, t := range all {
		if t.Format == notify.Alertmanager {
			continue
		}
		if was := old[t.Name]; was != nil && was.from == t {
			x.added[t.Name] = was
		} else if is, err := addedTarget(t); err == nil {
			x.added[t.Name] = is
		}
	}
}

// target returns a target by name; nil: there is none.
func (x *Executor) target(name string) *target {
	if t := x.configured[name]; t != nil {
		return t
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.added[name]
}

// Kinds returns the kinds of actions that Executor carries out.
func Kinds() []response.Kind {
	return []response.Kind{response.WebhookNotify, response.WebhookRemediate}
}

// Do implements executor.Executor.
func (x *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	t := x.target(j.Parameters["target"])
	switch {
	case t == nil && j.Undo && j.Kind == response.WebhookNotify:
		return executor.Done("target %s was removed: it gets no message of the end", j.Parameters["target"])
	case t == nil || !slices.Contains(t.kinds, KindName(j.Kind)):
		return executor.NotBegun(j, "%s: there is no target %q for it", j.Kind, j.Parameters["target"])
	}
	return executor.RunAttempt(ctx, &x.guard, j, func(ctx context.Context) executor.Result { return x.talk(ctx, t, j) })
}

// talk makes the requests of one attempt.
func (x *Executor) talk(ctx context.Context, t *target, j executor.Job) executor.Result {
	contract := t.contract
	k, m := begin(rules{Attempt: j.Attempt.Attempt, Recheck: j.Recheck, Contract: contract})
	for m.Act != actEnd {
		if !executor.Wait(ctx, m.After/x.hurry) {
			m = k.Expired()
			continue
		}
		a, err := x.post(ctx, t, j, m.Act)
		if contract && a.Cut != nil { // its missing part may be the outcome, so the status does not count
			err = &executor.HTTPError{Left: true, Err: a.Cut}
		}
		var failed *executor.HTTPError
		switch {
		case err == nil:
			m = k.Heard(heard(a, contract))
		case errors.As(err, &failed) && ctx.Err() != nil:
			m = k.Cut(failed.Left, clean(failed.Error()))
		case errors.As(err, &failed):
			m = k.Failed(failed.Left, clean(failed.Error()))
		default:
			m = k.Impossible(err.Error())
		}
	}
	detail := t.name
	if m.Detail != "" {
		detail += ": " + m.Detail
	}
	return executor.ResultOf(m.Outcome, detail)
}

// post sends one message. An error that is not an *httpcall.Error is a local one.
func (x *Executor) post(ctx context.Context, t *target, j executor.Job, act act) (executor.HTTPAnswer, error) {
	action := ActionDo
	switch {
	case act == actAsk:
		action = ActionStatus
	case j.Undo:
		action = ActionUndo
	}
	deadline, _ := ctx.Deadline()
	a, err := x.send(ctx, t, message(j, action, deadline))
	if err == nil && act == actAsk {
		failpoint.Hit(failpoint.CallLooked)
	}
	return a, err
}

// send sends a message once, in the form of its target.
func (x *Executor) send(ctx context.Context, t *target, m Message) (executor.HTTPAnswer, error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return executor.HTTPAnswer{}, &executor.HTTPError{Err: fmt.Errorf("%d requests are under way already: %w", atOnce, ctx.Err())}
	}
	body, err := m.body(t.format)
	if err != nil {
		return executor.HTTPAnswer{}, fmt.Errorf("message: %w", err)
	}
	secrets, err := t.secrets()
	if err != nil {
		return executor.HTTPAnswer{}, err
	}
	id := m.IdempotencyKey
	if m.Action == ActionStatus {
		return t.call.Post(ctx, signed(secrets, id+"/status", id, x.now(), body), body, nil)
	}
	failpoint.Hit(failpoint.CallSending)
	return t.call.Post(ctx, signed(secrets, id, id, x.now(), body), body, func() { failpoint.Hit(failpoint.CallSent) })
}

// Test sends a test message to a target once: to the configured one of its name, or else to the given URL. Its error says why the target
// has not accepted the message.
func (x *Executor) Test(ctx context.Context, to notify.Target) error {
	t, configured := x.configured[to.Name]
	if !configured {
		var err error
		if t, err = addedTarget(to); err != nil {
			return err
		}
	}
	if t.contract {
		return errors.New("its receiver follows the contract of docs/webhooks.md, which has no test")
	}
	ctx, cancel := context.WithTimeout(ctx, notify.RequestTimeout)
	defer cancel()
	now := x.now().UTC()
	a, err := x.send(ctx, t, Message{Schema: Schema, Action: ActionTest, Kind: config.WebhookNotify, Cluster: x.cluster, Attempt: 1,
		IdempotencyKey: fmt.Sprintf("%s/test/%d", x.cluster, now.UnixNano()), Deadline: now.Add(notify.RequestTimeout)})
	switch {
	case err != nil:
		return errors.New(clean(err.Error()))
	case a.Status < http.StatusOK || a.Status >= http.StatusMultipleChoices:
		return fmt.Errorf("it answers with status %d", a.Status)
	}
	return nil
}
