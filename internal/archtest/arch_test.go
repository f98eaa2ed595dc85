package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/lofamo/lofamo"

// layers names, for every package tree of ours, the trees of ours that it may import besides
// itself. The longest matching prefix counts. A package that matches none fails the test.
var layers = map[string][]string{
	"api":                           {},
	"client":                        {"api"},
	"pkg/torus/grid":                {},
	"pkg/fault":                     {"pkg/torus/grid"},
	"pkg/watchdog":                  {"pkg/fault", "pkg/torus/grid"},
	"pkg/watchdog/regfile":          {"pkg/watchdog", "pkg/fault", "pkg/torus/grid"},
	"pkg/watchdog/regfile/pagetest": {"pkg/watchdog", "pkg/watchdog/regfile", "pkg/fault", "pkg/torus/grid"},
	"pkg/torus":                     {"pkg/fault", "pkg/torus/grid"},
	"pkg/torus/chanmask":            {"pkg/torus/grid"},
	"pkg/pieces":                    {},
	"pkg/udpguard":                  {},
	"pkg/torus/diagnosis":           {"pkg/torus/grid"},
	"pkg/torus/mapping":             {"pkg/torus/grid"},
	"pkg/torus/express":             {"pkg/fault", "pkg/torus/grid"},
	"pkg/torus/procedure":           {"pkg/torus/grid"},
	"pkg/torus/udplink":             {"pkg/torus", "pkg/fault", "pkg/torus/grid", "pkg/pieces", "pkg/udpguard"},
	"pkg/servicenet":                {"api", "pkg/fault", "pkg/torus/grid"},
	"pkg/servicenet/bulk":           {"api", "pkg/fault", "pkg/torus/grid", "pkg/servicenet"},
	"pkg/servicenet/direct":         {"pkg/servicenet", "pkg/fault", "pkg/torus/grid", "pkg/pieces", "pkg/udpguard"},
	"pkg/servicenet/gossip":         {"pkg/servicenet", "pkg/fault", "pkg/torus/grid", "pkg/pieces", "pkg/udpguard"},
	"pkg/servicenet/spool":          {"pkg/servicenet", "pkg/fault", "pkg/torus/grid"},
	"pkg/servicenet/railtest":       {"pkg/servicenet"},
	"pkg/order":                     {"api", "pkg/fault", "pkg/servicenet"},
	"pkg/order/ordertest":           {"api", "pkg/fault", "pkg/order"},
	"pkg/sensor":                    {"pkg/fault", "pkg/torus/grid"},
	"pkg/awareness":                 {"pkg/fault", "pkg/torus/grid"},
	"pkg/response":                  {"pkg/fault", "pkg/torus/grid"},
	"pkg/response/policy":           {"pkg/response", "pkg/awareness", "pkg/fault", "pkg/torus/grid"},
	"pkg/selftest":                  {},
	"pkg/jobs":                      {"api"},
	"examples":                      {"pkg/jobs"},
	"docs/runbooks":                 {},
	"internal/archtest":             {},
	"internal/testing/golden":       {},
	"internal/testing/machine":      {},
	"internal/testing/docstest":     {},
	"internal/testing/requirements": {},
	"internal/testing/hacktest":     {},
	"internal/testing/netnstest":    {"internal/testing/requirements"},
	"internal/testing/previous":     {},
	"internal/testing/pdeathsig":    {},
	"internal/testing/freeport":     {},
	"internal/testing/deadline":     {},
	"internal/testing/attempts":     {},
	"internal/account":              {},
	"internal/testing/fixedseed":    {},
	"internal/failpoint":            {},
	"internal/durable":              {"internal/failpoint"},
	"internal/retransmit":           {"pkg/pieces"},
	"internal/trusted":              {},
	"internal/notify":               {"pkg/fault"},
	"internal/bounded":              {"pkg/udpguard", "internal/retransmit"},
	"internal/program":              {"pkg/watchdog", "internal/config"},
	"internal/testing/kubetest":     {"internal/testing/freeport"},
	"internal/pki":                  {"api", "pkg/fault", "pkg/servicenet", "internal/durable"},
	"internal/config":               {"api", "pkg"},
	"internal/agent": {"api", "pkg/udpguard", "pkg/fault", "pkg/watchdog", "pkg/torus", "pkg/servicenet", "pkg/order",
		"pkg/sensor", "pkg/selftest", "internal/config", "internal/pki", "internal/preflight", "internal/program",
		"internal/bounded", "internal/durable", "internal/failpoint", "internal/sdnotify"},
	"internal/executor": {"api", "pkg/fault", "pkg/torus/grid", "pkg/order", "pkg/response", "internal/bounded", "internal/config",
		"internal/durable", "internal/notify", "internal/pki", "internal/failpoint", "internal/program", "internal/trusted"},
	"internal/supervisor": {"api", "pkg/fault", "pkg/watchdog", "pkg/torus/grid", "pkg/torus/diagnosis", "pkg/torus/express",
		"pkg/torus/chanmask", "pkg/servicenet", "pkg/order", "pkg/awareness", "pkg/response", "internal/bounded", "internal/durable",
		"internal/executor", "internal/config", "internal/notify", "internal/pki", "internal/retransmit",
		"internal/failpoint", "internal/program", "docs/runbooks"},
	"internal/sdnotify":            {"internal/bounded", "internal/durable"},
	"internal/sim":                 {"api", "pkg", "internal/account", "internal/agent", "internal/config", "internal/supervisor"},
	"papers":                       {"pkg/torus/grid"},
	"internal/inventory":           {"pkg/fault", "pkg/torus/grid", "internal/config", "internal/durable", "internal/pki"},
	"internal/testing/packagetest": {},
	"internal/apidoc":              {},
	"internal/testing/charttest": {"api", "client", "internal/ctl", "internal/testing/kubetest", "internal/testing/freeport",
		"internal/inventory",
		"internal/cluster", "internal/pki"},
	"internal/configdoc": {"internal/config", "internal/executor", "internal/inventory", "pkg/response/policy"},
	"internal/cluster": {"api", "client", "pkg", "internal/config", "internal/durable", "internal/inventory", "internal/pki",
		"internal/program", "internal/trusted"},
	"internal/ctl": {"api", "client", "pkg", "internal/cluster", "internal/inventory", "internal/config", "internal/durable",
		"internal/notify", "internal/pki", "internal/preflight", "internal/program", "internal/trusted"},
	"internal/preflight":   {"internal/config", "internal/durable"},
	"internal/testing/lab": {"api", "client", "internal/cluster"},
	"internal/testing/trial": {"api", "client", "pkg/fault", "pkg/torus/grid", "internal/testing/machine", "internal/testing/lab",
		"internal/cluster", "internal/config", "internal/durable", "internal/pki"},
	"internal/testing/deaths": {"api", "client", "pkg/torus/grid", "internal/testing/machine", "internal/testing/trial",
		"internal/testing/freeport", "internal/testing/pdeathsig", "internal/campaign/account", "internal/config"},
	"internal/campaign":          {"pkg/servicenet", "internal/supervisor"},
	"internal/testing/netfaults": {"pkg/torus/udplink"},
	"internal/testing/netlab":    {"pkg", "internal/testing/lab", "internal/cluster", "internal/config"},
	"internal/e2e": {"api", "client", "pkg", "internal/testing/lab", "internal/testing/trial", "internal/cluster", "internal/config",
		"internal/pki", "internal/ctl", "internal/metricsdoc", "internal/dashboards"},
	"internal/metricsdoc":         {"internal/agent", "internal/executor", "internal/supervisor"},
	"internal/dashboards":         {},
	"cmd":                         {"internal", "pkg", "api"},
	"internal/testing/clienttest": {"api", "internal/pki", "internal/testing/freeport"},
	"internal/ctl/ctltest":        {"api", "pkg", "internal/testing/clienttest"},

	"internal/testing/supervisortest": {"api", "internal/supervisor", "pkg/fault", "pkg/servicenet", "pkg/torus/grid", "internal/config",
		"internal/testing/freeport", "internal/pki"},
	"internal/testing/agenttest": {"internal/agent", "pkg/fault", "pkg/servicenet", "pkg/torus", "pkg/watchdog", "internal/config",
		"internal/testing/freeport", "internal/pki"},
	"internal/agent/threads/threadstest":  {"internal/testing/requirements"},
	"internal/executor/executortest":      {"pkg/response", "pkg/fault", "pkg/torus/grid", "internal/executor", "internal/testing/deadline"},
	"internal/executor/process/slurmtest": {"internal/testing/freeport", "internal/testing/requirements"},
	"internal/executor/process/processtest": {"pkg/fault", "pkg/response", "internal/executor", "internal/config", "internal/pki",
		"internal/testing/freeport"},
}

// pure lists the packages, and the files of other packages, that are functions of (state, now, event).
var pure = []string{
	"pkg/fault", "pkg/torus/grid", "pkg/torus", "pkg/torus/chanmask", "pkg/torus/diagnosis", "pkg/torus/mapping", "pkg/torus/express",
	"pkg/torus/procedure", "pkg/torus/udplink/faults.go", "pkg/watchdog", "pkg/servicenet", "pkg/order", "pkg/awareness", "pkg/selftest",
	"pkg/servicenet/bulk",
	"internal/agent/local/jobs", "internal/agent/actions",
	"internal/agent/host/hostcore", "internal/agent/dnp/dnpcore", "internal/agent/half/halfcore",
	"internal/agent/daemon/recovery", "internal/agent/peers",
	"pkg/torus/routing",
	"papers/chaos", "papers/chaos/experiment", "papers/diameter", "papers/reliability",
	"pkg/response", "pkg/response/policy", "internal/executor/controller",
	"internal/executor/kubernetes/nodeplan.go", "internal/executor/kubernetes/claims.go", "internal/executor/kubernetes/condition.go",
	"internal/executor/kubernetes/marks.go", "internal/executor/kubernetes/planacts.go", "internal/executor/kubernetes/plannedpods.go",
	"internal/executor/webhook/attempt.go", "internal/executor/alertmanager/keeper.go",
	"internal/supervisor/orders/configurationplan.go", "internal/supervisor/orders/mappingplan.go", "internal/supervisor/orders/peerplan.go",
	"internal/supervisor/orders/peerepochs.go",
	"internal/supervisor/notify/machine.go",
	"internal/supervisor/orders/procedureplan.go", "internal/supervisor/orders/proceduremachine.go",
	"internal/supervisor/orders/strays.go",
	"internal/supervisor/ingest/paths.go",
	"internal/supervisor/ingest/pathqueue.go",
	"internal/supervisor/federation/export.go",
	"internal/supervisor/federation/exportfeed.go",
	"internal/supervisor/federation/exportledger.go",
	"internal/supervisor/federation/exportmissing.go",
	"internal/supervisor/federation/exportpack.go",
	"internal/supervisor/api/labelselector.go",
	"internal/supervisor/api/fieldselector.go",
	"internal/supervisor/api/watchring.go",
	"internal/supervisor/topology",
	"internal/testing/trial/plan.go", "internal/testing/trial/truth.go", "internal/testing/trial/checker.go",
	"internal/testing/trial/ledger.go", "internal/testing/trial/slope.go", "internal/testing/trial/incidents.go",
}

// impureImports must not appear in a pure package.
var impureImports = []string{
	"net", "os", "log", "log/slog", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand", "context", "syscall", "io/fs",
	"os/signal",
	"golang.org/x/sys/unix",
}

// clock lists the functions of package time that a pure package must not use.
var clock = map[string]bool{
	"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true,
	"Sleep": true,
}

type file struct {
	path string // relative to the module, with slashes
	dir  string
	test bool
	fset *token.FileSet
	ast  *ast.File
}

// sources has every Go file of the module, parsed once for all tests: that takes a second, and ten on a busy machine
// with the race detector.
func sources(t *testing.T) []file {
	t.Helper()
	out, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d source files found: the walk is wrong", len(out))
	}
	return out
}

var parsed = sync.OnceValues(func() ([]file, error) { return sourcesOf(".", "bench") })

// sourcesOf reads the Go files below a folder of the repository, without one of its folders.
func sourcesOf(top, without string) ([]file, error) {
	root := filepath.Join("..", "..")
	var out []file
	fset := token.NewFileSet()
	err := filepath.WalkDir(filepath.Join(root, top), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || name == "node_modules" ||
				rel == without) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, file{rel, filepath.ToSlash(filepath.Dir(rel)), strings.HasSuffix(p, "_test.go"), fset, f})
		return nil
	})
	return out, err
}

func layerOf(dir string) (string, bool) {
	for d := dir; d != "."; d = filepath.ToSlash(filepath.Dir(d)) {
		if _, ok := layers[d]; ok {
			return d, true
		}
	}
	return "", false
}

func within(dir, tree string) bool { return dir == tree || strings.HasPrefix(dir, tree+"/") }

func mayImport(from, to string) error {
	layer, ok := layerOf(from)
	if !ok {
		return fmt.Errorf("%s is in no layer: give it one in archtest", from)
	}
	if within(to, layer) {
		if from == layer && to != layer {
			if own, _ := layerOf(to); own != layer && !slices.Contains(layers[layer], own) {
				return fmt.Errorf("%s imports %s: a parent never imports its adapter", from, to)
			}
		}
		return nil
	}
	for _, allowed := range layers[layer] {
		if !within(to, allowed) {
			continue
		}
		// A listed parent does not bring its adapters along, unless the whole of pkg, or the
		// putting together in internal/, is allowed.
		if own, _ := layerOf(to); own == allowed || strings.HasPrefix(layer, "internal/") || layer == "cmd" {
			return nil
		}
	}
	return fmt.Errorf("%s must not import %s", from, to)
}

func TestImportDirections(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if rel, ours := strings.CutPrefix(p, module+"/"); ours {
				if err := mayImport(f.dir, rel); err != nil {
					t.Errorf("%s: %v", f.path, err)
				}
			}
			if strings.HasPrefix(p, "k8s.io/") && (within(f.dir, "internal/agent") || within(f.dir, "pkg")) {
				t.Errorf("%s imports %s: client-go never reaches the agent", f.path, p)
			}
			if strings.HasPrefix(p, "charm.land/") && !within(f.dir, "internal/ctl/top") {
				t.Errorf("%s imports %s: what draws in terminals is for lofamoctl top alone", f.path, p)
			}
		}
	}
}

func TestImportRuleRefuses(t *testing.T) {
	for _, tc := range []struct{ from, to string }{
		{"pkg/fault", "pkg/watchdog"},
		{"pkg/watchdog", "pkg/torus"},
		{"pkg/torus", "pkg/torus/udplink"},
		{"pkg/awareness", "pkg/servicenet/gossip"},
		{"internal/supervisor/api", "internal/agent"},
		{"pkg/nowhere", "pkg/fault"},
	} {
		if mayImport(tc.from, tc.to) == nil {
			t.Errorf("%s may import %s", tc.from, tc.to)
		}
	}
	for _, tc := range []struct{ from, to string }{
		{"pkg/torus/udplink", "pkg/torus"},
		{"internal/agent", "pkg/servicenet/direct"},
		{"internal/supervisor", "internal/supervisor/api"},
		{"cmd/lofamoctl", "internal/ctl"},
	} {
		if err := mayImport(tc.from, tc.to); err != nil {
			t.Error(err)
		}
	}
}

func TestPurePackagesArePure(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		if f.test || !isPure(f) {
			continue
		}
		seen[f.dir], seen[f.path] = true, true
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			for _, bad := range impureImports {
				if p == bad {
					t.Errorf("%s imports %s: the code is pure", f.path, p)
				}
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in pure code", f.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); ok && id.Name == "time" && clock[n.Sel.Name] {
					t.Errorf("%s: time.%s in pure code", f.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
	for _, p := range pure {
		if !seen[p] {
			t.Errorf("pure package or file %s has no source", p)
		}
	}
}

func isPure(f file) bool {
	return slices.Contains(pure, f.dir) || slices.Contains(pure, f.path)
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	doc := map[string]string{}
	for _, f := range sources(t) {
		if f.test || strings.HasPrefix(f.dir, "api/") {
			continue
		}
		if _, ok := doc[f.dir]; !ok {
			doc[f.dir] = ""
		}
		if f.ast.Doc != nil {
			doc[f.dir] += f.ast.Doc.Text()
		}
	}
	var dirs []string
	for d := range doc {
		dirs = append(dirs, d)
	}
	sort.Strings(dirs)
	for _, d := range dirs {
		if len(doc[d]) < 60 {
			t.Errorf("%s: package comment %q: want what it is for and what it is not", d, doc[d])
		}
	}
}

// TestFilesAndFunctionsStayShort keeps files near 500 lines and functions near 60; a longer function has a reason in its comment, with the
// word "long".
func TestFilesAndFunctionsStayShort(t *testing.T) {
	for _, f := range sources(t) {
		if strings.HasPrefix(f.dir, "api/") || f.test {
			continue
		}
		if n := f.fset.Position(f.ast.End()).Line; n > 550 {
			t.Errorf("%s has %d lines: split it", f.path, n)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if n > 70 && !strings.Contains(strings.ToLower(fn.Doc.Text()), "long") {
				t.Errorf("%s: %s has %d lines and does not say why", f.fset.Position(fn.Pos()), fn.Name.Name, n)
			}
		}
	}
}

// TestNoPackageHasInitFunction keeps registries from filling themselves behind the reader's back.
func TestNoPackageHasInitFunction(t *testing.T) {
	for _, f := range sources(t) {
		if strings.HasPrefix(f.dir, "api/") {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init function", f.fset.Position(fn.Pos()))
			}
		}
	}
}

// TestHalvesStartNoProcesses: a half is real-time, and to start a process would block all of it until a process of the
// ordinary class has run, which on a loaded machine takes longer than the half may be silent. So no package of ours in
// a half may start processes.
func TestHalvesStartNoProcesses(t *testing.T) {
	files := map[string][]file{}
	for _, f := range sources(t) {
		if !f.test {
			files[f.dir] = append(files[f.dir], f)
		}
	}
	seen, next := map[string]bool{}, []string{"internal/agent/host", "internal/agent/dnp"}
	for len(next) > 0 {
		dir := next[0]
		next = next[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		for _, f := range files[dir] {
			for _, how := range startsProcesses(f.ast) {
				t.Errorf("%s uses %s, and is a part of a half", f.path, how)
			}
			for _, imp := range f.ast.Imports {
				p, _ := strconv.Unquote(imp.Path.Value)
				if rel, ours := strings.CutPrefix(p, module+"/"); ours {
					next = append(next, rel)
				}
			}
		}
	}
	for _, want := range []string{"internal/agent/half", "pkg/sensor"} {
		if !seen[want] {
			t.Errorf("%s is no part of a half: the search is wrong", want)
		}
	}
}

// startsProcesses lists a file's uses of functions that start processes.
func startsProcesses(f *ast.File) []string {
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if n.Path.Value == `"os/exec"` {
				out = append(out, "os/exec")
			}
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && slices.Contains([]string{"os.StartProcess", "syscall.StartProcess", "syscall.ForkExec"},
				id.Name+"."+n.Sel.Name) {
				out = append(out, id.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return out
}

func TestProcessRuleRefuses(t *testing.T) {
	for text, want := range map[string]int{
		`package p; import "os/exec"; var _ = exec.Command`:             1,
		`package p; import "syscall"; var _ = syscall.ForkExec`:         1,
		`package p; import "os"; var _ = os.StartProcess`:               1,
		`package p; import "syscall"; var _, _ = syscall.Exec, os.Exit`: 0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := startsProcesses(f); len(got) != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestDetectionHasNoWallClock: fault detection measures ages by the monotonic clock, which a step of the wall clock
// does not move. A time made from a number or a message has no monotonic reading, so fault detection must not take a
// duration from one.
func TestDetectionHasNoWallClock(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || !within(f.dir, "pkg") && !within(f.dir, "internal/agent") && !within(f.dir, "internal/supervisor") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Since", "Until", "Sub"}, fun.Sel.Name) && wallClock(call.Args[0]) {
				t.Errorf("%s: %s of a time without a monotonic reading", f.fset.Position(call.Pos()), fun.Sel.Name)
			}
			return true
		})
	}
}

// wallClock reports whether an expression makes a time without a monotonic reading.
func wallClock(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"Unix", "UnixMilli", "UnixMicro", "AsTime", "UTC", "Round", "Truncate"}, fun.Sel.Name)
}

func TestWallClockRuleRefuses(t *testing.T) {
	for expr, want := range map[string]bool{
		"time.Unix(0, at)": true, "ev.GetTime().AsTime()": true, "t.UTC()": true, "*at": false, "began": false, "time.Now()": false,
	} {
		e, err := parser.ParseExpr(expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := wallClock(e); got != want {
			t.Errorf("%s: %t", expr, got)
		}
	}
}

// TestShellsQueueTheirEvents: a half carries out one output at a time. Only settle makes calls, so that an event caused
// by an output waits until that output is carried out, and no chain of events deepens the stack.
func TestShellsQueueTheirEvents(t *testing.T) {
	calls := map[string]int{}
	for _, f := range sources(t) {
		if f.test || f.dir != "internal/agent/host" && f.dir != "internal/agent/dnp" {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "do" {
					calls[f.dir]++
					if fn.Name.Name != "settle" {
						t.Errorf("%s: %s calls do: queue the event for settle", f.fset.Position(call.Pos()), fn.Name.Name)
					}
				}
				return true
			})
		}
	}
	for _, dir := range []string{"internal/agent/host", "internal/agent/dnp"} {
		if calls[dir] == 0 {
			t.Errorf("%s: settle calls no do: the rule looks at the wrong names", dir)
		}
	}
}
