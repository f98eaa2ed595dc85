package awareness

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRulesAreDocumented checks that the documentation covers every rule that an explanation can name.
func TestRulesAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/awareness.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range ruleNames[1:] {
		if !strings.Contains(string(b), "**`"+name+"`**") {
			t.Errorf("docs/awareness.md has no paragraph on the rule %s", name)
		}
	}
}

// TestRulesArePlayed checks that a scenario explains every rule.
func TestRulesArePlayed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var played strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		played.Write(b)
	}
	for _, name := range ruleNames[1:] {
		if name == RuleCutOff {
			continue // no machine uses it: internal/supervisor/federation
		}
		if !regexp.MustCompile(` is [A-Z]+: .*, rule ` + name + `\n  because `).MatchString(played.String()) {
			t.Errorf("no scenario of testdata explains a state by the rule %s", name)
		}
	}
}

// TestNothingToExplain asks for nodes, components and groups that the torus does not have.
func TestNothingToExplain(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 1, Z: 1})
	for _, q := range []struct {
		id fault.NodeID
		c  fault.Component
	}{{"x", fault.ComponentNode}, {"n0-0-0", 0}, {"n0-0-0", 99}, {"n0-0-0", fault.Link(grid.YPlus)}} {
		if e, ok := w.m.Explain(q.id, q.c); ok {
			t.Errorf("%s of %q: %+v", q.c, q.id, e)
		}
	}
}

// TestRestoreGroupsRefused checks that groups which cannot have been committed are refused.
func TestRestoreGroupsRefused(t *testing.T) {
	good := GroupStatus{ID: "row/Y=0,Z=0", Kind: GroupRow, State: fault.Failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"n0-0-0", "n1-0-0", "n2-0-0"}, Of: 3}
	with := func(change func(*GroupStatus)) []GroupStatus {
		g := good
		change(&g)
		return []GroupStatus{g}
	}
	for want, saved := range map[string][]GroupStatus{
		`given id ""`:             with(func(g *GroupStatus) { g.ID = "" }),
		`given id "row/Y=0,Z=0"`:  {good, good},
		"given kind GroupKind(9)": with(func(g *GroupStatus) { g.Kind = 9 }),
		"state NORMAL":            with(func(g *GroupStatus) { g.State = fault.Normal }),
		`member "x"`:              with(func(g *GroupStatus) { g.Members = []fault.NodeID{"x"} }),
	} {
		m, err := New(testConfig(grid.Dims{X: 3, Y: 1, Z: 1}), epoch0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.RestoreGroups(saved); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %s", err, want)
		}
	}
	for _, s := range groupKindNames[1:] {
		if k, err := ParseGroupKind(s); err != nil || k.String() != s {
			t.Errorf("%s: read as %s, %v", s, k, err)
		}
	}
	if _, err := ParseGroupKind("HEAP"); err == nil || !strings.Contains(err.Error(), "want one of ROW, PLANE") {
		t.Errorf("error %v", err)
	}
}
