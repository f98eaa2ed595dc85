package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
	"testing"
)

// t.Fatal or t.Skip in another goroutine than the test's own ends only that goroutine: the test continues without its
// result, and may wait for that for ever. go vet detects this in the literal of a go statement. The rule here also
// detects it in any function that such a goroutine calls.

// standIns are the parts of the standard library that the rule needs. Other imports have no types here.
var standIns = map[string]string{
	"testing": `package testing
type TB interface { Fatal(...any); Fatalf(string, ...any); FailNow(); Skip(...any); Skipf(string, ...any); SkipNow()
	Error(...any); Name() string }
type T struct { TB }
func (*T) Run(string, func(*T)) bool
type B struct { TB }
func (*B) Run(string, func(*B)) bool
type F struct { TB }`,
	"sync": `package sync
type WaitGroup struct{}
func (*WaitGroup) Go(func())
type Once struct{}
func (*Once) Do(func())`,
	"net/http": `package http
type Request struct{}
type ResponseWriter interface{ WriteHeader(int) }
type HandlerFunc func(ResponseWriter, *Request)`,
}

// enders are the methods that end the goroutine that calls them.
var enders = []string{"Fatal", "Fatalf", "FailNow", "Skip", "Skipf", "SkipNow"}

// world has the types of all packages, as far as our own sources give them.
type world struct {
	fset     *token.FileSet
	files    map[string][]*ast.File // by import path, without tests
	packages map[string]*types.Package
	info     *types.Info
	bodies   map[types.Object]*ast.BlockStmt // of functions, and of literals that a variable holds
	decls    map[types.Object]*ast.FuncType
	named    map[types.Object]string // functions that end a test, with the call that ends it
	spawns   map[types.Object][]int  // which parameters a function calls in another goroutine
}

func newWorld() *world {
	return &world{
		files: map[string][]*ast.File{}, packages: map[string]*types.Package{}, bodies: map[types.Object]*ast.BlockStmt{},
		decls: map[types.Object]*ast.FuncType{},
		named: map[types.Object]string{}, spawns: map[types.Object][]int{},
		info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}},
	}
}

// Import makes a package from our sources or a stand-in, else an empty one.
func (w *world) Import(name string) (*types.Package, error) {
	if p := w.packages[name]; p != nil {
		return p, nil
	}
	files := w.files[name]
	if text := standIns[name]; text != "" {
		f, err := parser.ParseFile(w.fset, name, text, 0)
		if err != nil {
			return nil, err
		}
		files = []*ast.File{f}
	}
	p := types.NewPackage(name, path.Base(name))
	if len(files) == 0 {
		p.MarkComplete()
		w.packages[name] = p
		return p, nil
	}
	p = w.check(name, files)
	w.packages[name] = p
	return p, nil
}

func (w *world) check(name string, files []*ast.File) *types.Package {
	c := types.Config{Importer: w, Error: func(error) {}, FakeImportC: true}
	p, _ := c.Check(name, w.fset, files, w.info) // errors come from imports without types here
	return p
}

// add reads the functions of files that were checked.
func (w *world) add(files []*ast.File) {
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if o := w.info.Defs[n.Name]; o != nil && n.Body != nil {
					w.bodies[o], w.decls[o] = n.Body, n.Type
				}
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					id, ok := l.(*ast.Ident)
					if !ok || len(n.Rhs) != len(n.Lhs) {
						continue
					}
					if lit, ok := n.Rhs[i].(*ast.FuncLit); ok && !w.ownTest(lit.Type) {
						o := w.info.Defs[id]
						if o == nil {
							o = w.info.Uses[id]
						}
						if o != nil {
							w.bodies[o], w.decls[o] = lit.Body, lit.Type
						}
					}
				}
			}
			return true
		})
	}
}

// ownTest reports whether a function literal gets its own test, as from t.Run.
func (w *world) ownTest(f *ast.FuncType) bool {
	for _, p := range f.Params.List {
		if isTest(w.info.TypeOf(p.Type)) {
			return true
		}
	}
	return false
}

func isTest(t types.Type) bool {
	if t == nil {
		return false
	}
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "testing"
}

// called returns the function that a call invokes, if known, and the declaration of a generic function.
func (w *world) called(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return origin(w.info.Uses[e])
	case *ast.SelectorExpr:
		return origin(w.info.Uses[e.Sel])
	case *ast.IndexExpr:
		return w.called(e.X)
	}
	return nil
}

func origin(o types.Object) types.Object {
	if f, ok := o.(*types.Func); ok {
		return f.Origin()
	}
	return o
}

// ends returns how a call ends the test, or "".
func (w *world) ends(c *ast.CallExpr) string {
	if s, ok := ast.Unparen(c.Fun).(*ast.SelectorExpr); ok && slices.Contains(enders, s.Sel.Name) && isTest(w.info.TypeOf(s.X)) {
		return s.Sel.Name
	}
	if o := w.called(c.Fun); o != nil {
		if by := w.named[o]; by != "" {
			return o.Name() + ": " + by
		}
	}
	return ""
}

// other returns the functions that a node calls in another goroutine: those of a go statement, of methods called Go, of
// AfterFunc, of HTTP handlers, and of functions that do so with their parameters.
func (w *world) other(n ast.Node) (out []ast.Expr) {
	switch n := n.(type) {
	case *ast.GoStmt:
		return append([]ast.Expr{n.Call.Fun}, n.Call.Args...)
	case *ast.CallExpr:
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Go" || s.Sel.Name == "AfterFunc" || s.Sel.Name == "HandlerFunc") {
			return n.Args
		}
		if o := w.called(n.Fun); o != nil {
			for _, i := range w.spawns[o] {
				if i < len(n.Args) {
					out = append(out, n.Args[i])
				}
			}
		}
	}
	return out
}

// walk calls each for every call that the body makes in its own goroutine, and other for the functions that it calls in
// others.
func (w *world) walk(body ast.Node, each func(*ast.CallExpr), other func(ast.Expr)) {
	skip := map[ast.Node]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil || skip[n] {
			return false
		}
		if lit, ok := n.(*ast.FuncLit); ok && w.ownTest(lit.Type) {
			return false
		}
		for _, f := range w.other(n) {
			other(f)
			if _, ok := f.(*ast.FuncLit); ok {
				skip[f] = true
			}
		}
		if g, ok := n.(*ast.GoStmt); ok { // only its arguments are evaluated here
			for _, a := range g.Call.Args {
				ast.Inspect(a, func(n ast.Node) bool {
					if c, ok := n.(*ast.CallExpr); ok {
						each(c)
					}
					_, lit := n.(*ast.FuncLit)
					return !lit
				})
			}
			return false
		}
		if c, ok := n.(*ast.CallExpr); ok {
			each(c)
		}
		return true
	})
}

// settle finds functions that end a test, and those that call parameters in other goroutines, until it finds no more.
func (w *world) settle() {
	for more := true; more; {
		more = false
		for o, body := range w.bodies {
			parameters := map[types.Object]int{}
			i := 0
			for _, f := range w.decls[o].Params.List {
				for _, n := range f.Names {
					parameters[w.info.Defs[n]] = i
					i++
				}
			}
			spawn := func(f ast.Expr) {
				ast.Inspect(f, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						if i, ok := parameters[w.info.Uses[id]]; ok && !slices.Contains(w.spawns[o], i) && isFunc(w.info.TypeOf(id)) {
							w.spawns[o] = append(w.spawns[o], i)
							more = true
						}
					}
					return true
				})
			}
			w.walk(body, func(c *ast.CallExpr) {
				if by := w.ends(c); by != "" && w.named[o] == "" {
					w.named[o] = by
					more = true
				}
			}, spawn)
		}
	}
}

func isFunc(t types.Type) bool {
	if t == nil {
		return false
	}
	_, ok := t.Underlying().(*types.Signature)
	return ok
}

// foreign returns the places where another goroutine than the test's ends the test.
func (w *world) foreign(files []*ast.File) (out []string) {
	say := func(at token.Pos, by string) {
		p := w.fset.Position(at)
		out = append(out, fmt.Sprintf("%s:%d: %s", p.Filename, p.Line, by))
	}
	look := func(f ast.Expr) {
		lit, ok := ast.Unparen(f).(*ast.FuncLit)
		if !ok {
			if o := w.called(f); o != nil && w.named[o] != "" {
				say(f.Pos(), o.Name()+": "+w.named[o])
			}
			return
		}
		if w.ownTest(lit.Type) {
			return
		}
		w.walk(lit.Body, func(c *ast.CallExpr) {
			if by := w.ends(c); by != "" {
				say(c.Pos(), by)
			}
		}, func(ast.Expr) {}) // found below
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			for _, f := range w.other(n) {
				look(f)
			}
			return true
		})
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// foreignEnds checks all files for the rule.
func foreignEnds(fset *token.FileSet, all []file) []string {
	w := newWorld()
	w.fset = fset
	tests := map[string][]*ast.File{} // by import path, a package of external tests by itself
	for _, f := range all {
		name := module + "/" + f.dir
		switch {
		case !f.test:
			w.files[name] = append(w.files[name], f.ast)
		case strings.HasSuffix(f.ast.Name.Name, "_test"):
			tests[name+"_test"] = append(tests[name+"_test"], f.ast)
		default:
			tests[name] = append(tests[name], f.ast)
		}
	}
	var every []*ast.File
	for name, files := range w.files {
		if _, err := w.Import(name); err != nil {
			return []string{err.Error()}
		}
		every = append(every, files...)
	}
	w.add(every)
	var checked []*ast.File
	for name, files := range tests {
		// Parse the package's own files once, so that its functions are those that the tests call.
		w.check(name, slices.Concat(w.files[name], files))
		checked = append(checked, slices.Concat(w.files[name], files)...)
	}
	w.add(checked)
	w.settle()
	return w.foreign(slices.Concat(every, checked))
}

func TestNoGoroutineEndsAnothersTest(t *testing.T) {
	for _, at := range foreignEnds(sources(t)[0].fset, sources(t)) {
		t.Errorf("%s: ends the test from another goroutine, which leaves the test waiting: report by t.Error and return, or hand the error to "+
			"the test's goroutine", at)
	}
}

func TestGoroutineRuleRefuses(t *testing.T) {
	const text = `package x
import ("net/http"; "sync"; "testing"; "time")
type leader struct { t *testing.T }
func (l *leader) end() { l.t.Fatal() }
func deep(t testing.TB) { need(t) }
func need(t testing.TB) { t.Skip() }
func fine(t testing.TB) { t.Error() }
func each[T any](all []T, f func(T)) { var wg sync.WaitGroup; work := func() { f(all[0]) }; wg.Go(work); wg.Go(func() { f(all[1]) }) }
func pass(f func(int)) { each([]int{1, 2}, f) }
func TestX(t *testing.T) {
	var wg sync.WaitGroup
	l := &leader{t}
	here := func() { t.FailNow() }
	go func() { t.Fatal() }()
	wg.Go(func() { deep(t) })
	go l.end()
	go here()
	pass(func(int) { l.end() })
	time.AfterFunc(1, here)
	_ = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { need(t) })
	go func() { func() { need(t) }() }()

	go func() { fine(t); t.Run("", func(t *testing.T) { t.Fatal() }) }()
	go fine(t)
	deep(t)
	here()
	func() { t.Fatal() }()
	go fine(func() testing.TB { return t }())
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x_test.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, at := range foreignEnds(fset, []file{{path: "x/x_test.go", dir: "x", test: true, fset: fset, ast: f}}) {
		got = append(got, strings.TrimPrefix(at, "x_test.go:"))
	}
	want := []string{
		"14: Fatal", "15: deep: need: Skip", "16: end: Fatal", "17: here: FailNow", "18: end: Fatal", "19: here: FailNow", "20: need: Skip",
		"21: need: Skip",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
