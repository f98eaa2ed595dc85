package bounded_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/lofamo/lofamo/internal/bounded"
)

const wait = time.Minute

func TestCallsAreCountedUntilTheirEnd(t *testing.T) {
	c := bounded.NewCalls(bounded.CallLimits[string]{
		May: func(_ string, mine, all int) bool { return mine < 2 && all < 3 }, Requests: 1, Bytes: 10,
	})
	enter := func(subject string, want bool) context.CancelFunc {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if _, ok := c.Enter(ctx, subject); ok != want {
			t.Errorf("another call of %s: %t", subject, ok)
		}
		return cancel
	}
	enter("a", true)
	end := enter("a", true)
	enter("a", false)
	enter("b", true)
	enter("b", false)
	end()
	for deadline := time.Now().Add(wait); c.Len() == 3; {
		if time.Now().After(deadline) {
			t.Fatal("a call that has ended still counts")
		}
	}
	enter("b", true)
}

// A request waits for its subject's place and for memory, but not for longer than its time.
func TestRequestWaitsForRoom(t *testing.T) {
	c := bounded.NewCalls(bounded.CallLimits[string]{May: func(string, int, int) bool { return true }, Requests: 1, Bytes: 10})
	receive := func(subject string, bytes int64, within time.Duration, read func() error) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ctx, _ = c.Enter(ctx, subject)
		return c.Receive(ctx, bytes, within, read)
	}
	none := func() error { return nil }
	reads, goes, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- receive("a", 6, wait, func() error { close(reads); <-goes; return nil })
	}()
	<-reads
	if err := receive("a", 1, time.Millisecond, none); !errors.Is(err, bounded.ErrSlow) {
		t.Errorf("the second request of a subject that may send one: %v", err)
	}
	if err := receive("b", 6, time.Millisecond, none); !errors.Is(err, bounded.ErrSlow) {
		t.Errorf("more bytes than there is room for: %v", err)
	}
	for _, bytes := range []int64{4, 0} {
		if err := receive("b", bytes, wait, none); err != nil {
			t.Errorf("%d bytes of another subject: %v", bytes, err)
		}
	}
	close(goes)
	if err := <-done; err != nil {
		t.Errorf("the first request: %v", err)
	}
	if err := receive("b", 10, wait, none); err != nil {
		t.Errorf("a request after the others: %v", err)
	}
}

// A refused call gets the tap's error, with or without a deadline, and a context that gRPC cancels.
func TestRefusedCallLeavesNothingBehind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	timed := make(chan context.Context, 2)
	refuse := func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		if _, ok := ctx.Deadline(); ok {
			timed <- ctx
		}
		return bounded.Refuse(ctx, status.Error(codes.ResourceExhausted, "too many"))
	}
	receive := func(_ context.Context, method string, m any, read func(any) error) (func(), error) {
		t.Errorf("%s is read", method)
		return func() {}, read(m)
	}
	s := grpc.NewServer(grpc.InTapHandle(refuse), grpc.StreamInterceptor(bounded.Streams(receive)))
	s.RegisterService(bounded.Service(&healthpb.Health_ServiceDesc, receive), health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), long} {
		client := healthpb.NewHealthClient(conn)
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("call: %v", err)
		}
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("stream: %v", err)
		}
	}
	for range 2 {
		select {
		case <-(<-timed).Done():
		case <-time.After(wait):
			t.Fatal("the context of a refused call lives on")
		}
	}
}
