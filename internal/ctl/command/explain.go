package command

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// PrintExplanation prints why a component or a group has its state.
func PrintExplanation(a *App, e *lofamov1.ExplainResponse) error {
	a.Learn(e.GetCluster())
	verdict := StateName(e.GetState())
	if c := CauseName(e.GetCause()); c != "-" {
		verdict += ", cause " + c
	}
	group := e.GetNode() == ""
	if group && len(e.GetGroups()) > 0 {
		a.Printf("%s", a.Words().Group(e.GetGroups()[0].GetId()))
	} else {
		a.Printf("%s of %s", e.GetComponent(), e.GetNode())
	}
	a.Printf("%s", a.Words().At(e.GetCoord()))
	if e.GetSince() != nil {
		a.Printf(" has been %s, for %s (since %s)", verdict, a.Since(e.GetSince()), a.Clock(e.GetSince()))
	} else {
		a.Printf(" is %s", verdict)
	}
	a.Printf("\n")
	if e.GetSummary() != "" {
		a.Printf("%s\n", Printable(e.GetSummary()))
	}
	if e.GetRule() != "" {
		a.Printf("Rule: %s (docs/awareness.md)\n", e.GetRule())
	}
	if m := e.GetMaintenance(); m != nil {
		a.Printf("Under maintenance: %s\n", Maintenance(a, m))
	}
	var evidences []string
	for _, ev := range e.GetEvidence() {
		evidences = append(evidences, evidence(ev))
	}
	for _, part := range []struct {
		head  string
		lines []string
	}{{"Because", e.GetBecause()}, {"Evidence", evidences}, {"It changes when", e.GetUntil()}} {
		if len(part.lines) == 0 {
			continue
		}
		a.Printf("\n%s:\n", part.head)
		for _, l := range part.lines {
			a.Printf("  - %s\n", Printable(l))
		}
	}
	if len(e.GetGroups()) == 0 {
		return nil
	}
	if group {
		a.Printf("\n")
	} else {
		a.Printf("\nMember of:\n")
	}
	return a.Table(GroupRows(a, e.GetGroups(), true))
}
