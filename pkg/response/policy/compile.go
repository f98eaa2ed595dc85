package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"

	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxCost limits the cost of one evaluation of a condition, in CEL's own units: roughly the elements and bytes that it
// reads. 2,000 of them take some tens of microseconds, and with a large pattern up to 2 ms.
const MaxCost = 2000

// maxThresholds limits the durations that a condition compares with.
const maxThresholds = 8

// variable is a variable of conditions, with its possible values if there are few.
type variable struct {
	name   string
	of     *cel.Type
	values []string
}

func strs[T fmt.Stringer](vs ...T) []string {
	out := make([]string, 0, len(vs))
	for _, v := range vs {
		out = append(out, v.String())
	}
	return out
}

var (
	badStates = []fault.State{fault.Sick, fault.Failed, fault.Unknown}
	causes    = []fault.Cause{
		fault.CauseNone, fault.CauseSensor, fault.CausePeripheral, fault.CauseMemory, fault.CauseLink, fault.CauseServiceNetwork, fault.CauseDNP,
		fault.CauseHost, fault.CauseNode, fault.CauseBus,
	}
	groupKinds = []string{"ROW", "PLANE", "BLOCK", "LABEL", "PARTITION"}
)

// both are the variables for faults of nodes and for group faults.
var both = []variable{
	{"fault.state", cel.StringType, strs(badStates...)},
	{"fault.cause", cel.StringType, strs(causes...)},
	{"fault.duration", cel.DurationType, nil},
	{"fault.recurrence", cel.IntType, nil},
	{"fault.incident", cel.StringType, nil},
}

// ofNode are the variables for faults of nodes.
var ofNode = append(slices.Clone(both),
	variable{"fault.component", cel.StringType, strs(fault.Components()...)},
	variable{"fault.singleWitness", cel.BoolType, nil},
	variable{"fault.inferred", cel.BoolType, nil},
	variable{"fault.unreachable", cel.BoolType, nil},
	variable{"fault.flapping", cel.BoolType, nil},
	variable{"fault.platform", cel.StringType, []string{"", fault.PlatformSharedKernel.String(), fault.PlatformDPU.String()}},
	variable{"fault.kernelDead", cel.StringType, []string{"", fault.KernelIsDead.String(), fault.KernelIsAlive.String()}},
	variable{"fault.watchdog", cel.StringType, []string{"", "disarmed", "armed", "self-fencing"}},
	variable{"fault.groups", cel.ListType(cel.StringType), groupKinds},
	variable{"node.id", cel.StringType, nil},
	variable{"node.labels", cel.MapType(cel.StringType, cel.StringType), nil},
)

// ofGroup are the variables for group faults.
var ofGroup = append(slices.Clone(both),
	variable{"fault.group", cel.StringType, groupKinds},
	variable{"fault.id", cel.StringType, nil},
	variable{"fault.members", cel.IntType, nil},
	variable{"fault.of", cel.IntType, nil},
)

func variables(groups bool) []variable {
	if groups {
		return ofGroup
	}
	return ofNode
}

func names(vs []variable) []string {
	var out []string
	for _, v := range vs {
		out = append(out, v.name)
	}
	slices.Sort(out)
	return out
}

// environment returns the CEL environment with the variables.
func environment(vs []variable) (*cel.Env, error) {
	opts := []cel.EnvOption{
		cel.OptionalTypes(), cel.EagerlyValidateDeclarations(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateRegexLiterals(), cel.ValidateHomogeneousAggregateLiterals()),
	}
	for _, v := range vs {
		opts = append(opts, cel.Variable(v.name, v.of))
	}
	return cel.NewEnv(opts...)
}

// compiler has an environment for conditions on nodes, and one for those on group faults. They are expensive to create,
// so all documents of a file share them.
type compiler struct{ nodes, groups *cel.Env }

func (c *compiler) environment(groups bool) (*cel.Env, error) {
	env := &c.nodes
	if groups {
		env = &c.groups
	}
	if *env == nil {
		e, err := environment(variables(groups))
		if err != nil {
			return nil, err
		}
		*env = e
	}
	return *env, nil
}

// issuesOf returns CEL's errors.
func issuesOf(issues *cel.Issues, vs []variable) []error {
	var errs []error
	for _, e := range issues.Errors() {
		msg := e.Message
		if strings.HasPrefix(msg, "undeclared reference") {
			msg += "; want one of " + strings.Join(names(vs), ", ")
		}
		errs = append(errs, fmt.Errorf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, msg))
	}
	return errs
}

// compile checks a condition, and reports every error in the condition.
func (c *compiler) compile(text string, groups bool) (*matcher, []error) {
	vs := variables(groups)
	env, err := c.environment(groups)
	if err != nil {
		return nil, []error{err}
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil, issuesOf(issues, vs)
	}
	size, errs := patterns(parsed.NativeRep())
	if len(errs) > 0 {
		return nil, errs
	}
	checked, issues := env.Check(parsed) // compiles the patterns
	if issues.Err() != nil {
		return nil, issuesOf(issues, vs)
	}
	if errs := nested(checked.NativeRep()); len(errs) > 0 {
		return nil, errs
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, []error{fmt.Errorf("given a condition that is a %s: want a bool", t)}
	}
	durations, errs := constants(checked.NativeRep(), vs)
	if len(durations) > maxThresholds {
		errs = append(errs, fmt.Errorf("fault.duration: given %d durations that it is compared with: want at most %d", len(durations),
			maxThresholds))
	}
	estimate, err := env.EstimateCost(checked, sizes{grows(checked.NativeRep())})
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("cost: %w", err))
	case estimate.Max > MaxCost:
		errs = append(errs, fmt.Errorf("given a condition that may cost %d an evaluation: want at most %d", estimate.Max, MaxCost))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	m, err := newMatcher(env, checked, groups, durations, asks(size, estimate))
	if err != nil {
		return nil, []error{err}
	}
	m.incidents = mentions(checked.NativeRep(), "fault.incident")
	return m, nil
}

// mentions reports whether a condition depends on a variable.
func mentions(a *ast.AST, name string) bool {
	found := false
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) { found = found || nameOf(a, e) == name }))
	return found
}

// nameOf returns the name of the variable if an expression is a variable, and "" otherwise.
func nameOf(a *ast.AST, e ast.Expr) string {
	if e.Kind() == ast.IdentKind {
		return e.AsIdent()
	}
	if ref, ok := a.ReferenceMap()[e.ID()]; ok && len(ref.OverloadIDs) == 0 {
		return ref.Name
	}
	return ""
}

// fixed are the kinds of values that cannot grow.
var fixed = []types.Kind{types.BoolKind, types.IntKind, types.UintKind, types.DoubleKind, types.DurationKind, types.TimestampKind}

// sizes bounds the sizes of values, for the cost estimate of a condition.
type sizes struct{ grow bool } // grow is the result of grows

// EstimateSize implements cost.Estimator. It returns nil for a value of unknown size.
func (s sizes) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	path := node.Path()
	switch {
	case len(path) == 1 && path[0] == "node.labels":
		return &cost.SizeEstimate{Min: 0, Max: fault.MaxLabels}
	case len(path) == 1 && path[0] == "fault.groups":
		return &cost.SizeEstimate{Min: 0, Max: uint64(len(groupKinds))}
	case s.grow && len(path) == 0 && (node.Type() == nil || !slices.Contains(fixed, node.Type().Kind())):
		return nil
	default: // a label's key with its prefix is the longest text
		return &cost.SizeEstimate{Min: 0, Max: 320}
	}
}

// toText are the conversions of values of a fixed size to texts of up to maxNumber bytes.
var toText = []string{overloads.BoolToString, overloads.IntToString, overloads.UintToString, overloads.DoubleToString,
	overloads.DurationToString, overloads.TimestampToString}

const maxNumber = 40

// EstimateCallCost implements cost.Estimator. CEL takes a pattern's length for its size, which is wrong with repetitions. Here 4
// instructions cost as much as a byte, so that one pattern of maxInstructions on the longest text costs about MaxCost. Other functions have
// CEL's costs.
func (s sizes) EstimateCallCost(_, overload string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	if slices.Contains(toText, overload) {
		return &cost.CallEstimate{CostEstimate: cost.CallCostEstimate, ResultSize: &cost.SizeEstimate{Max: maxNumber}}
	}
	if overload == overloads.Matches && len(args) == 2 {
		target, args = &args[0], args[1:]
	} else if overload != overloads.MatchesString || target == nil || len(args) != 1 {
		return nil
	}
	pattern, _ := textOf(args[0].Expr())
	size := cost.FixedSizeEstimate(uint64(max(len(pattern), instructions(pattern)/4)))
	text := cost.EstimateSize(s, *target).Add(cost.FixedSizeEstimate(1)).MultiplyByCostFactor(cost.StringTraversalCostFactor)
	return &cost.CallEstimate{CostEstimate: text.Multiply(size.MultiplyByCostFactor(cost.RegexStringLengthCostFactor))}
}

// comparisons are the permitted comparison operators for fault.duration.
var comparisons = []string{"_<_", "_<=_", "_>_", "_>=_"}

// constants checks the operands of comparisons. Variables with few values may only be compared with one of these, and
// fault.duration only with literals. It returns these durations, sorted.
func constants(a *ast.AST, vs []variable) (durations []time.Duration, errs []error) {
	known := map[string]variable{}
	for _, v := range vs {
		known[v.name] = v
	}
	variableOf := func(e ast.Expr) string { return nameOf(a, e) }
	seen, compared := 0, 0
	found := map[time.Duration]bool{}
	visit := func(e ast.Expr) {
		if variableOf(e) == "fault.duration" {
			seen++
		}
		if e.Kind() != ast.CallKind || len(e.AsCall().Args()) != 2 {
			return
		}
		op, args := e.AsCall().FunctionName(), e.AsCall().Args()
		for i, arg := range args {
			v, other := known[variableOf(arg)], args[1-i]
			switch {
			case v.name == "fault.duration" && slices.Contains(comparisons, op):
				if d, ok := literal(other); ok {
					compared++
					found[d] = true
				}
			case len(v.values) > 0 && v.of.IsExactType(cel.StringType) && (op == "_==_" || op == "_!=_" || op == "@in" && i == 0),
				len(v.values) > 0 && op == "@in" && i == 1:
				for _, s := range literals(other) {
					if !slices.Contains(v.values, s) {
						errs = append(errs, fmt.Errorf("%s: given %q: want one of %s", v.name, s, strings.Join(v.values, ", ")))
					}
				}
			}
		}
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(visit))
	if seen != compared {
		errs = append(errs, errors.New(
			`fault.duration: given another use than a comparison: want <, <=, > or >= with a literal, as in fault.duration >= duration("5m")`))
	}
	return slices.Sorted(maps.Keys(found)), errs
}

// literal parses duration("5m").
func literal(e ast.Expr) (time.Duration, bool) {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "duration" || len(e.AsCall().Args()) != 1 {
		return 0, false
	}
	texts := literals(e.AsCall().Args()[0])
	if len(texts) != 1 {
		return 0, false
	}
	d, err := time.ParseDuration(texts[0])
	return d, err == nil
}

// literals returns the strings of a literal, or of a list of literals.
func literals(e ast.Expr) []string {
	switch e.Kind() {
	case ast.LiteralKind:
		if s, ok := e.AsLiteral().(types.String); ok {
			return []string{string(s)}
		}
	case ast.ListKind:
		var out []string
		for _, el := range e.AsList().Elements() {
			out = append(out, literals(el)...)
		}
		return out
	default:
	}
	return nil
}
