package dashboards

import (
	"fmt"
	"strings"
)

// The leader exports the map's metrics under its own target labels. max by (…) removes those, so that a series
// continues when another replica leads.

// info selects every described node, with its place.
const info = `max by (node,x,y,z,rack,map_x,map_y) (lofamo_node_info{SUP})`

// label sets a label of all series to a constant.
func label(expr, name, value string) string {
	return fmt.Sprintf(`label_replace(%s, %q, %q, "", "")`, expr, name, value)
}

// copied copies a label from another one.
func copied(expr, name, from string) string {
	return fmt.Sprintf(`label_replace(%s, %q, "$1", %q, "(.*)")`, expr, name, from)
}

// when sets a label to a constant in series whose state matches.
func when(state, expr, name, value string) string {
	return fmt.Sprintf(`label_replace(%s, %q, %q, "state", %q)`, expr, name, value, state)
}

// worst returns the severity of the objects in a metric with one series per state. Objects without a series are left
// out.
func worst(metric, by, more string, unknown bool) string {
	of := func(value int, state string) string {
		return fmt.Sprintf(`%d * max by (%s,state) (%s{SUP%s,state=%q})`, value, by, metric, more, state)
	}
	out := of(isFailed, "FAILED") + " or " + of(isSick, "SICK")
	if unknown {
		out += " or " + of(isUnknown, "UNKNOWN")
	}
	return "(" + out + ")"
}

// unwell is the severity of the nodes that are not NORMAL.
var unwell = worst("lofamo_node_state", "node", "", true)

// placed joins the node's place to series with a label node.
func placed(expr string) string {
	return expr + ` * on (node) group_left (x,y,z,rack,map_x,map_y) ` + info
}

// everyNode is the severity of each described node, including NORMAL ones, with its place.
var everyNode = fmt.Sprintf(`(%s or %s)`, placed(unwell), label(`0 * (`+info+` unless on (node) `+unwell+`)`, "state", "NORMAL"))

// brokenEnds returns the link ends in a state, named from the node in whose positive direction they lie, as in
// lofamo_link_info. So both ends of a link have the same name.
func brokenEnds(state string) string {
	end := func(dir string) string {
		return fmt.Sprintf(`max by (node,dir,peer) (lofamo_link_state{SUP,state=%q,dir=~".[%s]"})`, state, dir)
	}
	swapped := end("-")
	for _, l := range [][2]string{{"was", "node"}, {"node", "peer"}, {"peer", "was"}} {
		swapped = copied(swapped, l[0], l[1])
	}
	swapped = fmt.Sprintf(`label_replace(%s, "dir", "$1+", "dir", "(.).*")`, swapped)
	return fmt.Sprintf(`max by (node,dir,peer) (%s or %s)`, end("+"), swapped)
}

// everyLink returns the severity of each link, which is that of its worse end. It includes only links between two
// described nodes, because a drawing needs both ends.
func everyLink() string {
	failed, sick := brokenEnds("FAILED"), brokenEnds("SICK")
	told := `max by (node,dir,peer) (lofamo_link_info{SUP})`
	all := fmt.Sprintf(`(%s or %s or %s)`,
		label(fmt.Sprintf("%d * %s", isFailed, failed), "state", "FAILED"),
		label(fmt.Sprintf("%d * (%s unless %s)", isSick, sick, failed), "state", "SICK"),
		label(fmt.Sprintf("0 * (%s unless %s unless %s)", told, failed, sick), "state", "NORMAL"))
	return all + ` and on (node) ` + info + ` and on (peer) ` + copied(info, "peer", "node")
}

// encoded returns the number of the active state, from an agent's metric with one series per state.
func encoded(metric, by string, all []state) string {
	var each []string
	for _, s := range all {
		each = append(each, fmt.Sprintf(`%d * (max by (%s) (%s{AGENT,state=%q}) == 1)`, s.value, by, metric, s.name))
	}
	return strings.Join(each, " or ")
}
