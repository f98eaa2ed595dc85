package supervisor_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestHalfSentRequestsKeepNobodyOut holds 600 connections with half a request open at each TCP address of a
// supervisor, and reopens those that the supervisor closes. All other clients still get answers, from the same
// address and from another.
func TestHalfSentRequestsKeepNobodyOut(t *testing.T) {
	c := supervisortest.New(t, supervisortest.Options{Web: true})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t, 0)
	get := func(url string) func(context.Context, *net.Dialer) error {
		return func(ctx context.Context, d *net.Dialer) error {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.DialContext}}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			return err
		}
	}
	for _, tc := range []struct {
		name, addr, half string
		share            int // connections of one source
		ask              func(context.Context, *net.Dialer) error
	}{
		{"web", cfg.Web.Listen, "GET / HTTP/1.1\r\nHost: x\r\nX: ", 128, get("http://" + cfg.Web.Listen + "/api/address")},
		{"http", cfg.HTTP, "GET / HTTP/1.1\r\nHost: x\r\nX: ", 32, get("http://" + cfg.HTTP + "/healthz")},
		{"grpc", cfg.GRPC, "\x16\x03\x01", 256, func(ctx context.Context, _ *net.Dialer) error {
			conn := c.Conn(t, pki.RoleViewer, cfg.GRPC)
			_, err := lofamov1.NewFaultSupervisorClient(conn).ListSupervisors(ctx, &lofamov1.ListSupervisorsRequest{})
			_ = conn.Close() // a subject may have 64
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// On a machine of any speed, fewer connections begin during one honest request than one source may have. More would evict it.
			// After a pause all holders wait at once. So each request releases a quarter of a share at most, and the channel keeps no more.
			pace := make(chan struct{}, tc.share/4)
			stop := halfSent(t, tc.addr, tc.half, 600, pace)
			defer stop()
			for _, from := range []string{"127.0.0.1", "127.0.0.9"} {
				d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				asked, failed, worst := 0, 0, time.Duration(0)
				// At least 200 requests, so that one that fails for lack of a processor stays within the limit.
				for end := time.Now().Add(2 * time.Second); time.Now().Before(end) || asked < 200 && failed < 10 && time.Since(end) < time.Minute; {
					asked++
					for range cap(pace) {
						select {
						case pace <- struct{}{}:
						default:
						}
					}
					begin := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // only a refusal is as long, or a machine that stands still
					if err := tc.ask(ctx, d); err != nil {
						if failed == 0 {
							t.Logf("from %s: %v", from, err)
						}
						failed++
					}
					cancel()
					worst = max(worst, time.Since(begin))
				}
				t.Logf("from %s: %d of %d honest requests failed, the slowest took %v", from, failed, asked, worst.Round(time.Millisecond))
				if failed*100 > max(asked, 200) { // a slow machine may ask fewer
					t.Errorf("from %s: %d of %d honest requests failed: want at most 1 %% of at least 200", from, failed, asked)
				}
			}
		})
	}
}

// halfSent opens connections and sends half a request on each; stop closes them. It reopens one for each value of pace.
func halfSent(t *testing.T, addr, half string, conns int, pace <-chan struct{}) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var holders, first sync.WaitGroup
	first.Add(conns)
	for range conns {
		holders.Go(func() {
			began := sync.OnceFunc(first.Done)
			defer began()
			pause := time.NewTicker(2 * time.Second) // 300 new connections a second in total, at most
			defer pause.Stop()
			for ctx.Err() == nil {
				if conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}).DialContext(ctx, "tcp", addr); err == nil {
					_, _ = conn.Write([]byte(half))
					end := context.AfterFunc(ctx, func() { _ = conn.Close() })
					began()
					_, _ = io.Copy(io.Discard, conn) // until the supervisor closes it
					end()
					_ = conn.Close()
				}
				began()
				select {
				case <-ctx.Done():
				case <-pause.C:
				}
				select {
				case <-ctx.Done():
				case <-pace:
				}
			}
		})
	}
	first.Wait()
	return func() { cancel(); holders.Wait() }
}
