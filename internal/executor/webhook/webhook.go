// Package webhook calls external receivers: webhook.notify sends a message, webhook.remediate requests an action.
// docs/webhooks.md describes the messages, their signatures and the receivers' duties; attempt.go has the order of
// requests.
//
// Exactly-once execution depends on the receiver: it deduplicates by key and attempt, and refuses a token lower than
// one that it has seen. So any supervisor may repeat a request, and can query an unknown outcome. The executor calls
// only configured receivers, at addresses that the configuration allows, and never a URL from a receiver's answer.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// Config lists the receivers.
type Config = config.Webhooks

// Executor calls receivers.
type Executor struct {
	targets map[string]*target
	guard   executor.Guard
	now     func() time.Time
	// hurry divides the pauses between requests. It is 1 outside tests.
	hurry time.Duration
}

type target struct {
	config.WebhookTarget
	call  *executor.HTTPCaller
	slots chan struct{} // held by a request in progress
}

// atOnce is the maximum number of concurrent requests to one target: a storm of responses must not become a storm of
// connections.
const atOnce = 16

// New returns an executor for the configured targets. It reads their files once, to report errors.
func New(cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	targets, err := executor.BuildAll(executor.Named(cfg.Filled().Targets, func(t config.WebhookTarget) string { return t.Name }), newTarget)
	if err != nil {
		return nil, err
	}
	return &Executor{targets: targets, now: time.Now, hurry: 1}, nil
}

func newTarget(name string, t config.WebhookTarget) (*target, error) {
	var allowed []netip.Prefix
	for _, a := range t.Addresses {
		allowed = append(allowed, netip.MustParsePrefix(a)) // Validate has parsed it
	}
	call, err := executor.NewHTTPCaller(t.URL, t.TLS, t.RequestTimeout.D(),
		func(ip netip.Addr) error { return config.CheckAddress(ip, allowed) })
	if err == nil {
		_, err = readSecrets(t.SecretFiles)
	}
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", name, err)
	}
	return &target{t, call, make(chan struct{}, atOnce)}, nil
}

// Kinds returns the kinds of actions that Executor carries out.
func Kinds() []response.Kind {
	return []response.Kind{response.WebhookNotify, response.WebhookRemediate}
}

// Do implements executor.Executor.
func (x *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	t, ok := x.targets[j.Parameters["target"]]
	if !ok || !slices.Contains(t.Kinds, kindName(j.Kind)) {
		return executor.NotBegun(j, "%s: no target %q is configured for it", j.Kind, j.Parameters["target"])
	}
	return executor.RunAttempt(ctx, &x.guard, j, func(ctx context.Context) executor.Result { return x.talk(ctx, t, j) })
}

// talk makes the requests of one attempt.
func (x *Executor) talk(ctx context.Context, t *target, j executor.Job) executor.Result {
	contract := t.Answers == config.AnswersContract
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
	detail := t.Name
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
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return executor.HTTPAnswer{}, &executor.HTTPError{Err: fmt.Errorf("%d requests are under way already: %w", atOnce, ctx.Err())}
	}
	deadline, _ := ctx.Deadline()
	m := message(j, action, deadline)
	body, err := json.Marshal(m)
	if err != nil {
		return executor.HTTPAnswer{}, fmt.Errorf("message: %w", err)
	}
	secrets, err := readSecrets(t.SecretFiles)
	if err != nil {
		return executor.HTTPAnswer{}, err
	}
	id := m.IdempotencyKey
	if act == actAsk {
		h := signed(secrets, id+"/status", id, x.now(), body)
		a, err := t.call.Post(ctx, h, body, nil)
		if err == nil {
			failpoint.Hit(failpoint.CallLooked)
		}
		return a, err
	}
	failpoint.Hit(failpoint.CallSending)
	return t.call.Post(ctx, signed(secrets, id, id, x.now(), body), body, func() { failpoint.Hit(failpoint.CallSent) })
}
