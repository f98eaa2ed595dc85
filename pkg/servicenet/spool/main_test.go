package spool

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/pkg/fault"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		os.Exit(victim(path))
	}
	os.Exit(leaks.Main(func() int { return fixedseed.Main(m) }))
}

var origin = fault.Origin{Node: "n1-2-0", Half: fault.HalfHost}

func id(epoch fault.Epoch, seq fault.Seq) fault.ReportID {
	return fault.ReportID{Origin: origin, Epoch: epoch, Seq: seq}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count returns how many lines hold a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func config(t testing.TB) (Config, *lines) {
	t.Helper()
	log := &lines{}
	return Config{
		Path: filepath.Join(t.TempDir(), "host.spool"), Size: MinSize, Origin: origin, Boot: [16]byte{1},
		Logger: slog.New(slog.NewTextHandler(log, nil)), Now: func() int64 { return 42 },
	}, log
}

// quick is a timing that tries again at once, and lets a slow disk finish at the end.
func quick() timing {
	tm := defaultTiming()
	tm.retry, tm.maxRetry, tm.close = time.Millisecond, 4*time.Millisecond, testBound
	return tm
}

// within waits for something with a bound that only a failure reaches.
func within(t testing.TB, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(testBound); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("no %s within %s", what, testBound)
		}
	}
}

func payload(epoch fault.Epoch, seq fault.Seq, n int) []byte {
	b := fmt.Appendf(nil, "%d#%d ", epoch, seq)
	for len(b) < n {
		b = append(b, byte(len(b))^byte(seq))
	}
	return b[:n]
}

// names prints the ids of records, to compare.
func names(rs []Record) string {
	var out []string
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%d#%d", r.ID.Epoch, r.ID.Seq))
	}
	return strings.Join(out, " ")
}
