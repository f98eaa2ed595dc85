package embedded

import (
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestEtcdDoesNotFloodTheLog: a repeated message is logged only a few times.
func TestEtcdDoesNotFloodTheLog(t *testing.T) {
	var out strings.Builder
	l := NewZap(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 1000 {
		l.Warn("no", zap.Int("i", i))
	}
	l.Warn("something else")
	if n := strings.Count(out.String(), "msg=no"); n != sampleFirst {
		t.Errorf("%d of 1,000 equal lines passed, want %d", n, sampleFirst)
	}
	if !strings.Contains(out.String(), "something else") {
		t.Error("a line of its own was held back")
	}
}
