package embedded

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestFatalMessageIsWritten: when etcd ends the process, its reason reaches the standard error, also if all logs are discarded.
func TestFatalMessageIsWritten(t *testing.T) {
	var out strings.Builder
	var code int
	l := NewZap(slog.New(slog.DiscardHandler)).WithOptions(zap.WithFatalHook(lastWords{&out, func(c int) { code = c }}))
	l.Fatal("failed to save hard state", zap.Error(errors.New("file already closed")))
	if code != 1 || !strings.Contains(out.String(), `"etcd ends the process: failed to save hard state" error="file already closed"`) {
		t.Errorf("exit code %d, written %q", code, out.String())
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
