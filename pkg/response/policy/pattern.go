package policy

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
)

// maxInstructions limits the size of all patterns of a condition. A repetition multiplies the size of its operand, so that a pattern of a
// few bytes could take hundreds of megabytes.
const maxInstructions = 1000

// rangesOfInstruction is the number of a class's ranges that count as one instruction. Most classes have fewer, and \pL has about 660.
const rangesOfInstruction = 8

// patterns checks the patterns of a condition, and returns their instructions. Nothing may compile a pattern before this check.
func patterns(a *ast.AST) (total int, errs []error) {
	visit := func(e ast.Expr) {
		pattern, is := patternOf(e)
		if !is {
			return
		}
		text, is := textOf(pattern)
		if !is {
			errs = append(errs, fmt.Errorf("%s: matches: given a computed pattern: want a text in quotation marks", position(a, pattern)))
		}
		total += instructions(text)
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(visit))
	if total > maxInstructions {
		errs = append(errs, fmt.Errorf("matches: given patterns of %d instructions: want at most %d in a condition, where a repetition counts "+
			"as often as it may repeat", total, maxInstructions))
	}
	return total, errs
}

// patternOf returns the pattern of a call of matches. A leading dot in the name of a function changes nothing.
func patternOf(e ast.Expr) (ast.Expr, bool) {
	if e.Kind() != ast.CallKind || strings.TrimPrefix(e.AsCall().FunctionName(), ".") != overloads.Matches {
		return nil, false
	}
	args := e.AsCall().Args()
	if len(args) == 0 {
		return nil, false // the type check refuses the call
	}
	return args[len(args)-1], true
}

// textOf returns the text of a literal.
func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, is := e.AsLiteral().(types.String)
	return string(s), is
}

// instructions estimates the size of a compiled pattern. An invalid pattern has none: CEL refuses it before compiling it.
func instructions(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return instructionsOf(re)
}

// instructionsOf cannot overflow: syntax.Parse refuses patterns of more than some millions of instructions.
func instructionsOf(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructionsOf(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		n = 1 + len(re.Rune)/2/rangesOfInstruction
	case syntax.OpCapture, syntax.OpStar:
		n += 2
	case syntax.OpPlus, syntax.OpQuest:
		n++
	case syntax.OpAlternate:
		n += len(re.Sub) - 1
	case syntax.OpRepeat:
		switch {
		case re.Max >= 0: // x{2,5} is xx(x(x(x)?)?)?
			n = re.Max*n + re.Max - re.Min
		case re.Min == 0:
			n += 2
		default:
			n = re.Min*n + 1
		}
	default:
	}
	return max(1, n)
}
