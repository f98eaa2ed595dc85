package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// pages records the pages of lists.
type pages struct {
	mu  sync.Mutex
	got []string
}

func (p *pages) page(nodes []corev1.Node, first, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	p.got = append(p.got, fmt.Sprintf("%s %t %t", strings.Join(names, "+"), first, last))
}

func (*pages) changed(*corev1.Node, bool) {}

func (p *pages) lists() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got) / 2
}

// listsAndWatches is an API server with two pages of nodes. watching answers its watches.
func listsAndWatches(t *testing.T, watching http.HandlerFunc) *client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name, next := "a", `,"continue":"b"`
		switch {
		case r.URL.Query().Get("watch") == "true":
			watching(w, r)
			return
		case r.URL.Query().Get("continue") == "b":
			name, next = "b", ""
		}
		_, _ = io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"`+next+
			`},"items":[{"metadata":{"name":"`+name+`"}}]}`)
	}))
	t.Cleanup(s.Close)
	c, err := newClient(Config{}.Filled(), &rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// TestNodesOfAccountsAreReadInPages: no answer has all nodes of a large cluster.
func TestNodesOfAccountsAreReadInPages(t *testing.T) {
	t.Parallel()
	c := listsAndWatches(t, func(http.ResponseWriter, *http.Request) { t.Error("a watch") })
	got, err := (&Accounts{c: c}).Nodes(t.Context())
	if want := (map[string]bool{"a": true, "b": true}); err != nil || !maps.Equal(got, want) {
		t.Errorf("nodes %v, %v: want %v", got, err, want)
	}
}

// following follows nodes until the test ends. The returned function ends it before, and returns the log.
func following(t *testing.T, c *client, to nodeFollower) (log func() string) {
	t.Helper()
	var b bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.followNodes(ctx, to, slog.New(slog.NewTextHandler(&b, nil)))
	}()
	log = func() string { cancel(); <-done; return b.String() }
	t.Cleanup(func() { _ = log() })
	return log
}

// TestWatchIsBoundedHere: an API server that neither sends nor ends a watch is asked for a list again.
func TestWatchIsBoundedHere(t *testing.T) {
	c := listsAndWatches(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	c.watch = 100 * time.Millisecond
	p := &pages{}
	log := following(t, c, p)
	eventually(t, func() bool { return p.lists() > 1 }, "a second list")
	if text := log(); !strings.Contains(text, "has not ended the watch within 100ms") {
		t.Errorf("log %q", text)
	}
	if want := []string{"a true false", "b false true"}; !slices.Equal(p.got[:2], want) {
		t.Errorf("pages %q: want %q", p.got[:2], want)
	}
}

// TestUnansweredWatchIsBounded: an API server that does not answer a watch, such as a proxy whose server is dead, is asked for a list
// again after the time of one request. A watch without events lasts longer.
func TestUnansweredWatchIsBounded(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var lists atomic.Int64
			server := wrapped(nil, func(r *http.Request) (*http.Response, error) {
				if r.URL.Query().Get("watch") != "true" {
					lists.Add(1)
					return jsonAnswer(http.StatusOK, asBody(corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
						ListMeta: metav1.ListMeta{ResourceVersion: "1"}})), nil
				}
				if !answers {
					<-r.Context().Done()
					return nil, context.Cause(r.Context())
				}
				body, end := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = end.Close() })
				return jsonAnswer(http.StatusOK, body), nil
			})
			c, err := newClient(Config{}.Filled(), &rest.Config{Host: "http://memory", Transport: server})
			if err != nil {
				t.Fatal(err)
			}
			log := following(t, c, &pages{})
			time.Sleep(c.timeout - 1)
			synctest.Wait()
			if n := lists.Load(); n != 1 {
				t.Errorf("answers %t: %d lists just before the time of a request: want 1", answers, n)
			}
			time.Sleep(30 * time.Second)
			synctest.Wait()
			text, n := log(), lists.Load()
			if (n > 1) == answers || strings.Contains(text, "has not answered within "+c.timeout.String()) == answers {
				t.Errorf("answers %t: %d lists, log %q", answers, n, text)
			}
		})
	}
}

// TestWatchesThatEndAtOnceArePaced: each is a failure, with a pause and one line in the log.
func TestWatchesThatEndAtOnceArePaced(t *testing.T) {
	var mu sync.Mutex
	n := 0
	c := listsAndWatches(t, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n++
	})
	p := &pages{}
	log := following(t, c, p)
	eventually(t, func() bool { return p.lists() > 1 }, "a second list")
	text := log()
	if mu.Lock(); n > p.lists() {
		t.Errorf("%d watches after %d lists: want one each", n, p.lists())
	}
	mu.Unlock()
	if strings.Count(text, "ends every watch at once") != 1 {
		t.Errorf("log %q: want one line", text)
	}
}
