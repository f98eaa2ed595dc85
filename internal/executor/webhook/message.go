package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Schema is the version of Message and Reply. Later additions must be ignored by receivers that do not know them.
const Schema = "lofamo.io/webhook/v1"

// Actions of a Message.
const (
	ActionDo     = "do"
	ActionUndo   = "undo"
	ActionStatus = "status"
	ActionTest   = "test" // only to receivers without the contract: it reports no fault
)

// Message is the body of a request.
type Message struct {
	Schema string `json:"schema"`
	Action string `json:"action"` // do, undo, or status: a query for the outcome of a do or an undo
	Kind   string `json:"kind"`   // notify or remediate
	// IdempotencyKey identifies a do or an undo, across repetitions and supervisors. In a status it is the key of the
	// action in question.
	IdempotencyKey string `json:"idempotencyKey"`
	// Undoes is the key of the do that an undo reverts; empty in a do.
	Undoes   string        `json:"undoes,omitempty"`
	Cluster  string        `json:"cluster"`
	Response string        `json:"response"`
	Policy   string        `json:"policy"`
	Step     int           `json:"step"`    // from 0
	Attempt  int           `json:"attempt"` // from 1, counting do and undo together
	Token    uint64        `json:"token"`
	Recheck  bool          `json:"recheck"` // an earlier attempt may have taken effect
	Deadline time.Time     `json:"deadline"`
	Target   MessageTarget `json:"target"`
	Fault    MessageFault  `json:"fault"`
	// Incident is the ID of the incident that the fault belongs to; empty if none was known when the attempt began.
	Incident string `json:"incident,omitempty"`
}

// MessageTarget is the target of a fault: a component of a node, or a group.
type MessageTarget struct {
	Node        string   `json:"node,omitempty"`
	Component   string   `json:"component,omitempty"`
	Group       string   `json:"group,omitempty"`
	Members     []string `json:"members,omitempty"`     // nodes of a group fault, at most MaxMembers
	MemberCount int      `json:"memberCount,omitempty"` // number of all members
}

// MaxMembers bounds MessageTarget.Members.
const MaxMembers = 1024

// MessageFault is the fault that a response handles, as it was when the response was proposed.
type MessageFault struct {
	State  string    `json:"state"`
	Cause  string    `json:"cause"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail,omitempty"`
}

// message returns the message for a job.
func message(j executor.Job, action string, deadline time.Time) Message {
	m := Message{
		Schema: Schema, Action: action, Kind: KindName(j.Kind), IdempotencyKey: j.Cluster + "/" + j.IdempotencyKey, Cluster: j.Cluster,
		Response: j.Response,
		Policy:   j.Policy, Step: j.Step, Attempt: j.Attempt.Attempt, Token: j.Token, Recheck: j.Recheck, Deadline: deadline.UTC(),
		Fault:    MessageFault{State: j.Fault.State.String(), Cause: j.Fault.Cause.String(), Since: j.Fault.Since.UTC(), Detail: j.Fault.Detail},
		Incident: j.Incident,
	}
	if j.Undo {
		m.Undoes = strings.TrimSuffix(m.IdempotencyKey, "/undo")
	}
	if j.Target.Group == "" {
		m.Target = MessageTarget{Node: string(j.Target.Node), Component: j.Target.Component.String()}
		return m
	}
	m.Target = MessageTarget{Group: j.Target.Group, MemberCount: len(j.Members)}
	for _, id := range j.Members[:min(len(j.Members), MaxMembers)] {
		m.Target.Members = append(m.Target.Members, string(id))
	}
	return m
}

// KindName returns a kind as the configuration and messages write it.
func KindName(k response.Kind) string { return strings.TrimPrefix(string(k), "webhook.") }

// Reply is the answer of a receiver that follows the contract.
type Reply struct {
	Schema  string `json:"schema"`
	Outcome string `json:"outcome"`
	// Attempt that Outcome refers to; required in the answer to a status.
	Attempt int `json:"attempt,omitempty"`
	// RetryAfter is the delay before the next query or repetition, in seconds.
	RetryAfter float64 `json:"retryAfter,omitempty"`
	Detail     string  `json:"detail,omitempty"`
}

var verdicts = map[string]verdict{
	"done": verdictDone, "accepted": verdictAccepted, "unchanged": verdictUnchanged, "later": verdictLater, "partly": verdictPartly,
	"unknown": verdictUnknown, "stale": verdictStale, "none": verdictNone,
}

// refusals are statuses that mean, without an answer of the contract, that nothing was done: the server has not read
// the message, or has not accepted it as one.
var refusals = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
	http.StatusNotAcceptable, http.StatusGone,
	http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
	http.StatusMisdirectedRequest,
	http.StatusUnprocessableEntity, http.StatusUpgradeRequired, http.StatusRequestHeaderFieldsTooLarge,
}

// heard interprets an answer. If a receiver does not follow the contract, only the status counts. A redirect or a
// server error may come after the effect.
func heard(a executor.HTTPAnswer, contract bool) reply {
	h := reply{After: retryAfter(a.Header), Detail: fmt.Sprintf("status %d", a.Status)}
	if contract {
		r, err := parse(a.Body)
		if err == nil {
			return reply{Verdict: verdicts[r.Outcome], Attempt: r.Attempt, After: seconds(r.RetryAfter), Detail: clean(r.Detail)}
		}
		h.Detail += ": " + err.Error()
	}
	switch {
	case !contract && a.Status >= 200 && a.Status <= 299:
		h.Verdict = verdictDone
	case a.Status == http.StatusTooManyRequests:
		h.Verdict = verdictLater
	case slices.Contains(refusals, a.Status):
		h.Verdict = verdictRefused
	default:
		h.Verdict = verdictGarbled
	}
	return h
}

// parse decodes an answer of the contract.
func parse(b []byte) (Reply, error) {
	var r Reply
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&r); err != nil {
		return Reply{}, fmt.Errorf("the answer is not of the contract: %s", clean(err.Error()))
	}
	switch {
	case d.More():
		return Reply{}, fmt.Errorf("the answer is not of the contract: something follows it")
	case r.Schema != Schema:
		return Reply{}, fmt.Errorf("the answer's schema: given %q: want %s", clean(r.Schema), Schema)
	case verdicts[r.Outcome] == 0:
		return Reply{}, fmt.Errorf("the answer's outcome: given %q: want done, accepted, unchanged, later, partly, unknown, stale or none",
			clean(r.Outcome))
	case r.Attempt < 0 || !(r.RetryAfter >= 0):
		return Reply{}, fmt.Errorf("the answer's attempt and retryAfter: given %d and %v: want no less than 0", r.Attempt, r.RetryAfter)
	}
	return r, nil
}

// maxRetryAfter prevents overflow; attempts have a lower limit of their own.
const maxRetryAfter = 3600

func retryAfter(h http.Header) time.Duration {
	s, err := strconv.ParseUint(h.Get("Retry-After"), 10, 32)
	if err != nil {
		return 0 // a date, which is not useful within an attempt's timeout
	}
	return seconds(float64(s))
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, maxRetryAfter) * float64(time.Second))
}

// clean makes a foreign text safe for logs and terminals.
func clean(s string) string { return strings.TrimSpace(fault.Clean(s, 300)) }
