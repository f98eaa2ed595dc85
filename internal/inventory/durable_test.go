package inventory

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFilesAreSynced: a power cut soon after a command must not leave empty files. So kept files go through the package durable, which
// syncs them. Exceptions are temporary directories, and renames of files that are on the disk already.
func TestFilesAreSynced(t *testing.T) {
	allowed := []string{"adopt", "unpack", "write"}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" &&
					slices.Contains([]string{"WriteFile", "Rename", "Create", "OpenFile"}, s.Sel.Name) {
					found = append(found, fn.Name.Name)
					if !slices.Contains(allowed, fn.Name.Name) {
						t.Errorf("%s: %s calls os.%s: want package durable", name, fn.Name.Name, s.Sel.Name)
					}
				}
				return true
			})
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); !slices.Equal(found, allowed) {
		t.Errorf("functions %q call package os: want %q", found, allowed)
	}
}

// TestLinkInPlaceOfNewFileIsNotFollowed: otherwise a link beside a file would receive its content.
func TestLinkInPlaceOfNewFileIsNotFollowed(t *testing.T) {
	d, inv := made(t)
	root, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := placed(t, root, d.file("nodes", "n0-0-0")); err != nil {
		t.Fatal(err)
	}
	link := func(path string) {
		t.Helper()
		if err := os.Symlink(outside, path+".new"); err != nil {
			t.Fatal(err)
		}
	}
	link(filepath.Join(root, Etc, "gossip.key"))
	if _, err := d.Rotate(StepAdd, false); err != nil {
		t.Fatal(err)
	}
	if err := placed(t, root, d.file("nodes", "n0-0-0")); err == nil {
		t.Error("join has followed a link")
	}
	link(d.file(inventoryFile))
	inv.Ports.AgentHTTP = 7150
	if _, err := d.Update(inv); err == nil {
		t.Error("an update has followed a link")
	}
	if b := read(t, outside); string(b) != "theirs" {
		t.Errorf("the link's target has %q", b)
	}
}
