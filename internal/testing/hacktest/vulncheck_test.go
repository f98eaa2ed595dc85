package hacktest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const (
	dbModules = `[{"path":"stdlib","vulns":[{"id":"GO-2099-0001","modified":"2026-01-01T00:00:00Z"}]}]`
	dbEntry   = `{"schema_version":"1.3.1","id":"GO-2099-0001","modified":"2026-01-01T00:00:00Z","published":"2026-01-01T00:00:00Z",` +
		`"summary":"Upper case harms",` +
		`"details":"Upper case harms.","affected":[{"package":{"name":"stdlib","ecosystem":"Go"},"ranges":[{"type":"SEMVER",` +
		`"events":[{"introduced":"0"}]}],` +
		`"ecosystem_specific":{"imports":[{"path":"strings","symbols":["ToUpper"]}]}}],` +
		`"database_specific":{"url":"https://pkg.go.dev/vuln/GO-2099-0001"}}`
)

// database writes a vulnerability data base, as files and as a server has them.
func database(t *testing.T, modules string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"index/db.json": `{"modified":"2026-01-01T00:00:00Z"}`, "index/modules.json": modules,
		"ID/GO-2099-0001.json": dbEntry} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		for file, b := range map[string][]byte{path: []byte(text), path + ".gz": packed.Bytes()} {
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// module writes a module that calls a function with a known vulnerability.
func module(t *testing.T, main string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/x\n\ngo 1.26\n", "main.go": main} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// TestVulncheckFailsOnFindingsAndSkipsLoudly runs the check against data bases on this machine.
func TestVulncheckFailsOnFindingsAndSkipsLoudly(t *testing.T) {
	tool := requirements.Set(t, "make test builds it into .tools/bin, and sets it", "LOFAMO_GOVULNCHECK")
	script, err := filepath.Abs("../../../hack/vulncheck")
	if err != nil {
		t.Fatal(err)
	}
	calls := module(t, "package main\n\nimport \"strings\"\n\nfunc main() { println(strings.ToUpper(\"x\")) }\n")
	broken := module(t, "package main\n\nfunc main() { nothing() }\n")
	found, empty := database(t, dbModules), database(t, "[]")
	gone := "http://" + freeport.Addr(t).String()
	for name, c := range map[string]struct {
		db, module string
		fails      bool
		says       string
	}{
		"a finding, from files":    {"file://" + found, calls, true, "GO-2099-0001"},
		"a finding, from a server": {serve(t, http.FileServer(http.Dir(found))), calls, true, "GO-2099-0001"},
		"no finding":               {serve(t, http.FileServer(http.Dir(empty))), calls, false, "No vulnerabilities found"},
		"nobody answers":           {gone, calls, false, "*** SKIPPED: vulnerability check: the data base " + gone},
		"a server that fails": {serve(t, http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		})), calls, false, "*** SKIPPED"},
		"no files":                     {"file://" + t.TempDir() + "/gone", calls, true, "no such file"},
		"a module that does not build": {"file://" + found, broken, true, "undefined: nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			list := filepath.Join(t.TempDir(), "skipped")
			cmd := exec.CommandContext(t.Context(), script, tool)
			cmd.Dir, cmd.Env = c.module, append(os.Environ(), "GOVULNDB="+c.db, "GOFLAGS=-mod=mod", requirements.List+"="+list)
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails || !strings.Contains(string(out), c.says) {
				t.Errorf("%v, want a failure: %t, and %q:\n%s", err, c.fails, c.says, out)
			}
			skipped := strings.HasPrefix(c.says, "*** SKIPPED")
			if b, err := os.ReadFile(list); (err == nil) != skipped || skipped &&
				string(b) != fmt.Sprintf("vulnerability check: %q\n", "the data base "+c.db+" cannot be reached") {
				t.Errorf("listed: %q, %v", b, err)
			}
		})
	}
}
