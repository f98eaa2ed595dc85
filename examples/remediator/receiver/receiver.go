// Package receiver is the receiver's side of LO|FA|MO's webhooks as described in docs/webhooks.md. It needs only the Go
// standard library: copy it. It verifies signatures, does nothing twice, refuses lower tokens and earlier attempts, and
// remembers all that after a kill at any moment.
package receiver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Schema of messages and replies.
const Schema = "lofamo.io/webhook/v1"

// Message is the posted message, with the fields needed here.
type Message struct {
	Schema         string    `json:"schema"`
	Action         string    `json:"action"`
	Kind           string    `json:"kind"`
	IdempotencyKey string    `json:"idempotencyKey"`
	Undoes         string    `json:"undoes"`
	Cluster        string    `json:"cluster"`
	Attempt        int       `json:"attempt"`
	Token          uint64    `json:"token"`
	Deadline       time.Time `json:"deadline"`
	Target         struct {
		Node      string   `json:"node"`
		Component string   `json:"component"`
		Group     string   `json:"group"`
		Members   []string `json:"members"`
	} `json:"target"`
	Fault struct {
		State  string `json:"state"`
		Cause  string `json:"cause"`
		Detail string `json:"detail"`
	} `json:"fault"`
	Incident string `json:"incident"` // for lofamoctl get incidents; empty if none was known
}

// operation returns the key under which attempts are numbered: that of the do, also for its undo.
func (m *Message) operation() string {
	if m.Undoes != "" {
		return m.Undoes
	}
	return m.IdempotencyKey
}

// Reply is the answer.
type Reply struct {
	Schema     string  `json:"schema"`
	Outcome    string  `json:"outcome"`
	Attempt    int     `json:"attempt,omitempty"`
	RetryAfter float64 `json:"retryAfter,omitempty"` // seconds
	Detail     string  `json:"detail,omitempty"`
}

// Outcomes of Reply and Remediate.
const (
	Done      = "done"
	Unchanged = "unchanged"
	Partly    = "partly"
	Unknown   = "unknown"
	accepted  = "accepted"
	later     = "later"
	stale     = "stale"
	none      = "none"
)

// Remediate does the action of a message, or undoes it, and returns Done, Unchanged, Partly or Unknown with a text for
// people. An undo may be called although there may be nothing to undo, and a second time.
type Remediate func(ctx context.Context, m Message) (outcome, detail string)

// Receiver is an http.Handler.
type Receiver struct {
	secrets   [][]byte
	remediate Remediate
	log       *slog.Logger
	now       func() time.Time
	patience  time.Duration // how long a request waits for its result

	mu    sync.Mutex // held while the store is written: only actions on disk count
	store *store
	work  sync.WaitGroup
}

const (
	maxMessage = 256 << 10 // bytes
	// maxWork limits one action. It may continue after its request has stopped waiting: a later request fetches the
	// outcome.
	maxWork = 30 * time.Minute
)

// New returns a receiver that keeps its state in a file.
func New(file string, secrets [][]byte, remediate Remediate, log *slog.Logger) (*Receiver, error) {
	s, err := open(file)
	if err != nil {
		return nil, err
	}
	return &Receiver{secrets: secrets, remediate: remediate, log: log, now: time.Now, patience: 3 * time.Second, store: s}, nil
}

// Wait returns when no action is running.
func (r *Receiver) Wait() { r.work.Wait() }

// ServeHTTP answers one message.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxMessage))
	if err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if err := Verify(r.secrets, req.Header, body, r.now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var m Message
	if err := json.Unmarshal(body, &m); err != nil || m.Schema != Schema || m.IdempotencyKey == "" || m.Cluster == "" || m.Attempt < 1 {
		http.Error(w, "want a message of "+Schema, http.StatusUnprocessableEntity)
		return
	}
	status, reply, done, err := r.take(&m)
	if err != nil { // no action has begun that is not on disk
		r.log.Error("store", "err", err)
		http.Error(w, "store", http.StatusInternalServerError)
		return
	}
	if done != nil {
		t := time.NewTimer(r.patience)
		defer t.Stop()
		select {
		case reply = <-done:
		case <-t.C:
			status, reply = http.StatusAccepted, Reply{Outcome: accepted, Attempt: m.Attempt, RetryAfter: 1}
		}
	}
	reply.Schema = Schema
	r.log.Info(m.Action, "key", m.IdempotencyKey, "attempt", m.Attempt, "token", m.Token, "outcome", reply.Outcome, "detail", reply.Detail)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(reply)
}

// take decides on a message. If it begins an action, the channel delivers the reply.
func (r *Receiver) take(m *Message) (int, Reply, <-chan Reply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if highest := r.store.Tokens[m.Cluster]; m.Token < highest {
		return http.StatusConflict, Reply{Outcome: stale, Detail: fmt.Sprintf("token %d has been seen", highest)}, nil, nil
	} else if m.Token > highest {
		// Before anything else: even a status request excludes earlier leaders from then on.
		r.store.Tokens[m.Cluster] = m.Token
		if err := r.store.write(); err != nil {
			r.store.Tokens[m.Cluster] = highest
			return 0, Reply{}, nil, err
		}
	}
	op := r.store.Operations[m.operation()]
	switch m.Action {
	case "status":
		return http.StatusOK, op.status(m), nil, nil
	case "do", "undo":
	default:
		return http.StatusUnprocessableEntity, Reply{Outcome: Unchanged, Detail: "want do, undo or status"}, nil, nil
	}
	switch {
	case m.Attempt < op.Attempt:
		return http.StatusConflict, Reply{Outcome: stale, Attempt: op.Attempt, Detail: "a later attempt has been seen"}, nil, nil
	case op.Outcome == accepted && m.Attempt > op.Attempt:
		return http.StatusServiceUnavailable, Reply{Outcome: later, Attempt: op.Attempt, RetryAfter: 1, Detail: "another attempt is under way"},
			nil, nil
	case m.Attempt == op.Attempt: // a repetition
		return http.StatusOK, op.status(m), nil, nil
	}
	return r.begin(m, op)
}

// begin starts a new attempt, unless there is nothing to do.
func (r *Receiver) begin(m *Message, op operation) (int, Reply, <-chan Reply, error) {
	next := operation{Action: m.Action, Attempt: m.Attempt, Outcome: accepted, Effect: Unknown}
	switch {
	case m.Action == "do" && op.Effect == Unknown:
		// The outcome is unknown, and the action must not happen twice: a person has to check.
		next.Outcome, next.Effect, next.Detail = Unknown, Unknown, op.Detail
	case m.Action == "do" && op.Effect == Done:
		next.Outcome, next.Effect, next.Detail = Done, Done, "it was done already"
	case m.Action == "undo" && op.Effect == "":
		next.Outcome, next.Effect, next.Detail = Done, "", "there is nothing to undo"
	}
	if err := r.store.put(m.operation(), next); err != nil {
		return 0, Reply{}, nil, err
	}
	if next.Outcome != accepted {
		return http.StatusOK, next.status(m), nil, nil
	}
	done := make(chan Reply, 1)
	r.work.Go(func() { done <- r.finish(*m, next, op.Effect) })
	return http.StatusOK, Reply{}, done, nil
}

// finish runs the action and records its outcome. effect is the previous effect.
func (r *Receiver) finish(m Message, op operation, effect string) Reply {
	ctx, cancel := context.WithTimeout(context.Background(), maxWork)
	defer cancel()
	op.Outcome, op.Detail = r.remediate(ctx, m)
	switch {
	case op.Outcome == Unchanged && m.Action == "do" && effect != "": // an earlier effect remains
		op.Outcome, op.Effect = Partly, effect
	case op.Outcome == Unchanged:
		op.Effect = effect
	case op.Outcome == Done && m.Action == "undo":
		op.Effect = ""
	case op.Outcome == Done, op.Outcome == Partly:
		op.Effect = op.Outcome
	default:
		op.Outcome, op.Effect = Unknown, Unknown
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.store.put(m.operation(), op); err != nil {
		r.log.Error("store", "err", err) // on disk it is still running, which the next start treats as unknown
	}
	return op.status(&m)
}
