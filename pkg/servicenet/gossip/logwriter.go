package gossip

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Lines beyond this rate are counted, and the next line gives the count: a partition makes memberlist write one line
// a packet.
const logRate, logBurst = 2, 20

const maxLine = 4096 // bytes of a line

// logWriter maps memberlist's "[WARN] memberlist: text" lines to slog. An error of memberlist is a warning here: it
// is an opinion about others.
type logWriter struct {
	logger  *slog.Logger
	limit   *rate.Limiter
	skipped atomic.Uint64
}

func newLogWriter(l *slog.Logger) *logWriter {
	return &logWriter{logger: l, limit: rate.NewLimiter(logRate, logBurst)}
}

// Write implements io.Writer for one line.
func (w *logWriter) Write(p []byte) (int, error) {
	level, text := parseLine(p)
	if !w.logger.Enabled(context.Background(), level) {
		return len(p), nil
	}
	if !w.limit.Allow() {
		w.skipped.Add(1)
		return len(p), nil
	}
	args := []any{}
	if n := w.skipped.Swap(0); n > 0 {
		args = append(args, "lines_skipped", n)
	}
	w.logger.Log(context.Background(), level, "gossip: "+text, args...)
	return len(p), nil
}

func parseLine(p []byte) (slog.Level, string) {
	level := slog.LevelInfo
	p = p[:min(len(p), maxLine)] // it may have a name that another member made up
	p = bytes.TrimSpace(p)
	if tag, rest, ok := bytes.Cut(p, []byte("] ")); ok && len(tag) > 1 && tag[0] == '[' {
		p = rest
		switch string(tag[1:]) {
		case "DEBUG":
			level = slog.LevelDebug
		case "WARN", "ERR", "ERROR":
			level = slog.LevelWarn
		}
	}
	return level, readableMeta(string(bytes.TrimPrefix(p, []byte("memberlist: "))))
}

// byteList is how memberlist prints metadata: [123 34 114].
var byteList = regexp.MustCompile(`\[[0-9 ]*\]`)

// readableMeta prints the metadata in a line of memberlist as text. Other lists in the line are versions.
func readableMeta(line string) string {
	before, rest, ok := strings.Cut(line, "meta:(")
	if !ok {
		return line
	}
	meta, after, ok := strings.Cut(rest, ")")
	if !ok {
		return line
	}
	meta = byteList.ReplaceAllStringFunc(meta, func(list string) string {
		var text []byte
		for word := range strings.FieldsSeq(list[1 : len(list)-1]) {
			b, err := strconv.ParseUint(word, 10, 8)
			if err != nil {
				return list
			}
			text = append(text, byte(b))
		}
		return strconv.Quote(string(text))
	})
	return before + "meta:(" + meta + ")" + after
}
