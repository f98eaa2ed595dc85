package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/audit"
)

// The keys of responses. They have a head of their own, so that what is decided about faults and the faults themselves never wait for
// one another; both are guarded by the same election key.
const (
	keyResponses       = Prefix + "responses/"
	keyResponseHead    = keyResponses + "head"
	keyResponseRecords = keyResponses + "records/"
	keyResponseAudit   = keyResponses + "audit/" // and the number of the chunk's first line, 20 digits
)

// responseHead is the last transaction of responses, and where the audit stands.
type responseHead struct {
	Term  int64     `json:"term"`
	Batch uint64    `json:"batch"`
	Audit auditHead `json:"audit"`
}

type auditHead struct {
	Last  uint64    `json:"last"`            // number of the newest line; 0: there is none
	Hash  string    `json:"hash,omitempty"`  // of the newest line, hexadecimal
	First uint64    `json:"first"`           // number of the oldest line that is kept, the first of a chunk
	Prev  string    `json:"prev,omitempty"`  // hash of the line before that, which was cut; empty: nothing was
	CutAt time.Time `json:"cutAt,omitzero"`  // when that was
	Bytes uint64    `json:"bytes,omitempty"` // that the lines kept take, about
}

// AuditHead says where the audit stands: what is kept of it, and what was cut.
type AuditHead struct {
	First, Last uint64 // numbers of the oldest line that is kept, and of the newest; Last 0: there is none
	// Cut is the hash of the newest of the lines that were cut, numbers 1 to First-1, and CutAt when: the oldest line kept names it as
	// the one before it. Zero: nothing was cut.
	Cut   [32]byte
	CutAt time.Time
	Hash  [32]byte // of the newest line
	Bytes uint64   // that the lines take, about
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

// ErrUnreadable says that what is stored is there, and cannot be read: another version has written it, or it is damaged. Trying
// again does not help.
var ErrUnreadable = errors.New("it cannot be read")

// Responses is what is committed of responses, of one revision.
type Responses struct {
	Revision uint64
	Records  []response.Record
	Audit    AuditHead
	// Unread are records that could not be read, each with its key: another version has written them, or they are damaged.
	Unread []error

	head    responseHead
	headRev int64
}

// LoadResponses reads what a new leader begins with, as new as the cluster's.
func (s *Etcd) LoadResponses(ctx context.Context) (Responses, error) { return s.responses(ctx) }

// OwnResponses reads the replica's own copy, for which no quorum is needed.
func (s *Etcd) OwnResponses(ctx context.Context) (Responses, error) {
	return s.responses(ctx, clientv3.WithSerializable())
}

func (s *Etcd) responses(ctx context.Context, opts ...clientv3.OpOption) (Responses, error) {
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(keyResponseHead, opts...),
		clientv3.OpGet(keyResponseRecords, append(opts, clientv3.WithPrefix())...)).Commit()
	if err != nil {
		return Responses{}, fmt.Errorf("read the responses from the store: %w", err)
	}
	return decodeResponses(uint64(resp.Header.Revision), resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs)
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
		r, err := DecodeRecord(strings.TrimPrefix(string(kv.Key), keyResponseRecords), kv.Value)
		if err != nil {
			out.Unread = append(out.Unread, err)
			continue
		}
		out.Records = append(out.Records, r)
	}
	return out, nil
}

// FollowResponses calls changed after every change of a committed record, as far as the replica's own copy goes, and once at first. It
// returns when the context ends or the watch breaks.
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

// auditFirst is the number of a chunk's first line, by its key.
func auditFirst(kv *mvccpb.KeyValue) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), keyResponseAudit), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", kv.Key, err)
	}
	return n, nil
}

// auditChunks is how many chunks are read at once.
const auditChunks = 16

// Audit returns at most limit lines from a number on that are kept, in order, and where the audit stands, from the replica's own
// copy. What cannot be read is an error: the lines before it are returned with it.
func (s *Etcd) Audit(ctx context.Context, from uint64, limit int) ([]audit.Line, AuditHead, error) {
	start, head, err := s.auditAt(ctx, from)
	if err != nil {
		return nil, head, err
	}
	var out []audit.Line
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

// auditAt returns the key of the chunk that has a line, or the first that comes after it, and the head.
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

// decodeAudit reads a chunk. The lines before one that cannot be read are returned with the error.
func decodeAudit(kv *mvccpb.KeyValue) ([]audit.Line, error) {
	want, err := auditFirst(kv)
	if err != nil {
		return nil, err
	}
	var out []audit.Line
	for text := range strings.Lines(string(kv.Value)) {
		l, err := audit.Unmarshal([]byte(text))
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

// errUnknownHead is what a head says that no leader of ours has written.
var errUnknownHead = errors.New("the head of the responses is not as it was written")

// decodeResponseHead reads a head beside which a commit was refused.
func decodeResponseHead(kvs []*mvccpb.KeyValue) (h responseHead, rev int64, err error) {
	for _, kv := range kvs {
		rev = kv.ModRevision
		if json.Unmarshal(kv.Value, &h) != nil {
			err = errUnknownHead
		}
	}
	return h, rev, err
}
