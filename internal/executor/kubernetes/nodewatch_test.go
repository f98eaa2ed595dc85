package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	for _, tc := range []struct {
		answers bool
		lists   int
	}{{false, 2}, {true, 1}} {
		c := listsAndWatches(t, func(w http.ResponseWriter, r *http.Request) {
			if tc.answers {
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		})
		c.timeout = 500 * time.Millisecond
		p := &pages{}
		log := following(t, c, p)
		for begin := time.Now(); p.lists() < 2 && time.Since(begin) < 3*time.Second; {
			time.Sleep(20 * time.Millisecond)
		}
		text := log()
		if n := p.lists(); n != tc.lists || strings.Contains(text, "has not answered within 500ms") == tc.answers {
			t.Errorf("answers %t: %d lists, log %q: want %d", tc.answers, n, text, tc.lists)
		}
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
