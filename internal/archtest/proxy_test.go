package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// proxied returns the connections of a file that would follow HTTPS_PROXY and its like: gRPC and etcd's client without grpc.WithNoProxy,
// clients of HTTP without a transport of their own, and the functions of net/http that use the default one.
func proxied(f *ast.File) (faults []string, connections int) {
	noProxy := func(e ast.Expr) bool {
		c, ok := e.(*ast.CallExpr)
		return ok && selected(c.Fun) == "grpc.WithNoProxy"
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name := selected(n.Fun); name == "grpc.NewClient" {
				connections++
				if !slices.ContainsFunc(n.Args, noProxy) {
					faults = append(faults, name+" without grpc.WithNoProxy")
				}
			}
		case *ast.CompositeLit:
			field := map[string]string{"http.Client": "Transport", "clientv3.Config": "DialOptions"}[selected(n.Type)]
			if field != "" && !slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
				kv, ok := e.(*ast.KeyValueExpr)
				return ok && named(kv.Key, field)
			}) {
				faults = append(faults, selected(n.Type)+" without "+field)
			}
		case *ast.SelectorExpr:
			switch name := selected(n); name {
			case "http.ProxyFromEnvironment", "http.DefaultTransport", "http.DefaultClient", "http.Get", "http.Head", "http.Post", "http.PostForm":
				faults = append(faults, name)
			}
		}
		return true
	})
	return faults, connections
}

// TestEnvironmentChoosesNoProxy: no connection of a product package follows HTTPS_PROXY, whoever it is to.
func TestEnvironmentChoosesNoProxy(t *testing.T) {
	found := 0
	for _, f := range sources(t) {
		if f.test || strings.HasSuffix(f.dir, "test") || within(f.dir, "internal/testing") || within(f.dir, "bench") {
			continue
		}
		faults, connections := proxied(f.ast)
		for _, fault := range faults {
			t.Errorf("%s: %s: a proxy of the environment would get the connection", f.path, fault)
		}
		found += connections
	}
	if found < 6 {
		t.Errorf("%d connections by gRPC: the search is wrong", found)
	}
}

func TestProxiedConnectionsAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"grpc.NewClient(a, grpc.WithTransportCredentials(c))": 1, "grpc.NewClient(a, grpc.WithNoProxy())": 0,
		"http.Get(url)": 1, "(&http.Client{Timeout: t}).Do(r)": 1, "(&http.Client{Transport: tr}).Do(r)": 0,
		"use(http.Transport{Proxy: http.ProxyFromEnvironment})": 1, "clientv3.New(clientv3.Config{Endpoints: e})": 1,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n\nfunc x() { "+text+" }\n", 0)
		if err != nil {
			t.Fatal(err)
		}
		if faults, _ := proxied(f); len(faults) != want {
			t.Errorf("%s: %q, want %d", text, faults, want)
		}
	}
}
