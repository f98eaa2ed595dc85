// Package processtest provides an executor process with certificates, a ledger and supervisors for tests.
package processtest

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// bound is the time limit to reach a process, which may stall for seconds on a busy machine.
const bound = 20 * time.Second

// Cluster is the name of the cluster.
const Cluster = "test"

// Fixture holds the files and configuration of an executor process.
type Fixture struct {
	Dir    string
	Config process.Config // with a ledger, and no executors configured
	CA     *pki.CA
}

// New creates the certificates and the ledger.
func New(t testing.TB) *Fixture {
	t.Helper()
	ca, err := pki.NewCA(Cluster)
	if err != nil {
		t.Fatal(err)
	}
	f := &Fixture{Dir: t.TempDir(), CA: ca, Config: process.Default()}
	must(t, ca.Save(f.path("ca.pem"), f.path("ca.key")))
	f.Config.Cluster, f.Config.Listen, f.Config.StateDir = Cluster, freeport.Addr(t).String(), f.path("state")
	f.Config.TLS = f.Certificate(t, pki.RoleExecutor)
	f.Config.StopTimeout = config.Duration(5 * time.Second)
	_, err = process.Init(f.Config.StateDir, Cluster, false, time.Now().Add(-time.Hour))
	must(t, err)
	return f
}

func (f *Fixture) path(name string) string { return filepath.Join(f.Dir, name) }

// Certificate issues a certificate for a role.
func (f *Fixture) Certificate(t testing.TB, role pki.Role) config.SupervisorTLS {
	t.Helper()
	c := config.SupervisorTLS{CA: f.path("ca.pem"), Cert: f.path(string(role) + ".pem"), Key: f.path(string(role) + ".key")}
	must(t, f.CA.IssueTo(c.Cert, c.Key, pki.Identity{Cluster: Cluster, Role: role, Name: "x0"}, []net.IP{freeport.IP().AsSlice()}, nil))
	return c
}

// Start runs the executor process inside the test process until the end of the test or a call of stop.
func (f *Fixture) Start(t testing.TB) (stop func()) {
	t.Helper()
	p, err := process.New(f.Config, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must(t, err)
	must(t, p.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := p.Stop(); err != nil {
			t.Errorf("stop the executor process: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// Supervisor returns the executor of a supervisor that reaches the process at an address.
func (f *Fixture) Supervisor(t testing.TB, address string) *executor.Remote {
	t.Helper()
	x, err := executor.NewRemote(config.ExecutorClient{Address: address, DialTimeout: config.Duration(bound),
		SettleTimeout: config.Duration(bound)}, Cluster,
		f.Certificate(t, pki.RoleSupervisor), nil)
	must(t, err)
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// Job returns an attempt at a step of a response, for node n1.
func Job(kind response.Kind, token uint64, id string, step, attempt int, parameters map[string]string) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: id, Step: step,
				Attempt: attempt}, Kind: kind, Token: token, IdempotencyKey: id, Timeout: time.Minute,
			Target: response.Target{Node: "n1", Component: fault.ComponentHost}, Parameters: parameters,
		},
		Cluster: Cluster, Policy: "p", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseHost, Since: time.Unix(1700000000, 0),
			Detail: "silent"},
	}
}

// Do makes an attempt with its timeout.
func Do(t testing.TB, x executor.Executor, j executor.Job) executor.Result {
	ctx, cancel := context.WithTimeout(t.Context(), j.Timeout)
	defer cancel()
	return x.Do(ctx, j)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
