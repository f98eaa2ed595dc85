package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The last reports of diagnoses and procedures.
const (
	keyManaged       = Prefix + "managed/"
	keyLastDiagnosis = keyManaged + "diagnosis"
	keyLastProcedure = keyManaged + "procedure"
	// OrderedKey is the key of an ordered procedure that has no report yet.
	OrderedKey    = keyManaged + "ordered"
	keyPolicyRuns = keyManaged + "policy"
)

// Ordered is a procedure that a leader is about to order. With it the next leader can report the result to the
// subject.
type Ordered struct {
	Term     uint64        `json:"term"` // with Count: the number of the order
	Count    uint64        `json:"count"`
	Subject  string        `json:"subject"`
	Reason   string        `json:"reason,omitempty"`
	Started  time.Time     `json:"started"`
	Diagnose bool          `json:"diagnose,omitempty"`
	Delay    time.Duration `json:"delay"`
	Hop      time.Duration `json:"hop"`
	Drain    time.Duration `json:"drain"`
	Absent   []uint32      `json:"absent,omitempty"`
}

// OrderedPut encodes an ordered procedure.
func OrderedPut(o Ordered) (KV, error) {
	value, err := json.Marshal(o)
	if err != nil {
		return KV{}, fmt.Errorf("encode the order of a procedure: %w", err)
	}
	return KV{OrderedKey, value}, nil
}

// DecodeOrdered decodes an ordered procedure; nil for no value.
func DecodeOrdered(value []byte) (*Ordered, error) {
	if len(value) == 0 {
		return nil, nil
	}
	o := new(Ordered)
	if err := json.Unmarshal(value, o); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", OrderedKey, ErrUndecodable, err)
	}
	return o, nil
}

// LastOrdered returns the ordered procedure that has no report yet, with a quorum read; nil: none.
func (s *Etcd) LastOrdered(ctx context.Context) (*Ordered, error) {
	resp, err := s.c.Get(ctx, OrderedKey)
	if err != nil {
		return nil, fmt.Errorf("read %s from the store: %w", OrderedKey, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	return DecodeOrdered(resp.Kvs[0].Value)
}

// PolicyRun is a finished test of a link, or a finished procedure, that the supervisors' own policy requested. Its time
// outlives the report, which the next report of any requester replaces.
type PolicyRun struct {
	Node      string    `json:"node,omitempty"` // an end of the tested link; empty: a procedure
	Direction string    `json:"direction,omitempty"`
	Peer      string    `json:"peer,omitempty"` // at the link's other end
	Ended     time.Time `json:"ended"`
}

// Procedure reports whether the run is a procedure.
func (r PolicyRun) Procedure() bool { return r.Node == "" }

// PolicyRunsPut encodes the policy's runs, in place of the stored ones.
func PolicyRunsPut(runs []PolicyRun) (KV, error) {
	value, err := json.Marshal(runs)
	if err != nil {
		return KV{}, fmt.Errorf("encode the runs of the policy: %w", err)
	}
	return KV{keyPolicyRuns, value}, nil
}

// PolicyRuns returns the policy's runs, with a quorum read.
func (s *Etcd) PolicyRuns(ctx context.Context) ([]PolicyRun, error) {
	resp, err := s.c.Get(ctx, keyPolicyRuns)
	if err != nil {
		return nil, fmt.Errorf("read %s from the store: %w", keyPolicyRuns, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	return decodePolicyRuns(resp.Kvs[0].Value)
}

func decodePolicyRuns(value []byte) (runs []PolicyRun, err error) {
	if err := json.Unmarshal(value, &runs); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", keyPolicyRuns, ErrUndecodable, err)
	}
	return runs, nil
}

// DecodePolicyRuns returns the policy's runs in a write.
func DecodePolicyRuns(w Write) ([]PolicyRun, error) {
	for _, kv := range w.Puts {
		if kv.Key == keyPolicyRuns {
			return decodePolicyRuns(kv.Value)
		}
	}
	return nil, nil
}

// MaxReport bounds a stored report, in bytes: it is sent whole, and every replica has it. The report of a torus of
// 700 nodes fits, with the numbers of all links.
const MaxReport = 512 << 10

// DiagnosisPut encodes the report of a diagnosis, in place of the last one. A report longer than MaxReport loses the
// links that are good.
func DiagnosisPut(r *lofamov1.DiagnosisReport) (KV, error) {
	value, err := proto.Marshal(BoundDiagnosis(r, MaxReport))
	if err != nil {
		return KV{}, fmt.Errorf("encode the report of a diagnosis: %w", err)
	}
	return KV{keyLastDiagnosis, value}, nil
}

// ProcedurePut encodes the report of a procedure, in place of the last one, with the same bound as a diagnosis.
func ProcedurePut(r *lofamov1.ProcedureReport) (KV, error) {
	value, err := proto.Marshal(BoundProcedure(r, MaxReport))
	if err != nil {
		return KV{}, fmt.Errorf("encode the report of a procedure: %w", err)
	}
	return KV{keyLastProcedure, value}, nil
}

// BoundDiagnosis returns a report of at most size bytes: r itself, or a copy without the good links. If that is still
// too long, it leaves out more links and the last entries of each list, all in the same proportion. Omitted counts
// them.
func BoundDiagnosis(r *lofamov1.DiagnosisReport, size int) *lofamov1.DiagnosisReport {
	if proto.Size(r) <= size {
		return r
	}
	out := proto.CloneOf(r)
	out.Links = nil
	for _, l := range r.GetLinks() {
		if l.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD {
			out.Links = append(out.Links, l)
		}
	}
	for {
		out.Omitted = uint32(len(r.GetLinks()) - len(out.GetLinks()) + len(r.GetFaults()) - len(out.GetFaults()) + len(r.GetOpen()) -
			len(out.GetOpen()) + len(r.GetSilent()) - len(out.GetSilent()))
		if proto.Size(out) <= size {
			return out
		}
		if len(out.GetLinks())+len(out.GetFaults())+len(out.GetOpen())+len(out.GetSilent()) == 0 {
			return out // the rest is short
		}
		out.Links, out.Faults, out.Open, out.Silent = half(out.GetLinks()), half(out.GetFaults()), half(out.GetOpen()), half(out.GetSilent())
	}
}

// BoundProcedure returns a report of at most size bytes: r itself, or a copy without the nodes where all was well. It
// then halves the rest until the report fits. The report of the diagnosis takes at most half of size. Omitted counts
// the omitted nodes.
func BoundProcedure(r *lofamov1.ProcedureReport, size int) *lofamov1.ProcedureReport {
	if proto.Size(r) <= size {
		return r
	}
	out := proto.CloneOf(r)
	if d := r.GetDiagnosis(); d != nil {
		out.Diagnosis = BoundDiagnosis(d, size/2)
	}
	if proto.Size(out) <= size {
		return out
	}
	out.Nodes = nil
	for _, n := range r.GetNodes() {
		if !n.GetClear() || n.GetHeld() > 0 || n.GetError() != "" {
			out.Nodes = append(out.Nodes, n)
		}
	}
	for {
		out.Omitted = uint32(len(r.GetNodes()) - len(out.GetNodes()) + len(r.GetSilent()) - len(out.GetSilent()) + len(r.GetHolding()) -
			len(out.GetHolding()))
		if proto.Size(out) <= size || len(out.GetNodes())+len(out.GetSilent())+len(out.GetHolding()) == 0 {
			return out
		}
		out.Nodes, out.Silent, out.Holding = half(out.GetNodes()), half(out.GetSilent()), half(out.GetHolding())
	}
}

// half returns the first half of a list; for a single element none.
func half[E any](list []E) []E { return list[:len(list)/2] }

// LastDiagnosis returns the report of the last committed diagnosis, with a quorum read; nil: none.
func (s *Etcd) LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error) {
	return lastReport(ctx, s, keyLastDiagnosis, new(lofamov1.DiagnosisReport))
}

// LastProcedure returns the report of the last committed procedure, with a quorum read; nil: none.
func (s *Etcd) LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error) {
	return lastReport(ctx, s, keyLastProcedure, new(lofamov1.ProcedureReport))
}

// OwnDiagnosis is LastDiagnosis from this replica's own copy: it needs no quorum.
func (s *Etcd) OwnDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error) {
	return lastReport(ctx, s, keyLastDiagnosis, new(lofamov1.DiagnosisReport), clientv3.WithSerializable())
}

func lastReport[R proto.Message](ctx context.Context, s *Etcd, key string, into R, opts ...clientv3.OpOption) (R, error) {
	var none R
	resp, err := s.c.Get(ctx, key, opts...)
	if err != nil {
		return none, fmt.Errorf("read %s from the store: %w", key, err)
	}
	if len(resp.Kvs) == 0 {
		return none, nil
	}
	if err := proto.Unmarshal(resp.Kvs[0].Value, into); err != nil {
		return none, fmt.Errorf("read %s: %w: %w", key, ErrUndecodable, err)
	}
	return into, nil
}

// DecodeReports returns the reports in a write: of a diagnosis, of a procedure, or both; nil: none.
func DecodeReports(w Write) (d *lofamov1.DiagnosisReport, p *lofamov1.ProcedureReport, err error) {
	for _, kv := range w.Puts {
		switch kv.Key {
		case keyLastDiagnosis:
			d = new(lofamov1.DiagnosisReport)
			err = proto.Unmarshal(kv.Value, d)
		case keyLastProcedure:
			p = new(lofamov1.ProcedureReport)
			err = proto.Unmarshal(kv.Value, p)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w: %w", kv.Key, ErrUndecodable, err)
		}
	}
	return d, p, nil
}
