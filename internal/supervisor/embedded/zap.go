package embedded

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
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
	return zap.New(zapcore.NewSamplerWithOptions(&slogCore{l: l.With("part", "etcd")}, sampleWindow, sampleFirst, 0),
		zap.WithFatalHook(lastWords{os.Stderr, os.Exit}), zap.WithPanicHook(lastWords{os.Stderr, os.Exit}))
}

// lastWords ends the process after a message with which etcd would end it or panic. It also writes the message itself, because l may
// discard it, or may not have written it yet.
type lastWords struct {
	out  io.Writer
	exit func(code int)
}

// OnWrite implements zapcore.CheckWriteHook. raft panics when a member's data contradict those of the others: no restart helps then. After
// all other messages a restart may help.
func (w lastWords) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	values, code := args(fields), 1
	if slices.ContainsFunc(contradictions, func(text string) bool { return strings.Contains(e.Message, text) }) {
		values, code = append(values, "remedy", contradiction), ExitDamaged
	}
	slog.New(slog.NewTextHandler(w.out, nil)).Error("etcd ends the process: "+e.Message, values...)
	w.exit(code)
}

// contradictions are parts of raft's messages when a member's log and the leader's exclude each other. A full disk causes none of them.
var contradictions = []string{"is out of range", "out of bound", "conflict with committed entry", "is unavailable from storage"}

// contradiction is the remedy then. After a rollback this replica may have the newest data, so the remedy names that case first.
const contradiction = "if the other replicas run on an earlier copy of their data, as after a rollback, " +
	"stop them, and restore all replicas " +
	"from a snapshot of this one; otherwise " + remedy

// atEveryStart are warnings that etcd logs at every start, for settings that this package chose. No operator can act
// on them.
var atEveryStart = map[string]bool{
	// The client listener's own server (listen.go) separates the two.
	"Running http and grpc server on single port. This is not recommended for production.": true,
	// A transaction of the fault map needs MaxRequestBytes.
	"exceeded recommended request limit": true,
	// etcd's users and their tokens are not in use: certificates name the members.
	"simple token is not cryptographically signed": true,
}

// slogCore is a zap core on slog. It omits etcd's messages below warning, which are too many for operators, and those of
// every start.
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
	if c.Enabled(e.Level) && !atEveryStart[e.Message] {
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
