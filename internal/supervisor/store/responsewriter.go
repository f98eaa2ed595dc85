package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// ResponseBatch is the output of some steps of the engine of responses, to be committed.
type ResponseBatch struct {
	Records   []response.Record // each key at most once
	Forget    []string          // keys of other records
	Decisions []response.Decision
}

// Empty reports whether there is nothing to commit.
func (b ResponseBatch) Empty() bool { return len(b.Records)+len(b.Forget)+len(b.Decisions) == 0 }

// AuditLimits bound the kept audit, approximately: not every commit cuts.
type AuditLimits struct {
	Lines uint64 // 0 means 100,000
	Bytes uint64 // 0 means 64 MiB
}

// ResponseWriter commits a leader's responses and their audit. It is not safe for concurrent use.
type ResponseWriter struct {
	s       *Etcd
	fence   Fence
	limits  AuditLimits
	head    responseHead
	headRev int64
	last    response.AuditLine // the newest line: its number and hash
	cutAt   uint64             // number of lines at which to try the next cut
}

// ResponseWriter returns a writer for a new leader, based on the state that it loaded after its election.
func (s *Etcd) ResponseWriter(fence Fence, from Responses, limits AuditLimits) *ResponseWriter {
	if limits.Lines == 0 {
		limits.Lines = 100_000
	}
	if limits.Bytes == 0 {
		limits.Bytes = 64 << 20
	}
	return &ResponseWriter{
		s: s, fence: fence, limits: limits, head: from.head, headRev: from.headRev,
		last: response.AuditLine{Seq: from.Audit.Last, Hash: from.Audit.Hash},
	}
}

// responseOps are the operations of a transaction besides its records: the head, a chunk of the audit, and a cut.
const responseOps = 3

// maxDecision bounds the recorded texts of a decision, in bytes: errors of programs may have any length.
const maxDecision = 4 << 10

// responsePart is the content of one transaction.
type responsePart struct {
	records []response.Record
	values  [][]byte // of the records
	forget  []string
	lines   []response.AuditLine
	chunk   []byte // the lines
}

// Committed is called for each committed transaction. sent is a time before the request: the writer led then or
// later. Zero means that only the head proves the commit, which says nothing about the present leader.
type Committed func(records []response.Record, sent time.Time)

// Commit writes records and decisions. It splits batches that exceed one transaction, and calls committed with the
// records of each transaction after its commit. A decision about a record is written no later than the record. Commit
// blocks and retries until all is committed, the context ends, leadership is lost (ErrNotLeader), or the store can never
// take a transaction (ErrRefused). After an error, only the store shows which of the remaining parts were committed.
func (w *ResponseWriter) Commit(ctx context.Context, b ResponseBatch, committed Committed) error {
	parts, err := w.split(b)
	if err != nil {
		return err
	}
	for _, p := range parts {
		sent, err := w.commit(ctx, p)
		if err != nil {
			return err
		}
		if committed != nil {
			committed(p.records, sent)
		}
	}
	return nil
}

// split splits a batch by number of operations and maxBytes. A record goes with the part that has the last decision
// about it.
func (w *ResponseWriter) split(b ResponseBatch) ([]responsePart, error) {
	limit := max(1, w.s.opts.MaxOps-responseOps)
	about := make(map[string]int, len(b.Records)) // key of a record → index of the last decision about it
	for i, d := range b.Decisions {
		about[recordOf(d)] = i
	}
	with := make(map[int]response.Record) // index of a decision → record that goes with it
	var rest []response.Record
	for _, r := range b.Records {
		if i, ok := about[r.Key()]; ok {
			with[i] = r
		} else {
			rest = append(rest, r)
		}
	}
	var out []responsePart
	var cur responsePart
	size := 0
	room := func(ops, bytes int) {
		if n := len(cur.records) + len(cur.forget); n+ops > limit || n+len(cur.lines) > 0 && size+bytes > maxBytes {
			out = append(out, cur)
			cur, size = responsePart{}, 0
		}
		size += bytes
	}
	put := func(r response.Record, line []byte) error {
		if r == nil {
			room(0, len(line))
			return nil
		}
		value, err := EncodeRecord(r)
		if err != nil {
			return err
		}
		room(1, len(value)+len(r.Key())+len(line))
		cur.records, cur.values = append(cur.records, r), append(cur.values, value)
		return nil
	}
	last := w.last
	for i, d := range b.Decisions {
		l, text, err := writeDecision(last, d)
		if err != nil {
			return nil, err
		}
		if err := put(with[i], text); err != nil {
			return nil, err
		}
		cur.lines, cur.chunk, last = append(cur.lines, l), append(cur.chunk, text...), l
	}
	for _, r := range rest {
		if err := put(r, nil); err != nil {
			return nil, err
		}
	}
	for _, key := range b.Forget {
		room(1, len(key))
		cur.forget = append(cur.forget, key)
	}
	return append(out, cur), nil
}

// recordOf returns the key of the record that a decision is about; empty: none.
func recordOf(d response.Decision) string {
	switch {
	case d.Response != "":
		return (&response.Response{ID: d.Response}).Key()
	case d.Act == response.Opens || d.Act == response.ClosesBreaker:
		return (*response.Breaker)(nil).Key()
	default:
		return ""
	}
}

// writeDecision returns a decision as the line after last, and the text of that line.
func writeDecision(last response.AuditLine, d response.Decision) (response.AuditLine, []byte, error) {
	d.Detail, d.Subject = fault.Cut(d.Detail, maxDecision), fault.Cut(d.Subject, maxDecision)
	l, err := response.ChainAudit(last, d)
	if err != nil {
		return l, nil, err
	}
	text, err := l.Marshal()
	return l, append(text, '\n'), err
}

// commit writes one transaction. For attempts without an answer it reads the result from the head; sent is then zero.
func (w *ResponseWriter) commit(ctx context.Context, p responsePart) (sent time.Time, err error) {
	next, ops, err := w.ops(ctx, p)
	if err != nil {
		return time.Time{}, err
	}
	backoff := 10 * time.Millisecond
	for attempt := 1; ; attempt++ {
		sent := time.Now()
		rev, taken, err := w.attempt(ctx, attempt, next, ops)
		if err == nil {
			w.head, w.headRev = next, rev
			if n := len(p.lines); n > 0 {
				w.last = p.lines[n-1]
			}
			if !taken {
				sent = time.Time{}
			}
			return sent, nil
		}
		if final(err) || ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("commit responses %d of term %d: %w", next.Batch, next.Term, err)
		}
		if w.s.opts.OnRetry != nil {
			w.s.opts.OnRetry(attempt, err)
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("commit responses %d of term %d: %w", next.Batch, next.Term, err)
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 500*time.Millisecond)
	}
}

// ops returns the operations of a transaction and its head.
func (w *ResponseWriter) ops(ctx context.Context, p responsePart) (responseHead, []clientv3.Op, error) {
	next := w.head
	next.Term, next.Batch = w.fence.Rev, w.head.Batch+1
	var ops []clientv3.Op
	put := func(key string, value []byte) {
		op := clientv3.OpPut(key, "")
		op.WithValueBytes(value) // not copied to a string and back
		ops = append(ops, op)
	}
	for i, r := range p.records {
		put(recordKey(r.Key()), p.values[i])
	}
	for _, key := range p.forget {
		ops = append(ops, clientv3.OpDelete(recordKey(key)))
	}
	if n := len(p.lines); n > 0 {
		put(auditKey(p.lines[0].Seq), bytes.Clone(p.chunk))
		a := &next.Audit
		a.Last, a.Hash = p.lines[n-1].Seq, hex.EncodeToString(p.lines[n-1].Hash[:])
		a.Bytes += uint64(len(p.chunk))
		if a.First == 0 {
			a.First = 1
		}
		if from := w.head.Audit.First; w.cut(ctx, a) {
			ops = append(ops, clientv3.OpDelete(auditKey(from), clientv3.WithRange(auditKey(a.First))))
		}
	}
	value, err := json.Marshal(next)
	if err != nil {
		return responseHead{}, nil, fmt.Errorf("encode %s: %w", keyResponseHead, err)
	}
	put(keyResponseHead, value)
	return next, ops, nil
}

// auditSlack is the fraction, 1/auditSlack, by which the audit may exceed its bounds before a cut, so that not every
// commit has to check.
const auditSlack = 32

// cut reports whether to delete the oldest chunks of the audit, and updates the head: the kept part begins with a
// chunk, and the head names the last line that was cut. After a failure the chunks are only kept longer.
func (w *ResponseWriter) cut(ctx context.Context, a *auditHead) bool {
	n := a.Last - a.First + 1
	keep := n
	if n > w.limits.Lines+w.limits.Lines/auditSlack {
		keep = w.limits.Lines
	}
	if a.Bytes > w.limits.Bytes+w.limits.Bytes/auditSlack {
		keep = min(keep, uint64(float64(n)*float64(w.limits.Bytes)/float64(a.Bytes)))
	}
	if keep == n || n < w.cutAt {
		return false
	}
	// If nothing can be cut, because all lines are in the newest chunk, do not try again with every commit.
	w.cutAt = n + max(1, n/auditSlack)
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	// Find the newest committed chunk that begins no later than the first line to keep.
	resp, err := w.s.c.Get(ctx, auditKey(a.First), clientv3.WithRange(auditKey(min(a.Last-keep+1, w.last.Seq))+"\x00"),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1), clientv3.WithSerializable())
	if err != nil || len(resp.Kvs) == 0 {
		return false
	}
	first, err := auditFirst(resp.Kvs[0])
	if err != nil || first <= a.First {
		return false
	}
	lines, _ := decodeAudit(resp.Kvs[0]) // damage further on does not matter
	if len(lines) == 0 {
		return false
	}
	w.cutAt = 0
	a.Bytes -= uint64(float64(a.Bytes) * float64(first-a.First) / float64(n))
	a.First, a.Prev, a.CutAt = first, hex.EncodeToString(lines[0].Prev[:]), time.Now().UTC()
	return true
}

// attempt runs the n-th attempt at a transaction. If taken is false without an error, an earlier attempt has succeeded.
func (w *ResponseWriter) attempt(ctx context.Context, n int, next responseHead, ops []clientv3.Op) (rev int64, taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit(n))
	defer cancel()
	resp, err := w.s.c.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(w.fence.Key), "=", w.fence.Rev),
		clientv3.Compare(clientv3.ModRevision(keyResponseHead), "=", w.headRev),
	).Then(ops...).Else(clientv3.OpGet(keyResponseHead)).Commit()
	if err != nil {
		return 0, false, refused(err)
	}
	if resp.Succeeded {
		return resp.Header.Revision, true, nil
	}
	have, at, err := decodeResponseHead(resp.Responses[0].GetResponseRange().Kvs)
	if err == nil && have.Term == next.Term && have.Batch == next.Batch {
		return at, false, nil // an earlier attempt has succeeded, even if leadership was lost since
	}
	if n > 1 && at != w.headRev {
		return 0, false, ErrOvertaken
	}
	return 0, false, ErrNotLeader
}
