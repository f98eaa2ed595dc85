// Package dashboards generates the dashboards of deploy/grafana from one source, so that they have the same variables,
// time range, refresh, colours, units and links. They need stock panels and a Prometheus source, and no recording
// rules.
//
// The JSON is for Grafana 10. Later versions convert it: they migrate an XY chart without pluginVersion. Grafana 10
// ignores options that it does not know (fixedX, fixedY, strokedasharray of the node graph).
package dashboards

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// object is a piece of a dashboard's JSON.
type object = map[string]any

// Dashboard is one file.
type Dashboard struct {
	UID, Title, Text string
	// Node is the use of the variable node: OneNode selects one, SomeNodes filters, and NoNode omits the variable.
	Node NodeChoice
	// Planes adds the variables of a plane.
	Planes bool
	Rows   []Row
}

// NodeChoice is the use of the variable node in a dashboard.
type NodeChoice int

// Values of NodeChoice.
const (
	NoNode NodeChoice = iota
	OneNode
	SomeNodes
)

// Row is a heading with panels below it, from left to right, 24 columns wide.
type Row struct {
	Title  string
	Panels []Panel
}

// Query is a query of a panel. In Expr, SUP stands for the supervisors of the chosen cluster, AGENT for the chosen
// nodes' agents, and CLUSTER for all targets of that cluster, under any job.
type Query struct {
	Expr, Legend string
	// Name is the refId; empty: A, B and so on.
	Name string
	// Table selects a table of current values. Otherwise the query covers the time range, or only now in panels of
	// current numbers.
	Table bool
	// Heat selects the buckets of a heatmap.
	Heat bool
	// Rare is the reason why the query may have no result; empty if it always has one while the programs run.
	Rare string
}

// Panel is one panel.
type Panel struct {
	Title, Text, Unit string
	Kind              string
	Width, Height     int
	Queries           []Query

	options, custom, defaults object
	overrides                 []object
	transformations           []object
}

// All returns the dashboards, in the order of the links between them.
func All() []Dashboard {
	return []Dashboard{faultMap(), node(), links(), awareness(), supervisor(), responses()}
}

// Files returns the files of deploy/grafana, by name.
func Files() (map[string][]byte, error) {
	out := make(map[string][]byte)
	for _, d := range All() {
		b, err := json.MarshalIndent(d.json(), "", "  ")
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", d.UID, err)
		}
		out[d.UID+".json"] = append(b, '\n')
	}
	return out, nil
}

// Selectors that replace SUP, AGENT and CLUSTER.
const (
	selectSupervisors = `cluster="$cluster",job="$job"`
	selectAgents      = `cluster="$cluster",job=~"$agents",node=~"$node"`
	selectCluster     = `cluster="$cluster"`
)

// PromQL returns the query with its selectors and with Grafana's variables.
func (q Query) PromQL() string {
	return strings.NewReplacer("SUP", selectSupervisors, "AGENT", selectAgents, "CLUSTER", selectCluster).Replace(q.Expr)
}

// Of returns the query as Grafana sends it for one node of a cluster, with the jobs of
// deploy/prometheus/prometheus.yml.
func (q Query) Of(cluster, node string) string {
	return strings.NewReplacer("$cluster", cluster, "$job", "lofamo-supervisor", "$agents", "lofamo-agent", "$node", node, "$axis",
		"z", "$plane", "0", "$__rate_interval", "1m", "$__range", "1h").Replace(q.PromQL())
}

// source is the data source of all panels: the chosen one.
var source = object{"type": "prometheus", "uid": "${datasource}"}

func (d Dashboard) json() object {
	return object{
		"uid": d.UID, "title": "LO|FA|MO / " + d.Title, "description": d.Text, "tags": []string{"lofamo"},
		"schemaVersion": 38, "version": 1, "editable": true, "graphTooltip": 1, "timezone": "browser",
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "10s",
		"timepicker":  object{"refresh_intervals": []string{"5s", "10s", "30s", "1m", "5m"}},
		"annotations": object{"list": []object{}}, "fiscalYearStartMonth": 0, "weekStart": "",
		"templating": object{"list": d.variables()}, "links": d.links(), "panels": d.panels(),
	}
}

func (d Dashboard) variables() []object {
	ask := func(name, label, text, query string) object {
		return object{
			"name": name, "label": label, "description": text, "type": "query", "datasource": source, "hide": 0, "refresh": 2, "sort": 1,
			"query": object{"query": query, "refId": "variable-" + name}, "definition": query, "regex": "", "options": []object{},
		}
	}
	all := func(v object) object {
		v["includeAll"], v["allValue"], v["multi"] = true, ".*", true
		v["current"] = object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}}
		return v
	}
	out := []object{
		{"name": "datasource", "label": "Prometheus", "description": "The Prometheus that scrapes the cluster.", "type": "datasource",
			"query": "prometheus", "hide": 0, "options": []object{}},
		ask("cluster", "Cluster", "The label cluster of the targets; None where they have none.", `label_values(lofamo_leader, cluster)`),
		ask("job", "Supervisors", "The job by which the supervisors are scraped.", `label_values(lofamo_leader{cluster="$cluster"}, job)`),
		all(ask("agents", "Agents", "The jobs by which the agents are scraped.", `label_values(lofamo_agent_epoch{cluster="$cluster"}, job)`)),
	}
	nodes := func() object {
		return ask("node", "Node", "Nodes of the torus.",
			`label_values({__name__=~"lofamo_node_info|lofamo_agent_epoch",cluster="$cluster"}, node)`)
	}
	switch d.Node {
	case OneNode:
		out = append(out, nodes())
	case SomeNodes:
		out = append(out, all(nodes()))
	case NoNode:
	}
	if d.Planes {
		out = append(out, planes()...)
	}
	return append(out, object{
		"name": "web", "label": "Web map", "description": "Where a supervisor serves the fault map to browsers: its web.listen, or a proxy " +
			"before it.",
		"type": "textbox", "query": webMap, "hide": 0, "current": object{"selected": true, "text": webMap, "value": webMap},
		"options": []object{{"selected": true, "text": webMap, "value": webMap}},
	})
}

// webMap is the default address of the web map: the end of a tunnel to a supervisor.
const webMap = "https://localhost:9443"

// kept are the variables that links pass to the next dashboard.
const kept = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${agents:queryparam}&${web:queryparam}"

// link returns the address of a dashboard with the current variables.
func link(uid string) string { return "/d/" + uid + "?" + kept }

func (d Dashboard) links() (out []object) {
	add := func(title, url string, blank bool) {
		out = append(out, object{
			"title": title, "url": url, "type": "link", "icon": map[bool]string{true: "external link",
				false: "dashboard"}[blank], "keepTime": !blank, "targetBlank": blank,
			"includeVars": false, "asDropdown": false, "tags": []string{}, "tooltip": "",
		})
	}
	for _, l := range []struct{ uid, title string }{
		{uidFaultMap, "Fault map"}, {uidNode, "Node"}, {uidLinks, "Links"}, {uidAwareness, "Awareness"}, {uidSupervisor,
			"Supervisor"}, {uidResponses, "Responses"},
	} {
		if l.uid == d.UID {
			continue
		}
		url := link(l.uid)
		if d.Node == OneNode && l.uid == uidLinks {
			url += "&${node:queryparam}"
		}
		add(l.title, url, false)
	}
	add("Web map", "${web}", true)
	return out
}

// Identifiers of the dashboards, which links depend on.
const (
	uidFaultMap   = "lofamo-fault-map"
	uidNode       = "lofamo-node"
	uidLinks      = "lofamo-links"
	uidAwareness  = "lofamo-awareness"
	uidSupervisor = "lofamo-supervisor"
	uidResponses  = "lofamo-responses"
)

func (d Dashboard) panels() (out []object) {
	id, y := 0, 0
	next := func() int { id++; return id }
	for _, r := range d.Rows {
		out = append(out, object{"id": next(), "type": "row", "title": r.Title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, high := 0, 0
		for _, p := range r.Panels {
			if x+p.Width > 24 {
				x, y, high = 0, y+high, 0
			}
			o := p.json()
			o["id"], o["gridPos"] = next(), object{"x": x, "y": y, "w": p.Width, "h": p.Height}
			out = append(out, o)
			x, high = x+p.Width, max(high, p.Height)
		}
		y += high
	}
	return out
}

func (p Panel) json() object {
	var targets []object
	for i, q := range p.Queries {
		name := q.Name
		if name == "" {
			name = string(rune('A' + i))
		}
		// A series that has ended has no current value; a panel must not show its last one.
		now := q.Table || p.Kind == "stat" || p.Kind == "bargauge"
		t := object{"refId": name, "datasource": source, "expr": q.PromQL(), "editorMode": "code", "range": !now, "instant": now,
			"legendFormat": q.Legend, "format": "time_series"}
		if q.Table {
			t["format"] = "table"
		}
		if q.Heat {
			t["format"] = "heatmap"
		}
		if q.Legend == "" {
			t["legendFormat"] = "__auto"
		}
		targets = append(targets, t)
	}
	defaults := object{"unit": p.Unit, "custom": p.custom, "color": object{"mode": "palette-classic"}, "mappings": []object{},
		"thresholds": steps(neutral)}
	if p.custom == nil {
		defaults["custom"] = object{}
	}
	maps.Copy(defaults, p.defaults)
	return object{
		"type": p.Kind, "title": p.Title, "description": p.Text, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": orNone(p.overrides)},
		"options":     p.options, "transformations": orNone(p.transformations),
	}
}

// orNone returns an empty list instead of nil, because JSON needs a list.
func orNone(list []object) []object {
	if list == nil {
		return []object{}
	}
	return list
}
