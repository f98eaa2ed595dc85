// Package executor is what the executors of responses have in common: what they are given, and what they owe.
//
// What an executor owes, whatever it acts on: it refuses a fencing token lower than one that it has seen, where its target can
// tell that also over its own restarts; it makes each attempt at most once; where it is told to look first (Effect.Recheck) it
// does; what it does it marks as its own, and it puts back only what bears its mark. A supervisor that dies between any two of
// its lines leaves a state from which the next attempt is right.
package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Job is one attempt to be carried out, with what people are told of it.
type Job struct {
	response.Effect
	Cluster string // name of the cluster, for keys and texts that leave it
	Policy  string // by which it is done
	Fault   Fault
}

// Fault is what a response is for, as it was when the response was proposed.
type Fault struct {
	State  fault.State
	Cause  fault.Cause
	Since  time.Time
	Detail string // for people
}

// Result is how an attempt ended.
type Result struct {
	Outcome response.Outcome
	Detail  string // for people, at most MaxDetail bytes
}

// MaxDetail bounds Result.Detail, in bytes.
const MaxDetail = 512

// ErrStopped is the cause of a context that ends because the attempt is to end: its fault is gone, or a person wants it no more. One that
// is cancelled for another reason has lost its leader: what goes on elsewhere may go on.
var ErrStopped = errors.New("the attempt is to end")

// Executor carries out attempts of the kinds that it is registered for.
type Executor interface {
	// Do returns when the attempt has ended, at the latest soon after ctx has; then an outcome that is not known is NotKnown.
	// It is called from many goroutines, for one response never from two at once.
	Do(ctx context.Context, j Job) Result
}

// Done is the result of an attempt that succeeded.
func Done(format string, args ...any) Result { return result(response.Succeeded, format, args) }

// Unchanged is that of one that failed and left the target as it had found it.
func Unchanged(format string, args ...any) Result { return result(response.Unchanged, format, args) }

// Partly is that of one that failed and changed something.
func Partly(format string, args ...any) Result { return result(response.Partly, format, args) }

// NotKnown is that of one of which nobody can say.
func NotKnown(format string, args ...any) Result { return result(response.NotKnown, format, args) }

// Stale is that of one that was refused for its token.
func Stale(format string, args ...any) Result { return result(response.StaleToken, format, args) }

func result(o response.Outcome, format string, args []any) Result {
	return Result{Outcome: o, Detail: clip(fmt.Sprintf(format, args...))}
}

// clip shortens a long text, replaces an invalid one, and blanks control characters: the text comes from other programs and
// reaches people's terminals.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= MaxDetail {
		return s
	}
	const more = "…"
	n := MaxDetail - len(more)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}
