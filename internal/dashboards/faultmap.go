package dashboards

import "fmt"

// planes returns the variables that select a plane: its normal axis and its position.
func planes() []object {
	axes := []object{}
	for _, a := range []string{"z", "y", "x"} {
		axes = append(axes, object{"text": a, "value": a, "selected": a == "z"})
	}
	return []object{
		{
			"name": "axis", "label": "Plane of constant", "description": "The coordinate that is the same in the whole of the plane that is shown.",
			"type": "custom", "query": "z,y,x", "hide": 0,
			"current": object{"selected": true, "text": "z", "value": "z"}, "options": axes,
		},
		{
			"name": "plane", "label": "at", "description": "The plane's place along that coordinate.", "type": "query", "datasource": source,
			"hide": 0, "refresh": 2, "sort": 3, "regex": "", "options": []object{},
			"query": object{"query": planesQuery, "refId": "variable-plane"}, "definition": planesQuery,
		},
	}
}

const planesQuery = `label_values(lofamo_node_info{cluster="$cluster",job="$job"}, $axis)`

// inPlane adds the two coordinates of the chosen plane as the labels across and up.
func inPlane(expr string) string {
	expr = fmt.Sprintf(`label_join(%s, "at", ",", "axis", "x", "y", "z")`, label(expr, "axis", "$axis"))
	for _, c := range []struct{ axis, across, up string }{{"z", `z,(.*),.*,.*`, `z,.*,(.*),.*`}, {"y", `y,(.*),.*,.*`, `y,.*,.*,(.*)`},
		{"x", `x,.*,(.*),.*`, `x,.*,.*,(.*)`}} {
		expr = fmt.Sprintf(`label_replace(label_replace(%s, "across", "$1", "at", %q), "up", "$1", "at", %q)`, expr, c.across, c.up)
	}
	return expr
}

// radius of a node's circle in a node graph, in the units of map_x and map_y.
const radius = "30"

// icons show the states by shape, in addition to the colours.
var icons = map[string]string{"NORMAL": "check", "UNKNOWN": "question-circle", "SICK": "exclamation-triangle", "FAILED": "times"}

func faultMap() Dashboard {
	return Dashboard{
		UID: uidFaultMap, Title: "Fault map", Node: SomeNodes, Planes: true,
		Text: "The state of the machine at a glance: each incident in one row, with its start, cause and runbook; the places " +
			"of the faults, and the alerts.",
		Rows: []Row{
			{"Counts", []Panel{
				stat("Open incidents", "Faults with one root cause each, by severity; their consequences are not counted.", "none", 6,
					Query{Expr: `sum by (severity) (max by (severity,component) (lofamo_incidents{SUP}))`, Legend: "{{severity}}"}).with(
					byName("CRITICAL", property{"thresholds", steps(colourCable, step{1, colourFailed})}),
					byName("WARNING", property{"thresholds", steps(colourCable, step{1, colourSick})})),
				stat("Nodes", "Nodes of the torus by committed state.", "none", 6,
					Query{Expr: `max by (state) (lofamo_nodes{SUP})`, Legend: "{{state}}"}).with(counted()...),
				stat("Link ends", "Ends of links by state, each in its own node's view: a link has two.", "none", 6,
					Query{Expr: `max by (state) (lofamo_links{SUP})`, Legend: "{{state}}"}).with(counted()...),
				stat("Group faults", "Racks, planes and other groups with so many failed nodes that the map names the group.",
					"none", 2, Query{Expr: `max(lofamo_group_faults{SUP})`, Legend: "groups"}).alarming(1),
				stat("Maintenance", "Nodes with a maintenance mark.", "none", 2,
					Query{Expr: `max(lofamo_maintenance_nodes{SUP})`, Legend: "nodes"}),
				leftOut(),
			}},
			{"Root causes", []Panel{incidents(), isometric(), course(), alerts()}},
			{"Everything that is not NORMAL, including consequences", []Panel{notNormal()}},
			{"Graph", []Panel{nodeGraph()}},
			{"A plane, of large machines too", []Panel{planeChart(), strip()}},
		},
	}
}

// counted returns the colours for counts of states; counts of bad states are grey while they are 0.
func counted() (out []object) {
	for _, s := range states {
		if s.value == isNormal {
			out = append(out, byName(s.name, property{"thresholds", steps(s.colour)}))
			continue
		}
		out = append(out, byName(s.name, property{"thresholds", steps(colourCable, step{1, s.colour})}))
	}
	return out
}

func nodeGraph() Panel {
	nodes, edges := everyNode, everyLink()
	for _, s := range states {
		nodes = when(s.name, when(s.name, nodes, "color", s.colour), "icon", icons[s.name])
	}
	nodes = label(nodes, "noderadius", radius)
	for _, l := range [][2]string{{"id", "node"}, {"title", "node"}, {"mainstat", "state"}, {"detail__state", "state"},
		{"detail__rack", "rack"}, {"fixedX", "map_x"}, {"fixedY", "map_y"}} {
		nodes = copied(nodes, l[0], l[1])
	}
	nodes = fmt.Sprintf(`sort_desc(label_join(%s, "subtitle", ",", "x", "y", "z"))`, nodes)
	for _, s := range []state{{isNormal, "NORMAL", colourCable}, {isSick, "SICK", colourSick}, {isFailed, "FAILED", colourFailed}} {
		edges = when(s.name, edges, "color", s.colour)
	}
	edges = when("SICK|FAILED", when("NORMAL", edges, "thickness", "1"), "thickness", "4")
	edges = when("SICK|FAILED", edges, "strokedasharray", "6 4")
	edges = copied(copied(copied(edges, "source", "node"), "target", "peer"), "mainstat", "state")
	edges = fmt.Sprintf(`sort_desc(label_join(%s, "id", " ", "node", "dir"))`, edges)
	return Panel{
		Kind: "nodeGraph", Title: "Nodes and links", Unit: "none", Width: 24, Height: 20,
		Text: "Every node with its state and every link; the worst first, as far as Grafana draws (200 nodes), with their neighbours. From " +
			"Grafana 11.1 on each node has its fixed place, planes of constant z one above the other; before, Grafana places them itself. A click " +
			"leads to the node. Up to 1000 nodes; larger machines: a plane, below, or the web map.",
		Queries:         []Query{{Name: "nodes", Expr: nodes, Table: true}, {Name: "edges", Expr: edges, Table: true}},
		options:         object{"nodes": object{}, "edges": object{}},
		transformations: []object{numbers("fixedX", "fixedY", "noderadius", "thickness")},
		overrides:       []object{byName("id", nodeLinks("title"))},
	}
}

// numbers converts labels to numbers.
func numbers(names ...string) object {
	var list []object
	for _, n := range names {
		list = append(list, object{"targetField": n, "destinationType": "number"})
	}
	return object{"id": "convertFieldType", "options": object{"conversions": list, "fields": object{}}}
}

// times adds a column that is a multiple of another one.
func times(name string, by int, alias string) object {
	return object{"id": "calculateField", "options": object{
		"mode": "binary", "alias": alias, "replaceFields": false, "reduce": object{"reducer": "sum"},
		"binary": object{"left": name, "operator": "*", "right": fmt.Sprint(by), "reducer": "sum"},
	}}
}

// points draws nodes as points in their states' colours, larger for worse states.
func points(title, text, across, up string, q Query, transformations ...object) Panel {
	q.Table = true
	p := Panel{
		Kind: "xychart", Title: title, Text: text, Unit: "none", Queries: []Query{q},
		options: object{
			"seriesMapping": "manual", "dims": object{"frame": 0},
			"series": []object{{
				"frame": 0, "x": across, "y": up, "name": "nodes", "show": "points", "label": "auto", "lineWidth": 0,
				"pointColor": object{"field": "Value", "fixed": colourNormal}, "pointSize": object{"field": "Value", "fixed": 12, "min": 10, "max": 22},
			}},
			"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": false,
				"calcs": []string{}}, "tooltip": object{"mode": "single", "sort": "none"},
		},
		custom: object{"show": "points", "pointSize": object{"fixed": 12, "min": 10, "max": 22}, "axisPlacement": "auto",
			"axisLabel": "", "hideFrom": object{"legend": false, "tooltip": false, "viz": false}},
		transformations: transformations,
	}
	of := []step{{0, colourNormal}, {isUnknown, colourUnknown}, {isSick, colourSick}, {isFailed, colourFailed}}
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps("transparent", of...)}
	return p.with(byName("Value", property{"mappings", mapped(states)}), byName("node", nodeLinks("node")))
}

// corner is an invisible point at a computed place. Charts end at their outermost points, and would clip them.
func corner(across, x, up, y string) string {
	return fmt.Sprintf(`-1 * (count_values(%q, %s) * on () group_left (%s) count_values(%q, %s))`, across, x, up, up, y)
}

// size is the torus' size in a dimension.
func size(dim string) string { return fmt.Sprintf(`max(lofamo_torus_size{SUP,dim=%q})`, dim) }

func isometric() Panel {
	const tile = 200 // in units of map_x and map_y
	high := fmt.Sprintf(`(%s + %s) * %d`, size("x"), size("y"), tile/4)
	corners := corner("map_x", fmt.Sprintf(`- %s * %d`, size("y"), tile/2), "map_y", fmt.Sprintf(`0 * %s - %d`, size("y"), tile/2)) + " or " +
		corner("map_x", fmt.Sprintf(`%s * %d`, size("x"), tile/2), "map_y", fmt.Sprintf(`(%s + %d) * %s - %d`, high, tile/2, size("z"), tile/2))

	p := points("Places", "Every node at its place: planes of constant z one above the other, each drawn isometrically. Teal is NORMAL, "+
		"lilac UNKNOWN, amber SICK, vermilion FAILED; the worse, the larger. Up to 1000 nodes.",
		"map_x", "down", Query{Expr: `sort(` + everyNode + ` or ` + corners + `)`}, numbers("map_x", "map_y"), times("map_y", -1, "down"))
	p.Width, p.Height = 10, 16
	return p.with(byName("map_x", property{"custom.axisPlacement", "hidden"}), byName("down", property{"custom.axisPlacement", "hidden"}))
}

func planeChart() Panel {
	named := fmt.Sprintf(`(%s) and on (node) lofamo_node_info{SUP,$axis="$plane"}`, everyNode)
	across, up := `max(lofamo_torus_size{SUP,dim!="$axis"})`, `max(lofamo_torus_size{SUP,dim!="$axis"})`
	corners := corner("across", `-0.5 + 0 * `+across, "up", `-0.5 + 0 * `+up) + " or " + corner("across", across+` - 0.5`, "up", up+` - 0.5`)
	p := points("Plane $axis = $plane", "The nodes of one plane at their coordinates. In a machine of more than 1000 nodes those that are "+
		"not NORMAL are named, and drawn; a place without a point is NORMAL. Colours and sizes as above.",
		"across", "up", Query{Expr: `sort(` + inPlane(named) + ` or ` + corners + `)`}, numbers("across", "up"))
	p.Width, p.Height = 12, 14
	return p.with(byName("across", property{"custom.axisLabel", "across"}, property{"decimals", 0}),
		byName("up", property{"custom.axisLabel", "up"}, property{"decimals", 0}))
}

// ranks is the number of kinds of rows of one state: nodes sort before their parts, and parts before links.
const ranks = 10

// ranked maps the value of any row to its state's name.
func ranked() []object {
	var out []object
	for i, s := range states {
		out = append(out, object{"type": "range", "options": object{"from": ranks * s.value, "to": ranks*s.value + ranks - 1,
			"result": object{"text": s.name, "color": s.colour, "index": i}}})
	}
	return out
}

func notNormal() Panel {
	of := func(first int, metric, by, part string) string {
		return placed(fmt.Sprintf(`(%d * %s + %d)`, ranks,
			fmt.Sprintf(part, worst(metric, by, `,node=~"$node"`, metric == "lofamo_node_state")), first))
	}
	expr := fmt.Sprintf(`sort_desc(%s or %s or %s)`,
		of(2, "lofamo_node_state", "node", `label_replace(%s, "part", "node", "", "")`),
		of(1, "lofamo_component_state", "node,component", `label_replace(%s, "part", "$1", "component", "(.*)")`),
		of(0, "lofamo_link_state", "node,dir,peer", `label_replace(%s, "part", "link/$1", "dir", "(.*)")`))
	return table("Nodes, parts and links", "Nodes, parts and link ends that are not NORMAL, the worst first, consequences of incidents "+
		"included. A click on a node leads to its dashboard, and to the web map, where evidence and history are.", 24, []column{
		{"Value", "State", stateCell(ranked())}, {"node", "Node", []property{nodeLinks("Node")}}, {"part", "Part", nil}, {"peer", "To",
			nil}, {"rack", "Rack", nil},
		{"x", "x", narrow}, {"y", "y", narrow}, {"z", "z",
			narrow}, {label: "state"}, {label: "component"}, {label: "dir"}, {label: "map_x"}, {label: "map_y"},
	}, Query{Expr: expr, Table: true, Rare: "all is well"}).tall(12)
}

// strip shows the number of nodes by state, in the plane and in the whole torus.
func strip() Panel {
	all := label(`max by (state) (lofamo_nodes{SUP})`, "where", "whole torus")
	here := fmt.Sprintf(`count by (state) (%s and on (node) lofamo_node_info{SUP,$axis="$plane"})`, everyNode)
	p := bars("Nodes of the plane by state", "Of the plane of constant $axis at $plane, and of the whole torus. In a machine of more than "+
		"1000 nodes NORMAL nodes are not counted by plane.", "none", 12,
		Query{Expr: label(here, "where", "plane"), Legend: "{{where}} {{state}}",
			Rare: "a large machine, and all of the plane is well"}, Query{Expr: all, Legend: "{{where}} {{state}}"})
	for _, s := range states {
		p = p.with(override("byRegexp", "/"+s.name+"$/", property{"thresholds", steps(s.colour)}))
	}
	return p.tall(14)
}

// incidents is the table with one row for each incident.
func incidents() Panel {
	runbook := `${__data.fields["Runbook"]}`
	p := table("Incidents", "Faults with their root causes, CRITICAL ones first: everything else that is broken follows from them. Up to "+
		"500. A click on a node leads to its dashboard and to the web map, one on a runbook to the steps against the fault.", 24, []column{
		{"severity", "Severity", []property{{"mappings", []object{{"type": "value", "options": object{
			"CRITICAL": object{"color": colourFailed, "index": 0}, "WARNING": object{"color": colourSick, "index": 1}}}}},
			{"custom.cellOptions", object{"type": "color-background", "mode": "basic"}}, {"custom.width", 100}}},
		{"fault", "State", []property{{"custom.width", 90}}}, {"node", "Node", []property{nodeLinks("Node")}}, {"component", "Part", nil},
		{"peer", "To", []property{nodeLinks("To")}}, {"group", "Group", nil}, {"cause", "Cause", nil},
		{"Value", "Since", []property{{"unit", "dateTimeFromNow"}, {"custom.width", 130}}},
		{"runbook", "Runbook", []property{{"links", []object{{"title": "Runbook " + runbook, "url": "${web}/runbooks/" + runbook,
			"targetBlank": true}}}}},
		{"acknowledged_by", "Acknowledged by", nil}, {"state", "Incident is", []property{{"custom.width", 110}}}, {"incident", "Incident", nil},
	}, Query{Expr: `1000 * max by (incident,state,severity,node,component,peer,group,cause,fault,runbook,acknowledged_by) ` +
		`(lofamo_incident_since_timestamp_seconds{SUP,node=~"|$node"})`, Table: true, Rare: "all is well"}).tall(9)
	p.options["sortBy"] = []object{{"displayName": "Severity", "desc": false}}
	return p
}

// narrow is the width of a column of small numbers.
var narrow = []property{{"custom.width", 60}}

// courses is the maximum number of nodes in the panel Course.
const courses = 30

func course() Panel {
	ever := func(value int, state string) string {
		return fmt.Sprintf(`%d * max by (node) (max_over_time(lofamo_node_state{SUP,node=~"$node",state=%q}[$__range] @ end()))`, value, state)
	}
	chosen := fmt.Sprintf(`topk(%d, max by (node) (%s or %s or %s))`, courses, ever(isFailed, "FAILED"), ever(isSick, "SICK"),
		ever(isUnknown, "UNKNOWN"))
	expr := fmt.Sprintf(`(max by (node) (%s) or 0 * max by (node) (lofamo_node_info{SUP})) and on (node) %s`, unwell, chosen)
	return timeline("Course", fmt.Sprintf("The states of the nodes that were not NORMAL within the time range, the %d worst at "+
		"most.", courses), 14, states,
		Query{Expr: expr, Legend: "{{node}}", Rare: "all was well"}).tall(16)
}

func leftOut() Panel {
	return stat("Not named", "Series that the supervisors leave out because of their bounds (1000 nodes, 1000 parts, 2000 link "+
		"ends, 500 given-up halves, 500 incidents; places of 1000 nodes). Above 0 this map is incomplete: look at counts, and at the "+
		"web map.", "none", 2,
		Query{Expr: `sum(max by (metric) (lofamo_map_series_left_out{SUP}))`, Legend: "series"}).alarming(1)
}

func alerts() Panel {
	return table("Alerts", "Alerts of deploy/prometheus that fire or are about to, if Prometheus has loaded them. Each links to "+
		"its runbook, which supervisors serve beside the web map.", 24, []column{
		{"severity", "Severity", []property{{"custom.width", 90}}}, {"alertname", "Alert",
			[]property{runbookLinks("Alert")}}, {"alertstate", "State", []property{{"custom.width",
			80}}}, {"node", "Node", []property{{"custom.width", 90}}},
		{label: "Value"},
	}, Query{Expr: `sort(count by (severity,alertname,alertstate,node) (ALERTS{alertname=~"Lofamo.*",cluster="$cluster"}))`,
		Table: true, Rare: "no alert fires, or the rules are not loaded"}).tall(8)
}

// runbookLinks links an alert's name to its page.
func runbookLinks(field string) property {
	name := fmt.Sprintf(`${__data.fields[%q]}`, field)
	return property{"links", []object{{"title": "Runbook of " + name, "url": "${web}/runbooks/" + name, "targetBlank": true}}}
}
