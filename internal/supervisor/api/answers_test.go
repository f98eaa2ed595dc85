package api

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
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

// long is a service with long lists of events, which reports each one that it builds.
type long struct {
	lofamov1.UnimplementedFaultSupervisorServer

	built chan struct{}
}

func (l *long) ListEvents(context.Context, *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	l.built <- struct{}{}
	return &lofamov1.ListEventsResponse{Events: []*lofamov1.Event{{Reason: strings.Repeat("x", answerShare)}}}, nil
}

// answering is a TLS server of long lists.
type answering struct {
	long

	ca   *pki.CA
	dir  string
	addr string
}

func serveAnswers(t *testing.T, set func(*admission)) *answering {
	t.Helper()
	s := &answering{long: long{built: make(chan struct{}, 1024)}, dir: t.TempDir()}
	var err error
	if s.ca, err = pki.NewCA("c"); err != nil {
		t.Fatal(err)
	}
	if err := s.ca.Save(s.path("ca.pem"), s.path("ca.key")); err != nil {
		t.Fatal(err)
	}
	s.issue(t, pki.RoleSupervisor, "s0")
	conf, err := pki.ServerTLS(s.path("s0.pem"), s.path("s0.key"), s.path("ca.pem"), pki.AllowRoles(Callers()...))
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(ServerConfig{TLS: conf, Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		MaxMessage: 16 << 20})
	set(srv.admission)
	lofamov1.RegisterFaultSupervisorServer(srv, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return s
}

func (s *answering) path(name string) string { return filepath.Join(s.dir, name) }

func (s *answering) issue(t *testing.T, role pki.Role, name string) {
	t.Helper()
	id := pki.Identity{Cluster: "c", Role: role, Name: name}
	if err := s.ca.IssueTo(s.path(name+".pem"), s.path(name+".key"), id, []net.IP{net.IPv4(127, 0, 0, 1)}, nil); err != nil {
		t.Fatal(err)
	}
}

// connect returns a connection of a new viewer, whose window is small.
func (s *answering) connect(t *testing.T, name string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	s.issue(t, pki.RoleViewer, name)
	conf, err := pki.ClientTLS(s.path(name+".pem"), s.path(name+".key"), s.path("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+s.addr, append(opts, grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unread calls ListEvents, and does not read the answer.
func unread(ctx context.Context, t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, lofamov1.FaultSupervisor_ListEvents_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(new(lofamov1.ListEventsRequest)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAnswersThatAreNotReadAreBounded: a viewer that reads no answers gets a limited number of bytes built. The others of its calls
// are refused until it cancels some, and another viewer is served.
func TestAnswersThatAreNotReadAreBounded(t *testing.T) {
	const most, more = answerBytes / answerShare, 8
	s := serveAnswers(t, func(a *admission) { a.answerWait = 50 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	conn := s.connect(t, "ann")
	unreadTime, forget := context.WithCancel(ctx)
	defer forget()
	for range most {
		unread(unreadTime, t, conn)
		select {
		case <-s.built:
		case <-ctx.Done():
			t.Fatal("no answer was built")
		}
	}
	for range more {
		err := unread(ctx, t, conn).RecvMsg(new(lofamov1.ListEventsResponse))
		refused(t, "a call beyond the limit", err, codes.ResourceExhausted, "viewer/ann leave no room: read them")
	}
	if n := len(s.built); n > 0 {
		t.Errorf("%d answers were built beyond the limit of %d", n, most)
	}
	if _, err := lofamov1.NewFaultSupervisorClient(s.connect(t, "bob")).ListEvents(ctx, new(lofamov1.ListEventsRequest)); err != nil {
		t.Errorf("another viewer: %v", err)
	}
	forget()
	err := status.Error(codes.ResourceExhausted, "")
	for status.Code(err) == codes.ResourceExhausted && ctx.Err() == nil { // each try waits for room
		_, err = lofamov1.NewFaultSupervisorClient(conn).ListEvents(ctx, new(lofamov1.ListEventsRequest))
	}
	if err != nil {
		t.Errorf("after the others were cancelled: %v", err)
	}
}

// ending is a client's connection that reports its end.
type ending struct {
	net.Conn
	ended chan struct{}
}

func (e *ending) Close() error {
	select {
	case e.ended <- struct{}{}:
	default:
	}
	return e.Conn.Close()
}

// TestClientThatTakesNoAnswerLosesItsConnection: the time to take an answer ends.
func TestClientThatTakesNoAnswerLosesItsConnection(t *testing.T) {
	s := serveAnswers(t, func(a *admission) { a.takeTime = 50 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	ended := make(chan struct{}, 1)
	unread(ctx, t, s.connect(t, "ann", grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		return &ending{c, ended}, err
	})))
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the connection is still open")
	}
}
