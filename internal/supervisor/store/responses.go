package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/pkg/response"
)

// The keys of responses. Responses have their own head, so that commits of responses and of faults never wait for
// each other. The same election key guards both.
const (
	keyResponses       = Prefix + "responses/"
	keyResponseHead    = keyResponses + "head"
	keyResponseRecords = keyResponses + "records/"
	keyResponseAudit   = keyResponses + "audit/" // followed by the number of the chunk's first line, 20 digits
)

// responseHead is the last transaction of responses, and the head of the audit.
type responseHead struct {
	Term  int64     `json:"term"`
	Batch uint64    `json:"batch"`
	Audit auditHead `json:"audit"`
}

type auditHead struct {
	Last  uint64    `json:"last"`            // number of the newest line; 0: none
	Hash  string    `json:"hash,omitempty"`  // of the newest line, hexadecimal
	First uint64    `json:"first"`           // number of the oldest kept line, the first of a chunk
	Prev  string    `json:"prev,omitempty"`  // hash of the line before First, which was cut; empty: nothing was cut
	CutAt time.Time `json:"cutAt,omitzero"`  // time of that cut
	Bytes uint64    `json:"bytes,omitempty"` // approximate size of the kept lines
}

// AuditHead describes the audit: its kept lines, and the lines cut off.
type AuditHead struct {
	First, Last uint64 // numbers of the oldest kept line and of the newest; Last 0: none
	// Cut is the hash of the newest line that was cut (lines 1 to First-1 were), and CutAt the time of the cut. The
	// oldest kept line names Cut as its predecessor. Zero: nothing was cut.
	Cut   [32]byte
	CutAt time.Time
	Hash  [32]byte // of the newest line
	Bytes uint64   // approximate size of the lines
}

func (h auditHead) read() (AuditHead, error) {
	out := AuditHead{First: h.First, Last: h.Last, CutAt: h.CutAt, Bytes: h.Bytes}
	for _, f := range []struct {
		given string
		to    *[32]byte
	}{{h.Prev, &out.Cut}, {h.Hash, &out.Hash}} {
		b, err := hex.DecodeString(f.given)
		if err != nil || len(b) != 0 && len(b) != len(f.to) {
			return AuditHead{}, fmt.Errorf("%s: a hash: given %.80q: want 64 hexadecimal digits", keyResponseHead, f.given)
		}
		copy(f.to[:], b)
	}
	return out, nil
}

// ErrUnreadable says that a stored value exists but is unreadable: another version wrote it, or it is damaged. A
// retry does not help.
var ErrUnreadable = errors.New("it cannot be read")

// Responses is the committed state of responses, at one revision.
type Responses struct {
	Revision uint64
	Records  []response.Record
	Audit    AuditHead
	// Unread holds an error for each unreadable record, with its key: another version wrote it, or it is damaged.
	Unread []error

	head    responseHead
	headRev int64
}

// LoadResponses reads the state for a new leader, as new as the cluster's.
func (s *Etcd) LoadResponses(ctx context.Context) (Responses, error) { return s.responses(ctx) }

// OwnResponses reads the replica's own copy, which needs no quorum.
func (s *Etcd) OwnResponses(ctx context.Context) (Responses, error) {
	return s.responses(ctx, clientv3.WithSerializable())
}

func (s *Etcd) responses(ctx context.Context, opts ...clientv3.OpOption) (Responses, error) {
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(keyResponseHead, opts...),
		clientv3.OpGet(keyResponseRecords, append(opts, clientv3.WithPrefix())...),
		clientv3.OpGet(keyIncidentResponses, append(opts, clientv3.WithPrefix())...)).Commit()
	if err != nil {
		return Responses{}, fmt.Errorf("read the responses from the store: %w", err)
	}
	of := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	return decodeResponses(uint64(resp.Header.Revision), of(0), slices.Concat(of(1), of(2)))
}

// decodeResponses decodes the head and the records of the responses.
func decodeResponses(revision uint64, heads, records []*mvccpb.KeyValue) (Responses, error) {
	out := Responses{Revision: revision}
	for _, kv := range heads {
		out.headRev = kv.ModRevision
		if err := strictJSON(kv.Value, &out.head); err != nil {
			return Responses{}, fmt.Errorf("read %s: %w: %w", keyResponseHead, ErrUnreadable, err)
		}
	}
	var err error
	if out.Audit, err = out.head.Audit.read(); err != nil {
		return Responses{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	for _, kv := range records {
		if id, ok := strings.CutPrefix(string(kv.Key), keyIncidentResponses); ok {
			out.Records = append(out.Records, decodeIncidentRecord(id, kv.Value))
			continue
		}
		r, err := DecodeRecord(strings.TrimPrefix(string(kv.Key), keyResponseRecords), kv.Value)
		if err != nil {
			out.Unread = append(out.Unread, err)
			continue
		}
		out.Records = append(out.Records, r)
	}
	return out, nil
}

// FollowResponses calls changed after every change of a committed record in the replica's own copy, and once at
// first. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowResponses(ctx context.Context, changed func()) error {
	return s.follow(ctx, "responses", keyResponseHead, nil, func() (uint64, error) {
		resp, err := s.c.Get(ctx, keyResponseHead, clientv3.WithSerializable(), clientv3.WithKeysOnly())
		if err != nil {
			return 0, fmt.Errorf("read %s from the store: %w", keyResponseHead, err)
		}
		changed()
		return uint64(resp.Header.Revision), nil
	})
}

func auditKey(first uint64) string { return fmt.Sprintf("%s%020d", keyResponseAudit, first) }

// auditFirst returns the number of a chunk's first line, from its key.
func auditFirst(kv *mvccpb.KeyValue) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), keyResponseAudit), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", kv.Key, err)
	}
	return n, nil
}

// auditChunks is the number of chunks read at once.
const auditChunks = 16

// Audit returns at most limit kept lines starting with a number, in order, and the audit's head, from the replica's
// own copy. For an unreadable line it returns the lines before it and an error.
func (s *Etcd) Audit(ctx context.Context, from uint64, limit int) ([]response.AuditLine, AuditHead, error) {
	start, head, err := s.auditAt(ctx, from)
	if err != nil {
		return nil, head, err
	}
	var out []response.AuditLine
	for key := start; key != "" && len(out) < limit; {
		resp, err := s.c.Get(ctx, key, clientv3.WithRange(clientv3.GetPrefixRangeEnd(keyResponseAudit)), clientv3.WithLimit(auditChunks),
			clientv3.WithSerializable())
		if err != nil {
			return out, head, fmt.Errorf("read the audit from line %d from the store: %w", from, err)
		}
		key = ""
		for _, kv := range resp.Kvs {
			lines, err := decodeAudit(kv)
			for _, l := range lines {
				if l.Seq >= from && len(out) < limit {
					out = append(out, l)
				}
			}
			if err != nil {
				return out, head, err
			}
			if resp.More {
				key = string(kv.Key) + "\x00"
			}
		}
	}
	return out, head, nil
}

// auditAt returns the key of the chunk that contains a line, or of the next chunk, and the head.
func (s *Etcd) auditAt(ctx context.Context, from uint64) (string, AuditHead, error) {
	resp, err := s.c.Txn(ctx).Then(
		clientv3.OpGet(keyResponseHead, clientv3.WithSerializable()),
		clientv3.OpGet(keyResponseAudit, clientv3.WithRange(auditKey(from)+"\x00"),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1),
			clientv3.WithKeysOnly(), clientv3.WithSerializable()),
	).Commit()
	if err != nil {
		return "", AuditHead{}, fmt.Errorf("read the audit from the store: %w", err)
	}
	var h responseHead
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if err := strictJSON(kv.Value, &h); err != nil {
			return "", AuditHead{}, fmt.Errorf("read %s: %w", keyResponseHead, err)
		}
	}
	head, err := h.Audit.read()
	if err != nil {
		return "", head, err
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		return string(kv.Key), head, nil
	}
	return keyResponseAudit, head, nil
}

// decodeAudit decodes a chunk. For an unreadable line it returns the lines before it and an error.
func decodeAudit(kv *mvccpb.KeyValue) ([]response.AuditLine, error) {
	want, err := auditFirst(kv)
	if err != nil {
		return nil, err
	}
	var out []response.AuditLine
	for text := range strings.Lines(string(kv.Value)) {
		l, err := response.UnmarshalAudit([]byte(text))
		if err == nil && l.Seq != want {
			err = fmt.Errorf("given line %d: want line %d", l.Seq, want)
		}
		if err != nil {
			return out, fmt.Errorf("read %s: %w", kv.Key, err)
		}
		out = append(out, l)
		want++
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read %s: it is empty", kv.Key)
	}
	return out, nil
}

// errUnknownHead says that no leader of this version wrote the head.
var errUnknownHead = errors.New("the head of the responses cannot be read: another version or another program wrote it")

// decodeResponseHead decodes the head that made a commit fail.
func decodeResponseHead(kvs []*mvccpb.KeyValue) (h responseHead, rev int64, err error) {
	for _, kv := range kvs {
		rev = kv.ModRevision
		if json.Unmarshal(kv.Value, &h) != nil {
			err = errUnknownHead
		}
	}
	return h, rev, err
}
