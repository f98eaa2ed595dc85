package bounded_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/bounded"
)

// logged is a log that tests wait for.
type logged struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines chan struct{}
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines <- struct{}{}
	return l.b.Write(p)
}

// exhaust takes all file descriptors from this process until the returned function runs.
func exhaust(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	lowest, err := os.Open(os.DevNull) // the kernel gives the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	now := was
	now.Cur = uint64(lowest.Fd())
	if err := lowest.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}
}

// TestListenerWithoutDescriptorsWaitsAndSaysSoOnce: not parallel, because the whole process has no descriptors.
func TestListenerWithoutDescriptorsWaitsAndSaysSoOnce(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := &logged{lines: make(chan struct{}, 1000)}
	l := bounded.Listen(raw, bounded.Options{Limits: bounded.Limits{All: 4, PerSource: 4}, Log: slog.New(slog.NewTextHandler(log, nil))})
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	type result struct {
		c   net.Conn
		err error
	}
	accepted := make(chan result, 1)
	accept := func() {
		c, err := l.Accept()
		accepted <- result{c, err}
	}
	restore := exhaust(t)
	go accept()
	select {
	case <-log.lines:
	case r := <-accepted:
		restore()
		t.Fatalf("accepted without descriptors: %v", r.err)
	case <-time.After(time.Minute):
		restore()
		t.Fatal("no line in the log")
	}
	restore()
	r := <-accepted
	if r.err != nil {
		t.Fatalf("the connection that waited: %v", r.err)
	}
	_ = r.c.Close()
	out := log.b.String()
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, "listener="+l.Addr().String()) || !strings.Contains(out, "LimitNOFILE") ||
		!strings.Contains(out, "limit=") {
		t.Errorf("the log has %q", out)
	}

	// A listener that closes does not wait for descriptors.
	second, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	restore = exhaust(t)
	defer restore()
	go accept()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-accepted:
		if !errors.Is(r.err, net.ErrClosed) && !errors.Is(r.err, unix.EMFILE) {
			t.Errorf("after Close: %v", r.err)
		}
	case <-time.After(time.Minute):
		t.Error("Accept waits after Close")
	}
}
