package agent

import (
	"encoding/base64"
	"errors"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// onJobs takes what the host half asks for its jobs: seed 003 §4.4.3.
func (d *dnpHalf) onJobs(payload []byte) {
	m, err := jobs.DecodeMail(payload)
	if err != nil {
		d.step(dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: watchdog.RDMAMailboxBad})
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch m.Kind {
	case jobs.Raise:
		if d.core.ExpressLinks() == 0 {
			d.mailJobs(jobs.Mail{Kind: jobs.Taken, Request: m.Request, Result: jobs.NoLinks})
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

// tellJobs passes on to the host half what a step says for its jobs. What its mailbox does not take is lost: of barriers it asks again, and eurekas are not
// promised to a half that does not run.
func (d *dnpHalf) tellJobs(out *dnpcore.Output) {
	for _, r := range out.EurekasRaised {
		d.mailJobs(jobs.Mail{Kind: jobs.Taken, Request: r.Token, Result: resultOf(r.Err), Links: uint8(d.core.ExpressLinks())})
	}
	for i := range out.Eurekas {
		if n := len(out.Eurekas[i].Body); n > 0 && n <= jobs.MaxEnvelope {
			d.mailJobs(jobs.Mail{Kind: jobs.Delivered, Envelope: out.Eurekas[i].Body})
		}
	}
	for i := range out.Barriers {
		d.mailJobs(d.statusOf(&out.Barriers[i]))
	}
}

func (d *dnpHalf) mailJobs(m jobs.Mail) {
	_ = d.box.Send(mailbox.Message{Type: mailbox.Jobs, Payload: m.Append(nil)})
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
