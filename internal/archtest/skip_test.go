package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// skipping are the files whose tests may be skipped in CI too, because no available tool or permission would help. All
// others skip by internal/testing/requirements, which fails there.
var skipping = map[string]string{
	"internal/testing/requirements/requirements.go": "it is what the others skip by",
	"internal/testing/charttest/outside_test.go":    "minutes, by a variable",
	"internal/testing/charttest/kubelet_test.go":    "a container may have no control groups of its own",
	"internal/sim/bugs_test.go":                     "done without the race detector",
	"internal/sim/fencebugs_test.go":                "as bugs_test.go",
	"papers/chaos/experiment/experiment_test.go":    "done without the race detector",
	"internal/sim/campaign_test.go":                 "hours, by a flag",
	"pkg/awareness/restore_test.go":                 "a draw that asks nothing",
	"pkg/sensor/blockdev_test.go":                   "a machine of containers has no block device",
	"pkg/sensor/script/script_test.go":              "the machine was too busy to ask it",
	"pkg/servicenet/direct/errors_test.go":          "a machine may have no IPv6",
	"pkg/servicenet/direct/refused_test.go":         "a machine may have no IPv6",
	"pkg/servicenet/direct/zone_test.go":            "a machine may have no IPv6",
}

// skips returns the lines of a file that skip a test.
func skips(fset *token.FileSet, f *ast.File) (out []int) {
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			return true
		}
		// as tests, benchmarks and fuzz targets are called everywhere
		if of, ok := s.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb"}, of.Name) {
			out = append(out, fset.Position(s.Pos()).Line)
		}
		return true
	})
	return out
}

func TestNothingIsSkippedUnseen(t *testing.T) {
	seen := map[string]bool{}
	bench, err := sourcesOf("bench", "") // a module of its own, with tests that run beside all others
	if err != nil || len(bench) < 10 {
		t.Fatalf("%d files of bench, %v", len(bench), err)
	}
	for _, f := range slices.Concat(sources(t), bench) {
		lines := skips(f.fset, f.ast)
		seen[f.path] = len(lines) > 0
		if len(lines) > 0 && skipping[f.path] == "" {
			t.Errorf("%s: lines %v skip a test: want internal/testing/requirements, by which it fails in CI", f.path, lines)
		}
	}
	for path := range skipping {
		if !seen[path] {
			t.Errorf("%s skips nothing any more", path)
		}
	}
}

func TestSkipRuleRefuses(t *testing.T) {
	const text = `package x
func a(t *testing.T) { t.Skip() }
func b(t *testing.T) {
	f := t.Skipf
	f("")
}
func c(tb testing.TB) { tb.SkipNow() }
func d(t *testing.T) { failpoint.Skip(""); requirements.Missing(t, "it"); strings.Skipped() }
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x_test.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := skips(fset, f), []int{2, 4, 7}; !slices.Equal(got, want) {
		t.Errorf("lines %v, want %v", got, want)
	}
}
