package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// start serves metrics and health over HTTP, unless the configuration has no HTTP address.
func (p *metricsPart) start(s *Supervisor) error {
	if s.listeners.http == nil {
		return nil
	}
	s.observe()
	p.server, p.served = bounded.HTTPServer(s.handler()), make(chan struct{})
	go func() {
		defer close(p.served)
		if err := p.server.Serve(s.listeners.http); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("HTTP service on %s: %w", s.cfg.HTTP, err))
		}
	}()
	return nil
}

// stop lets running requests end.
func (p *metricsPart) stop(ctx context.Context) error {
	if p.server == nil {
		return nil
	}
	err := p.server.Shutdown(ctx)
	<-p.served
	return err
}

// observe registers the metrics that are computed on each scrape.
func (s *Supervisor) observe() {
	s.metrics.registry.MustRegister(metrics.Collectors(metrics.Replica{
		Map:       func() (view.Map, bool) { return s.term().Committed() },
		Incidents: s.api.Incidents,
		Leader:    s.leader,
		QuorumAge: func() float64 {
			if age := s.engine.ready.quorumAge(); age >= 0 {
				return age.Seconds()
			}
			return -1
		},
		Discounting: func() bool { return s.engine.Leading() && s.engine.Discounting() },
		Begins:      s.signer.Begins,
		Expires:     s.expires,
		Replicas:    s.replicasUp,
		Oversized:   func() uint64 { return s.socketSum(func(st direct.Stats) uint64 { return st.Oversized }) },
		Dropped:     func() uint64 { return s.socketSum(func(st direct.Stats) uint64 { return st.Dropped }) },
	})...)
}

// socketSum adds up a count of datagrams that arrive at the report addresses but never reach the intake.
func (s *Supervisor) socketSum(of func(direct.Stats) uint64) (n uint64) {
	for _, socket := range s.listeners.sockets {
		n += of(socket.Stats())
	}
	return n
}

// replicasUp reports for each replica whether this one reaches it. The replica itself counts as reached.
func (s *Supervisor) replicasUp() map[string]bool {
	out := make(map[string]bool)
	for _, r := range s.engine.replicas.all() {
		out[r.GetId()] = r.GetId() == s.cfg.ID || s.engine.peers.State(r.GetId()) == lofamov1.State_NORMAL
	}
	return out
}

// promised returns the bounds that follow from the periods.
func (s *Supervisor) promised() metrics.Bounds {
	p := s.periods
	return metrics.Bounds{Half: p.HalfBound(), DPUHalf: p.DPUHalfBound(), Node: p.NodeBound(), SingleNode: p.SingleBound()}
}
