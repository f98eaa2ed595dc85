package dashboards

import "fmt"

// Colours of states: the same as on the page for browsers, on a dark background. They follow Okabe and Ito and are
// distinguishable with any colour vision. Every state is also shown by name.
const (
	colourNormal  = "#43ad9b"
	colourSick    = "#f0b030"
	colourFailed  = "#ff6a2b"
	colourUnknown = "#b497dc"
	colourCable   = "#8b97a6"
	neutral       = "#74b3f5" // for numbers that are neither good nor bad
)

// hues are the colours of series without a state, distinguishable with any colour vision.
var hues = []string{"#74b3f5", "#f0b030", "#43ad9b", "#ff6a2b", "#b497dc", "#f0e442", "#cc79a7", "#8b97a6"}

// States as numbers, by severity. Drawings and tables sort by them.
const (
	isNormal = iota
	isUnknown
	isSick
	isFailed
)

// state is a state as dashboards show it.
type state struct {
	value  int
	name   string
	colour string
}

// states are the states of nodes, components and link ends.
var states = []state{{isNormal, "NORMAL", colourNormal}, {isUnknown, "UNKNOWN", colourUnknown}, {isSick, "SICK", colourSick},
	{isFailed, "FAILED", colourFailed}}

// mapped returns the mappings from a state's number to its name and colour.
func mapped(all []state) []object {
	options := object{}
	for i, s := range all {
		options[fmt.Sprint(s.value)] = object{"text": s.name, "color": s.colour, "index": i}
	}
	return []object{{"type": "value", "options": options}}
}

// step is a colour from a value upwards.
type step struct {
	from   float64
	colour string
}

// steps returns threshold colours: a base colour, and others from given values upwards.
func steps(base string, from ...step) object {
	list := []object{{"color": base, "value": nil}}
	for _, s := range from {
		list = append(list, object{"color": s.colour, "value": s.from})
	}
	return object{"mode": "absolute", "steps": list}
}

// property is a property of a field override.
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

// coloured returns the colours for series of states.
func coloured(all []state) (out []object) {
	for _, s := range all {
		out = append(out, byName(s.name, fixed(s.colour)))
	}
	return out
}

// hued returns colours for series of known names, in the order of the names.
func hued(names ...string) (out []object) {
	for i, n := range names {
		out = append(out, byName(n, fixed(hues[i%len(hues)])))
	}
	return out
}

// dashed draws limits, to which other series are compared, as dashed lines.
func dashed(pattern string) object {
	return override("byRegexp", pattern, property{"custom.lineStyle", object{"fill": "dash", "dash": []int{8, 6}}},
		property{"custom.fillOpacity", 0}, property{"custom.lineWidth", 2})
}

// stat shows current numbers.
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

// alarming shows a number in the colour of failures from a value upwards.
func (p Panel) alarming(from float64) Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourNormal, step{from, colourFailed})}
	return p
}

// telling shows names instead of numbers, in their colours.
func (p Panel) telling(all []state) Panel {
	var from []step
	for _, s := range all[1:] {
		from = append(from, step{float64(s.value), s.colour})
	}
	p.defaults = object{"mappings": mapped(all), "color": object{"mode": "thresholds"}, "thresholds": steps(all[0].colour, from...)}
	return p
}

// whole removes decimals, which increase() computes even for whole numbers.
func (p Panel) whole() Panel {
	p.defaults["decimals"] = 0
	return p
}

// with adds overrides.
func (p Panel) with(overrides ...object) Panel {
	p.overrides = append(p.overrides, overrides...)
	return p
}

// tall sets the height.
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
			"drawStyle": "line", "lineInterpolation": "stepAfter", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false,
			"axisSoftMin": 0,
			"stacking":    object{"mode": "none", "group": "A"}, "scaleDistribution": object{"type": "linear"},
		},
		defaults: object{"min": 0},
	}
	if unit == "none" || unit == "ops" {
		p.custom["axisSoftMax"] = 1 // else the axis of a series at 0 would reach 100
	}
	if unit == "percentunit" {
		p.custom["axisSoftMax"] = 0.1
	}
	return p
}

// stacked stacks the series.
func (p Panel) stacked() Panel {
	p.custom["stacking"], p.custom["fillOpacity"] = object{"mode": "normal", "group": "A"}, 40
	return p
}

// dotted shows points, because rare values would not be visible as a line.
func (p Panel) dotted() Panel {
	p.custom["showPoints"], p.custom["pointSize"], p.custom["fillOpacity"] = "always", 6, 0
	return p
}

// timeline shows states over time, one row per series.
func timeline(title, text string, width int, all []state, queries ...Query) Panel {
	p := Panel{
		Kind: "state-timeline", Title: title, Text: text, Unit: "none", Width: width, Height: 8, Queries: queries,
		options: object{
			"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
			"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "single", "sort": "none"},
		},
		custom: object{"fillOpacity": 85, "lineWidth": 0, "spanNulls": false},
	}
	// With threshold colours Grafana would show their bounds instead of the states' names.
	p.defaults = object{"mappings": mapped(all)}
	return p
}

// table shows a row for each current series, with the given columns in order; titles are chosen by label.
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

// column is a column of a table: a label, or Value. Without a title it is hidden.
type column struct {
	label, title string
	properties   []property
}

// stateCell shows a state with its colour as the background.
func stateCell(mappings []object) []property {
	return []property{{"mappings", mappings}, {"custom.cellOptions", object{"type": "color-background", "mode": "basic"}},
		{"custom.width", 110}}
}

// nodeLinks links a node's name to its dashboard and to the web map.
func nodeLinks(field string) property {
	name := fmt.Sprintf(`${__data.fields[%q]}`, field)
	return property{"links", []object{
		{"title": "Node " + name, "url": link(uidNode) + "&var-node=" + name, "targetBlank": false},
		{"title": name + " in the web map", "url": "${web}/#node=" + name, "targetBlank": true},
	}}
}
