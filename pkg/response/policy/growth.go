package policy

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// nested returns the errors for computed lists and mappings that contain other ones. Each macro of a condition can double such a value, and
// the estimated cost of a comparison is that of the outer one alone. Literals cannot grow, so they may be nested.
func nested(a *ast.AST) []error {
	var errs []error
	visit := func(e ast.Expr) {
		switch {
		case e.Kind() == ast.StructKind:
			errs = append(errs, fmt.Errorf("%s: given a message: want texts, numbers, lists and mappings only", position(a, e)))
		case contains(a.GetType(e.ID())) && makes(e) && !constant(e):
			errs = append(errs, fmt.Errorf("%s: given a computed list or mapping that contains lists, mappings or dynamic values: want simple "+
				"values in it", position(a, e)))
		}
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(visit))
	return errs
}

// position returns the line and the column of an expression in a condition.
func position(a *ast.AST, e ast.Expr) string {
	at := a.SourceInfo().GetStartLocation(e.ID())
	return fmt.Sprintf("line %d, column %d", at.Line(), at.Column()+1)
}

// makes reports whether an expression puts values into a list, a mapping or an optional.
func makes(e ast.Expr) bool {
	return e.Kind() == ast.ListKind || e.Kind() == ast.MapKind ||
		e.Kind() == ast.CallKind && strings.HasPrefix(strings.TrimPrefix(e.AsCall().FunctionName(), "."), "optional.of")
}

// aggregates are the kinds whose values may contain others.
var aggregates = []types.Kind{types.ListKind, types.MapKind, types.DynKind, types.AnyKind, types.StructKind}

// contains reports whether values of a type contain values that may contain others.
func contains(t *types.Type) bool {
	return slices.ContainsFunc(t.Parameters(), func(p *types.Type) bool { return slices.Contains(aggregates, p.Kind()) || contains(p) })
}

// constant reports whether an expression consists of literals.
func constant(e ast.Expr) bool {
	switch e.Kind() {
	case ast.LiteralKind:
		return true
	case ast.ListKind:
		return !slices.ContainsFunc(e.AsList().Elements(), func(e ast.Expr) bool { return !constant(e) })
	case ast.MapKind:
		return !slices.ContainsFunc(e.AsMap().Entries(), func(e ast.EntryExpr) bool {
			return !constant(e.AsMapEntry().Key()) || !constant(e.AsMapEntry().Value())
		})
	default:
		return false
	}
}

// grows reports whether a macro of a condition joins texts or lists. The sizes of its values may then exceed those of variables.
func grows(a *ast.AST) bool {
	found := false
	joins := ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.Add {
			return
		}
		first := e.AsCall().Args()[0]
		result := first.Kind() == ast.IdentKind && strings.HasPrefix(first.AsIdent(), "@") // the macro's own result
		found = found || !result && slices.Contains([]types.Kind{types.StringKind, types.BytesKind, types.ListKind, types.DynKind},
			a.GetType(e.ID()).Kind())
	})
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if !found && e.Kind() == ast.ComprehensionKind {
			ast.PreOrderVisit(e.AsComprehension().LoopStep(), joins)
			ast.PreOrderVisit(e.AsComprehension().Result(), joins)
		}
	}))
	return found
}
