package client

import (
	"context"
	"errors"
	"time"
)

// Contact says that the last answering supervisor was lost and no other one was found, or that one answers again.
type Contact struct {
	Lost       bool
	Since      time.Time // when a supervisor last answered
	Supervisor string    // which one: the last, or the one that answers again
}

// blindAfter is the time without an answer of any supervisor after which a view of them is blind.
const blindAfter = 1500 * time.Millisecond

// contactSilence is the silence after which Contact looks for another supervisor.
const contactSilence = time.Second

// Contact calls report after 1.5 s without an answer of any supervisor, and when one answers again. It returns when ctx ends. In between, a
// live view must say that it is blind. Contact begins as if a supervisor had just answered, and asks one only after 0.5 s of its silence.
func (c *Client) Contact(ctx context.Context, report func(Contact)) {
	last, seen, lost := c.start(), time.Now(), false
	for rounds := 0; ctx.Err() == nil; rounds++ {
		limit := blindAfter - time.Since(seen)
		if lost {
			limit = time.Minute
		}
		finding, cancel := context.WithTimeout(ctx, limit)
		i, err := c.find(c.start(), listSupervisors).next(finding)
		var none *NoAnswerError
		switch {
		case ctx.Err() != nil:
		case err == nil, finding.Err() == nil && !errors.As(err, &none): // a refusal is an answer
			if last = i; lost {
				report(Contact{Since: seen, Supervisor: c.cfg.Targets[i]})
			}
			lost, rounds = false, 0
			_ = c.untilSilent(ctx, i, contactSilence)
			seen = c.heardAt(i)
		case !lost && finding.Err() != nil:
			lost, rounds = true, 0
			report(Contact{Lost: true, Since: seen, Supervisor: c.cfg.Targets[last]})
		default:
			_ = pause(finding, rounds)
		}
		cancel()
	}
}
