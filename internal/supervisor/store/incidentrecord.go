package store

import (
	"fmt"
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
			Notified: p.GetNotified(), Notice: p.GetNotice(),
		}
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
