package engine

import (
	"context"
	"maps"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// reportsKept returns the number of reports, and separately of digests, that a term remembers in a torus of so many nodes.
// Digests arrive all the time and must not push the reports out. A report takes some 0.5 kB. In a small torus few arrive, and
// 4,096 would take hours to fill.
func reportsKept(nodes int) int {
	const least, ofNode, most = 1024, 32, 4096
	return min(most, max(least, ofNode*nodes))
}

// MaxSaid is how many observations of a report are remembered.
const MaxSaid = 16

// Said is one observation of a report.
type Said struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
}

// Received is a report that this term has received. Its slices are no longer modified.
type Received struct {
	ID      fault.ReportID
	Digest  bool
	Path    fault.Path // of the first copy
	Hops    []fault.Hop
	From    string
	Latency time.Duration // from the first sign of the fault to the arrival
	Arrived time.Time
	Copies  uint32
	// Committed reports whether the report is committed, and Commit how long after its arrival.
	Committed bool
	Commit    time.Duration
	Said      []Said // of a digest only observations other than NORMAL
}

// Sender is the delivery status of a half, and the time of that status.
type Sender struct {
	Status *lofamov1.DeliveryStatus // no longer modified
	At     time.Time
	OldAt  time.Time // after this time the status is old: newer digests are missing
	by     fault.ReportID
}

// statusMisses is the number of digest periods after which a half's own status is old.
const statusMisses = 3

// ReportQuery selects received reports.
type ReportQuery struct {
	Node    fault.NodeID // empty: all
	Limit   int          // maximum number, the newest
	Digests bool         // digests too
	Lost    bool         // no reports, and of the senders only those that have lost service paths: see servicenet.LostPaths
}

// ReportView is the result of a ReportQuery.
type ReportView struct {
	Reports []Received // newest first
	Senders map[fault.NodeID]Sender
}

// ask is a query on its way to the term.
type ask struct {
	query ReportQuery
	reply chan<- ReportView
}

// Reports returns what this term has received. It fails with ErrNotLeading.
func (e *Engine) Reports(ctx context.Context, q ReportQuery) (ReportView, error) {
	t := e.term.Load()
	if t == nil {
		return ReportView{}, ErrNotLeading
	}
	reply := make(chan ReportView, 1)
	return inquire(ctx, t, (*questions).toReport, ask{q, reply}, reply)
}

// note remembers a report on its first arrival, and its sender's own status.
func (t *term) note(arrived time.Time, d fault.Delivery, in Input) {
	r := Received{
		ID: d.Report.ID, Digest: d.Report.Digest, Path: d.Path, Hops: d.Hops, From: in.To.Addr,
		Arrived: arrived, Copies: 1,
	}
	for _, o := range d.Report.Observations {
		r.Latency = max(r.Latency, d.Age(o))
		if len(r.Said) < MaxSaid && (!r.Digest || o.State != fault.Normal) {
			r.Said = append(r.Said, Said{o.Node, o.Component, o.State})
		}
	}
	t.log.add(r)
	if !r.Digest {
		t.e.cfg.Metrics.ReportAge.WithLabelValues(d.Path.String()).Observe(r.Latency.Seconds())
	}
	t.noteSender(arrived, r, in.Reports.Status)
}

// noteSender is the only writer of t.senders. Every part of a digest may carry a status, and a delayed digest may
// arrive after a newer one. Reports kept over a restart say nothing about the present.
func (t *term) noteSender(arrived time.Time, r Received, s *lofamov1.DeliveryStatus) {
	if s == nil || !r.Digest || r.ID.Origin.Half != fault.HalfHost || !t.committed.Has(r.ID.Origin.Node) {
		return
	}
	was := t.senders[r.ID.Origin.Node].by
	if r.ID.Epoch < was.Epoch || r.ID.Epoch == was.Epoch && r.ID.Seq < was.Seq {
		return
	}
	t.senders[r.ID.Origin.Node] = Sender{
		Status: s, At: arrived, OldAt: arrived.Add(statusMisses * t.e.cfg.Awareness.DigestPeriod), by: r.ID,
	}
}

// reports copies the selected reports. The caller renders them.
func (t *term) reports(q ReportQuery) ReportView {
	if q.Lost {
		return ReportView{Senders: t.lostPaths()}
	}
	v := ReportView{Reports: t.log.newest(q)}
	if q.Node == "" {
		v.Senders = maps.Clone(t.senders)
	} else if s, ok := t.senders[q.Node]; ok {
		v.Senders = map[fault.NodeID]Sender{q.Node: s}
	}
	return v
}

// lostPaths returns the senders that have lost service paths.
func (t *term) lostPaths() map[fault.NodeID]Sender {
	out := make(map[fault.NodeID]Sender)
	for id, s := range t.senders {
		if lost, _ := servicenet.LostPaths(s.Status); len(lost) > 0 {
			out[id] = s
		}
	}
	return out
}

// reportLog remembers the last reports and the last digests, a bounded number of each.
type reportLog struct {
	reports, digests ring
	index            map[fault.ReportID]int // of the reports
}

func newReportLog(size int) *reportLog {
	return &reportLog{reports: ring{size: size}, digests: ring{size: size}, index: make(map[fault.ReportID]int, size)}
}

func (l *reportLog) add(r Received) {
	if r.Digest {
		l.digests.add(r)
		return
	}
	slot, old := l.reports.add(r)
	if old != nil {
		delete(l.index, *old)
	}
	l.index[r.ID] = slot
}

// copied counts a copy of a report.
func (l *reportLog) copied(id fault.ReportID) {
	if slot, ok := l.index[id]; ok {
		l.reports.list[slot].Copies++
	}
}

// committed notes the commit of a report.
func (l *reportLog) committed(id fault.ReportID, now time.Time) {
	if slot, ok := l.index[id]; ok {
		r := &l.reports.list[slot]
		r.Committed, r.Commit = true, now.Sub(r.Arrived)
	}
}

// newest returns the selected reports, newest first.
func (l *reportLog) newest(q ReportQuery) []Received {
	out := make([]Received, 0, min(q.Limit, len(l.reports.list)+len(l.digests.list)))
	nextReport, nextDigest := l.reports.walk(), l.digests.walk()
	r := nextReport(q.Node)
	var d *Received
	if q.Digests {
		d = nextDigest(q.Node)
	}
	for len(out) < q.Limit && (r != nil || d != nil) {
		if d == nil || r != nil && !r.Arrived.Before(d.Arrived) {
			out = append(out, *r)
			r = nextReport(q.Node)
		} else {
			out = append(out, *d)
			d = nextDigest(q.Node)
		}
	}
	return out
}

// ring holds the last entries of a list.
type ring struct {
	size int
	list []Received
	next int // index of the next entry once the list is full: the oldest
}

// add returns the index of the new entry and the ID of the entry that it replaced.
func (r *ring) add(e Received) (slot int, old *fault.ReportID) {
	if len(r.list) < r.size {
		r.list = append(r.list, e)
		return len(r.list) - 1, nil
	}
	slot = r.next
	id := r.list[slot].ID
	r.list[slot] = e
	r.next = (slot + 1) % r.size
	return slot, &id
}

// walk returns a function that returns the entries of a node (all for ""), newest first, then nil.
func (r *ring) walk() func(fault.NodeID) *Received {
	i := 0
	return func(node fault.NodeID) *Received {
		for i < len(r.list) {
			e := &r.list[(r.next-1-i+2*len(r.list))%len(r.list)]
			i++
			if node == "" || node == e.ID.Origin.Node {
				return e
			}
		}
		return nil
	}
}
