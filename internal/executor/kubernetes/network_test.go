package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// proxy stands between an executor and the API server. It can delay or drop answers and cut connections.
type proxy struct {
	addr   string
	to     string
	delay  atomic.Int64 // delay of answers, in nanoseconds
	deaf   atomic.Bool  // drops answers from now on
	cut    atomic.Bool  // closes connections at once
	mu     sync.Mutex
	open   map[net.Conn]bool
	wg     sync.WaitGroup
	listen net.Listener
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{addr: freeport.Addr(t).String(), to: cluster(t).Addr, open: map[net.Conn]bool{}}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	p.listen = l
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.closeAll(); p.wg.Wait() })
	return p
}

func (p *proxy) serve(c net.Conn) {
	if p.cut.Load() {
		_ = c.Close()
		return
	}
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	p.open[c], p.open[up] = true, true
	p.mu.Unlock()
	p.wg.Go(func() { _, _ = io.Copy(up, c); _ = up.Close() })
	b := make([]byte, 64<<10)
	for {
		n, err := up.Read(b)
		if err != nil {
			break
		}
		if p.deaf.Load() {
			continue
		}
		time.Sleep(time.Duration(p.delay.Load())) // simulates a slow link
		if _, err := c.Write(b[:n]); err != nil {
			break
		}
	}
	_ = c.Close()
	_ = up.Close()
}

// closeAll closes the open connections.
func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
	clear(p.open)
}

func through(t *testing.T, p *proxy) *Executor {
	t.Helper()
	return newExecutor(t, Config{Kubeconfig: kubeconfig(t, p.addr, serviceToken(t))}, nil)
}

// TestSlowAnswersInTimeSucceed: actions succeed as long as each request gets its answer in time.
func TestSlowAnswersInTimeSucceed(t *testing.T) {
	p := newProxy(t)
	e, name := through(t, p), aNode(t)
	do(t, e, acts()[2].job(responseID(), name)) // connected
	p.delay.Store(int64(100 * time.Millisecond))
	j := acts()[0].job(responseID(), name)
	do(t, e, j)
	do(t, e, undo(j))
}

// TestAbsentServerLeavesNodeUnchanged: an attempt ends when its time is over and reports that nothing has changed. It succeeds if the API
// server returns in time.
func TestAbsentServerLeavesNodeUnchanged(t *testing.T) {
	p := newProxy(t)
	e, name := through(t, p), aNode(t)
	p.cut.Store(true)
	j := acts()[2].job(responseID(), name)
	j.Timeout = 200 * time.Millisecond
	begin := time.Now()
	r := e.Do(context.Background(), j)
	t.Logf("asked: cordon; not done: %s", r.Detail)
	want(t, r, response.Unchanged, "")
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	j = again(j)
	j.Timeout = time.Minute
	result := make(chan executor.Result)
	go func() { result <- e.Do(context.Background(), j) }()
	p.cut.Store(false)
	want(t, <-result, response.Succeeded, "cordoned")

	// No server at all: an unused address.
	var refused atomic.Int32
	e = newExecutor(t, Config{Kubeconfig: kubeconfig(t, freeport.Addr(t).String(), serviceToken(t))},
		func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(r *http.Request) (*http.Response, error) {
				defer refused.Add(1)
				return next.RoundTrip(r)
			})
		})
	ctx := deadline.When(t, func() bool { return refused.Load() > 1 })
	want(t, e.Do(ctx, acts()[2].job(responseID(), name)), response.Unchanged, "connection refused")
}

// TestUnansweredWriteIsNotKnown: a write without an answer may have been carried out, and the result says so. When answers return, the
// executor finds its own write and does not repeat it.
func TestUnansweredWriteIsNotKnown(t *testing.T) {
	for _, heals := range []bool{false, true} {
		p := newProxy(t)
		name := aNode(t)
		var patches, unanswered atomic.Int64
		cfg := Config{Kubeconfig: kubeconfig(t, p.addr, serviceToken(t)), RequestTimeout: config.Duration(time.Second)}
		shown := func() string {
			n := &corev1.Node{}
			b, err := cluster(t).Admin.Do(http.MethodGet, "/api/v1/nodes/"+name, "", nil)
			if err == nil {
				err = json.Unmarshal(b, n)
			}
			if err != nil {
				t.Error(err)
			}
			return withoutMarks(n)
		}
		e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodPatch {
					res, err := next.RoundTrip(r)
					if err != nil && patches.Load() > 0 {
						unanswered.Add(1)
					}
					return res, err
				}
				patches.Add(1)
				p.deaf.Store(true)
				// The API server would not perform a write whose sender gives up early. So the request continues until the write is visible.
				lasting, end := context.WithCancel(context.WithoutCancel(r.Context()))
				answered := make(chan error, 1)
				go func() {
					res, err := next.RoundTrip(r.Clone(lasting))
					if err == nil {
						err = res.Body.Close()
					}
					answered <- err
				}()
				for until := time.Now().Add(time.Minute); shown() != acts()[3].shows && time.Now().Before(until); {
					time.Sleep(10 * time.Millisecond)
				}
				end()
				if err := <-answered; err == nil {
					t.Error("the write was answered")
				}
				if heals {
					p.deaf.Store(false)
					p.closeAll() // the dropped answers are lost for good
				}
				return nil, context.DeadlineExceeded
			})
		})
		j := acts()[3].job(responseID(), name)
		j.Timeout = time.Minute
		ctx, over := context.WithCancel(context.Background())
		result := make(chan executor.Result, 1)
		go func() { result <- e.Do(ctx, j) }()
		if !heals {
			eventually(t, func() bool { return unanswered.Load() > 1 }, "the executor to look in vain")
			over()
		}
		r := <-result
		over()
		t.Logf("asked: taint; heard: %s", r.Detail)
		if heals {
			want(t, r, response.Succeeded, "it was written")
		} else {
			want(t, r, response.NotKnown, "")
		}
		if got := withoutMarks(theNode(t, name)); got != acts()[3].shows || patches.Load() != 1 {
			t.Errorf("heals %t: %d writes: %q", heals, patches.Load(), got)
		}
	}
}

// TestPausedServer: the real API server is stopped for longer than a request may take, and then continues.
func TestPausedServer(t *testing.T) {
	s := cluster(t)
	cfg := Config{RequestTimeout: config.Duration(2 * time.Second)}
	failed := make(chan struct{})
	var once sync.Once
	e := newExecutor(t, cfg, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if err != nil {
				once.Do(func() { close(failed) })
			}
			return res, err
		})
	})
	name := aNode(t)
	do(t, e, acts()[0].job(responseID(), name)) // connected
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	result := make(chan executor.Result, 1)
	go func() { result <- e.Do(context.Background(), acts()[2].job(responseID(), name)) }()
	select {
	case <-failed:
	case r := <-result:
		t.Errorf("the API server did not stand still: %+v", r)
		result <- r
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	want(t, <-result, response.Succeeded, "cordoned")
}

// TestRetryAfterIsRespected: the executor respects Retry-After.
func TestRetryAfterIsRespected(t *testing.T) {
	var refusals atomic.Int64
	var last time.Time
	e := newExecutor(t, Config{}, func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && refusals.Add(1) == 1 {
				last = time.Now()
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}, "Content-Type": {"text/plain"}},
					Body: http.NoBody, Request: r}, nil
			}
			if since := time.Since(last); !last.IsZero() && since < time.Second {
				t.Errorf("asked again after %s", since)
			}
			return next.RoundTrip(r)
		})
	})
	do(t, e, acts()[2].job(responseID(), aNode(t)))
}
