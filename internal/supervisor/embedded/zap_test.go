package embedded

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// TestLastWordsOfEtcdAreWritten: when etcd ends the process, its reason reaches the standard error, also if all logs are discarded. A
// panic about data that contradict each other has the exit code for damage, and names the remedy: first that of a rollback.
func TestLastWordsOfEtcdAreWritten(t *testing.T) {
	quota := &os.PathError{Op: "write", Path: "db", Err: unix.EDQUOT}
	for _, tc := range []struct {
		name string
		end  func(*zap.Logger)
		code int
		want string
	}{
		{"fatal", func(l *zap.Logger) {
			l.Fatal("failed to save hard state", zap.Error(errors.New("file already closed")))
		}, 1,
			`"etcd ends the process: failed to save hard state" error="file already closed"` + "\n"},
		{"raft", func(l *zap.Logger) { l.Sugar().Panicf("tocommit(%d) is out of range", 9) }, ExitDamaged,
			`remedy="if the other replicas run on an earlier copy`},
		{"full quota", func(l *zap.Logger) { l.Panic("failed to commit", zap.Error(quota)) }, 1, `disk quota exceeded"` + "\n"},
		{"bug", func(l *zap.Logger) { l.Panic("unexpected state") }, 1, `unexpected state"` + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			var code int
			words := lastWords{&out, func(c int) { code = c }}
			tc.end(NewZap(slog.New(slog.DiscardHandler)).WithOptions(zap.WithFatalHook(words), zap.WithPanicHook(words)))
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, written %q: want %d and %q", code, out.String(), tc.code, tc.want)
			}
		})
	}
}

// TestEtcdDoesNotFloodLog: a repeated message is logged only a few times.
func TestEtcdDoesNotFloodLog(t *testing.T) {
	var out strings.Builder
	l := NewZap(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 1000 {
		l.Warn("no", zap.Int("i", i))
	}
	l.Warn("something else")
	if n := strings.Count(out.String(), "msg=no"); n != sampleFirst {
		t.Errorf("%d of 1,000 equal lines passed, want %d", n, sampleFirst)
	}
	if !strings.Contains(out.String(), `level=WARN msg="something else" part=etcd`) {
		t.Error("a line of its own was held back")
	}
}
