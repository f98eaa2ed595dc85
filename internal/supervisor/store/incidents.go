package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The engine writes records, people write notes, and the responder writes responses: none overwrites the others.
const (
	keyAllIncidents      = Prefix + "incidents/"
	keyIncidents         = keyAllIncidents + "records/"
	keyIncidentNotes     = keyAllIncidents + "notes/"
	keyIncidentResponses = keyAllIncidents + "responses/" // supervisors of earlier versions ignore these, and the next key
	keyIncidentsTrimmed  = keyAllIncidents + "trimmed"
)

// IncidentKeys returns the keys of an incident's record, notes and responses.
func IncidentKeys(id string) (record, notes, responses string) {
	return keyIncidents + id, keyIncidentNotes + id, keyIncidentResponses + id
}

// IncidentPut encodes an incident's record.
func IncidentPut(in *lofamov1.Incident) (KV, error) {
	value, err := proto.Marshal(in)
	if err != nil {
		return KV{}, fmt.Errorf("encode incident %s: %w", in.GetId(), err)
	}
	return KV{keyIncidents + in.GetId(), value}, nil
}

// StoredIncident is one incident. It is immutable.
type StoredIncident struct {
	*lofamov1.Incident
	revisions // of its keys
}

// revisions are those of an incident's keys; 0: there is no such key.
type revisions struct{ recordRev, notesRev, responsesRev uint64 }

// trimmedIncidents is the bound of the incidents that are no longer kept. None of them has changed after its revision.
type trimmedIncidents struct {
	// Revision of the last change of such an incident; 0: that of the transaction that stored the bound.
	Revision uint64 `json:"revision,omitempty"`
}

// trimmedOf returns the bound in a key. The bound of a damaged key is the revision of the key, which no bound exceeds.
func trimmedOf(kv *mvccpb.KeyValue) uint64 {
	var t trimmedIncidents
	if written := uint64(kv.ModRevision); json.Unmarshal(kv.Value, &t) != nil || t.Revision == 0 || t.Revision > written {
		return written
	}
	return t.Revision
}

// trimmedBy returns the write of the bound that a transaction with these deletions has to store; false: the bound stays. If the incidents
// cannot be read, the bound is the transaction itself. Clients that resume from an earlier revision then list the incidents again.
func (s *Etcd) trimmedBy(ctx context.Context, deletes []string) (KV, bool) {
	var keys []string
	for _, key := range deletes {
		if id, ok := strings.CutPrefix(key, keyIncidents); ok {
			record, notes, responses := IncidentKeys(id)
			keys = append(keys, record, notes, responses)
		}
	}
	if len(keys) == 0 { // as in nearly every commit
		return KV{}, false
	}
	var opts []clientv3.OpOption
	if s.SoleCopy() {
		opts = append(opts, clientv3.WithSerializable())
	}
	var ops []clientv3.Op
	for _, key := range append(keys, keyIncidentsTrimmed) {
		ops = append(ops, clientv3.OpGet(key, opts...))
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	var bound uint64
	if resp, err := s.c.Txn(ctx).Then(ops...).Commit(); err == nil {
		var kvs []*mvccpb.KeyValue
		for _, r := range resp.Responses {
			kvs = append(kvs, r.GetResponseRange().GetKvs()...)
		}
		var raised bool
		if bound, raised = trimmedIn(kvs); !raised {
			return KV{}, false
		}
	}
	value, err := json.Marshal(trimmedIncidents{bound})
	return KV{keyIncidentsTrimmed, value}, err == nil
}

// trimmedIn returns the bound once some incidents are deleted, and whether it is higher than the stored one. kvs are the keys of these
// incidents, and that of the stored bound. The new bound is 0, the transaction itself, if the end of an incident was never stored.
func trimmedIn(kvs []*mvccpb.KeyValue) (bound uint64, raised bool) {
	var last, stored uint64
	for _, kv := range kvs {
		if string(kv.Key) == keyIncidentsTrimmed {
			stored = trimmedOf(kv)
			continue
		}
		last = max(last, uint64(kv.ModRevision))
		in := new(lofamov1.Incident)
		if kind, _ := incidentOf(string(kv.Key)); kind == keyIncidents &&
			(proto.Unmarshal(kv.Value, in) != nil || in.GetState() != lofamov1.IncidentState_CLOSED) {
			return 0, true
		}
	}
	return last, last > stored
}

// Noted returns the write that replaces an incident's acknowledgement and notes. It fails with ErrConflict if the incident
// has changed since it was read.
func (s StoredIncident) Noted(ack *lofamov1.Acknowledgement, notes []*lofamov1.IncidentNote) (Write, error) {
	value, err := proto.Marshal(&lofamov1.Incident{Acknowledgement: ack, Notes: notes})
	if err != nil {
		return Write{}, fmt.Errorf("encode the notes of incident %s: %w", s.GetId(), err)
	}
	record, noted, _ := IncidentKeys(s.GetId())
	return Write{Puts: []KV{{noted, value}}, Guards: []Guard{{record, s.recordRev}, {noted, s.notesRev}}}, nil
}

// Incident returns one incident as the cluster has it; nil: there is none of that id. It needs a quorum.
func (s *Etcd) Incident(ctx context.Context, id string) (*StoredIncident, error) {
	return s.incident(ctx, id)
}

// LocalIncident returns one incident in the replica's own copy; nil: there is none of that id.
func (s *Etcd) LocalIncident(ctx context.Context, id string) (*StoredIncident, error) {
	return s.incident(ctx, id, clientv3.WithSerializable())
}

func (s *Etcd) incident(ctx context.Context, id string, opts ...clientv3.OpOption) (*StoredIncident, error) {
	record, notes, responses := IncidentKeys(id)
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(record, opts...), clientv3.OpGet(notes, opts...),
		clientv3.OpGet(responses, opts...)).Commit()
	if err != nil {
		return nil, fmt.Errorf("read incident %s from the store: %w", id, err)
	}
	var all IncidentSet
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			if err := all.put(kv); err != nil {
				return nil, err
			}
		}
	}
	return all.Of(id), nil
}

// Incidents returns all incidents in the replica's own copy, and the revision of the answer.
func (s *Etcd) Incidents(ctx context.Context) (*IncidentSet, error) {
	return s.incidents(ctx, func(string) *StoredIncident { return nil })
}

// incidents reads all incidents. It decodes only those whose stored form is not known yet.
func (s *Etcd) incidents(ctx context.Context, known func(id string) *StoredIncident) (*IncidentSet, error) {
	resp, err := s.c.Get(ctx, keyAllIncidents, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("read incidents from the store: %w", err)
	}
	set := &IncidentSet{Revision: uint64(resp.Header.Revision), of: make(map[string]*StoredIncident)}
	set.beside = make(map[string]*besideIncident)
	of := make(map[string]revisions)
	for _, kv := range resp.Kvs {
		kind, id := incidentOf(string(kv.Key))
		r := of[id]
		switch kind {
		case keyIncidents:
			r.recordRev = uint64(kv.ModRevision)
		case keyIncidentNotes:
			r.notesRev = uint64(kv.ModRevision)
		case keyIncidentResponses:
			r.responsesRev = uint64(kv.ModRevision)
		}
		of[id] = r
	}
	for id, have := range of {
		if in := known(id); in != nil && in.revisions == have {
			set.of[id] = in
		}
	}
	for _, kv := range resp.Kvs {
		kind, id := incidentOf(string(kv.Key))
		if in := set.of[id]; in != nil && in.revisions == of[id] {
			set.keep(kind, id, kv)
		} else if err := set.put(kv); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// FollowIncidents sends the changes of incidents after a revision, with bookmarks in between. The channel is closed after
// an update with Err (ErrCompacted if some changes are no longer kept), and when the context ends.
func (s *Etcd) FollowIncidents(ctx context.Context, after uint64) <-chan IncidentChange {
	return watch(ctx, s, watching[IncidentChange]{
		what: "follow incidents", key: keyAllIncidents, after: after,
		bookmark: func(revision uint64) IncidentChange { return IncidentChange{Revision: revision} },
		failed:   func(err error) IncidentChange { return IncidentChange{Err: err} },
		update: func(revision uint64, changes []*clientv3.Event) (IncidentChange, bool, error) {
			return IncidentChange{Revision: revision, events: changes}, true, nil
		},
	})
}

// IncidentChange is what one transaction changed.
type IncidentChange struct {
	Revision uint64
	Err      error
	events   []*clientv3.Event
}

// IncidentSet is a set of incidents as of a revision. Its zero value is empty.
type IncidentSet struct {
	Revision uint64
	trimmed  uint64 // the bound of trimmedIncidents
	of       map[string]*StoredIncident
	// Notes and responses may be stored before or after the record, by key order.
	beside map[string]*besideIncident
}

// besideIncident holds the keys beside an incident's record.
type besideIncident struct{ notes, responses *mvccpb.KeyValue }

// Of returns an incident, or nil. It is read-only.
func (s *IncidentSet) Of(id string) *StoredIncident { return s.of[id] }

// All returns all incidents in no order; read-only.
func (s *IncidentSet) All() []*StoredIncident {
	out := make([]*StoredIncident, 0, len(s.of))
	for _, in := range s.of {
		out = append(out, in)
	}
	return out
}

// Apply applies a change.
func (s *IncidentSet) Apply(c IncidentChange) error {
	for _, e := range c.events {
		if e.Type != mvccpb.DELETE {
			if err := s.put(e.Kv); err != nil {
				return err
			}
			continue
		}
		kind, id := incidentOf(string(e.Kv.Key))
		switch b := s.beside[id]; {
		case kind == keyIncidents:
			delete(s.of, id)
		case b == nil:
		case kind == keyIncidentNotes:
			b.notes = nil
		case kind == keyIncidentResponses:
			b.responses = nil
		}
		s.dropContent(kind, id)
		if s.of[id] == nil && s.beside[id] != nil && *s.beside[id] == (besideIncident{}) {
			delete(s.beside, id)
		}
	}
	s.Revision = max(s.Revision, c.Revision)
	return nil
}

// dropContent removes the content of a deleted key from an incident whose record stays. The responder forgets old responses before the
// engine forgets their incident. dropContent replaces the incident, so that incidents that the set returned earlier stay unchanged.
func (s *IncidentSet) dropContent(kind, id string) {
	old := s.of[id]
	if old == nil {
		return
	}
	in := &StoredIncident{Incident: proto.CloneOf(old.Incident), revisions: old.revisions}
	switch kind {
	case keyIncidentNotes:
		in.Acknowledgement, in.Notes, in.notesRev = nil, nil, 0
	case keyIncidentResponses:
		in.Responses, in.ResponseCount, in.responsesRev = nil, 0, 0
	}
	in.Revision = max(in.recordRev, in.notesRev, in.responsesRev)
	s.of[id] = in
}

// incidentOf returns the prefix of a key and the id after it; "" for any other key.
func incidentOf(key string) (kind, id string) {
	for _, kind := range []string{keyIncidents, keyIncidentNotes, keyIncidentResponses} {
		if id, ok := strings.CutPrefix(key, kind); ok {
			return kind, id
		}
	}
	return "", ""
}

// put adds a key. Incidents that were returned before stay unchanged.
func (s *IncidentSet) put(kv *mvccpb.KeyValue) error {
	if s.of == nil {
		s.of, s.beside = make(map[string]*StoredIncident), make(map[string]*besideIncident)
	}
	kind, id := incidentOf(string(kv.Key))
	if string(kv.Key) == keyIncidentsTrimmed {
		s.trimmed = trimmedOf(kv)
	}
	if kind == "" {
		return nil
	}
	s.keep(kind, id, kv)
	in := &StoredIncident{Incident: new(lofamov1.Incident)}
	switch old := s.of[id]; {
	case kind == keyIncidents:
		if err := proto.Unmarshal(kv.Value, in.Incident); err != nil {
			return fmt.Errorf("read %s: %w", kv.Key, err)
		}
		in.recordRev = uint64(kv.ModRevision)
	case old == nil:
		return nil
	default:
		in.Incident, in.recordRev = proto.CloneOf(old.Incident), old.recordRev
	}
	if err := in.add(s.beside[id]); err != nil {
		return err
	}
	s.of[id] = in
	return nil
}

// keep keeps a key that lies beside a record.
func (s *IncidentSet) keep(kind, id string, kv *mvccpb.KeyValue) {
	b := s.beside[id]
	if b == nil {
		b = &besideIncident{}
	}
	switch kind {
	case keyIncidentNotes:
		b.notes = kv
	case keyIncidentResponses:
		b.responses = kv
	default:
		return
	}
	s.beside[id] = b
}

// add adds the keys beside the record; nil: there are none.
func (s *StoredIncident) add(b *besideIncident) error {
	s.Revision = s.recordRev
	if b == nil {
		return nil
	}
	for _, kv := range []*mvccpb.KeyValue{b.notes, b.responses} {
		if kv == nil {
			continue
		}
		part := new(lofamov1.Incident)
		if err := proto.Unmarshal(kv.Value, part); err != nil {
			return fmt.Errorf("read %s: %w", kv.Key, err)
		}
		s.Revision = max(s.Revision, uint64(kv.ModRevision))
		if kv == b.responses {
			for _, x := range part.GetResponses() {
				x.Notified, _ = splitLabel(x.GetNotified(), 0)
			}
			s.Responses, s.ResponseCount, s.responsesRev = part.GetResponses(), part.GetResponseCount(), uint64(kv.ModRevision)
			continue
		}
		s.Acknowledgement, s.Notes, s.notesRev = part.GetAcknowledgement(), part.GetNotes(), uint64(kv.ModRevision)
		if ack := s.GetAcknowledgement(); ack != nil {
			ack.Outdated = ack.GetEscalations() < s.GetEscalations()
		}
	}
	return nil
}
