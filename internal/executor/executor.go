// Package executor holds the interface and the shared parts of all executors of responses.
//
// Every executor has these duties. It refuses a fencing token lower than one that it has seen, even after a restart if
// its target can tell. It makes each attempt at most once. If Effect.Recheck is set, it checks the target first. It
// marks its effects as its own and undoes only marked ones. If a supervisor dies between any two lines, the next
// attempt can continue from the state that is left.
package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Job is one attempt to carry out, with the facts that its messages name.
type Job struct {
	response.Effect
	Cluster string // cluster name, for keys and texts that leave the cluster
	Policy  string // the policy that requested it
	Fault   Fault
}

// Fault is the fault that a response handles, as it was when the response was proposed.
type Fault struct {
	State  fault.State
	Cause  fault.Cause
	Since  time.Time
	Detail string // for display
}

// Result is the outcome of an attempt.
type Result struct {
	Outcome response.Outcome
	Detail  string // for display, at most MaxDetail bytes
}

// MaxDetail is the maximum length of Result.Detail, in bytes.
const MaxDetail = 512

// ErrStopped is the cause of a context that ends because the attempt is no longer wanted: its fault is gone, or an
// operator cancelled it. If a context ends for another reason, the supervisor has lost leadership, and work on other
// machines may continue.
var ErrStopped = errors.New("the attempt is to end")

// Executor carries out attempts of the kinds that it is registered for.
type Executor interface {
	// Do returns when the attempt has ended, or soon after ctx has ended; then an unknown outcome is NotKnown. Do may
	// be called concurrently, but not for the same response.
	Do(ctx context.Context, j Job) Result
}

// Settler is an executor with a durable record of its attempts, each kept for at least 48 hours.
type Settler interface {
	Executor
	// Settle returns the outcome of an attempt that a former leader began, and waits for one in progress. It has no effect on
	// the target. From then on the executor refuses an attempt that has not arrived, so that the answer Unchanged stays true.
	// The outcome is NotKnown if the executor has no reliable record of the attempt, or if ctx ends first.
	Settle(ctx context.Context, j Job) Result
}

// Done returns the result of an attempt that succeeded.
func Done(format string, args ...any) Result { return result(response.Succeeded, format, args) }

// Unchanged returns the result of an attempt that failed and changed nothing.
func Unchanged(format string, args ...any) Result { return result(response.Unchanged, format, args) }

// NotBegun returns the result of an attempt that was not begun. If an earlier attempt may have taken effect, the
// outcome stays unknown.
func NotBegun(j Job, format string, args ...any) Result {
	if j.Recheck {
		return NotKnown(format, args...)
	}
	return Unchanged(format, args...)
}

// Partly returns the result of an attempt that failed after changing something.
func Partly(format string, args ...any) Result { return result(response.Partly, format, args) }

// NotKnown returns the result of an attempt with an unknown outcome.
func NotKnown(format string, args ...any) Result { return result(response.NotKnown, format, args) }

// Stale returns the result of an attempt that was refused for its token.
func Stale(format string, args ...any) Result { return result(response.StaleToken, format, args) }

// ResultOf returns a result with an outcome; 0 is unknown.
func ResultOf(o response.Outcome, detail string) Result {
	return result(cmp.Or(o, response.NotKnown), "%s", []any{detail})
}

func result(o response.Outcome, format string, args []any) Result {
	return Result{Outcome: o, Detail: clip(fmt.Sprintf(format, args...))}
}

// clip shortens a long text and cleans it, because it comes from other programs and ends up in terminals.
func clip(s string) string {
	const more = "…"
	if s = fault.Clean(s, MaxDetail+utf8.UTFMax); len(s) <= MaxDetail {
		return s
	}
	return fault.Cut(s, MaxDetail-len(more)) + more
}
