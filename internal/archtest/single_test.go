package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNoRacesInSingle: packages that `make test` never runs with the race detector use no concurrency, neither in their
// code nor in their tests.
func TestNoRacesInSingle(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^SINGLE := (.*)$`).FindSubmatch(b)
	if list == nil {
		t.Fatal("the Makefile has no line SINGLE := …")
	}
	for name := range strings.FieldsSeq(string(list[1])) {
		dir, below := strings.CutSuffix(strings.TrimPrefix(name, "./"), "/...")
		found := 0
		for _, f := range sources(t) {
			if f.dir != dir && (!below || !strings.HasPrefix(f.dir, dir+"/")) {
				continue
			}
			found++
			ast.Inspect(f.ast, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine in a package of one: move it from SINGLE to PURE in the Makefile", f.fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					if n.Sel.Name == "Parallel" || n.Sel.Name == "Go" || n.Sel.Name == "AfterFunc" {
						t.Errorf("%s: %s in a package of one goroutine: move it from SINGLE to PURE in the Makefile", f.fset.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
		if found < 2 {
			t.Errorf("%s: %d source files: want a package and its tests", name, found)
		}
	}
}
