package archtest

import (
	"strconv"
	"strings"
	"testing"
)

// clientMayImport reports whether the public client may import a package: the standard library, gRPC, protobuf and our
// API.
func clientMayImport(path string) bool {
	host, _, _ := strings.Cut(path, "/")
	switch {
	case !strings.Contains(host, "."):
		return true
	case host == "google.golang.org":
		return true
	}
	return path == module+"/api/lofamo/v1"
}

func TestClientBringsNoFurtherModules(t *testing.T) {
	n := 0
	for _, f := range sources(t) {
		if f.dir != "client" || f.test {
			continue
		}
		n++
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if !clientMayImport(p) {
				t.Errorf("%s imports %s: programs of others build with the client", f.path, p)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d files of the client found: the search is wrong", n)
	}
	for path, want := range map[string]bool{"context": true, "google.golang.org/grpc": true, module + "/api/lofamo/v1": true,
		module + "/internal/pki": false, "golang.org/x/sys/unix": false} {
		if got := clientMayImport(path); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}
