package supervisor

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
)

// readiness holds the monitor's newest findings.
type readiness struct {
	store atomic.Bool               // the store answers with a quorum
	heard atomic.Pointer[time.Time] // when it last did so, by the monotonic clock; nil: never since the start
	round atomic.Pointer[time.Time] // end of the monitor's last round, by the monotonic clock; nil: none
}

// answers records whether the store has answered.
func (r *readiness) answers(ok bool) {
	r.store.Store(ok)
	if ok {
		now := time.Now()
		r.heard.Store(&now)
	}
}

// quorumAge returns the time since the store last answered with a quorum; -1: never since the start.
func (r *readiness) quorumAge() time.Duration {
	at := r.heard.Load()
	if at == nil {
		return -1
	}
	return time.Since(*at)
}

// noQuorum returns for how long the store has not answered with a quorum. 0: it does; -1: never since the start.
func (r *readiness) noQuorum() time.Duration {
	if r.store.Load() {
		return 0
	}
	return r.quorumAge()
}

// The monitor's periods.
const (
	probePeriod = time.Second
	probeTime   = 800 * time.Millisecond
	syncProbes  = 5 // probes between two reads of etcd's own metrics, or of the disk's free space
)

// monitor keeps the health services up to date.
func (s *Supervisor) monitor(ctx context.Context) {
	t := time.NewTicker(probePeriod)
	defer t.Stop()
	var syncs syncs
	var sync time.Duration
	var low durable.Low
	var gone bool
	var disk []string
	for n := 0; ; n++ {
		var known notify.Known
		if s.notifier != nil {
			known = s.notifier.Claimed() // before the store states its revision
		}
		pctx, cancel := context.WithTimeout(ctx, probeTime)
		revision, err := s.store.Revision(pctx)
		rolled := s.checkRollback(pctx, known, revision)
		cancel()
		s.engine.ready.answers(err == nil)
		own := s.store.refusals.alarms(time.Now())
		if s.store.member != nil {
			if own = s.store.member.Alarms(); n%syncProbes == 0 {
				sync = syncs.mean(prometheus.DefaultGatherer)
			}
		}
		if n%syncProbes == 0 {
			disk = append(s.diskLow(&low), s.dataGone(&gone)...)
		}
		words := slices.Concat(complaints(err == nil, own, sync, s.term().Committing()), disk, s.noRoom(), rolled)
		if s.federation.parent != nil {
			words = append(words, regionsCut(s.federation.parent.Regions())...)
		}
		if s.respond.responder != nil {
			words = append(words, responsesTroubled(s.respond.responder.Trouble())...)
		}
		s.metrics.alarms.set(words)
		_, changed := s.store.observer.Leader()
		held := s.store.member != nil && s.store.member.Held()
		s.setHealth(api.HealthStore, err == nil && !held && !slices.Contains(own, etcdserverpb.AlarmType_NOSPACE))
		s.setHealth(api.HealthRoom, s.store.member == nil || !s.store.member.Short())
		s.setHealth(api.HealthLeader, s.leads())
		// A replica serves even without a quorum: it marks its answers with their age.
		s.setHealth("", true)
		s.setHealth(lofamov1.FaultSupervisor_ServiceDesc.ServiceName, true)
		now := time.Now()
		s.engine.ready.round.Store(&now)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-t.C:
		}
	}
}

// Round returns the end of the last round of the loop that probes store, alarms and election every probePeriod, with
// or without a quorum. If it is long ago, the replica hangs. Zero before Start.
func (s *Supervisor) Round() time.Time {
	if at := s.engine.ready.round.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// leads reports whether this replica leads, by its own term and by the election.
func (s *Supervisor) leads() bool {
	return s.leader() == s.cfg.ID && s.term().Leading()
}

func (s *Supervisor) setHealth(service string, ok bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.api.health.SetServingStatus(service, st)
}

// publishRetry is the pause after the store failed to take this replica's entry.
const publishRetry = time.Second

// publish stores this replica's own entry for the other replicas, as soon as the store accepts it.
func (s *Supervisor) publish(ctx context.Context) {
	self := &lofamov1.Supervisor{Id: s.self.ID, Address: s.self.GRPC, ReportAddress: s.self.Report, HttpAddress: s.self.HTTP,
		Web: strings.TrimSuffix(s.self.Web, "/")}
	if s.store.member != nil {
		self.EtcdMember = s.store.member.ID()
	}
	if s.cfg.LocalPID {
		self.Pid = int32(os.Getpid())
	}
	for {
		pctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.store.PutSupervisor(pctx, self)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(publishRetry):
		}
	}
}

// handler serves metrics and health.
func (s *Supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	// The embedded etcd registers its metrics, Go's and the process' with the default registry.
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{s.metrics.registry, prometheus.DefaultGatherer},
		promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		var missing []string
		if !s.engine.ready.store.Load() {
			missing = append(missing, "the store does not answer with a quorum")
		}
		if s.leader() == "" {
			missing = append(missing, "no leader is known")
		}
		if len(missing) > 0 {
			http.Error(w, strings.Join(missing, "\n"), http.StatusServiceUnavailable)
			return
		}
		ok(w)
	})
	return mux
}

func ok(w http.ResponseWriter) { _, _ = fmt.Fprintln(w, "ok") }

// directory is the API's view of the replicas.
type directory struct{ s *Supervisor }

func (d *directory) Leader() string { return d.s.leader() }

func (d *directory) Conn(id string) *grpc.ClientConn { return d.s.engine.peers.Conn(id) }

// Supervisors implements api.Directory. A replica's own entry takes precedence over the configuration. The election
// names a dead leader until its lease ends, and without a quorum for ever.
func (d *directory) Supervisors(context.Context) []*lofamov1.Supervisor {
	leader := d.s.leader()
	var out []*lofamov1.Supervisor
	for _, r := range d.s.engine.replicas.all() {
		sup := proto.CloneOf(r)
		sup.Leader = d.s.engine.ready.store.Load() && sup.GetId() == leader
		if sup.GetId() == d.s.cfg.ID {
			sup.State, sup.Alarms = lofamov1.State_NORMAL, d.s.metrics.alarms.get()
			if age := d.s.engine.ready.quorumAge(); age >= 0 && !d.s.engine.ready.store.Load() {
				sup.QuorumAge = durationpb.New(age)
			}
		} else {
			sup.State = d.s.engine.peers.State(sup.GetId())
			sup.Leader = sup.GetLeader() && sup.GetState() != lofamov1.State_FAILED
		}
		out = append(out, sup)
	}
	return out
}
