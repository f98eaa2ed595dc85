package store

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// loadedPrefixes are the keys of decodeSnapshot's kinds, in its order.
var loadedPrefixes = [loadedKinds]string{keyMeta, keyHead, keyNodes, keyInbox, keyTopology, keyMaintenance, keyGroups, keyWarnings,
	keyMasks, keyIncidents}

// otherPrefixes are the keys of all other kinds.
var otherPrefixes = []string{
	keyEvents, keySupervisors, keyPeers, keyPolicyCurrent, keyPolicyFormer, OrderedKey, keyLastDiagnosis, keyLastProcedure, keyIdentity,
	keyResponseHead, keyResponseAudit, keyResponseRecords, keyIncidentNotes, keyIncidentResponses,
	keyTokens, keyPolicyRuns, keyIncidentsTrimmed,
}

func marshalled(f *testing.F, m proto.Message) []byte {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

func jsonOf(f *testing.F, v any) []byte {
	f.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzStoreValues: for any value in the store, from a damaged disk or another version, a reading supervisor gets a
// value or an error that names the key.
func FuzzStoreValues(f *testing.F) {
	kind := func(key string) byte {
		for i, p := range append(loadedPrefixes[:], otherPrefixes...) {
			if strings.HasPrefix(key, p) {
				return byte(i)
			}
		}
		f.Fatalf("%s: of no kind", key)
		return 0
	}
	add := func(key string, b []byte) {
		k := kind(key)
		f.Add(k, key[len(append(loadedPrefixes[:], otherPrefixes...)[k]):], b)
	}
	add(keyMeta, jsonOf(f, Meta{Cluster: "c", Dims: "2x2x2"}))
	add(keyHead, jsonOf(f, head{Next: 3, Oldest: 1, Gaps: []Gap{{1, 2}}}))
	add(keyNodes+"n0-0-0", marshalled(f, &lofamov1.Node{Id: "n0-0-0", Coord: "0,0,0", State: lofamov1.State_SICK,
		Cause: lofamov1.Cause_HOST, Components: []*lofamov1.Component{{Name: "host", State: lofamov1.State_FAILED}}}))
	add(keyInbox+"n0-0-0/host", encodeInbox(InboxPosition{Epoch: 1, Digest: 2}))
	add(keyInbox+"n0-0-0/dnp", []byte(`{"epoch":1,"highest":2,"earlier":[{}]}`))
	add(KeyTopologyHead, jsonOf(f, topologyHead{Generation: 1, Dims: "1x1x1"}))
	add(topologyKey(1, "n0"), marshalled(f, &lofamov1.TopologyNode{Id: "n0", Coord: "0,0,0"}))
	add(MaintenanceKey("n0"), marshalled(f, &lofamov1.Maintenance{Node: "n0"}))
	add(GroupKey("row/Y=1,Z=2"), marshalled(f, &lofamov1.Group{Id: "row/Y=1,Z=2", Members: []string{"n0"}}))
	add(WarningKey("n0", fault.ComponentPeripheral0, fault.QuantityPower), marshalled(f, &lofamov1.Warning{}))
	add(keyIncidents+"k3f9-aaaaaaaa", marshalled(f, &lofamov1.Incident{Id: "k3f9-aaaaaaaa", State: 1, Fault: 4, Node: "n0", Coord: "0,0,0",
		Component: "node", Verdict: &lofamov1.Verdict{Evidence: []*lofamov1.Evidence{{Kind: "SELF"}}}}))
	add(keyIncidentNotes+"k3f9-aaaaaaaa", marshalled(f, &lofamov1.Incident{Notes: []*lofamov1.IncidentNote{{Text: "x"}}}))
	add(keyIncidentResponses+"k3f9-aaaaaaaa", marshalled(f, &lofamov1.Incident{ResponseCount: 1, Responses: []*lofamov1.IncidentResponse{
		{Id: "r7-1", Node: "n0", Component: "node", State: lofamov1.ResponseState_RESPONSE_DONE},
	}}))
	add(keyIncidentsTrimmed, jsonOf(f, trimmedIncidents{Revision: 4}))
	add(keyMasks+"x", marshalled(f, &lofamov1.LinkMask{}))
	add(eventKey(7), marshalled(f, &lofamov1.Event{Reason: "x"}))
	add(keySupervisors+"s0", marshalled(f, &lofamov1.Supervisor{Id: "s0"}))
	add(keyPeers+"n0", marshalled(f, &lofamov1.PeerStatus{Node: "n0"}))
	add(keyPolicyCurrent+"p", jsonOf(f, storedPolicy{Version: 1, Document: json.RawMessage(`{}`), By: "a", At: time.Unix(1, 0)}))
	add(OrderedKey, jsonOf(f, Ordered{Term: 1, Absent: []uint32{1}}))
	add(keyLastDiagnosis, marshalled(f, &lofamov1.DiagnosisReport{}))
	add(keyLastProcedure, marshalled(f, &lofamov1.ProcedureReport{}))
	add(keyPolicyRuns, jsonOf(f, []PolicyRun{{Node: "n0", Direction: "X+", Peer: "n1", Ended: time.Unix(1, 0)}, {Ended: time.Unix(2, 0)}}))
	add(keyIdentity, jsonOf(f, storedIdentity{ID: "x", First: 1}))
	add(keyResponseAudit+"00000000000000000001", []byte("{}\n"))
	add(TokenKey("3kz5ab2c"), jsonOf(f, JoinToken{Sum: []byte{1}, By: "a", Expires: time.Unix(1, 0), Uses: 2,
		Used: []JoinUse{{Node: "n0", Keys: []byte{1}}}}))
	f.Fuzz(func(t *testing.T, kind byte, rest string, b []byte) {
		all := append(loadedPrefixes[:], otherPrefixes...)
		key := all[int(kind)%len(all)]
		if strings.HasSuffix(key, "/") { // otherwise it is a key, not a prefix
			key += rest
		}
		kv := &mvccpb.KeyValue{Key: []byte(key), Value: b, ModRevision: 5, CreateRevision: 4}
		if i := int(kind) % len(all); i < loadedKinds {
			readSnapshot(t, i, kv)
		}
		readOthers(t, kv)
		_, err := mapUpdate(5, []*clientv3.Event{{Type: mvccpb.PUT, Kv: kv}, {Type: mvccpb.DELETE, Kv: kv}})
		named(t, err, key)
	})
}

// named fails the test for an error that does not name the key.
func named(t *testing.T, err error, key string) {
	t.Helper()
	if err != nil && !strings.Contains(err.Error(), key) && !strings.Contains(err.Error(), "topology of revision") &&
		!strings.Contains(err.Error(), "inbox position of") {
		t.Fatalf("%q: an error that does not name the key: %v", key, err)
	}
}

// readSnapshot reads a key as a new leader does, together with the topology's head for a node of the topology.
func readSnapshot(t *testing.T, i int, kv *mvccpb.KeyValue) {
	t.Helper()
	var of [loadedKinds][]*mvccpb.KeyValue
	of[i] = []*mvccpb.KeyValue{kv}
	if strings.HasPrefix(string(kv.Key), topologyKey(1, "")) {
		of[i] = append(of[i], &mvccpb.KeyValue{Key: []byte(KeyTopologyHead), Value: []byte(`{"generation":1,"dims":"1x1x1"}`), ModRevision: 5})
	}
	snap, err := decodeSnapshot(5, of)
	named(t, err, string(kv.Key))
	for _, n := range snap.Nodes {
		_, _ = view.Restore(n)
	}
	for _, g := range snap.Groups {
		_, _ = view.RestoreGroup(g)
	}
	for _, w := range snap.Warnings {
		_, _ = view.RestoreWarning(w.Node, w.Warning)
	}
	for _, in := range snap.Incidents {
		_, _ = view.RestoreIncident(in)
	}
	snap.head.gaps(5, 9)
}

// readOthers reads a value as every other kind of key.
func readOthers(t *testing.T, kv *mvccpb.KeyValue) {
	t.Helper()
	key := string(kv.Key)
	_, err := decodeEvent(kv)
	named(t, err, key)
	_, err = decodeSupervisors([]*mvccpb.KeyValue{kv})
	named(t, err, key)
	decodePeers([]*mvccpb.KeyValue{kv})
	var incidents IncidentSet
	err = incidents.put(kv)
	named(t, err, key)
	if bound, raised := trimmedIn([]*mvccpb.KeyValue{kv}); bound > 5 || raised && key == keyIncidentsTrimmed || incidents.trimmed > 5 {
		t.Fatalf("%q: the bound of trimmed incidents is %d, or %d after a deletion", key, incidents.trimmed, bound)
	}
	_, err = decodePolicy("p", kv)
	named(t, err, key)
	if got := decodePolicies([]*mvccpb.KeyValue{kv}); len(got) != 1 {
		t.Fatalf("%q: %d policies of one value", key, len(got))
	}
	if got := decodeTargets([]*mvccpb.KeyValue{kv}); len(got) > 1 {
		t.Fatalf("%q: %d targets of one value", key, len(got))
	}
	_, err = DecodePolicyRuns(Write{Puts: []KV{{key, kv.Value}}})
	named(t, err, key)
	if o, err := DecodeOrdered(kv.Value); err == nil && (o == nil) != (len(kv.Value) == 0) {
		t.Fatalf("%q: the order is %+v", kv.Value, o)
	}
	_, _, err = DecodeReports(Write{Puts: []KV{{key, kv.Value}}})
	named(t, err, key)
	if _, err := decodeAudit(kv); err == nil && len(kv.Value) == 0 {
		t.Fatalf("%q: an empty chunk of the audit is taken", key)
	}
	_, err = decodeToken(kv)
	named(t, err, key)
	var have storedIdentity
	if json.Unmarshal(kv.Value, &have) == nil {
		have.goesOn(5, "x", []Gap{{1, 2}}, 4)
	}
	_, _, _ = decodeResponseHead([]*mvccpb.KeyValue{kv})
	_, _ = decodeResponses(5, []*mvccpb.KeyValue{kv}, nil)
	if out, err := decodeResponses(5, nil, []*mvccpb.KeyValue{kv}); err != nil || len(out.Records)+len(out.Unread) != 1 {
		t.Fatalf("%q: one record is read as %+v, %v", key, out, err)
	}
	_, _, _, _ = ParseWarningKey(key)
	if id, ok := ParseNodeKey(key); ok && NodeKey(string(id)) != key {
		t.Fatalf("%q is the key of node %q", key, id)
	}
}
