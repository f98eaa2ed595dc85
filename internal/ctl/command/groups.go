package command

import (
	"strconv"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// GroupRows returns the table of group faults.
func GroupRows(a *App, groups []*lofamov1.Group, wide bool) [][]string {
	head := []string{"GROUP", "KIND", "STATE", "CAUSE", "NODES", "INFERRED", "SINCE"}
	if wide {
		head = append(head, "RULE", "MEMBERS")
	}
	rows := [][]string{head}
	for _, g := range groups {
		size := strconv.FormatUint(uint64(g.GetSize()), 10)
		if g.GetOf() > g.GetSize() {
			size += " of " + strconv.FormatUint(uint64(g.GetOf()), 10)
		}
		name, kind := a.Words().Group(g.GetId()), g.GetKind().String()
		if name != g.GetId() {
			kind = "-"
		}
		r := []string{name, kind, StateName(g.GetState()), CauseName(g.GetCause()), size,
			strconv.FormatUint(uint64(g.GetInferred()), 10), a.Since(g.GetSince())}
		if wide {
			r = append(r, Dash(Printable(g.GetReason())), Dash(Some(g.GetMembers(), 8)))
		}
		rows = append(rows, r)
	}
	return rows
}
