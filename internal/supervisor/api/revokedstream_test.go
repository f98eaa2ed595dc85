package api

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// twice receives two messages, the second after its caller's certificate was revoked.
type twice struct {
	lofamov1.UnimplementedReplicaServer

	first, known chan struct{}
	second       chan error
}

func (x *twice) Forward(stream lofamov1.Replica_ForwardServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	close(x.first)
	<-stream.Context().Done()
	close(x.known)
	_, err := stream.Recv()
	x.second <- err
	return err
}

// TestRevokedCallerIsNotReceivedFrom: messages that a supervisor sends on an open stream after the revocation of its
// certificate are dropped.
func TestRevokedCallerIsNotReceivedFrom(t *testing.T) {
	ca, err := pki.NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := ca.Save(path("ca.pem"), path("ca.key")); err != nil {
		t.Fatal(err)
	}
	thief := pki.Identity{Cluster: "c", Role: pki.RoleSupervisor, Name: "s1"}
	for _, id := range []pki.Identity{thief, {Cluster: "c", Role: pki.RoleSupervisor, Name: "s0"}} {
		if err := ca.IssueTo(path(id.Name+".pem"), path(id.Name+".key"), id, []net.IP{net.IPv4(127, 0, 0, 1)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	server, err := pki.ServerTLS(path("s0.pem"), path("s0.key"), path("ca.pem"), pki.AllowRoles(Callers()...))
	if err != nil {
		t.Fatal(err)
	}
	client, err := pki.ClientTLS(path("s1.pem"), path("s1.key"), path("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	r := pki.NewRegistry()
	srv := NewServer(ServerConfig{TLS: r.WithTLS(server), Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		MaxMessage: 1 << 20, Revoked: r})
	x := &twice{first: make(chan struct{}), known: make(chan struct{}), second: make(chan error, 1)}
	lofamov1.RegisterReplicaServer(srv, x)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(client)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := lofamov1.NewReplicaClient(conn).Forward(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(new(lofamov1.ForwardRequest)); err != nil {
		t.Fatal(err)
	}
	<-x.first
	r.Set([]pki.Denial{{Identity: thief, Before: pki.CutOff(time.Now())}})
	<-x.known
	if err := stream.Send(new(lofamov1.ForwardRequest)); err != nil {
		t.Fatal(err)
	}
	if err := <-x.second; err == nil {
		t.Error("a message that came after the revocation was received")
	}
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the stream ends with %v: want PermissionDenied", err)
	}
}
