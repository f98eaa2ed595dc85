package show

import (
	"strconv"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

// GroupRows returns the table of group faults.
func GroupRows(a *command.App, groups []*lofamov1.Group, wide bool) [][]string {
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
		r := []string{g.GetId(), g.GetKind().String(), command.StateName(g.GetState()), command.CauseName(g.GetCause()), size,
			strconv.FormatUint(uint64(g.GetInferred()), 10), a.Since(g.GetSince())}
		if wide {
			r = append(r, command.Dash(command.Printable(g.GetReason())), command.Dash(command.Some(g.GetMembers(), 8)))
		}
		rows = append(rows, r)
	}
	return rows
}
