package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// recordVersion is the version of the records of responses and of the breaker. A record with another version, or with
// an unknown field, is refused: a leader must not act on a record that it does not understand.
const recordVersion = 1

// storedResponse is the stored form of a response.Response. States and kinds are names, so that a later change of the
// numbers does not change stored records. Times are UTC, durations nanoseconds.
type storedResponse struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Policy  string `json:"policy"`
	Digest  string `json:"digest"`
	Mode    string `json:"mode"`

	Node      fault.NodeID `json:"node,omitempty"`
	Component string       `json:"component,omitempty"`
	Group     string       `json:"group,omitempty"`

	FaultState string    `json:"faultState,omitempty"`
	FaultCause string    `json:"faultCause,omitempty"`
	FaultSince time.Time `json:"faultSince,omitzero"`

	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`

	Guards    response.Guards  `json:"guards,omitzero"`
	Undo      response.Undo    `json:"undo,omitzero"`
	Steps     []storedStep     `json:"steps"`
	Step      int              `json:"step"`
	Undoing   bool             `json:"undoing,omitempty"`
	Cancelled bool             `json:"cancelled,omitempty"`
	Approvals []storedApproval `json:"approvals,omitempty"`

	Proposed time.Time `json:"proposed,omitzero"`
	Asked    time.Time `json:"asked,omitzero"`
	Gone     time.Time `json:"gone,omitzero"`
	Closed   time.Time `json:"closed,omitzero"`
	Token    uint64    `json:"token"`
	Number   uint64    `json:"number"` // Version of the response
}

type storedStep struct {
	Name       string            `json:"name"`
	Kind       response.Kind     `json:"kind"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Timeout    time.Duration     `json:"timeout,omitempty"`
	Retries    int               `json:"retries,omitempty"`
	Wait       time.Duration     `json:"wait,omitempty"`
	OnFailure  string            `json:"onFailure,omitempty"`

	State    string      `json:"state"`
	Attempt  int         `json:"attempt,omitempty"`
	Failures int         `json:"failures,omitempty"`
	First    time.Time   `json:"first,omitzero"`
	Started  time.Time   `json:"started,omitzero"`
	Ended    time.Time   `json:"ended,omitzero"`
	Changed  bool        `json:"changed,omitempty"`
	Again    bool        `json:"again,omitempty"`
	Reported bool        `json:"reported,omitempty"`
	Up       bool        `json:"up,omitempty"`
	Epoch    fault.Epoch `json:"epoch,omitempty"`
	Detail   string      `json:"detail,omitempty"`
}

type storedApproval struct {
	Subject string    `json:"subject"`
	At      time.Time `json:"at"`
}

type storedBreaker struct {
	Version  int       `json:"version"`
	Open     bool      `json:"open"`
	At       time.Time `json:"at,omitzero"`
	Detail   string    `json:"detail,omitempty"`
	ClosedBy string    `json:"closedBy,omitempty"`
	Token    uint64    `json:"token"`
}

// EncodeRecord encodes a record.
func EncodeRecord(r response.Record) ([]byte, error) {
	var v any
	switch r := r.(type) {
	case *response.IncidentRecord:
		return encodeIncidentRecord(r)
	case *response.Response:
		v = storeResponse(r)
	case *response.Breaker:
		v = storedBreaker{recordVersion, r.Open, r.At.UTC(), valid(r.Detail), valid(r.ClosedBy), r.Token}
	default:
		return nil, fmt.Errorf("encode record %q: given a %T: want a response, the breaker or an incident", r.Key(), r)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode record %q: %w", r.Key(), err)
	}
	return b, nil
}

// valid replaces invalid UTF-8: JSON would replace it silently.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }

// name returns the name of a value, or "" for zero.
func name[E interface {
	~uint8
	fmt.Stringer
}](e E) string {
	if e == 0 {
		return ""
	}
	return e.String()
}

func storeResponse(r *response.Response) storedResponse {
	s := storedResponse{
		Version: recordVersion, ID: r.ID, Policy: r.Policy, Digest: r.Digest, Mode: name(r.Mode),
		Node: r.Target.Node, Group: r.Target.Group, Component: name(r.Target.Component),
		FaultState: name(r.FaultState), FaultCause: name(r.FaultCause), FaultSince: r.FaultSince.UTC(),
		State: name(r.State), Reason: name(r.Reason), Detail: valid(r.Detail), Guards: r.Guards, Undo: r.Undo,
		Step: r.Step, Undoing: r.Undoing, Cancelled: r.Cancelled,
		Proposed: r.Proposed.UTC(), Asked: r.Asked.UTC(), Gone: r.Gone.UTC(), Closed: r.Closed.UTC(), Token: r.Token, Number: r.Version,
	}
	for i := range r.Steps {
		t := &r.Steps[i]
		s.Steps = append(s.Steps, storedStep{
			Name: t.Name, Kind: t.Kind, Parameters: t.Parameters, Timeout: t.Timeout, Retries: t.Retries, Wait: t.Wait, OnFailure: name(t.OnFailure),
			State: name(t.State), Attempt: t.Attempt, Failures: t.Failures, First: t.First.UTC(), Started: t.Started.UTC(), Ended: t.Ended.UTC(),
			Changed: t.Changed, Again: t.Again, Reported: t.Reported, Up: t.Up, Epoch: t.Epoch, Detail: valid(t.Detail),
		})
	}
	for _, a := range r.Approvals {
		s.Approvals = append(s.Approvals, storedApproval{valid(a.Subject), a.At.UTC()})
	}
	return s
}

// strictJSON decodes one JSON value that has only fields that into has.
func strictJSON(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end")
	}
	return nil
}

// DecodeRecord decodes the record of a key. It is strict: it refuses records of another version, and records that
// name another key.
func DecodeRecord(key string, b []byte) (response.Record, error) {
	var r response.Record
	var version int
	var err error
	if key == (*response.Breaker)(nil).Key() {
		var s storedBreaker
		err = strictJSON(b, &s)
		version, r = s.Version, &response.Breaker{Open: s.Open, At: s.At, Detail: s.Detail, ClosedBy: s.ClosedBy, Token: s.Token}
	} else {
		var s storedResponse
		if err = strictJSON(b, &s); err == nil {
			r, err = s.response()
		}
		version = s.Version
	}
	switch {
	case version != recordVersion && (err == nil || version != 0):
		return nil, fmt.Errorf("record %q: version: given %d: want %d", key, version, recordVersion)
	case err != nil:
		return nil, fmt.Errorf("record %q: %w", key, err)
	case r.Key() != key:
		return nil, fmt.Errorf("record %q: it is that of %q", key, r.Key())
	}
	return r, nil
}

// names reads names, and collects the invalid ones as errors.
type names struct{ errs []error }

// readName reads the name of a value up to last; the empty name is 0.
func readName[E interface {
	~uint8
	fmt.Stringer
}](n *names, field, s string, last E) E {
	if s == "" {
		return 0
	}
	for e := E(1); e <= last; e++ {
		if e.String() == s {
			return e
		}
	}
	n.errs = append(n.errs, fmt.Errorf("%s: given %.40q: want one of its names up to %s", field, s, last))
	return 0
}

func (s *storedResponse) response() (*response.Response, error) {
	var n names
	r := &response.Response{
		ID: s.ID, Policy: s.Policy, Digest: s.Digest, Mode: readName(&n, "mode", s.Mode, response.Enforce),
		Target: response.Target{Node: s.Node, Group: s.Group,
			Component: readName(&n, "component", s.Component, fault.Component(fault.NumComponents-1))},
		FaultState: readName(&n, "faultState", s.FaultState, fault.Failed), FaultSince: s.FaultSince,
		State: readName(&n, "state", s.State, response.Expired), Detail: s.Detail,
		Guards: s.Guards, Undo: s.Undo, Step: s.Step, Undoing: s.Undoing, Cancelled: s.Cancelled,
		Proposed: s.Proposed, Asked: s.Asked, Gone: s.Gone, Closed: s.Closed, Token: s.Token, Version: s.Number,
	}
	var err error
	if r.Reason, err = response.ParseReason(s.Reason); err != nil {
		n.errs = append(n.errs, err)
	}
	if s.FaultCause != "" {
		if r.FaultCause, err = fault.ParseCause(s.FaultCause); err != nil {
			n.errs = append(n.errs, fmt.Errorf("faultCause: %w", err))
		}
	}
	for i := range s.Steps {
		t := &s.Steps[i]
		at := fmt.Sprintf("steps[%d].", i)
		r.Steps = append(r.Steps, response.StepRecord{
			Step: response.Step{
				Name: t.Name, Kind: t.Kind, Parameters: t.Parameters, Timeout: t.Timeout, Retries: t.Retries, Wait: t.Wait,
				OnFailure: readName(&n, at+"onFailure", t.OnFailure, response.Next),
			},
			State: readName(&n, at+"state", t.State, response.PutBack), Attempt: t.Attempt, Failures: t.Failures,
			First: t.First, Started: t.Started, Ended: t.Ended, Changed: t.Changed, Again: t.Again, Reported: t.Reported, Up: t.Up, Epoch: t.Epoch,
			Detail: t.Detail,
		})
	}
	for _, a := range s.Approvals {
		r.Approvals = append(r.Approvals, response.Approval{Subject: a.Subject, At: a.At})
	}
	return r, errors.Join(n.errs...)
}
