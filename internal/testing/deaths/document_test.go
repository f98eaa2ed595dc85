package deaths

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDocumentShowsEveryFailure: wrong names, false verdicts, lost and doubled reports, and campaigns that ended early change the page.
func TestDocumentShowsEveryFailure(t *testing.T) {
	kind := Kinds(false)[0].Name
	page := string(Document([]Line{
		{Begin: &Begin{Campaign: "c", Seed: 7, Bound: time.Second, Machine: "2 cores", Conditions: "Busy."}},
		{Round: &Round{Campaign: "c", Number: 1, Node: "n0-0-0", Kind: kind, Right: true, Verdict: 900 * time.Millisecond, Waited: 3,
			Words: 1200 * time.Millisecond, Dark: true, Hung: true}},
		{Round: &Round{Campaign: "c", Number: 2, Node: "n1-0-0", Kind: kind, Verdict: 2 * time.Second, Words: time.Second,
			False:    []string{"false FAILED: x"},
			Failures: []string{"false FAILED: x", "named wrongly *"}}},
		{Round: &Round{Campaign: "c", Number: 3, Node: "n1-0-0", Kind: kind, Failures: []string{"debugger: no"}}},
		{End: &End{Campaign: "c", Machines: 90 * time.Minute, Reports: Reports{Kept: 9, Accepted: 6, Replaced: 1, Cut: 1, Lost: []string{"a"},
			Doubled: []string{"b"}}, Failure: "no power", Note: "It rained."}},
		{Begin: &Begin{Campaign: "d"}},
	}))
	for _, want := range []string{"**1 passed, 2 failed.** 2 kernels died, and 1 of these deaths were named rightly",
		"False verdicts: 1 in 1 rounds. In 1 of the failed rounds", "Kernels that hung instead of panicking: 1.",
		"ran for 1.50 hours", "(2 verdicts, 1 beyond the documented bound)", "**lost: 1; doubled: 1**; not yet on disk at a death: 1.",
		"3 reports waited",
		"at the client: 2. In 1 of these rounds they came after the verdict, at most 300 ms after it.",
		"| " + kind + " | 3 | 2 | 1 of 2 | 1 | 900 ms |", "round 2, " + kind + " of n1-0-0: named wrongly \n",
		"c ended early: no power", "1 campaigns were ended from outside", "2 cores. Busy.", "\n*c.* It rained.\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// TestDocumentCountsSinceLastFalseVerdict: campaigns that began before one with a false verdict ended do not count.
func TestDocumentCountsSinceLastFalseVerdict(t *testing.T) {
	kind, day := Kinds(false)[0].Name, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	campaign := func(name string, began time.Time, wrong ...string) []Line {
		return []Line{{Begin: &Begin{Campaign: name, Began: began}}, {Round: &Round{Campaign: name, Kind: kind, Right: true, False: wrong}},
			{End: &End{Campaign: name, Machines: time.Hour}}}
	}
	lines := campaign("a", day)
	if page := string(Document(lines)); strings.Contains(page, "Since the last false verdict") {
		t.Errorf("the page mentions a false verdict, but there was none:\n%s", page)
	}
	for _, more := range [][]Line{campaign("b", day.Add(time.Hour), "false FAILED: x"), campaign("c", day.Add(time.Hour)),
		campaign("d", day.Add(2*time.Hour)), campaign("e", day.Add(3*time.Hour))} {
		lines = append(lines, more...)
	}
	want := "Since the last false verdict: campaigns: 2; hours of machines: 2.00; kernels that died: 2, deaths named rightly: 2; " +
		"failed rounds: 0."
	if page := string(Document(lines)); !strings.Contains(page, want) {
		t.Errorf("the page lacks %q:\n%s", want, page)
	}
}

// TestDocumentShowsTwoKernelsApart: campaigns on nodes with two kernels have a table of their own, with the bound of each part, and change
// nothing in the other one.
func TestDocumentShowsTwoKernelsApart(t *testing.T) {
	one, two := Kinds(false)[0].Name, Kinds(true)
	host, node := two[0].Name, two[slices.IndexFunc(two, func(k Kind) bool { return k.Fails == "node" })].Name
	round := func(campaign, kind string, verdict time.Duration, wrong ...string) Line {
		return Line{Round: &Round{Campaign: campaign, Kind: kind, Right: true, Verdict: verdict, False: wrong, Failures: wrong}}
	}
	lines := []Line{{Begin: &Begin{Campaign: "one", Bound: time.Second}}, round("one", one, 1100*time.Millisecond)}
	if page := string(Document(lines)); strings.Contains(page, "## Nodes with two kernels") {
		t.Errorf("the page has nodes with two kernels, but there was no such campaign:\n%s", page)
	}
	begin := &Begin{Campaign: "two", Cards: true, Bound: time.Second, HalfBound: 2 * time.Second}
	page := string(Document(append(lines, Line{Begin: begin},
		round("two", host, 1900*time.Millisecond), round("two", host, 2100*time.Millisecond, "false FAILED: x"),
		round("two", node, 1500*time.Millisecond), Line{End: &End{Campaign: "two", Machines: time.Hour, RoundTrip: 7 * time.Millisecond}})))
	for _, want := range []string{"**1 passed, 0 failed.** 1 kernels died",
		"| " + one + " | 1 | 0 | 1 of 1 | 0 | 1100 ms | 1100 ms | 1100 ms | 1 |",
		"**2 passed, 1 failed.** Kernels died in 3 rounds, and in 3 of these",
		"the map named the right part. False verdicts: 1. Virtual machines ran for 1.00",
		"| " + host + " | 2 | 1 | 2 of 2 | 1 | 1900 ms | 2100 ms | 2100 ms | 2000 ms | 1 |",
		"| " + node + " | 1 | 0 | 1 of 1 | 0 | 1500 ms | 1500 ms | 1500 ms | 1000 ms | 1 |",
		"between two kernels took 7 ms.", "| two | 0 | 3, two kernels each |", "- two, round 0, " + host + " of : false FAILED: x\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
