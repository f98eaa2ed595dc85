package supervisortest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
)

// Etcd is the embedded etcd of a cluster without the rest of its replicas.
type Etcd struct {
	Members []*embedded.Member // nil: stopped
	configs []config.Supervisor
}

// NewEtcd starts the given number of members and waits until they have a quorum. They stop with the test.
func NewEtcd(t testing.TB, members int) *Etcd {
	t.Helper()
	e := &Etcd{Members: make([]*embedded.Member, members), configs: New(t, Options{Dims: "2x1x1", Replicas: members}).Configs}
	for i := range members {
		e.Start(t, i)
	}
	t.Cleanup(func() {
		for i := range e.Members {
			e.Stop(t, i)
		}
	})
	e.AwaitQuorum(t, 0)
	return e
}

// Start starts a member; it does not wait for the others.
func (e *Etcd) Start(t testing.TB, i int) {
	t.Helper()
	cfg := e.configs[i]
	m, err := embedded.Start(embedded.Config{
		DataDir: cfg.DataDir, Name: cfg.ID, PeerURL: cfg.Etcd.PeerURL, ClientURL: cfg.Etcd.ClientURL,
		InitialCluster: cfg.Etcd.InitialCluster, ClusterState: cfg.Etcd.ClusterState, Token: "test",
		CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key, CAFile: cfg.TLS.CA,
		AllowClient: nobodyUnary, AllowStream: nobodyStream,
		Retention: time.Hour, QuotaBytes: cfg.Etcd.QuotaBytes, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	e.Members[i] = m
}

// Stop stops a member, if it runs.
func (e *Etcd) Stop(t testing.TB, i int) {
	t.Helper()
	if m := e.Members[i]; m != nil {
		e.Members[i] = nil
		if err := m.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// AwaitQuorum waits until a member answers with a quorum.
func (e *Etcd) AwaitQuorum(t testing.TB, i int) {
	t.Helper()
	Eventually(t, "a quorum", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := e.Members[i].Client().Get(ctx, "x")
		return err == nil
	})
}

func nobodyUnary(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
	return nil, grpc.ErrServerStopped
}

func nobodyStream(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
	return grpc.ErrServerStopped
}
