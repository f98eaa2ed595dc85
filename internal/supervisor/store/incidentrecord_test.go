package store

import (
	"reflect"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/mvccpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func fullIncidentRecord() *response.IncidentRecord {
	return &response.IncidentRecord{Incident: "k3f9-aaaaaaaa", Count: 9, Responses: []response.IncidentResponse{
		{ID: "r7-1", Policy: "chat", Mode: response.Enforce, Target: response.Target{Node: "n1", Component: fault.Link(grid.YPlus)},
			Step: "chat", Kind: response.WebhookNotify, State: response.Failed, Since: responseStart, Result: "no answer",
			Closed: responseStart.Add(1), Notified: []string{"webhook.notify target=chat"}, Notice: 2, Label: 2},
		{ID: "r7-2", Policy: "rack", Mode: response.ObserveOnly, Target: response.Target{Group: "row/Y=1,Z=2"}, Step: "alert",
			Kind: response.Alertmanager, State: response.Proposed, Label: 3}, // it came from another incident
	}}
}

// TestIncidentRecordIsStoredBesideTheIncident: every field of a record survives. A supervisor of an earlier version
// does not read its key as a response's record, which it would refuse.
func TestIncidentRecordIsStoredBesideTheIncident(t *testing.T) {
	want := fullIncidentRecord()
	b, err := EncodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := decodeIncidentRecord(want.Incident, b); !reflect.DeepEqual(got, want) {
		t.Errorf("read as %+v: want %+v", got, want)
	}
	key := recordKey(want.Key())
	if _, _, responses := IncidentKeys(want.Incident); key != responses || strings.HasPrefix(key, keyResponses) {
		t.Errorf("its key is %q: want %q", key, responses)
	}
	if got := recordKey("response/r7-1"); got != keyResponseRecords+"response/r7-1" {
		t.Errorf("the key of a response is %q", got)
	}
	for state := response.Proposed; state <= response.Expired; state++ {
		if name := strings.ToLower(lofamov1.ResponseState(state).String()); name != "response_"+state.String() {
			t.Errorf("state %s is stored as %s", state, name)
		}
	}
	if lofamov1.PolicyMode(response.Enforce) != lofamov1.PolicyMode_ENFORCE ||
		lofamov1.PolicyMode(response.ObserveOnly) != lofamov1.PolicyMode_OBSERVE_ONLY {
		t.Error("the modes are not those of the API")
	}
	read, err := decodeResponses(5, nil, []*mvccpb.KeyValue{
		{Key: []byte(key), Value: b}, {Key: []byte(keyIncidentResponses + "k3f9-bbbbbbbb"), Value: []byte("\xff")},
	})
	if err != nil || len(read.Unread) != 0 || len(read.Records) != 2 {
		t.Errorf("%+v, %v: want two records, one empty", read, err)
	}
}

// TestIncidentHasItsPartsInAnyOrder: record, acknowledgement and responses may arrive in any order, and each may be replaced. An
// acknowledgement from before an escalation is outdated.
func TestIncidentHasItsPartsInAnyOrder(t *testing.T) {
	const id = "k3f9-aaaaaaaa"
	responses, err := EncodeRecord(fullIncidentRecord())
	if err != nil {
		t.Fatal(err)
	}
	marshal := func(in *lofamov1.Incident) []byte {
		b, err := proto.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	notes := marshal(&lofamov1.Incident{Acknowledgement: &lofamov1.Acknowledgement{By: "operator/ann", Escalations: 1}})
	record := func(escalations uint32) []byte { return marshal(&lofamov1.Incident{Id: id, Escalations: escalations}) }
	kvs := []*mvccpb.KeyValue{
		{Key: []byte(keyIncidents + id), Value: record(1), ModRevision: 4}, {Key: []byte(keyIncidentNotes + id), Value: notes, ModRevision: 5},
		{Key: []byte(keyIncidentResponses + id), Value: responses, ModRevision: 6},
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var set IncidentSet
		for _, i := range order {
			if err := set.put(kvs[i]); err != nil {
				t.Fatal(err)
			}
		}
		in := set.Of(id)
		if got := in.GetResponses()[1]; len(got.GetNotified()) != 0 {
			t.Errorf("a notification that was not sent: %v", got)
		}
		if in.GetRevision() != 6 || in.GetAcknowledgement().GetOutdated() || len(in.GetResponses()) != 2 || in.GetResponseCount() != 9 {
			t.Errorf("in order %v: %v", order, in)
		}
		worse := &mvccpb.KeyValue{Key: kvs[0].Key, Value: record(2), ModRevision: 7}
		if err := set.Apply(IncidentChange{Revision: 7, events: []*clientv3.Event{{Type: mvccpb.PUT, Kv: worse}}}); err != nil {
			t.Fatal(err)
		}
		if now := set.Of(id); !now.GetAcknowledgement().GetOutdated() || in.GetAcknowledgement().GetOutdated() || len(now.GetResponses()) != 2 {
			t.Errorf("after an escalation: %v, before: %v", now, in)
		}
		var gone []*clientv3.Event
		for _, kv := range kvs {
			gone = append(gone, &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key}})
		}
		if err := set.Apply(IncidentChange{Revision: 8, events: gone}); err != nil || len(set.of)+len(set.beside) != 0 {
			t.Errorf("after the end: %v, %v, %v", set.of, set.beside, err)
		}
	}
}
