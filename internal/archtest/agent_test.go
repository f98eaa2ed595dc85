package archtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// agentFloors are the packages of internal/agent from the ground up. A package imports only from lower floors: packages
// of one floor never import each other.
var agentFloors = [][]string{
	{"actions", "bundle", "local/jobs", "mailbox", "peers", "threads", "threads/threadstest"},
	{"half/halfcore", "storage"},
	{"daemon/recovery", "dnp/dnpcore", "host/hostcore"},
	{"local"},
	{"half"},
	{"daemon", "dnp", "host"},
}

// agentProcesses are the trees that run in processes of their own, and share only the floors below half.
var agentProcesses = []string{"daemon", "dnp", "host"}

// agentMayImport returns an error if a package of the agent must not import another. Both are below internal/agent.
func agentMayImport(from, to string) error {
	floor := func(p string) int {
		return slices.IndexFunc(agentFloors, func(f []string) bool { return slices.Contains(f, p) })
	}
	process := func(p string) string {
		for _, tree := range agentProcesses {
			if within(p, tree) {
				return tree
			}
		}
		return ""
	}
	for _, p := range []string{from, to} {
		if floor(p) < 0 {
			return fmt.Errorf("internal/agent/%s is on no floor: give it one in agentFloors", p)
		}
	}
	if a, b := process(from), process(to); a != "" && b != "" && a != b {
		return fmt.Errorf("internal/agent/%s must not import internal/agent/%s: %s and %s are separate processes", from, to, a, b)
	}
	if floor(to) >= floor(from) {
		return fmt.Errorf("internal/agent/%s must not import internal/agent/%s: it is on no lower floor", from, to)
	}
	return nil
}

// TestAgentImportsOneWay: host, dnp and daemon never import each other, and each package of the agent imports only from
// lower floors.
func TestAgentImportsOneWay(t *testing.T) {
	const tree = module + "/internal/agent/"
	seen := map[string]bool{}
	for _, f := range sources(t) {
		from, ours := strings.CutPrefix(f.dir, "internal/agent/")
		if f.test || !ours {
			continue
		}
		seen[from] = true
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if to, ok := strings.CutPrefix(p, tree); ok {
				if err := agentMayImport(from, to); err != nil {
					t.Errorf("%s: %v", f.path, err)
				}
			}
		}
	}
	for _, floor := range agentFloors {
		for _, p := range floor {
			if !seen[p] {
				t.Errorf("internal/agent/%s in agentFloors has no source", p)
			}
		}
	}
}

func TestAgentImportRuleRefuses(t *testing.T) {
	for _, tc := range []struct{ from, to string }{
		{"host", "dnp"},
		{"dnp", "host"},
		{"daemon", "host"},
		{"host", "daemon/recovery"},
		{"daemon", "dnp/dnpcore"},
		{"host/hostcore", "dnp/dnpcore"},
		{"half", "daemon"},
		{"half/halfcore", "half"},
		{"storage", "half/halfcore"},
		{"host", "nowhere"},
	} {
		if agentMayImport(tc.from, tc.to) == nil {
			t.Errorf("%s may import %s", tc.from, tc.to)
		}
	}
	for _, tc := range []struct{ from, to string }{
		{"host", "host/hostcore"},
		{"dnp", "half"},
		{"daemon", "daemon/recovery"},
		{"half", "dnp/dnpcore"},
	} {
		if err := agentMayImport(tc.from, tc.to); err != nil {
			t.Error(err)
		}
	}
}
