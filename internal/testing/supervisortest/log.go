package supervisortest

import (
	"bytes"
	"log/slog"
	"os"
	"sync"
	"testing"
)

// keptLog is the size of the log's end that a failed test prints, in bytes.
const keptLog = 32 << 10

// Logger returns a replica's logger. A failed test prints the log's end, and nothing otherwise; with LOFAMO_TEST_LOG in the environment
// the whole log appears at once. Call it before the replica's stop is registered as a cleanup: the log then includes the stop.
func Logger(t testing.TB) *slog.Logger {
	t.Helper()
	if os.Getenv("LOFAMO_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	end := &logEnd{}
	t.Cleanup(func() {
		if text := end.String(); t.Failed() && text != "" {
			t.Logf("the end of a replica's log:\n%s", text)
		}
	})
	return slog.New(slog.NewTextHandler(end, nil))
}

// logEnd keeps the last lines that were written, in up to 2 * keptLog bytes.
type logEnd struct {
	mu sync.Mutex
	b  []byte
}

func (l *logEnd) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, line...)
	if len(l.b) > 2*keptLog {
		cut := l.b[len(l.b)-keptLog:]
		l.b = bytes.Clone(cut[bytes.IndexByte(cut, '\n')+1:])
	}
	return len(line), nil
}

func (l *logEnd) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
