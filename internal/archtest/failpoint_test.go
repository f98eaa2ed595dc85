package archtest

import (
	"go/ast"
	"go/build/constraint"
	"slices"
	"strings"
	"testing"
)

// failpointTag is the build tag of programs with failpoints.
const failpointTag = "lofamo_failpoint"

// TestNoFailpointsAsDelivered: without its build tag the failpoint package does nothing, and no other code of ours
// depends on the tag, so that the campaign tests the delivered code.
func TestNoFailpointsAsDelivered(t *testing.T) {
	empty := 0
	for _, f := range sources(t) {
		tagged := buildsFor(f.ast, failpointTag)
		switch {
		case f.dir != "internal/failpoint":
			if tagged != "" && !f.test {
				t.Errorf("%s is built %s: only internal/failpoint differs between the builds", f.path, tagged)
			}
		case f.test || tagged == "with it":
		default:
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || tagged == "" {
					continue
				}
				empty++
				if !isEmpty(fn) {
					t.Errorf("%s: %s does something in a program as it is delivered", f.fset.Position(fn.Pos()), fn.Name.Name)
				}
			}
		}
	}
	if empty < 4 {
		t.Errorf("%d empty functions found: the search is wrong", empty)
	}
}

// buildsFor returns how a file depends on a build tag: "with it", "without it", or empty.
func buildsFor(f *ast.File, tag string) string {
	for _, g := range f.Comments {
		for _, c := range g.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			x, err := constraint.Parse(c.Text)
			if err != nil || !strings.Contains(c.Text, tag) {
				continue
			}
			if x.Eval(func(t string) bool { return t != tag }) {
				return "without it"
			}
			return "with it"
		}
	}
	return ""
}

// isEmpty reports whether a function returns constants at most.
func isEmpty(fn *ast.FuncDecl) bool {
	return !slices.ContainsFunc(fn.Body.List, func(s ast.Stmt) bool {
		r, ok := s.(*ast.ReturnStmt)
		return !ok || slices.ContainsFunc(r.Results, func(e ast.Expr) bool {
			switch e.(type) {
			case *ast.Ident, *ast.BasicLit:
				return false
			}
			return true
		})
	})
}
