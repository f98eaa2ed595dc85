package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// served are the folders of programs that strangers can reach.
var served = []string{"internal/agent", "internal/executor", "internal/supervisor", "internal/bounded", "pkg"}

// ownBounds lists the folders that limit their TCP connections without package bounded, each with the reason.
var ownBounds = map[string]string{
	"pkg/servicenet/gossip": "32 streams in all: for another one, the address with the most streams loses its oldest",
	"internal/bounded":      "its ListenTCP limits the connections itself",
	"pkg/torus/udplink":     "a link has one peer: others share four places and 20 handshakes a second (ADR 42)",
}

// serverBounds are the limits that each server must set: the fields of an http.Server, the options of grpc.NewServer.
var serverBounds = map[string][]string{
	"http.Server":    {"ReadHeaderTimeout", "MaxHeaderBytes"},
	"grpc.NewServer": {"ConnectionTimeout", "MaxHeaderListSize", "MaxRecvMsgSize", "MaxConcurrentStreams"},
}

// unboundedServers returns the limits that servers of a file must set but do not. It also reports whether the file listens
// on TCP, and whether it limits connections.
func unboundedServers(f *ast.File) (faults []string, listens, bounds bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if name := selected(n.Type); name == "http.Server" {
				faults = append(faults, lacking(name, func(field string) bool {
					return slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
						kv, ok := e.(*ast.KeyValueExpr)
						return ok && named(kv.Key, field)
					})
				})...)
			}
		case *ast.CallExpr:
			switch name, method := selected(n.Fun), called(n.Fun); {
			case name == "grpc.NewServer":
				faults = append(faults, lacking(name, func(option string) bool {
					return slices.ContainsFunc(n.Args, func(e ast.Expr) bool {
						c, ok := e.(*ast.CallExpr)
						return ok && selected(c.Fun) == "grpc."+option
					})
				})...)
			case name == "bounded.ListenTCP":
				listens, bounds = true, true
			case name == "bounded.Listen":
				bounds = true
			case name == "retransmit.Listen":
				listens = true
			case method == "Listen" || method == "ListenTCP":
				listens = listens || slices.ContainsFunc(n.Args, onTCP)
			case strings.HasPrefix(method, "ListenAndServe"):
				listens = true
			}
		}
		return true
	})
	return faults, listens, bounds
}

// selected returns an expression of the form package.Name as text.
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	id, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return id.Name + "." + s.Sel.Name
}

// called returns the name of a called method or of a package's function, whatever it is called on.
func called(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

// named reports whether an expression is an identifier of that name.
func named(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// onTCP reports whether an argument names a TCP network, such as "tcp" or "tcp"+family.
func onTCP(e ast.Expr) bool {
	if b, ok := e.(*ast.BinaryExpr); ok {
		return onTCP(b.X)
	}
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING && strings.HasPrefix(l.Value, `"tcp`)
}

// lacking returns the limits that a server does not set.
func lacking(server string, has func(string) bool) (out []string) {
	for _, limit := range serverBounds[server] {
		if !has(limit) {
			out = append(out, server+" without "+limit)
		}
	}
	return out
}

// TestEveryListenerIsBounded: all code that listens on TCP in a node, a supervisor or an executor process limits the
// connections of one source, folder by folder. Each server there limits the time for a handshake or header, and the size of messages.
func TestEveryListenerIsBounded(t *testing.T) {
	listens, bounds, servers := map[string]bool{}, map[string]bool{}, 0
	for _, f := range sources(t) {
		if f.test || strings.HasSuffix(f.dir, "test") || !slices.ContainsFunc(served, func(dir string) bool { return within(f.dir, dir) }) {
			continue
		}
		faults, l, b := unboundedServers(f.ast)
		for _, fault := range faults {
			t.Errorf("%s: %s", f.path, fault)
		}
		listens[f.dir], bounds[f.dir] = listens[f.dir] || l, bounds[f.dir] || b
		if l {
			servers++
		}
	}
	for dir, l := range listens {
		if l && !bounds[dir] && ownBounds[dir] == "" {
			t.Errorf("%s listens on TCP without bounded.Listen: limit the connections of one source", dir)
		}
	}
	if servers < 4 {
		t.Errorf("%d files listen on TCP: the search is wrong", servers)
	}
}

func TestListenerRuleRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		body            string
		faults          int
		listens, bounds bool
	}{
		"no limits":             {`_ = http.Server{Handler: h}; grpc.NewServer()`, 6, false, false},
		"an address":            {`_ = &http.Server{ReadHeaderTimeout: 1, MaxHeaderBytes: 1}`, 0, false, false},
		"options":               {`grpc.NewServer(grpc.ConnectionTimeout(1), grpc.MaxHeaderListSize(1))`, 2, false, false},
		"TCP":                   {`net.Listen("tcp", a)`, 0, true, false},
		"TCP of a family":       {`lc.Listen(ctx, "tcp"+family, a)`, 0, true, false},
		"a socket of this host": {`lc.Listen(ctx, "unix", a)`, 0, false, false},
		"TCP by its address":    {`net.ListenTCP("tcp", a)`, 0, true, false},
		"TCP of a new config":   {`(&net.ListenConfig{}).Listen(ctx, "tcp", a)`, 0, true, false},
		"TCP of a field":        {`x.lc.Listen(ctx, "tcp", a)`, 0, true, false},
		"TCP of a server":       {`s.ListenAndServe()`, 0, true, false},
		"bounded":               {`bounded.Listen(l, o)`, 0, false, true},
		"bounded TCP":           {`bounded.ListenTCP(a, o)`, 0, true, true},
		"TCP of retransmit":     {`retransmit.Listen(a)`, 0, true, false},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() { "+tc.body+" }", 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if faults, l, b := unboundedServers(f); len(faults) != tc.faults || l != tc.listens || b != tc.bounds {
			t.Errorf("%s: %q, listens %t, bounds %t: want %d faults, %t, %t", name, faults, l, b, tc.faults, tc.listens, tc.bounds)
		}
	}
}
