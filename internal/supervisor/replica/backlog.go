package replica

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds of a backlog, in datagrams.
const (
	maxAnswers = 1024
	maxReports = 2048
	maxDigests = 2048
)

// queued is one datagram that waits for the leader.
type queued struct {
	req     *lofamov1.ForwardRequest
	arrived time.Time
	reports []fault.ReportID // in it; empty: an answer to a challenge
}

// backlog holds messages for the leader while there is none, which may take hours. Answers to challenges go first,
// because verdicts wait for them. Each report is held once, however often its sender retries: a copy of a held
// report takes no space. Digests beyond the bound displace the oldest ones, since each half soon repeats all of
// it. So digests do not take the reports' space, and halves do not declare the service network dead for lack of a
// leader. It has no lock and reads no clock.
type backlog struct {
	answers, reports, digests []*queued
	held                      map[fault.ReportID]*queued // of reports
}

func newBacklog() *backlog { return &backlog{held: make(map[fault.ReportID]*queued)} }

func (b *backlog) len() int { return len(b.answers) + len(b.reports) + len(b.digests) }

// put adds a datagram with these reports (nil: an answer). It reports whether there was room, and how many digests
// were displaced.
func (b *backlog) put(req *lofamov1.ForwardRequest, in *servicenet.Reports, arrived time.Time) (ok bool, pushed int) {
	q := &queued{req: req, arrived: arrived}
	if in == nil {
		if len(b.answers) == maxAnswers {
			return false, 0
		}
		b.answers = append(b.answers, q)
		return true, 0
	}
	digests := true
	for i := range in.List {
		q.reports = append(q.reports, in.List[i].ID)
		digests = digests && in.List[i].Digest
	}
	if digests {
		if len(b.digests) == maxDigests {
			b.digests, pushed = b.digests[1:], 1
		}
		b.digests = append(b.digests, q)
		return true, pushed
	}
	return b.putReports(q), 0
}

func (b *backlog) putReports(q *queued) bool {
	if old := b.held[q.reports[0]]; old != nil && slices.Equal(old.reports, q.reports) {
		old.req, old.arrived = q.req, q.arrived // its ages are newer, and so is its way back
		return true
	}
	if !slices.ContainsFunc(q.reports, func(id fault.ReportID) bool { return b.held[id] == nil }) {
		return true
	}
	if len(b.reports) == maxReports {
		return false
	}
	b.reports = append(b.reports, q)
	for _, id := range q.reports {
		b.held[id] = q
	}
	return true
}

// next removes and returns the next message, or nil if none waits.
func (b *backlog) next() *queued {
	for _, list := range []*[]*queued{&b.answers, &b.reports, &b.digests} {
		if len(*list) == 0 {
			continue
		}
		q := (*list)[0]
		*list = (*list)[1:]
		for _, id := range q.reports {
			if b.held[id] == q {
				delete(b.held, id)
			}
		}
		return q
	}
	return nil
}
