package webhook

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// listen starts a raw TCP server that passes every connection to serve and then closes it.
func listen(t *testing.T, serve func(c net.Conn)) (addr string, accepted *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int32)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String(), accepted
}

// request reads a whole request.
func request(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}

// hang reads until the other side has closed.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// TestBrokenConnectionIsUnchangedBeforeRequest: connections fail at every stage. Before the request has left the
// outcome is Unchanged, afterwards NotKnown.
func TestBrokenConnectionIsUnchangedBeforeRequest(t *testing.T) {
	writes := func(text string) func(c net.Conn) {
		return func(c net.Conn) {
			request(c)
			_, _ = c.Write([]byte(text))
		}
	}
	for name, c := range map[string]struct {
		serve func(c net.Conn)
		want  response.Outcome
	}{
		"closed at once":   {func(net.Conn) {}, response.NotKnown},
		"closed in header": {func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 10)) }, response.NotKnown},
		"closed after it":  {request, response.NotKnown},
		"reset after it": {func(c net.Conn) {
			request(c)
			_ = c.(*net.TCPConn).SetLinger(0)
		}, response.NotKnown},
		"half a status": {writes("HTTP/1.1 2"), response.NotKnown},
		"no HTTP":       {writes("220 mail.example ESMTP\r\n"), response.NotKnown},
		"half a header": {writes("HTTP/1.1 200 OK\r\nContent-Le"), response.NotKnown},
		"half a body": {writes("HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n{\"schema\":\"lofamo.io/webhook/v1\",\"outcome\":\"done\""),
			response.NotKnown},
		"a long header":  {writes("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)), response.NotKnown},
		"hangs":          {hang, response.NotKnown},
		"hangs after it": {func(c net.Conn) { request(c); hang(c) }, response.NotKnown},
		"drips": {func(c net.Conn) {
			request(c)
			for {
				if _, err := c.Write([]byte("H")); err != nil {
					return
				}
				time.Sleep(5 * time.Millisecond) // the slow answer is the point of this case
			}
		}, response.NotKnown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, accepted := listen(t, c.serve)
			w := targetAt(t, "http://"+addr+"/hook")
			// A request that is late would be sent again. So only the calls that hang have a short timeout.
			w.RequestTimeout = config.Duration(time.Minute)
			if strings.HasPrefix(name, "hangs") || name == "drips" {
				w.RequestTimeout = config.Duration(2 * time.Second)
			}
			// Until the executor queries the outcome of the first request.
			ctx, cancel := contextThat(t, func() bool { return accepted.Load() > 1 })
			defer cancel()
			if got := newExecutor(t, w).Do(ctx, jobOf(response.WebhookRemediate, 1)); got.Outcome != c.want {
				t.Errorf("%+v after %d connections, want outcome %d", got, accepted.Load(), c.want)
			}
		})
	}
}

// TestAttemptEndsInTime: an attempt ends in time with any behaviour of its receiver.
func TestAttemptEndsInTime(t *testing.T) {
	addr, _ := listen(t, hang)
	w := targetAt(t, "http://"+addr)
	w.RequestTimeout = config.Duration(5 * time.Minute)
	began := time.Now()
	got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookRemediate, 1, within(50*time.Millisecond)))
	if d := time.Since(began); got.Outcome == response.Succeeded || d > 30*time.Second {
		t.Errorf("%+v after %s", got, d)
	}
}

// TestUnsentRequestSaysWhy: no part of the request leaves, and the result says why. On a busy machine a handshake may take longer
// than a call's timeout. So calls get enough time unless the timeout is under test, and the attempt ends when a second
// call shows that the first has failed.
func TestUnsentRequestSaysWhy(t *testing.T) {
	silent, heard := listen(t, hang)
	plain, dialled := listen(t, func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) })
	there, accepted := listen(t, hang)
	_, port, err := net.SplitHostPort(there)
	if err != nil {
		t.Fatal(err)
	}
	untrusted := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a request came to a server that nobody vouches for")
	}))
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	var met atomic.Int32
	untrusted.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			met.Add(1)
		}
	}
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	t.Run("group", func(t *testing.T) {
		for name, c := range map[string]struct {
			url       string
			addresses []string
			detail    string
			calls     *atomic.Int32 // accepted calls; nil if they fail locally at once
		}{
			"nobody there":           {"http://" + freeport.Addr(t).String(), []string{"127.0.0.0/8"}, "refused", nil},
			"no such name":           {"http://hook.invalid", []string{"127.0.0.0/8"}, "", nil},
			"an address not allowed": {"http://localhost:" + port, []string{"10.0.0.0/8"}, "want one in 10.0.0.0/8", nil},
			"an address not public":  {"http://localhost:" + port, nil, "want a public one", nil},
			"no handshake":           {"https://" + silent, []string{"127.0.0.0/8"}, "no answer within 100ms", heard},
			"no TLS":                 {"https://" + plain, []string{"127.0.0.0/8"}, "tls", dialled},
			"untrusted":              {untrusted.URL, []string{"127.0.0.0/8"}, "certificate", &met},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := targetAt(t, c.url)
				w.Addresses = c.addresses
				w.RequestTimeout = config.Duration(10 * time.Second)
				if c.calls == heard {
					w.RequestTimeout = config.Duration(100 * time.Millisecond)
				}
				ctx, cancel := t.Context(), func() {}
				job := jobOf(response.WebhookRemediate, 1, within(5*time.Second))
				if c.calls != nil {
					ctx, cancel = contextThat(t, func() bool { return c.calls.Load() > 1 })
					job.Timeout = time.Minute
				}
				defer cancel()
				x := newExecutor(t, w)
				if got := x.Do(ctx, job); got.Outcome != response.Unchanged || !strings.Contains(got.Detail, c.detail) {
					t.Errorf("%+v", got)
				}
				if got := x.Do(t.Context(), jobOf(response.WebhookRemediate, 2, recheck,
					within(20*time.Millisecond))); got.Outcome != response.NotKnown {
					t.Errorf("one before may have happened: %+v", got)
				}
			})
		}
	})
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections to an address that is not allowed", n)
	}
}

// TestBothSidesVerifyCertificates: both sides verify each other's certificate.
func TestBothSidesVerifyCertificates(t *testing.T) {
	dir := t.TempDir()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 {
			t.Error("no certificate of ours")
		}
		outcome("done", "")(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	var met atomic.Int32
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			met.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	write := func(name, kind string, der []byte) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	ca := write("ca", "CERTIFICATE", s.Certificate().Raw)
	cert, key := clientCertificate(t, write)
	w := targetAt(t, s.URL)
	w.TLS = config.ClientTLS{CA: ca, Cert: cert, Key: key}
	if got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookRemediate, 1)); got.Outcome != response.Succeeded {
		t.Errorf("%+v", got)
	}
	w.TLS.ServerName = "another.example"
	once := met.Load() + 1
	ctx, cancel := contextThat(t, func() bool { return met.Load() > once }) // a second call shows that the first has failed
	defer cancel()
	if got := newExecutor(t, w).Do(ctx, jobOf(response.WebhookRemediate, 1)); got.Outcome != response.Unchanged ||
		!strings.Contains(got.Detail, "another.example") {
		t.Errorf("%+v", got)
	}
}

// TestCancelledAttemptEnds: an attempt ends when it is cancelled.
func TestCancelledAttemptEnds(t *testing.T) {
	var heard atomic.Bool
	addr, _ := listen(t, func(c net.Conn) { request(c); heard.Store(true); hang(c) })
	x := newExecutor(t, targetAt(t, "http://"+addr))
	ctx, cancel := contextThat(t, heard.Load)
	defer cancel()
	if got := x.Do(ctx, jobOf(response.WebhookRemediate, 1, within(time.Minute))); got.Outcome != response.NotKnown {
		t.Errorf("%+v", got)
	}
}
