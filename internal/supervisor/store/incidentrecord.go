package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// recordKey returns the store's key of a record. Records of incidents are stored beside the incidents, where
// supervisors of earlier versions ignore them. Such supervisors refuse a response's record with an unknown field.
func recordKey(key string) string {
	if id, ok := strings.CutPrefix(key, (&response.IncidentRecord{}).Key()); ok {
		return keyIncidentResponses + id
	}
	return keyResponseRecords + key
}

// labelPrefix begins the entry of IncidentResponse.notified that holds the notice of the response's alert, if it differs from
// IncidentResponse.notice. Supervisors of earlier versions take the entry for a notification that no policy wants. No notification
// has a key with this prefix.
const labelPrefix = "notice="

// splitLabel separates the entry with labelPrefix from the notifications. Without a valid one, the label is the response's notice.
func splitLabel(all []string, notice uint32) (notified []string, label uint32) {
	label = notice
	for _, key := range all {
		text, is := strings.CutPrefix(key, labelPrefix)
		if !is {
			notified = append(notified, key)
		} else if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			label = uint32(n)
		}
	}
	return notified, label
}

// encodeIncidentRecord encodes the responses of an incident as an Incident with no other content.
func encodeIncidentRecord(r *response.IncidentRecord) ([]byte, error) {
	out := &lofamov1.Incident{ResponseCount: uint32(r.Count)}
	for i := range r.Responses {
		x := &r.Responses[i]
		p := &lofamov1.IncidentResponse{
			Id: x.ID, Policy: x.Policy, Mode: lofamov1.PolicyMode(x.Mode), Node: string(x.Target.Node), Group: x.Target.Group, Step: x.Step,
			Executor: string(x.Kind), State: lofamov1.ResponseState(x.State), Since: stampOf(x.Since), Result: valid(x.Result),
			Closed: stampOf(x.Closed), Notice: x.Notice,
		}
		if x.Target.Group == "" {
			p.Component = x.Target.Component.String()
		}
		for _, key := range x.Notified {
			p.Notified = append(p.Notified, valid(key))
		}
		if x.Label != x.Notice {
			p.Notified = append(p.Notified, labelPrefix+strconv.FormatUint(uint64(x.Label), 10))
		}
		out.Responses = append(out.Responses, p)
	}
	b, err := proto.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode the responses of incident %s: %w", r.Incident, err)
	}
	return b, nil
}

// decodeIncidentRecord is the inverse of encodeIncidentRecord. It leaves out what only another version understands: no response
// depends on it.
func decodeIncidentRecord(id string, b []byte) *response.IncidentRecord {
	in := new(lofamov1.Incident)
	if proto.Unmarshal(b, in) != nil {
		return &response.IncidentRecord{Incident: id}
	}
	out := &response.IncidentRecord{Incident: id, Count: int(in.GetResponseCount())}
	for _, p := range in.GetResponses() {
		x := response.IncidentResponse{
			ID: p.GetId(), Policy: p.GetPolicy(), Mode: response.Mode(p.GetMode()), Step: p.GetStep(), Kind: response.Kind(p.GetExecutor()),
			Target: response.Target{Node: fault.NodeID(p.GetNode()), Group: p.GetGroup()},
			State:  response.State(p.GetState()), Since: timeOf(p.GetSince()), Result: p.GetResult(), Closed: timeOf(p.GetClosed()),
			Notice: p.GetNotice(),
		}
		x.Notified, x.Label = splitLabel(p.GetNotified(), x.Notice)
		var err error
		if x.Target.Group == "" {
			x.Target.Component, err = fault.ParseComponent(p.GetComponent())
		}
		if err != nil || x.State < response.Proposed || x.State > response.Expired {
			continue
		}
		out.Responses = append(out.Responses, x)
	}
	return out
}

// stampOf returns a time for the API; nil for the zero time.
func stampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf is the inverse of stampOf.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
