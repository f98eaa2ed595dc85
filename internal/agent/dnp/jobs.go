package dnp

import (
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// jobMail is what this half keeps of its mails to the host half about jobs. A queue of the kernel may hold no more than ten of them
// (net.unix.max_dgram_qlen), and one that is full of them would hold up doorbells and reports, and make this half call itself sick. So they take
// a part of it (mailbox.Offer), and what finds no room waits here, until the next step or a few milliseconds: at most maxJobMail of them, and each for jobMailLife. Then eurekas drop, the
// oldest first: what somebody waits for he asks for again.
type jobMail struct {
	waiting []waitingMail
	again   time.Time // while some wait: when their next turn is, at the latest
	rest    time.Duration
	// answers are the last ones to Raise: the host half asks again when an answer does not come, and nothing is raised twice.
	answers []jobs.Mail
	dropped uint64 // found no room, or waited for too long
	told    uint64 // of them, in the log
	tellAt  time.Time
}

type waitingMail struct {
	mail  jobs.Mail
	until time.Time
}

const (
	maxJobMail  = 256
	jobMailLife = 5 * time.Second
	// mostRest bounds the time between two turns, which begins with postAgain and doubles.
	mostRest   = 64 * time.Millisecond
	maxAnswers = 64
	// jobMailTold is the time between two lines in the log about what was dropped.
	jobMailTold = 10 * time.Second
)

// onJobs takes what the host half asks for its jobs: seed 003 §4.4.3.
func (d *dnpHalf) onJobs(payload []byte) {
	m, err := jobs.DecodeMail(payload)
	if errors.Is(err, jobs.ErrLater) {
		return
	}
	if err != nil {
		d.step(dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: watchdog.RDMAMailboxBad})
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch m.Kind {
	case jobs.Raise:
		if i := slices.IndexFunc(d.jobMail.answers, func(a jobs.Mail) bool { return a.Request == m.Request }); i >= 0 {
			d.mailJobs(now, d.jobMail.answers[i])
			return
		}
		if d.core.ExpressLinks() == 0 {
			d.answerRaise(now, jobs.Mail{Kind: jobs.Taken, Request: m.Request, Result: jobs.NoLinks})
			return
		}
		d.apply(now, d.core.Step(now, dnpcore.RaiseEureka{Token: m.Request, Raise: express.Raise{
			Topic: express.TopicJob, Priority: express.Priority(m.Priority), Body: m.Envelope,
		}}))
	case jobs.Arrive:
		a := express.Arrive{Barrier: barrierOf(m.Key), Members: m.Members, Gone: m.Gone}
		if m.Flag {
			a.Ranks = []int{m.Rank}
		}
		d.apply(now, d.core.Step(now, dnpcore.ArriveAt{Arrive: a}))
	case jobs.Leave:
		d.apply(now, d.core.Step(now, dnpcore.LeaveBarrier{Barrier: barrierOf(m.Key)}))
	default: // to the host half
	}
}

// tellJobs passes on to the host half what a step says for its jobs, and what its mailbox did not take before. It runs with every step, and when there is
// nothing it costs nothing.
func (d *dnpHalf) tellJobs(now time.Time, out *dnpcore.Output) {
	if len(d.jobMail.waiting) > 0 {
		d.mailWaiting(now)
	}
	for _, r := range out.EurekasRaised {
		d.answerRaise(now, jobs.Mail{Kind: jobs.Taken, Request: r.Token, Result: resultOf(r.Err), Links: uint8(d.core.ExpressLinks())})
	}
	for i := range out.Eurekas {
		if n := len(out.Eurekas[i].Body); n > 0 && n <= jobs.MaxEnvelope {
			d.mailJobs(now, jobs.Mail{Kind: jobs.Delivered, Envelope: out.Eurekas[i].Body})
		}
	}
	for i := range out.Barriers {
		d.mailJobs(now, d.statusOf(&out.Barriers[i]))
	}
}

// answerRaise answers a Raise, and remembers the answer: what was refused once is refused when it is asked again, for its caller may have been told.
func (d *dnpHalf) answerRaise(now time.Time, m jobs.Mail) {
	if d.jobMail.answers = append(d.jobMail.answers, m); len(d.jobMail.answers) > maxAnswers {
		d.jobMail.answers = slices.Delete(d.jobMail.answers, 0, 1)
	}
	d.mailJobs(now, m)
}

// mailJobs sends a mail behind those that wait.
func (d *dnpHalf) mailJobs(now time.Time, m jobs.Mail) {
	if len(d.jobMail.waiting) == 0 && d.tookJobMail(m) {
		return
	}
	if len(d.jobMail.waiting) == 0 {
		d.jobMail.rest, d.jobMail.again = half.PostAgain, now.Add(half.PostAgain)
	}
	if d.jobMail.waiting = append(d.jobMail.waiting, waitingMail{m, now.Add(jobMailLife)}); len(d.jobMail.waiting) > maxJobMail {
		i := max(0, slices.IndexFunc(d.jobMail.waiting, func(w waitingMail) bool { return w.mail.Kind == jobs.Delivered }))
		d.jobMail.waiting = slices.Delete(d.jobMail.waiting, i, i+1)
		d.jobMail.dropped++
	}
}

// tellDropped has a line in the log when mails were dropped: jobs have missed eurekas.
func (d *dnpHalf) tellDropped(now time.Time) {
	k := &d.jobMail
	if k.dropped == k.told || now.Before(k.tellAt) {
		return
	}
	d.Log.Warn("the host half does not empty its mailbox: messages for jobs were dropped", "dropped", k.dropped-k.told, "waiting", len(k.waiting))
	k.told, k.tellAt = k.dropped, now.Add(jobMailTold)
}

// mailWaiting sends what waits, in order, as far as the mailbox takes it.
func (d *dnpHalf) mailWaiting(now time.Time) {
	done := 0
	for _, w := range d.jobMail.waiting {
		late := !now.Before(w.until)
		if !late && !d.tookJobMail(w.mail) {
			break
		}
		if done++; late {
			d.jobMail.dropped++
		}
	}
	d.jobMail.waiting = slices.Delete(d.jobMail.waiting, 0, done)
	if k := &d.jobMail; !now.Before(k.again) {
		k.rest = min(2*k.rest, mostRest)
		k.again = now.Add(k.rest)
	}
}

// tookJobMail says whether a mail need not be sent again: the mailbox took it, or there is none. A host half that does not run has no job that waits.
func (d *dnpHalf) tookJobMail(m jobs.Mail) bool {
	return !errors.Is(d.box.Offer(mailbox.Message{Type: mailbox.Jobs, Payload: m.Append(nil)}), mailbox.ErrDropped)
}

func (d *dnpHalf) statusOf(s *dnpcore.BarrierStatus) jobs.Mail {
	m := jobs.Mail{
		Kind: jobs.Status, Key: keyOf(s.Barrier), Result: resultOf(s.Err), Links: uint8(d.core.ExpressLinks()), Flag: s.Complete,
		Gone: s.Gone, Arrived: make([]bool, min(s.Members, jobs.MaxMembers)),
	}
	for _, r := range s.Arrived {
		if r < len(m.Arrived) {
			m.Arrived[r] = true
		}
	}
	return m
}

func resultOf(err error) jobs.Result {
	switch {
	case err == nil:
		return jobs.OK
	case errors.Is(err, express.ErrRate), errors.Is(err, express.ErrNoRoom):
		return jobs.Busy
	default:
		return jobs.Refused
	}
}

// barrierOf is the name of a barrier of jobs in the torus: its hash in text, for the log's sake.
func barrierOf(k jobs.Key) express.Barrier {
	return express.Barrier{Topic: express.TopicJob, Name: base64.RawURLEncoding.EncodeToString(k.Hash[:]), Generation: k.Generation}
}

// keyOf is the other way round. A name that no host half has given has the hash 0, which nobody waits for.
func keyOf(b express.Barrier) jobs.Key {
	k := jobs.Key{Generation: b.Generation}
	if hash, err := base64.RawURLEncoding.DecodeString(b.Name); err == nil && len(hash) == len(k.Hash) {
		k.Hash = [32]byte(hash)
	}
	return k
}
