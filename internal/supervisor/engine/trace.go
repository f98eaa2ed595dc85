package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// tracer logs, at debug level, the fate of every report: the term that accepted it, its content, and its
// commit. Together with the positions at which each term began, the log shows how often each report was accepted,
// even if a replica was killed between a commit and its log line. A nil tracer logs nothing and costs nothing.
type tracer struct{ log *slog.Logger }

// newTracer returns a tracer for a term, or nil if the logger does not log at debug level.
func newTracer(l *slog.Logger, fence store.Fence) *tracer {
	if !l.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return &tracer{l.With("term", fence.Rev)}
}

// The messages of a tracer, with their attributes.
const (
	TraceTerm      = "term begins"       // term; then TracePosition for each origin
	TracePosition  = "inbox position"    // term, position
	TraceTaken     = "report taken"      // term, report, content
	TraceCommitted = "reports committed" // term, reports
)

func (tr *tracer) begins(snap store.Snapshot) {
	if tr == nil {
		return
	}
	tr.log.Debug(TraceTerm, "revision", snap.Revision)
	for _, p := range snap.Inbox {
		tr.log.Debug(TracePosition, "position", p)
	}
}

func (tr *tracer) taken(r *fault.Report) {
	if tr != nil {
		tr.log.Debug(TraceTaken, "report", r.ID.String(), "content", Fingerprint(*r))
	}
}

func (tr *tracer) committed(ids []fault.ReportID) {
	if tr == nil || len(ids) == 0 {
		return
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	tr.log.Debug(TraceCommitted, "reports", names)
}

// Fingerprint hashes a report's content, without its ID and its ages, which grow in transit.
func Fingerprint(r fault.Report) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%t %t %v %d %d\n", r.Digest, r.Partial, r.Registers, r.Uptime, len(r.Observations))
	if r.Restart.Half != 0 {
		_, _ = fmt.Fprintf(h, "%d %t\n", r.Restart.Half, r.Restart.Within > 0)
	}
	if r.Stop != 0 {
		_, _ = fmt.Fprintf(h, "stop %d\n", r.Stop)
	}
	for _, o := range r.Observations {
		_, _ = fmt.Fprintf(h, "%q %d %d %d %q\n", o.Node, o.Component, o.State, o.Kind, o.Detail)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
