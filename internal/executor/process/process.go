package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response"
)

// maxRequest is the maximum size of a request, in bytes: the members of a group fault of 100,000 nodes fit.
const maxRequest = 4 << 20

const (
	// answerTime is the timeout for sending answers when the process stops.
	answerTime    = 2 * time.Second
	maxHeaderList = 16 << 10 // bytes
	// handshakeTime is the timeout of a handshake; the end of the process waits for handshakes in progress.
	handshakeTime = 3 * time.Second
)

// Connection limits of its listeners. Each replica has one connection; Prometheus has few.
var (
	grpcConns = bounded.Limits{All: 128, PerSource: 32}
	httpConns = bounded.Limits{All: 128, PerSource: 32}
)

// Process is an executor process.
type Process struct {
	cfg       Config
	logger    *slog.Logger
	grpc      *grpc.Server
	executors map[response.Kind]executor.Executor

	listener *bounded.Listener
	http     *http.Server // nil if none
	server   *server
	metrics  *Metrics
	signer   *pki.Signer
	denials  *denials
	witness  *witness // nil: no controllers are configured
	looking  context.CancelFunc
	failed   chan error
	serving  sync.WaitGroup
}

// New checks everything that a configuration names, and starts nothing.
func New(cfg Config, logger *slog.Logger) (*Process, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	executors, err := cfg.executors()
	if err != nil {
		return nil, err
	}
	signer, err := pki.LoadSigner(cfg.TLS.Cert, cfg.TLS.Key)
	if err != nil {
		return nil, err
	}
	if id := signer.Identity(); id.Role != pki.RoleExecutor || id.Cluster != cfg.Cluster {
		return nil, fmt.Errorf("tls.cert: given that of %s: want lofamo://%s/%s/NAME", id, cfg.Cluster, pki.RoleExecutor)
	}
	// Only supervisors reach a method.
	conf, err := pki.ServerTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return nil, err
	}
	denials, err := newDenials(cfg.TLS.CA, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	witness, err := newWitness(cfg.Controllers, time.Now(), logger)
	if err != nil {
		return nil, within("controllers", err)
	}
	p := &Process{cfg: cfg, logger: logger, executors: executors, signer: signer, denials: denials, witness: witness,
		failed: make(chan error, 1)}
	p.grpc = grpc.NewServer(
		grpc.Creds(bounded.Credentials(denials.registry.WithTLS(conf), unlimited)), grpc.UnaryInterceptor(denials.refuse),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(1024), grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	)
	return p, nil
}

// unlimited is the subject of all replicas: their connections are not counted.
func unlimited(tls.ConnectionState) string { return "" }

// Kinds returns the configured kinds, sorted.
func (p *Process) Kinds() []response.Kind { return slices.Sorted(maps.Keys(p.executors)) }

// renewed returns the signer after re-reading its files, as every handshake does.
func (p *Process) renewed() *pki.Signer {
	_, _ = p.signer.Renew() // on failure the old one stays
	return p.signer
}

// Start reads the ledger and serves.
func (p *Process) Start() error {
	if err := failpoint.ArmAtStart(p.cfg.StateDir, "executor"); err != nil {
		return err
	}
	d, interrupted, err := open(p.cfg.StateDir, p.cfg.Cluster, time.Now())
	if err != nil {
		return err
	}
	if err := p.denials.open(p.cfg.StateDir, p.cfg.Cluster, p.logger); err != nil {
		return errors.Join(err, d.close())
	}
	if p.listener, err = bounded.ListenTCP(p.cfg.Listen, bounded.Options{Limits: grpcConns, Log: p.logger}); err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), d.close())
	}
	var seen *bounded.Listener
	if p.cfg.HTTP != "" {
		if seen, err = bounded.ListenTCP(p.cfg.HTTP, bounded.Options{Limits: httpConns, Log: p.logger}); err != nil {
			return errors.Join(fmt.Errorf("http: %w", err), p.listener.Close(), d.close())
		}
	}
	reg := prometheus.NewRegistry()
	p.metrics = NewMetrics(reg, p.Kinds(), Standing{
		Token: func() float64 { return float64(d.token()) }, Running: func() float64 { return float64(p.UnderWay()) },
		Remembered: func() float64 { return float64(d.remembered()) },
		Begins:     func() float64 { return float64(p.renewed().Begins().Unix()) },
		Expires:    func() float64 { return float64(p.renewed().Expires().Unix()) },

		Controllers: p.witness.counts,
	})
	p.server = newServer(p.cfg.Cluster, p.executors, p.cfg.AtOnce, d, p.metrics, p.logger)
	p.server.denials, p.server.witness = p.denials, p.witness
	d.lost = func(err error) {
		p.metrics.Failures.Inc()
		p.server.lost(err)
		p.fail(err)
	}
	lofamov1.RegisterExecutorServiceServer(p.grpc, p.server)
	h := health.NewServer()
	healthpb.RegisterHealthServer(p.grpc, h)
	if err := p.cfg.Interpreters(); err != nil {
		p.logger.Warn("the configuration is accepted because earlier versions accepted it; 'lofamo-executor config check' refuses it", "err", err)
	}
	p.logger.Info("serving", "listen", p.listener.Addr().String(), "kinds", p.Kinds(), "token", d.token(), "interrupted", interrupted)
	if p.witness != nil {
		var ctx context.Context
		ctx, p.looking = context.WithCancel(context.Background())
		p.serving.Go(func() { p.witness.Run(ctx) })
	}
	p.serving.Go(func() {
		if err := p.grpc.Serve(p.listener); err != nil {
			p.fail(err)
		}
	})
	if seen != nil {
		p.serveHTTP(seen, p.handler(reg))
	}
	return nil
}

// UnderWay returns the number of attempts in progress.
func (p *Process) UnderWay() int {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	return len(p.server.runs)
}

// Failed receives the reason why the process must be restarted: a listener has failed, or the ledger could not be
// written.
func (p *Process) Failed() <-chan error { return p.failed }

// fail keeps the first reason.
func (p *Process) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}

// Stop takes no more attempts, waits up to StopTimeout for those in progress, and ends. Attempts that it ends are
// NotKnown, or have the outcome that their executors report.
func (p *Process) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.cfg.StopTimeout))
	defer cancel()
	if p.looking != nil {
		p.looking()
	}
	err := p.server.close(ctx)
	// Give waiting callers time to receive their answers; idle connections are not waited for.
	end := time.AfterFunc(answerTime, p.grpc.Stop)
	defer end.Stop()
	p.grpc.GracefulStop()
	if p.http != nil {
		err = errors.Join(err, p.http.Close())
	}
	p.serving.Wait()
	return err
}
