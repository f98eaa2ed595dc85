package dashboards

import "fmt"

// coordinates are the variables by which a plane is chosen: what is normal to it, and where it is.
func planes() []object {
	axes := []object{}
	for _, a := range []string{"z", "y", "x"} {
		axes = append(axes, object{"text": a, "value": a, "selected": a == "z"})
	}
	return []object{
		{
			"name": "axis", "label": "Plane of constant", "description": "The coordinate that is the same in the whole of the plane that is shown.", "type": "custom", "query": "z,y,x", "hide": 0,
			"current": object{"selected": true, "text": "z", "value": "z"}, "options": axes,
		},
		{
			"name": "plane", "label": "at", "description": "The plane's place along that coordinate.", "type": "query", "datasource": source, "hide": 0, "refresh": 2, "sort": 3, "regex": "", "options": []object{},
			"query": object{"query": planesQuery, "refId": "variable-plane"}, "definition": planesQuery,
		},
	}
}

const planesQuery = `label_values(lofamo_node_info{cluster="$cluster",job="$job"}, $axis)`

// inPlane has the two coordinates of the chosen plane as labels across and up.
func inPlane(expr string) string {
	expr = fmt.Sprintf(`label_join(%s, "at", ",", "axis", "x", "y", "z")`, label(expr, "axis", "$axis"))
	for _, c := range []struct{ axis, across, up string }{{"z", `z,(.*),.*,.*`, `z,.*,(.*),.*`}, {"y", `y,(.*),.*,.*`, `y,.*,.*,(.*)`}, {"x", `x,.*,(.*),.*`, `x,.*,.*,(.*)`}} {
		expr = fmt.Sprintf(`label_replace(label_replace(%s, "across", "$1", "at", %q), "up", "$1", "at", %q)`, expr, c.across, c.up)
	}
	return expr
}

// tile is by how much a drawing of a node graph is larger than map_x and map_y: its circles are 80 wide, with two lines of text below.
const tile = 3

func faultMap() Dashboard {
	return Dashboard{
		UID: uidFaultMap, Title: "Fault map", Node: SomeNodes, Planes: true,
		Text: "The state of the machine at a glance: how many nodes and links are not normal, where they are, since when, and what alerts say.",
		Rows: []Row{
			{"Counts", []Panel{
				stat("Nodes", "Nodes of the torus by state, as the supervisors have committed it.", "none", 9, Query{Expr: `max by (state) (lofamo_nodes{SUP})`, Legend: "{{state}}"}).with(counted()...),
				stat("Link ends", "Ends of links by state, each in its own node's view: a link has two.", "none", 9, Query{Expr: `max by (state) (lofamo_links{SUP})`, Legend: "{{state}}"}).with(counted()...),
				stat("Group faults", "Racks, planes and other groups of which so many nodes have failed that the group is named instead.", "none", 3, Query{Expr: `max(lofamo_group_faults{SUP})`, Legend: "groups"}).alarming(1),
				stat("Maintenance", "Nodes that somebody has marked as under maintenance.", "none", 3, Query{Expr: `max(lofamo_maintenance_nodes{SUP})`, Legend: "nodes"}),
			}},
			{"Map", []Panel{nodeGraph(), isometric()}},
			{"What is not normal", []Panel{notNormal(), course()}},
			{"A plane, of large machines too", []Panel{planeChart(), leftOut(), alerts()}},
		},
	}
}

// counted has counts of states in their colours, and those of bad ones grey while they are 0.
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
		nodes = when(nodes, "color", s.colour, "state", s.name)
	}
	for _, l := range [][2]string{{"id", "node"}, {"title", "node"}, {"mainstat", "state"}, {"detail__rack", "rack"}} {
		nodes = copied(nodes, l[0], l[1])
	}
	nodes = fmt.Sprintf(`sort_desc(label_join(%s, "subtitle", ",", "x", "y", "z"))`, nodes)
	for _, s := range []state{{isNormal, "NORMAL", colourCable}, {isSick, "SICK", colourSick}, {isFailed, "FAILED", colourFailed}} {
		edges = when(edges, "color", s.colour, "state", s.name)
	}
	edges = when(when(edges, "thickness", "1", "state", "NORMAL"), "thickness", "4", "state", "SICK|FAILED")
	edges = when(edges, "strokedasharray", "6 4", "state", "SICK|FAILED")
	edges = copied(copied(copied(edges, "source", "node"), "target", "peer"), "mainstat", "state")
	edges = fmt.Sprintf(`sort_desc(label_join(%s, "id", " ", "node", "dir"))`, edges)
	return Panel{
		Kind: "nodeGraph", Title: "Nodes and links", Unit: "none", Width: 14, Height: 20,
		Text: "Every node with its state and every link; the worst first, as far as Grafana draws (200 nodes), with their neighbours. From Grafana 11.1 on each node has its fixed place, planes of constant z " +
			"one above the other; before, Grafana places them itself. A click leads to the node. Up to 1000 nodes; larger machines: a plane, below, or the web map.",
		Queries: []Query{{Name: "nodes", Expr: nodes, Instant: true}, {Name: "edges", Expr: edges, Instant: true}},
		options: object{"nodes": object{}, "edges": object{}},
		transformations: append([]object{numbers("map_x", "map_y", "thickness")},
			times("map_x", tile, "fixedX"), times("map_y", tile, "fixedY")),
		overrides: []object{byName("id", nodeLinks("title"))},
	}
}

// numbers has labels be numbers.
func numbers(names ...string) object {
	var list []object
	for _, n := range names {
		list = append(list, object{"targetField": n, "destinationType": "number"})
	}
	return object{"id": "convertFieldType", "options": object{"conversions": list, "fields": object{}}}
}

// times is a column that is a multiple of another one.
func times(name string, by int, alias string) object {
	return object{"id": "calculateField", "options": object{
		"mode": "binary", "alias": alias, "replaceFields": false, "reduce": object{"reducer": "sum"},
		"binary": object{"left": name, "operator": "*", "right": fmt.Sprint(by), "reducer": "sum"},
	}}
}

// points draws nodes as points in their states' colours, the worse the larger.
func points(title, text, across, up string, q Query, transformations ...object) Panel {
	q.Instant = true
	p := Panel{
		Kind: "xychart", Title: title, Text: text, Unit: "none", Queries: []Query{q},
		options: object{
			"seriesMapping": "manual", "dims": object{"frame": 0},
			"series": []object{{
				"frame": 0, "x": across, "y": up, "name": "nodes", "show": "points", "label": "auto", "lineWidth": 0,
				"pointColor": object{"field": "Value", "fixed": colourNormal}, "pointSize": object{"field": "Value", "fixed": 12, "min": 10, "max": 22},
			}},
			"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": []string{}}, "tooltip": object{"mode": "single", "sort": "none"},
		},
		custom:          object{"show": "points", "pointSize": object{"fixed": 12, "min": 10, "max": 22}, "axisPlacement": "auto", "axisLabel": "", "hideFrom": object{"legend": false, "tooltip": false, "viz": false}},
		transformations: transformations,
	}
	p = p.telling(states).with(byName("Value", property{"displayName", "state"}))
	return p.with(byName("node", nodeLinks("node")))
}

func isometric() Panel {
	p := points("Places", "Every node at its place: planes of constant z one above the other, each drawn isometrically. Teal is NORMAL, lilac UNKNOWN, amber SICK, vermilion FAILED; the worse, the larger. Up to 1000 nodes.",
		"map_x", "down", Query{Expr: `sort(` + everyNode + `)`}, numbers("map_x", "map_y"), times("map_y", -1, "down"))
	p.Width, p.Height = 10, 20
	return p.with(byName("map_x", property{"custom.axisPlacement", "hidden"}), byName("down", property{"custom.axisPlacement", "hidden"}))
}

func planeChart() Panel {
	named := fmt.Sprintf(`(%s) and on (node) lofamo_node_info{SUP,$axis="$plane"}`, everyNode)
	p := points("Plane $axis = $plane", "The nodes of one plane at their coordinates. In a machine of more than 1000 nodes those that are not NORMAL are named, and drawn; where there is no point all is well. Colours and sizes as above.",
		"across", "up", Query{Expr: `sort(` + inPlane(named) + `)`}, numbers("across", "up"))
	p.Width, p.Height = 10, 14
	return p.with(byName("across", property{"custom.axisLabel", "across"}, property{"decimals", 0}), byName("up", property{"custom.axisLabel", "up"}, property{"decimals", 0}))
}

func notNormal() Panel {
	of := func(metric, by, part string) string {
		return placed(`(` + fmt.Sprintf(part, worst(metric, by, `,node=~"$node"`, metric == "lofamo_node_state")) + `)`)
	}
	expr := fmt.Sprintf(`sort_desc(%s or %s or %s)`,
		of("lofamo_node_state", "node", `label_replace(%s, "part", "node", "", "")`),
		of("lofamo_component_state", "node,component", `label_replace(%s, "part", "$1", "component", "(.*)")`),
		of("lofamo_link_state", "node,dir,peer", `label_replace(%s, "part", "link/$1", "dir", "(.*)")`))
	return table("What is not normal", "Nodes, parts and link ends that are not NORMAL, the worst first. A click on a node leads to its dashboard, and to the web map, where evidence and history are.", 14, []column{
		{"Value", "State", stateCell(states)}, {"node", "Node", []property{nodeLinks("Node")}}, {"part", "Part", nil}, {"peer", "To", nil}, {"rack", "Rack", nil},
		{"x", "x", narrow}, {"y", "y", narrow}, {"z", "z", narrow}, {label: "state"}, {label: "component"}, {label: "dir"}, {label: "map_x"}, {label: "map_y"},
	}, Query{Expr: expr, Instant: true, Rare: "all is well"}).tall(14)
}

// narrow is the width of a column of small numbers.
var narrow = []property{{"custom.width", 60}}

// courses is how many nodes the course of states shows.
const courses = 30

func course() Panel {
	ever := func(value int, state string) string {
		return fmt.Sprintf(`%d * max by (node) (max_over_time(lofamo_node_state{SUP,node=~"$node",state=%q}[$__range] @ end()))`, value, state)
	}
	chosen := fmt.Sprintf(`topk(%d, max by (node) (%s or %s or %s))`, courses, ever(isFailed, "FAILED"), ever(isSick, "SICK"), ever(isUnknown, "UNKNOWN"))
	expr := fmt.Sprintf(`(max by (node) (%s) or 0 * max by (node) (lofamo_node_info{SUP})) and on (node) %s`, unwell, chosen)
	return timeline("Course", fmt.Sprintf("The states of the nodes that were not NORMAL within the time range, %d of them at most, those that were worst.", courses), 10, states,
		Query{Expr: expr, Legend: "{{node}}", Rare: "all was well"}).tall(14)
}

func leftOut() Panel {
	return stat("Not named", "Series that the supervisors would tell more if it were not for their bounds (1000 nodes, 1000 parts, 2000 link ends; places of 1000 nodes). Above 0 the map here is not whole: look at counts, and at the web map.", "none", 5,
		Query{Expr: `max by (metric) (lofamo_map_series_left_out{SUP})`, Legend: "{{metric}}"}).alarming(1).tall(14)
}

func alerts() Panel {
	return table("Alerts", "Alerts of deploy/prometheus that fire or are about to, where Prometheus has loaded them. Each has a page in docs/runbooks that says what to do.", 9, []column{
		{"severity", "Severity", []property{{"custom.width", 90}}}, {"alertname", "Alert", nil}, {"alertstate", "State", []property{{"custom.width", 80}}}, {"node", "Node", []property{{"custom.width", 90}}},
		{label: "Value"},
	}, Query{Expr: `sort(count by (severity,alertname,alertstate,node) (ALERTS{alertname=~"Lofamo.*",cluster="$cluster"}))`, Instant: true, Rare: "no alert fires, or the rules are not loaded"}).tall(14)
}
