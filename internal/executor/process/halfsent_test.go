package process_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestHalfSentRequestsKeepNoSupervisorOut holds 200 connections to each TCP address of an executor process, with the
// beginning of a handshake or of a request. A supervisor at the same address still acts, health is still served, and
// the process closes all connections beyond the share of one source.
func TestHalfSentRequestsKeepNoSupervisorOut(t *testing.T) {
	t.Parallel()
	const conns, share = 200, 32
	b := newBench(t)
	b.Config.HTTP = freeport.Addr(t).String()
	b.Start(t)
	for _, tc := range []struct {
		name, addr, half string
		ask              func(context.Context)
	}{
		{"grpc", b.Config.Listen, "\x16\x03\x01", func(context.Context) {
			want(t, processtest.Do(t, b.Supervisor(t, b.Config.Listen), job(5, "r", 1)), response.Succeeded, "exit code 0")
		}},
		{"http", b.Config.HTTP, "GET / HTTP/1.1\r\nX: ", func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Config.HTTP+"/healthz", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("an honest request failed: %v", err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("an honest request got %s", resp.Status)
			}
		}},
	} {
		var open atomic.Int64
		for range conns {
			c, err := net.Dial("tcp", tc.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = io.WriteString(c, tc.half) // fails if the process has closed the connection already
			open.Add(1)
			go func() {
				_, _ = io.Copy(io.Discard, c)
				open.Add(-1)
			}()
		}
		tc.ask(t.Context())
		for deadline := time.Now().Add(time.Minute); open.Load() > share; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d of %d half-sent requests are open: want at most %d", tc.name, open.Load(), conns, share)
			}
		}
	}
}
