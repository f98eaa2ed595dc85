package ctl

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// keys are the flags of a fake cluster's keys.
func keys(r ctltest.Remote) []string {
	return []string{"--ca", filepath.Join(r.Dir, "ca.pem"), "--cert", filepath.Join(r.Dir, "viewer.pem"), "--key",
		filepath.Join(r.Dir, "viewer.key")}
}

func TestContexts(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	env := map[string]string{"XDG_CONFIG_HOME": filepath.Join(t.TempDir(), "xdg"), "HOME": "/nonexistent"}
	file := filepath.Join(env["XDG_CONFIG_HOME"], "lofamo", "config.yaml")
	t.Chdir(t.TempDir()) // no local cluster
	step := func(want string, code int, args ...string) {
		t.Helper()
		got := run(t, env, args...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Fatalf("%v: code %d, %q, %q: want %d and %q", args, got.code, got.stdout, got.stderr, code, want)
		}
	}
	step("no context", 0, "config", "get-contexts")
	step("no context is current", 1, "config", "current-context")
	step("server: given nothing", 2, append([]string{"config", "set-context", "hall7"}, keys(r)...)...)
	step(`given "../x"`, 2, append([]string{"config", "set-context", "../x", "--server", r.Server.Address}, keys(r)...)...)
	step("no such file", 2, "config", "set-context", "hall7", "--server", "h:1", "--ca", "none", "--cert", "none", "--key", "none")
	if _, err := os.Stat(file); err == nil {
		t.Fatal("a refused context was written")
	}
	step("context hall7 added; the current context is hall7", 0,
		append([]string{"config", "set-context", "hall7", "--server", r.Server.Address}, keys(r)...)...)
	step("context dead added; the current context is hall7", 0, append([]string{"config", "set-context", "dead", "--server", "127.0.0.1:1"},
		keys(r)...)...)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v: want mode 0600", file, st, err)
	}
	step("n1-0-0", 0, "get", "nodes")
	step("context/dead\ncontext/hall7\n", 0, "config", "get-contexts", "-o", "name")
	step("*        hall7", 0, "config", "get-contexts")
	step("good: 2 contexts", 0, "config", "check")
	step("good: 2 contexts", 0, "config", "check", file)
	step("the current context is dead", 0, "config", "use-context", "dead")
	step("dead\n", 0, "config", "current-context")
	step("127.0.0.1:1", 1, "get", "nodes")
	step("n1-0-0", 0, "get", "nodes", "--context", "hall7")
	step(`context "hall8": not in `+file+": want one of dead, hall7", 2, "config", "use-context", "hall8")
	step(`--context "hall8": not in`, 2, "get", "nodes", "--context", "hall8")
	step("context dead removed", 0, "config", "delete-context", "dead")
	step("no local cluster", 1, "get", "nodes")
}

// TestFlagsGoBeforeEnvironmentAndThatBeforeContext: each of address, authority, certificate and key by itself.
func TestFlagsGoBeforeEnvironmentAndThatBeforeContext(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	home := t.TempDir()
	t.Chdir(t.TempDir())
	good := map[string]string{"LOFAMO_SERVER": r.Server.Address, "LOFAMO_CA": filepath.Join(r.Dir, "ca.pem"),
		"LOFAMO_CERT": filepath.Join(r.Dir, "viewer.pem"), "LOFAMO_KEY": filepath.Join(r.Dir, "viewer.key")}
	with := func(changes ...string) map[string]string {
		env := map[string]string{"HOME": home}
		maps.Copy(env, good)
		for i := 0; i < len(changes); i += 2 {
			env[changes[i]] = changes[i+1]
		}
		return env
	}
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want string
		code int
	}{
		{"environment alone", with(), nil, "n1-0-0", 0},
		{"flag before environment", with("LOFAMO_SERVER", "127.0.0.1:1"), []string{"--server", r.Server.Address}, "n1-0-0", 0},
		{"bad flag before environment", with(), []string{"--cert", "/nonexistent"}, "/nonexistent", 2},
		{"part of the environment", with("LOFAMO_KEY", ""), nil, "--server also needs --key (or LOFAMO_KEY)", 2},
		{"two clusters", with("LOFAMO_DIR", "/nonexistent"), nil, "$LOFAMO_SERVER and $LOFAMO_DIR name two clusters", 2},
		{"--dir before environment", with(), []string{"--dir", "/nonexistent"}, "no local cluster in /nonexistent", 1},
		{"--dir and --context", with(), []string{"--dir", "/nonexistent", "--context", "x"}, "--dir and --context", 2},
		{"--region", with(), []string{"--region", "region-0"}, "--region names a region of a local cluster", 2},
	} {
		got := run(t, tc.env, append([]string{"get", "nodes"}, tc.args...)...)
		if got.code != tc.code || !strings.Contains(got.stdout+got.stderr, tc.want) {
			t.Errorf("%s: %+v, want code %d and %q", tc.name, got, tc.code, tc.want)
		}
	}
	if got := run(t, with(), append([]string{"config", "set-context", "dead", "--server", "127.0.0.1:1"}, keys(r)...)...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := run(t, with(), "get", "nodes"); got.code != 0 {
		t.Errorf("environment before the current context: %+v", got)
	}
	if got := run(t, with(), "get", "nodes", "--context", "dead"); got.code != 1 {
		t.Errorf("--context before environment: %+v", got)
	}
}

// TestLocalClusterGoesBeforeCurrentContext: and the command says so.
func TestLocalClusterGoesBeforeCurrentContext(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	env := map[string]string{"HOME": t.TempDir()}
	if got := run(t, env, append([]string{"config", "set-context", "hall7", "--server", r.Server.Address}, keys(r)...)...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	_, dir := pretend(t) // short: the paths of sockets are bounded
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	d, err := grid.ParseDims("2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Create(cluster.Options{Dir: ".lofamo", Dims: d}); err != nil {
		t.Fatal(err)
	}
	got := run(t, env, "get", "nodes")
	if got.code != 1 || !strings.Contains(got.stderr, "takes precedence over the context hall7 (--context hall7 names it)") ||
		!strings.Contains(got.stderr, "is stopped") {
		t.Errorf("%+v", got)
	}
	if got := run(t, env, "get", "nodes", "--context", "hall7"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// TestDamagedContextsAreNamed: file, field, value and the allowed values.
func TestDamagedContextsAreNamed(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	t.Chdir(t.TempDir())
	file := filepath.Join(env["XDG_CONFIG_HOME"], "lofamo", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"contexts: [{name: a, server: b, ca: c, cert: d, keys: e}]\n":                 "contexts[0].keys: unknown key: want one of ca, cert, key",
		"contexts: [{name: a, server: b, ca: c, cert: d}]\n":                          "contexts[0].key: given nothing",
		"currentContext: x\ncontexts: [{name: a, server: b, ca: c, cert: d, key: e}]": `currentContext: given "x": want one of a`,
		"currentContext: [\n": "not YAML",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range []string{"get nodes", "config check", "config get-contexts"} {
			got := run(t, env, strings.Fields(args)...)
			if got.code == 0 || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, file) {
				t.Errorf("%s with %q: %+v, want %q", args, text, got, want)
			}
		}
	}
}

// TestClusterInitAddsContext: for the operator, and changes none that exists.
func TestClusterInitAddsContext(t *testing.T) {
	env := map[string]string{"HOME": t.TempDir()}
	inventory, err := filepath.Abs("../../deploy/examples/inventory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	got := run(t, env, "cluster", "init", inventory, "--out", "one")
	if got.code != 0 || !strings.Contains(got.stdout, "context hall7") || !strings.Contains(got.stdout, "the current context") {
		t.Fatalf("%+v", got)
	}
	file := filepath.Join(env["HOME"], ".config", "lofamo", "config.yaml")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"currentContext: hall7", "server: 10.0.0.101:7946,10.0.0.102:7946,10.0.0.103:7946",
		"one/operators/operator.key"} {
		if !strings.Contains(string(first), want) {
			t.Errorf("%s lacks %q:\n%s", file, want, first)
		}
	}
	got = run(t, env, "cluster", "init", inventory, "--out", "two")
	if got.code != 0 || !strings.Contains(got.stderr, "has another context hall7") ||
		!strings.Contains(got.stderr, "config set-context NAME --server") {
		t.Errorf("%+v", got)
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(first) {
		t.Errorf("%v: changed to\n%s", err, again)
	}
	if err := os.WriteFile(file, []byte("contexts: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = run(t, env, "cluster", "init", inventory, "--out", "three")
	if got.code != 0 || !strings.Contains(got.stderr, "no context was written") {
		t.Errorf("a damaged file: %+v", got)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "contexts: 7\n" {
		t.Errorf("%v: a damaged file was replaced by\n%s", err, b)
	}
	if got := run(t, nil, "cluster", "init", inventory, "--out", "four"); got.code != 0 || got.stderr != "" {
		t.Errorf("without a home: %+v", got)
	}
}

// TestContextsOfConcurrentCommandsAllStay: commands that run at the same time lose none of one another's changes.
func TestContextsOfConcurrentCommandsAllStay(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2"))
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	t.Chdir(t.TempDir())
	const n = 12
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			args := append([]string{"config", "set-context", fmt.Sprintf("c%02d", i), "--server", r.Server.Address}, keys(r)...)
			if got := run(t, env, args...); got.code != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	wg.Wait()
	if got := run(t, env, "config", "get-contexts", "-o", "name"); strings.Count(got.stdout, "\n") != n {
		t.Errorf("want %d contexts: %+v", n, got)
	}
}
