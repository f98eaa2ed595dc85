package dashboards

import (
	"fmt"
	"strings"
)

// What is said of the map is told by the leader, under labels of its own: max by (…) takes those away, so that a series goes on
// when another replica leads.

// info is every node that is described, with its place.
const info = `max by (node,x,y,z,rack,map_x,map_y) (lofamo_node_info{SUP})`

// label has a label of all series be a constant.
func label(expr, name, value string) string {
	return fmt.Sprintf(`label_replace(%s, %q, %q, "", "")`, expr, name, value)
}

// copied has a label be another one.
func copied(expr, name, from string) string {
	return fmt.Sprintf(`label_replace(%s, %q, "$1", %q, "(.*)")`, expr, name, from)
}

// when has a label be a constant in a state, or some.
func when(state, expr, name, value string) string {
	return fmt.Sprintf(`label_replace(%s, %q, %q, "state", %q)`, expr, name, value, state)
}

// worst is how bad things are that a metric tells one series a state of, with those labels; what it does not tell of is left out.
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

// unwell is how bad the nodes are that are not NORMAL.
var unwell = worst("lofamo_node_state", "node", "", true)

// placed joins the place of its node to what has a label node.
func placed(expr string) string {
	return expr + ` * on (node) group_left (x,y,z,rack,map_x,map_y) ` + info
}

// everyNode is how bad each described node is, NORMAL ones included, with its place.
var everyNode = fmt.Sprintf(`(%s or %s)`, placed(unwell), label(`0 * (`+info+` unless on (node) `+unwell+`)`, "state", "NORMAL"))

// brokenEnds are the link ends in a state, told from the node in whose positive direction they are, as lofamo_link_info is: both ends of a
// link have one name then.
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

// everyLink is how bad each link is: that of its worse end. Both of its nodes are described, for a drawing has no ends in nowhere.
func everyLink() string {
	failed, sick := brokenEnds("FAILED"), brokenEnds("SICK")
	told := `max by (node,dir,peer) (lofamo_link_info{SUP})`
	all := fmt.Sprintf(`(%s or %s or %s)`,
		label(fmt.Sprintf("%d * %s", isFailed, failed), "state", "FAILED"),
		label(fmt.Sprintf("%d * (%s unless %s)", isSick, sick, failed), "state", "SICK"),
		label(fmt.Sprintf("0 * (%s unless %s unless %s)", told, failed, sick), "state", "NORMAL"))
	return all + ` and on (node) ` + info + ` and on (peer) ` + copied(info, "peer", "node")
}

// encoded is the number of the one state that is 1, of an agent's metric with one series a state.
func encoded(metric, by string, all []state) string {
	var each []string
	for _, s := range all {
		each = append(each, fmt.Sprintf(`%d * (max by (%s) (%s{AGENT,state=%q}) == 1)`, s.value, by, metric, s.name))
	}
	return strings.Join(each, " or ")
}
