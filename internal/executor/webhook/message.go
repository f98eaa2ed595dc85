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
	"github.com/lofamo/lofamo/internal/executor/httpcall"
	"github.com/lofamo/lofamo/pkg/response"
)

// Schema names the version of Message and Reply. What is added to it later is to be ignored by who does not know it.
const Schema = "lofamo.io/webhook/v1"

// Actions of a Message.
const (
	ActionDo     = "do"
	ActionUndo   = "undo"
	ActionStatus = "status"
)

// Message is what is posted.
type Message struct {
	Schema string `json:"schema"`
	Action string `json:"action"` // do, undo, or status: what became of a do or an undo
	Kind   string `json:"kind"`   // notify or remediate
	// IdempotencyKey is that of a do or an undo, the same however often and by whom it is told; of a status that of what is asked for.
	IdempotencyKey string `json:"idempotencyKey"`
	// Undoes is the key of the do that an undo puts back; empty of a do.
	Undoes   string        `json:"undoes,omitempty"`
	Cluster  string        `json:"cluster"`
	Response string        `json:"response"`
	Policy   string        `json:"policy"`
	Step     int           `json:"step"`    // from 0
	Attempt  int           `json:"attempt"` // from 1, of do and undo together
	Token    uint64        `json:"token"`
	Recheck  bool          `json:"recheck"` // an attempt before may have happened
	Deadline time.Time     `json:"deadline"`
	Target   MessageTarget `json:"target"`
	Fault    MessageFault  `json:"fault"`
}

// MessageTarget is what a fault is of: a component of a node, or a group fault.
type MessageTarget struct {
	Node        string   `json:"node,omitempty"`
	Component   string   `json:"component,omitempty"`
	Group       string   `json:"group,omitempty"`
	Members     []string `json:"members,omitempty"`     // nodes of a group fault, at most MaxMembers of them
	MemberCount int      `json:"memberCount,omitempty"` // of all
}

// MaxMembers bounds MessageTarget.Members.
const MaxMembers = 1024

// MessageFault is what a response is for, as it was when the response was proposed.
type MessageFault struct {
	State  string    `json:"state"`
	Cause  string    `json:"cause"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail,omitempty"`
}

// message is what a job tells its receiver.
func message(j executor.Job, action string, deadline time.Time) Message {
	m := Message{
		Schema: Schema, Action: action, Kind: kindName(j.Kind), IdempotencyKey: j.Cluster + "/" + j.IdempotencyKey, Cluster: j.Cluster, Response: j.Response,
		Policy: j.Policy, Step: j.Step, Attempt: j.Attempt.Attempt, Token: j.Token, Recheck: j.Recheck, Deadline: deadline.UTC(),
		Fault: MessageFault{State: j.Fault.State.String(), Cause: j.Fault.Cause.String(), Since: j.Fault.Since.UTC(), Detail: j.Fault.Detail},
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

func kindName(k response.Kind) string { return strings.TrimPrefix(string(k), "webhook.") }

// Reply is what a receiver that keeps to the contract answers with.
type Reply struct {
	Schema  string `json:"schema"`
	Outcome string `json:"outcome"`
	// Attempt that Outcome is of; needed in the answer to a status.
	Attempt int `json:"attempt,omitempty"`
	// RetryAfter is when to ask again, or to tell again what was not taken, in seconds.
	RetryAfter float64 `json:"retryAfter,omitempty"`
	Detail     string  `json:"detail,omitempty"`
}

var verdicts = map[string]verdict{
	"done": verdictDone, "accepted": verdictAccepted, "unchanged": verdictUnchanged, "later": verdictLater, "partly": verdictPartly, "unknown": verdictUnknown, "stale": verdictStale, "none": verdictNone,
}

// refusals are statuses that say, without an answer of the contract, that nothing was done: whoever gave them has not read the
// message, or not taken it for one.
var refusals = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusGone,
	http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType, http.StatusMisdirectedRequest,
	http.StatusUnprocessableEntity, http.StatusUpgradeRequired, http.StatusRequestHeaderFieldsTooLarge,
}

// heard reads an answer. Of a receiver that does not keep to the contract the status alone counts. A redirect, and a fault of
// the server's, may come after the deed.
func heard(a httpcall.Answer, contract bool) reply {
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

// parse reads an answer of the contract.
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
		return Reply{}, fmt.Errorf("the answer's outcome: given %q: want done, accepted, unchanged, later, partly, unknown, stale or none", clean(r.Outcome))
	case r.Attempt < 0 || !(r.RetryAfter >= 0):
		return Reply{}, fmt.Errorf("the answer's attempt and retryAfter: given %d and %v: want no less than 0", r.Attempt, r.RetryAfter)
	}
	return r, nil
}

// maxRetryAfter keeps seconds from overflowing; who waits has a bound of its own.
const maxRetryAfter = 3600

func retryAfter(h http.Header) time.Duration {
	s, err := strconv.ParseUint(h.Get("Retry-After"), 10, 32)
	if err != nil {
		return 0 // a date, which nobody needs within an attempt's time
	}
	return seconds(float64(s))
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, maxRetryAfter) * float64(time.Second))
}

// clean makes a text of others fit for logs and terminals.
func clean(s string) string {
	const most = 300 // bytes
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), most)], ""))
	return strings.TrimSpace(s)
}
