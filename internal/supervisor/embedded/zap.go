package embedded

import (
	"context"
	"log/slog"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// The first lines of a message pass in every window: a member with an unintelligible message logs it fifty times a
// second.
const (
	sampleWindow = 10 * time.Second
	sampleFirst  = 5
)

// NewZap returns a zap logger that passes warnings and worse to l.
func NewZap(l *slog.Logger) *zap.Logger {
	return zap.New(zapcore.NewSamplerWithOptions(&slogCore{l: l.With("part", "etcd")}, sampleWindow, sampleFirst, 0))
}

// slogCore is a zap core on slog. It omits etcd's messages below warning, which are too many for operators.
type slogCore struct{ l *slog.Logger }

func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.l.Enabled(context.Background(), level(l))
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{l: c.l.With(args(fields)...)}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.l.Log(context.Background(), level(e.Level), e.Message, args(fields)...)
	return nil
}

func (c *slogCore) Sync() error { return nil }

// args turns zap's fields into slog's.
func args(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	out := make([]any, 0, len(fields))
	for _, f := range fields {
		f.AddTo(enc)
		if v, ok := enc.Fields[f.Key]; ok {
			out = append(out, slog.Any(f.Key, v))
		}
	}
	return out
}
