package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
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

// maxRequest bounds a request, in bytes: the members of a group fault of 100,000 nodes fit.
const maxRequest = 4 << 20

const (
	// answerTime is what answers have to leave when the process is stopped.
	answerTime    = 2 * time.Second
	maxHeaderList = 16 << 10 // bytes
	// handshakeTime is what a connection has to be made; the end of the process waits for those that are being made.
	handshakeTime = 3 * time.Second
)

// Connections of its listeners. Replicas have one each; Prometheus has few.
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

	listener net.Listener
	http     *http.Server // nil: none
	server   *server
	metrics  *Metrics
	signer   *pki.Signer
	denials  *denials
	failed   chan error
	serving  sync.WaitGroup
}

// New checks all that a configuration names, and starts nothing.
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
	// Nobody else comes as far as a method.
	conf, err := pki.ServerTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return nil, err
	}
	denials, err := newDenials(cfg.TLS.CA, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	p := &Process{cfg: cfg, logger: logger, executors: executors, signer: signer, denials: denials, failed: make(chan error, 1)}
	p.grpc = grpc.NewServer(
		grpc.Creds(bounded.Credentials(denials.registry.WithTLS(conf), unlimited)), grpc.UnaryInterceptor(denials.refuse),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(1024), grpc.ConnectionTimeout(handshakeTime), grpc.MaxHeaderListSize(maxHeaderList),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	)
	return p, nil
}

// unlimited is the subject of all replicas: their connections are not counted.
func unlimited(tls.ConnectionState) string { return "" }

// Kinds are what it can do.
func (p *Process) Kinds() []response.Kind { return slices.Sorted(maps.Keys(p.executors)) }

// renewed returns the signer after a look at its files, as every handshake takes one.
func (p *Process) renewed() *pki.Signer {
	_, _ = p.signer.Renew() // else as before
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
	if p.listener, err = net.Listen("tcp", p.cfg.Listen); err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), d.close())
	}
	var seen net.Listener
	if p.cfg.HTTP != "" {
		if seen, err = net.Listen("tcp", p.cfg.HTTP); err != nil {
			return errors.Join(fmt.Errorf("http: %w", err), p.listener.Close(), d.close())
		}
	}
	reg := prometheus.NewRegistry()
	p.metrics = NewMetrics(reg, p.Kinds(), Standing{
		Token: func() float64 { return float64(d.token()) }, Running: func() float64 { return float64(p.UnderWay()) }, Remembered: func() float64 { return float64(d.remembered()) },
		Begins:  func() float64 { return float64(p.renewed().Begins().Unix()) },
		Expires: func() float64 { return float64(p.renewed().Expires().Unix()) },
	})
	p.server = newServer(p.cfg.Cluster, p.executors, p.cfg.AtOnce, d, p.metrics, p.logger)
	p.server.denials = p.denials
	d.lost = func(err error) {
		p.metrics.Failures.Inc()
		p.server.lost(err)
		p.fail(err)
	}
	lofamov1.RegisterExecutorServiceServer(p.grpc, p.server)
	h := health.NewServer()
	healthpb.RegisterHealthServer(p.grpc, h)
	p.logger.Info("serving", "listen", p.listener.Addr().String(), "kinds", p.Kinds(), "token", d.token(), "interrupted", interrupted)
	p.serving.Go(func() {
		if err := p.grpc.Serve(bounded.Listen(p.listener, bounded.Options{Limits: grpcConns})); err != nil {
			p.fail(err)
		}
	})
	if seen != nil {
		p.serveHTTP(seen, p.handler(reg))
	}
	return nil
}

// UnderWay is how many attempts are under way.
func (p *Process) UnderWay() int {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	return len(p.server.runs)
}

// Failed has why the process is of no use any more and is to be stopped, and started anew: nobody serves, or the ledger could not
// be written.
func (p *Process) Failed() <-chan error { return p.failed }

// fail keeps the first reason.
func (p *Process) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}

// Stop takes no more attempts, waits for those that are under way, within StopTimeout, and ends. Those that it ends are not known
// or ended as their executors say.
func (p *Process) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.cfg.StopTimeout))
	defer cancel()
	err := p.server.close(ctx)
	// Whoever waited has its answer, and gets it; whoever has only connected is not waited for.
	end := time.AfterFunc(answerTime, p.grpc.Stop)
	defer end.Stop()
	p.grpc.GracefulStop()
	if p.http != nil {
		err = errors.Join(err, p.http.Close())
	}
	p.serving.Wait()
	return err
}
