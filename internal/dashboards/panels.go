package dashboards

import "fmt"

// The colours of states are those of the page for browsers, on dark ground: of Okabe and Ito, told apart with any colour vision.
// Where a state is shown its name is written too.
const (
	colourNormal  = "#43ad9b"
	colourSick    = "#f0b030"
	colourFailed  = "#ff6a2b"
	colourUnknown = "#b497dc"
	colourCable   = "#8b97a6"
	neutral       = "#74b3f5" // of numbers that are neither good nor bad
)

// hues are those of things that have no state, told apart with any colour vision.
var hues = []string{"#74b3f5", "#f0b030", "#43ad9b", "#ff6a2b", "#b497dc", "#f0e442", "#cc79a7", "#8b97a6"}

// States as numbers: how bad they are. Drawings and tables sort by it.
const (
	isNormal = iota
	isUnknown
	isSick
	isFailed
)

// state is one of a thing, as dashboards show it.
type state struct {
	value  int
	name   string
	colour string
}

// states are those of nodes, components and link ends.
var states = []state{{isNormal, "NORMAL", colourNormal}, {isUnknown, "UNKNOWN", colourUnknown}, {isSick, "SICK", colourSick},
	{isFailed, "FAILED", colourFailed}}

// mapped writes a state's name and colour where its number is.
func mapped(all []state) []object {
	options := object{}
	for i, s := range all {
		options[fmt.Sprint(s.value)] = object{"text": s.name, "color": s.colour, "index": i}
	}
	return []object{{"type": "value", "options": options}}
}

// step is a colour from a value on.
type step struct {
	from   float64
	colour string
}

// steps are the colours of values: one for all, and others from some on.
func steps(base string, from ...step) object {
	list := []object{{"color": base, "value": nil}}
	for _, s := range from {
		list = append(list, object{"color": s.colour, "value": s.from})
	}
	return object{"mode": "absolute", "steps": list}
}

// property is of the override of a field.
type property struct {
	id    string
	value any
}

func override(matcher, name string, properties ...property) object {
	var list []object
	for _, p := range properties {
		list = append(list, object{"id": p.id, "value": p.value})
	}
	return object{"matcher": object{"id": matcher, "options": name}, "properties": list}
}

func byName(name string, properties ...property) object {
	return override("byName", name, properties...)
}

func fixed(colour string) property {
	return property{"color", object{"mode": "fixed", "fixedColor": colour}}
}

// coloured gives the series of states their colours.
func coloured(all []state) (out []object) {
	for _, s := range all {
		out = append(out, byName(s.name, fixed(s.colour)))
	}
	return out
}

// hued gives series of known names colours, in the order of the names.
func hued(names ...string) (out []object) {
	for i, n := range names {
		out = append(out, byName(n, fixed(hues[i%len(hues)])))
	}
	return out
}

// bounds are lines that others are measured by.
func dashed(pattern string) object {
	return override("byRegexp", pattern, property{"custom.lineStyle", object{"fill": "dash", "dash": []int{8, 6}}},
		property{"custom.fillOpacity", 0}, property{"custom.lineWidth", 2})
}

// stat shows numbers of now.
func stat(title, text, unit string, width int, queries ...Query) Panel {
	return Panel{
		Kind: "stat", Title: title, Text: text, Unit: unit, Width: width, Height: 4, Queries: queries,
		options: object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "",
				"values": false}, "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
		},
		defaults: object{"color": object{"mode": "thresholds"}},
	}
}

// alarming has a number in the colour of failures from a value on.
func (p Panel) alarming(from float64) Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourNormal, step{from, colourFailed})}
	return p
}

// telling writes names for numbers, in their colours.
func (p Panel) telling(all []state) Panel {
	var from []step
	for _, s := range all[1:] {
		from = append(from, step{float64(s.value), s.colour})
	}
	p.defaults = object{"mappings": mapped(all), "color": object{"mode": "thresholds"}, "thresholds": steps(all[0].colour, from...)}
	return p
}

// whole has no decimals: what increase() computes of whole numbers has some.
func (p Panel) whole() Panel {
	p.defaults["decimals"] = 0
	return p
}

// with adds overrides.
func (p Panel) with(overrides ...object) Panel {
	p.overrides = append(p.overrides, overrides...)
	return p
}

// tall has a height of its own.
func (p Panel) tall(height int) Panel {
	p.Height = height
	return p
}

// series shows numbers over time.
func series(title, text, unit string, width int, queries ...Query) Panel {
	p := Panel{
		Kind: "timeseries", Title: title, Text: text, Unit: unit, Width: width, Height: 8, Queries: queries,
		options: object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
			"tooltip": object{"mode": "multi", "sort": "desc"}},
		custom: object{
			"drawStyle": "line", "lineInterpolation": "stepAfter", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false, "axisSoftMin": 0,
			"stacking": object{"mode": "none", "group": "A"}, "scaleDistribution": object{"type": "linear"},
		},
		defaults: object{"min": 0},
	}
	if unit == "none" || unit == "ops" {
		p.custom["axisSoftMax"] = 1 // else what is 0 is drawn in an axis up to 100
	}
	if unit == "percentunit" {
		p.custom["axisSoftMax"] = 0.1
	}
	return p
}

// stacked has the series one upon the other.
func (p Panel) stacked() Panel {
	p.custom["stacking"], p.custom["fillOpacity"] = object{"mode": "normal", "group": "A"}, 40
	return p
}

// dotted shows the points: what is seldom would not be seen as a line.
func (p Panel) dotted() Panel {
	p.custom["showPoints"], p.custom["pointSize"], p.custom["fillOpacity"] = "always", 6, 0
	return p
}

// timeline shows states over time, one row a series.
func timeline(title, text string, width int, all []state, queries ...Query) Panel {
	p := Panel{
		Kind: "state-timeline", Title: title, Text: text, Unit: "none", Width: width, Height: 8, Queries: queries,
		options: object{
			"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
			"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "single", "sort": "none"},
		},
		custom: object{"fillOpacity": 85, "lineWidth": 0, "spanNulls": false},
	}
	// With colours by thresholds Grafana would write their bounds for the states' names.
	p.defaults = object{"mappings": mapped(all)}
	return p
}

// table shows a row for each series of now, with the columns in the order given; names are the columns' own, by label.
func table(title, text string, width int, columns []column, queries ...Query) Panel {
	hidden, order, names := object{"Time": true}, object{}, object{}
	p := Panel{
		Kind: "table", Title: title, Text: text, Unit: "none", Width: width, Height: 10, Queries: queries,
		options: object{"showHeader": true, "cellHeight": "sm",
			"footer": object{"show": false, "reducer": []string{"sum"}, "countRows": false, "fields": ""}},
		custom: object{"align": "auto", "inspect": false, "filterable": false, "cellOptions": object{"type": "auto"}},
	}
	for i, c := range columns {
		order[c.label] = i
		if c.title == "" {
			hidden[c.label] = true
			continue
		}
		names[c.label] = c.title
		if len(c.properties) > 0 {
			p.overrides = append(p.overrides, byName(c.title, c.properties...))
		}
	}
	options := object{"excludeByName": hidden, "indexByName": order, "renameByName": names}
	p.transformations = []object{{"id": "organize", "options": options}} //nolint:misspell // Grafana's name
	return p
}

// column of a table: a label, or Value; without a title it is not shown.
type column struct {
	label, title string
	properties   []property
}

// stateCell shows a state with its colour as the ground.
func stateCell(mappings []object) []property {
	return []property{{"mappings", mappings}, {"custom.cellOptions", object{"type": "color-background", "mode": "basic"}},
		{"custom.width", 110}}
}

// nodeLinks leads from a node's name to what more is said of it.
func nodeLinks(field string) property {
	name := fmt.Sprintf(`${__data.fields[%q]}`, field)
	return property{"links", []object{
		{"title": "Node " + name, "url": link(uidNode) + "&var-node=" + name, "targetBlank": false},
		{"title": name + " in the web map", "url": "${web}/#node=" + name, "targetBlank": true},
	}}
}
