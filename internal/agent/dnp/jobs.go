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

// jobMail holds this half's mails about jobs to the host half. A kernel queue may hold no more than ten mails
// (net.unix.max_dgram_qlen). If mails about jobs filled it, they would hold up doorbells and reports and make this half
// report itself sick. So they use only part of it (mailbox.Offer). A mail without room waits here until the next step
// or a few milliseconds: at most maxJobMail mails, each for jobMailLife. After that the oldest eurekas drop first,
// because waiting jobs repeat their requests.
type jobMail struct {
	waiting []waitingMail
	again   time.Time // while some wait: the latest time of their next turn
	rest    time.Duration
	// answers are the latest answers to Raise: the host half repeats an unanswered request, which must not raise twice.
	answers []jobs.Mail
	dropped uint64 // mails that found no room, or waited too long
	told    uint64 // how many of them have been logged
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
	// jobMailLogGap is the time between two log lines about dropped mails.
	jobMailLogGap = 10 * time.Second
)

// onJobs handles a request of the host half for its jobs: seed 003 §4.4.3.
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
		d.handle(now, dnpcore.RaiseEureka{Token: m.Request, Raise: express.Raise{
			Topic: express.TopicJob, Priority: express.Priority(m.Priority), Body: m.Envelope,
		}})
	case jobs.Arrive:
		a := express.Arrive{Barrier: barrierOf(m.Key), Members: m.Members, Gone: m.Gone}
		if m.Flag {
			a.Ranks = []int{m.Rank}
		}
		d.handle(now, dnpcore.ArriveAt{Arrive: a})
	case jobs.Leave:
		d.handle(now, dnpcore.LeaveBarrier{Barrier: barrierOf(m.Key)})
	default: // to the host half
	}
}

// tellJobs sends the host half a step's output for its jobs, and the mails that its mailbox refused earlier. It runs
// with every step, and costs nothing if there is no such mail.
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

// answerRaise answers a Raise, and remembers the answer. A repeated request gets the same refusal, because its caller
// may have received the first.
func (d *dnpHalf) answerRaise(now time.Time, m jobs.Mail) {
	if d.jobMail.answers = append(d.jobMail.answers, m); len(d.jobMail.answers) > maxAnswers {
		d.jobMail.answers = slices.Delete(d.jobMail.answers, 0, 1)
	}
	d.mailJobs(now, m)
}

// mailJobs sends a mail after the waiting ones.
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

// tellDropped logs dropped mails: jobs have missed eurekas.
func (d *dnpHalf) tellDropped(now time.Time) {
	k := &d.jobMail
	if k.dropped == k.told || now.Before(k.tellAt) {
		return
	}
	d.Log.Warn("the host half does not empty its mailbox: messages for jobs were dropped", "dropped", k.dropped-k.told, "waiting",
		len(k.waiting))
	k.told, k.tellAt = k.dropped, now.Add(jobMailLogGap)
}

// mailWaiting sends the waiting mails, in order, as far as the mailbox accepts them.
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

// tookJobMail reports whether a mail is done: the mailbox accepted it, or does not exist. A host half that does not run
// has no waiting jobs.
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

// barrierOf returns the name of a jobs' barrier in the torus: its hash as text, for the log.
func barrierOf(k jobs.Key) express.Barrier {
	return express.Barrier{Topic: express.TopicJob, Name: base64.RawURLEncoding.EncodeToString(k.Hash[:]), Generation: k.Generation}
}

// keyOf is the inverse of barrierOf. A name that no host half has issued has the hash 0, at which no job waits.
func keyOf(b express.Barrier) jobs.Key {
	k := jobs.Key{Generation: b.Generation}
	if hash, err := base64.RawURLEncoding.DecodeString(b.Name); err == nil && len(hash) == len(k.Hash) {
		k.Hash = [32]byte(hash)
	}
	return k
}
