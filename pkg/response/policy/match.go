package policy

import (
	"errors"
	"fmt"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// matcher is a compiled condition.
type matcher struct {
	program   cel.Program
	groups    bool
	may       [fault.NumComponents][fault.Failed + 1]bool // by component (0: group faults) and state
	durations []time.Duration
	incidents bool // it depends on fault.incident
	asked     int  // evaluations that newMatcher has taken
}

// Match implements response.Matcher.
func (m *matcher) Match(s *response.Subject) (bool, error) {
	if (s.Group != nil) != m.groups {
		return false, nil
	}
	out, _, err := m.program.Eval(activation{s})
	if err != nil {
		return false, err
	}
	return out == types.True, nil
}

// May implements response.Matcher.
func (m *matcher) May(c fault.Component, s fault.State) bool {
	return int(c) < len(m.may) && int(s) < len(m.may[c]) && m.may[c][s]
}

// Thresholds implements response.Matcher.
func (m *matcher) Thresholds() []time.Duration { return m.durations }

// beyondLinks returns a component that may match and is not a link.
func (m *matcher) beyondLinks() (fault.Component, bool) {
	for _, c := range fault.Components() {
		for _, s := range badStates {
			if _, link := c.LinkDirection(); m.May(c, s) && !link {
				return c, true
			}
		}
	}
	return 0, false
}

// newMatcher compiles the program and determines the components and states for which it may be true. For each of these
// and each cause, it evaluates the condition with all other variables unknown. If the condition compares the duration,
// it also evaluates with a duration between any two of the literals. It refuses a condition that is false everywhere, unless
// the check needs more evaluations than the limit (most).
func newMatcher(env *cel.Env, checked *cel.Ast, groups bool, durations []time.Duration, most int) (*matcher, error) {
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	partial, err := env.Program(checked, cel.EvalOptions(cel.OptPartialEval, cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	m := &matcher{program: program, groups: groups, durations: durations}
	q := question{program: partial, groups: groups, most: most}
	components := fault.Components()
	if groups {
		components = []fault.Component{0}
	}
	any := false
	for _, c := range components {
		for _, s := range badStates {
			if q.c, q.s = c, s; q.possible(durations) {
				m.may[c][s], any = true, true
			}
		}
	}
	m.asked = q.asked
	if !any {
		return nil, errors.New("given a condition that no fault can meet: want one that some can")
	}
	return m, nil
}

// maxAsked limits the evaluations with causes and durations for one condition. One takes up to some 100 µs.
const maxAsked = 2000

// asks returns the limit for a condition with patterns of some instructions. One evaluation of an expensive pattern takes up to 2 ms.
func asks(instructions int, estimate cost.Estimate) int {
	const cheap = MaxCost / 10
	if instructions == 0 || estimate.Max <= cheap {
		return maxAsked
	}
	return int(maxAsked * cheap / estimate.Max)
}

// question determines whether a condition can be true of a component in a state.
type question struct {
	program cel.Program
	groups  bool
	c       fault.Component
	s       fault.State
	asked   int // evaluations
	most    int // limits asked
}

// possible narrows the values step by step: one evaluation with an unknown cause may exclude all causes. Once asked reaches the limit
// (most), it considers no more causes and durations. The answer may then be true for a condition that is always false.
func (q *question) possible(durations []time.Duration) bool {
	known := map[string]any{"fault.state": q.s.String()}
	if !q.groups {
		known["fault.component"] = q.c.String()
		if q.c > fault.ComponentDNP || q.s != fault.Failed { // never proven of anything else
			known["fault.kernelDead"] = ""
		}
	}
	if !q.ask(known) {
		return false // false for every cause and duration: most conditions end here for most components
	}
	if len(durations) == 0 {
		return q.possibleCause(known)
	}
	for _, d := range samples(durations) {
		delete(known, "fault.cause")
		if known["fault.duration"] = d; q.asked >= q.most || q.ask(known) && q.possibleCause(known) {
			return true
		}
	}
	return false
}

// possibleCause is possible for known values with each cause in turn.
func (q *question) possibleCause(known map[string]any) bool {
	for _, cause := range causes {
		// The map states a cause for SICK and FAILED only; a partition has none.
		if !q.groups && (cause == fault.CauseNone) != (q.s == fault.Unknown) {
			continue
		}
		if known["fault.cause"] = cause.String(); q.asked >= q.most || q.ask(known) {
			return true
		}
	}
	return false
}

// ask evaluates the condition with the known values. After an error the answer may differ for other values.
func (q *question) ask(known map[string]any) bool {
	q.asked++
	var unknown []*cel.AttributePatternType
	for _, v := range variables(q.groups) {
		if _, ok := known[v.name]; !ok {
			unknown = append(unknown, cel.AttributePattern(v.name))
		}
	}
	vars, err := cel.PartialVars(known, unknown...)
	if err != nil {
		return true
	}
	out, _, err := q.program.Eval(vars)
	return err != nil || out != types.False
}

// samples returns durations at, below and above each threshold.
func samples(durations []time.Duration) []time.Duration {
	var out []time.Duration
	for _, d := range durations {
		out = append(out, max(0, d-1), d, d+1)
	}
	return out
}

// activation presents a subject to CEL.
type activation struct{ s *response.Subject }

// Parent implements cel.Activation.
func (activation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation. It is long because it is the list of all variables.
func (a activation) ResolveName(name string) (any, bool) {
	s := a.s
	switch name {
	case "fault.duration":
		return types.Duration{Duration: s.Duration}, true
	case "fault.recurrence":
		return types.Int(s.Recurrence), true
	case "fault.incident":
		return types.String(s.Incident), true
	}
	if g := s.Group; g != nil {
		switch name {
		case "fault.state":
			return types.String(g.State.String()), true
		case "fault.cause":
			return types.String(g.Cause.String()), true
		case "fault.group":
			return types.String(g.Kind), true
		case "fault.id":
			return types.String(g.ID), true
		case "fault.members":
			return types.Int(len(g.Members)), true
		case "fault.of":
			return types.Int(g.Of), true
		}
		return nil, false
	}
	f := &s.Fault
	switch name {
	case "fault.component":
		return types.String(f.Component.String()), true
	case "fault.state":
		return types.String(f.State.String()), true
	case "fault.cause":
		return types.String(f.Cause.String()), true
	case "fault.singleWitness":
		return types.Bool(f.Evidence.SingleWitness), true
	case "fault.inferred":
		return types.Bool(f.Inferred), true
	case "fault.unreachable":
		return types.Bool(f.Unreachable), true
	case "fault.platform":
		return types.String(f.Platform.String()), true
	case "fault.kernelDead":
		return types.String(f.KernelDead.String()), true
	case "fault.watchdog":
		return types.String(f.Watchdog.String()), true
	case "fault.flapping":
		return types.Bool(f.Flapping), true
	case "fault.groups":
		return s.Groups, true
	case "node.id":
		return types.String(f.Node), true
	case "node.labels":
		return s.Labels, true
	}
	return nil, false
}
