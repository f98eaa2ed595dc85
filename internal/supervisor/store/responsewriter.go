package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/audit"
)

// ResponseBatch is what is committed of steps of the engine of responses.
type ResponseBatch struct {
	Records   []response.Record // each key at most once
	Forget    []string          // keys of records
	Decisions []response.Decision
}

// Empty says whether there is nothing to commit.
func (b ResponseBatch) Empty() bool { return len(b.Records)+len(b.Forget)+len(b.Decisions) == 0 }

// AuditLimits bound what is kept of the audit. They are kept about: not every commit cuts.
type AuditLimits struct {
	Lines uint64 // 0 stands for 100,000
	Bytes uint64 // 0 stands for 64 MiB
}

// ResponseWriter commits a leader's responses and their audit: it is for one goroutine.
type ResponseWriter struct {
	s       *Etcd
	fence   Fence
	limits  AuditLimits
	head    responseHead
	headRev int64
	last    audit.Line // the newest: its number and hash
	cutAt   uint64     // number of lines from which on another look for what to cut is worth while
}

// ResponseWriter returns what a new leader commits with, going on from what it loaded after it was elected.
func (s *Etcd) ResponseWriter(fence Fence, from Responses, limits AuditLimits) *ResponseWriter {
	if limits.Lines == 0 {
		limits.Lines = 100_000
	}
	if limits.Bytes == 0 {
		limits.Bytes = 64 << 20
	}
	return &ResponseWriter{
		s: s, fence: fence, limits: limits, head: from.head, headRev: from.headRev, last: audit.Line{Seq: from.Audit.Last, Hash: from.Audit.Hash},
	}
}

// responseOps are those of a transaction beside its records: the head, a chunk of the audit, and what is cut.
const responseOps = 3

// maxDecision bounds the texts of a decision that are written down, in bytes: errors of programs may be of any length.
const maxDecision = 4 << 10

// responsePart is what is committed in one transaction.
type responsePart struct {
	records []response.Record
	values  [][]byte // of the records
	forget  []string
	lines   []audit.Line
	chunk   []byte // the lines
}

// Committed is told of each transaction that was taken. sent is from before the store was asked to take it: the writer led at
// that moment, or later. Zero: that it was taken is known from the head alone, and nothing of who leads now.
type Committed func(records []response.Record, sent time.Time)

// Commit writes records and decisions. committed is called with the records of each transaction after it was taken: what does not
// fit into one is split, and a decision about a record is written no later than the record. It blocks, trying again, until the store
// took all of it, the context ends, or leadership is lost (ErrNotLeader): then nobody knows more of the rest than what the store has.
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

// split cuts a batch into parts of so many operations and maxBytes. A record goes with the part that has the last decision about it.
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

// recordOf is the key of the record that a decision is about; empty: of none.
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

// writeDecision is a decision as the line after another, and that line's text.
func writeDecision(last audit.Line, d response.Decision) (audit.Line, []byte, error) {
	d.Detail, d.Subject = fault.Cut(d.Detail, maxDecision), fault.Cut(d.Subject, maxDecision)
	l, err := audit.Chain(last, d)
	if err != nil {
		return l, nil, err
	}
	text, err := l.Marshal()
	return l, append(text, '\n'), err
}

// commit writes one transaction, and finds out from the head what became of attempts without an answer: then sent is zero.
func (w *ResponseWriter) commit(ctx context.Context, p responsePart) (sent time.Time, err error) {
	next, ops, err := w.ops(ctx, p)
	if err != nil {
		return time.Time{}, err
	}
	backoff := 10 * time.Millisecond
	for attempt := 1; ; attempt++ {
		sent := time.Now()
		rev, taken, err := w.attempt(ctx, attemptLimit(attempt), next, ops)
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
		if errors.Is(err, ErrNotLeader) || ctx.Err() != nil {
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

// ops returns the operations of a transaction and the head that it leaves.
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
		put(keyResponseRecords+r.Key(), p.values[i])
	}
	for _, key := range p.forget {
		ops = append(ops, clientv3.OpDelete(keyResponseRecords+key))
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

// auditSlack is by what part the audit may outgrow its bounds before it is cut, so that not every commit has to look.
const auditSlack = 32

// cut says whether the oldest chunks of the audit are to be deleted, and changes the head accordingly: what is kept begins with a
// chunk, and the head says which line was the last to be cut. Failure means only that they are kept for longer.
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
	// Where nothing can be cut, as all is in the newest chunk, it is not looked for with every commit.
	w.cutAt = n + max(1, n/auditSlack)
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	// The newest chunk that begins no later than what is to be kept: one that is committed already.
	resp, err := w.s.c.Get(ctx, auditKey(a.First), clientv3.WithRange(auditKey(min(a.Last-keep+1, w.last.Seq))+"\x00"),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1), clientv3.WithSerializable())
	if err != nil || len(resp.Kvs) == 0 {
		return false
	}
	first, err := auditFirst(resp.Kvs[0])
	if err != nil || first <= a.First {
		return false
	}
	lines, _ := decodeAudit(resp.Kvs[0]) // what is damaged further on is no hindrance
	if len(lines) == 0 {
		return false
	}
	w.cutAt = 0
	a.Bytes -= uint64(float64(a.Bytes) * float64(first-a.First) / float64(n))
	a.First, a.Prev, a.CutAt = first, hex.EncodeToString(lines[0].Prev[:]), time.Now().UTC()
	return true
}

// attempt asks the store once to take a transaction. Not taken, and no error: one before has gone through.
func (w *ResponseWriter) attempt(ctx context.Context, limit time.Duration, next responseHead, ops []clientv3.Op) (rev int64,
	taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := w.s.c.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(w.fence.Key), "=", w.fence.Rev),
		clientv3.Compare(clientv3.ModRevision(keyResponseHead), "=", w.headRev),
	).Then(ops...).Else(clientv3.OpGet(keyResponseHead)).Commit()
	if err != nil {
		return 0, false, err
	}
	if resp.Succeeded {
		return resp.Header.Revision, true, nil
	}
	have, at, err := decodeResponseHead(resp.Responses[0].GetResponseRange().Kvs)
	if err == nil && have.Term == next.Term && have.Batch == next.Batch {
		return at, false, nil // an earlier attempt of ours has gone through, even if leadership was lost since
	}
	return 0, false, ErrNotLeader
}
