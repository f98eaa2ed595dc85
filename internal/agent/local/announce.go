package local

import (
	"context"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Announcements of supervisors to jobs (eurekas of responses). The broadcast carries the supervisor's own envelope,
// so that every node verifies it and only a supervisor can announce. It is for all jobs. Each job receives it once,
// however often and by whichever node it was raised.

// announceTopic is the topic of supervisors' announcements.
const announceTopic = "lofamo"

// maxAnnounced bounds the remembered announcements, one for each step of a response.
const maxAnnounced = 256

// Announce raises a supervisor's announcement in the torus, and informs the jobs here. It returns the number of links
// that it leaves by.
func (s *Server) Announce(ctx context.Context, o *lofamov1.ActOrder, supervisor string, envelope []byte) (links uint8, err error) {
	if o.GetKind() != actions.KindEureka {
		return 0, fmt.Errorf("kind %s: want %s", o.GetKind(), actions.KindEureka)
	}
	if n := len(envelope); n > jobs.MaxEnvelope {
		return 0, fmt.Errorf("the order has %d bytes: a broadcast takes %d", n, jobs.MaxEnvelope)
	}
	number, answer, err := s.eurekas.begin(time.Now(), 0, s.half.SinceBoot())
	if err != nil {
		return 0, err
	}
	defer s.eurekas.finish(number)
	if links, err = s.post(ctx, jobs.Mail{Kind: jobs.Raise, Request: number, Priority: servicenet.MaxEurekaUrgency, Envelope: envelope},
		answer); err != nil {
		return 0, err
	}
	s.Announced(o, supervisor)
	return links, nil
}

// Announced handles a supervisor's verified announcement that another node has raised. It does not block.
func (s *Server) Announced(o *lofamov1.ActOrder, supervisor string) {
	if o.GetKind() == actions.KindEureka {
		s.eurekas.announce(o, supervisor)
	}
}

func (e *eurekas) announce(o *lofamov1.ActOrder, supervisor string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	owner := actions.FromWire(o)
	if key := owner.Owner(); slices.Contains(e.announced, key) {
		return
	} else if e.announced = append(e.announced, key); len(e.announced) > maxAnnounced {
		e.announced = slices.Delete(e.announced, 0, 1)
	}
	for l := range e.listeners {
		l.add(&lofamov1.Eureka{
			Job: l.job, Topic: announceTopic, Body: []byte(owner.Parameters["text"]), Node: o.GetNode(), Priority: servicenet.MaxEurekaUrgency,
			Supervisor: supervisor, Target: o.GetTarget(), Response: o.GetResponse(),
		})
	}
}
