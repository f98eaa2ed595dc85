package dashboards

import "fmt"

// States of a node and its agent. Each name is a value of the label state.
var (
	linkStates = []state{{isNormal, "NORMAL", colourNormal}, {isUnknown, "UNKNOWN", colourUnknown}, {isSick, "SICK", colourSick},
		{isFailed, "BROKEN", colourFailed}}
	recoveryStates = []state{
		{0, "RUNNING", colourNormal}, {1, "STARTING", neutral}, {2, "STOPPED", colourUnknown}, {3, "RESTARTING", colourSick}, {4,
			"GIVEN_UP", colourFailed},
	}
	pathStates = []state{{0, "ARMED", colourNormal}, {1, "REARM", neutral}, {2, "MIGRATED", colourSick}, {3, "REESTABLISHING", colourFailed}}
	testStates = []state{{0, "PASSED", colourNormal}, {1, "IDLE", colourCable}, {2, "UNTESTED", colourUnknown}, {3, "FAILING", colourFailed}}
	yesNo      = []state{{0, "no", colourNormal}, {1, "yes", colourFailed}}
	upDown     = []state{{0, "down", colourFailed}, {1, "up", colourNormal}}
	aliveness  = []state{{0, "not heard", colourFailed}, {1, "alive", colourNormal}}
)

// halves and directions have the same colours on all dashboards.
var (
	halves     = hued("host", "dnp")
	directions = hued("X+", "X-", "Y+", "Y-", "Z+", "Z-")
)

// heartbeat describes the time until a heartbeat is acknowledged, which is not the network's round trip.
const heartbeat = "Smoothed time from a heartbeat to the neighbour's next frame, which acknowledges it. It is no round trip of the " +
	"network: the neighbour sends at its own heartbeats, so that half a period is usual, 25 ms with a period of 50 ms."

func node() Dashboard {
	return Dashboard{
		UID: uidNode, Title: "Node", Node: OneNode,
		Text: "One node: its state in the map, and its agent's own view of halves, parts, links, rails, reports and self-tests. " +
			"Prometheus must scrape the agent.",
		Rows: []Row{
			{"Now", nodeNow()},
			{"Halves and parts", []Panel{
				timeline("Parts", "State of each part of the node, as reported by its host half.", 12, states,
					Query{Expr: encoded("lofamo_agent_component_state", "component", states), Legend: "{{component}}"}).tall(10),
				timeline("Halves", "Activity of each half as its recovery daemon sees it; empty without a daemon.", 6, recoveryStates,
					Query{Expr: encoded("lofamo_agent_recovery_state", "half", recoveryStates), Legend: "{{half}}",
						Rare: "no recovery daemon: halves under a service manager alone"}).tall(10),
				timeline("Path to the supervisors", "ARMED: a path works and another is ready. MIGRATED: reports use the other "+
					"path. REESTABLISHING: no path works.", 6, pathStates,
					Query{Expr: encoded("lofamo_agent_path_state", "node", pathStates), Legend: "path"}).tall(10),
				series("Watchdog misses", "Reads that found the other half's watchdog word invalid, by reading half.", "ops", 8,
					Query{Expr: `sum by (half) (rate(lofamo_agent_watchdog_misses_total{AGENT}[$__rate_interval]))`, Legend: "{{half}}"}).with(halves...),
				series("Late reads", "Reads more than half a period late: the half then doubts itself and accuses no one. Many "+
					"late reads mean too little processor time.", "ops", 8,
					Query{Expr: `sum by (half) (rate(lofamo_agent_watchdog_late_total{AGENT}[$__rate_interval]))`, Legend: "{{half}}"}).with(halves...),
				series("Ends and hangs of halves", "Seen by the recovery daemon since the machine booted, by cause.", "none", 8,
					Query{Expr: `sum by (half,cause) (lofamo_agent_failures_total{AGENT}) > 0 or sum by (half) (lofamo_agent_restarts_total{AGENT})`,
						Legend: "{{half}} {{cause}}"}),
			}},
			{"Links", []Panel{
				timeline("State of links", "Each link at this end.", 8, linkStates,
					Query{Expr: encoded("lofamo_agent_link_state", "dir", linkStates), Legend: "{{dir}}"}),
				series("Heartbeat acknowledged after", heartbeat, "s", 8,
					Query{Expr: `max by (dir) (lofamo_agent_link_rtt_seconds{AGENT})`, Legend: "{{dir}}"}).with(directions...),
				series("Frames lost or damaged", "Frames per second that never arrived, and damaged frames confirmed by a gap in "+
					"the sequence.", "ops", 8,
					Query{Expr: `sum by (dir) (rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) + ` +
						`rate(lofamo_agent_link_crc_errors_total{AGENT}[$__rate_interval]))`, Legend: "{{dir}}"}).with(directions...),
			}},
			{"Reports", []Panel{
				timeline("Rails", "Rails to the supervisors that are known to be down.", 8, upDown,
					Query{Expr: `max by (rail) (lofamo_agent_rail_up{AGENT})`, Legend: "{{rail}}"}),
				series("Time to an answer", "Smoothed time from a report to its answer by rail, 0 before the first.", "s", 8,
					Query{Expr: `max by (rail) (lofamo_agent_rail_rtt_seconds{AGENT})`, Legend: "{{rail}}"}),
				series("Reports sent", "By rail.", "ops", 8,
					Query{Expr: `sum by (rail) (rate(lofamo_agent_rail_reports_sent_total{AGENT}[$__rate_interval]))`, Legend: "{{rail}}"}),
				series("Reports in the log", "Kept by the sender until they are committed. Unanswered: not yet received by a "+
					"supervisor. On disk: would survive a restart.", "none", 8,
					Query{Expr: `sum(lofamo_agent_reports_pending{AGENT})`,
						Legend: "pending"}, Query{Expr: `sum(lofamo_agent_reports_unanswered{AGENT})`, Legend: "unanswered"},
					Query{Expr: `sum(lofamo_agent_spool_reports{AGENT})`, Legend: "on disk"}).with(hued("pending", "unanswered", "on disk")...),
				series("Changes of the path", "Of the primary path to the supervisors, by reason.", "none", 8,
					Query{Expr: `sum by (reason) (increase(lofamo_agent_path_migrations_total{AGENT}[$__rate_interval]))`, Legend: "{{reason}}"}).
					with(hued("unanswered", "interface-down", "leader", "path-error", "re-established")...),
				series("Refused messages", "Messages that this node refused, by reason: another key, another session, damage, an attack.",
					"ops", 8, Query{Expr: `sum by (reason) (rate(lofamo_agent_refused_total{AGENT}[$__rate_interval]))`, Legend: "{{reason}}"}),
			}},
			{"Self-tests and recovery", []Panel{
				timeline("Self-tests", "Result of each module's last test; IDLE: the module was in use and needed no test.",
					10, testStates,
					Query{Expr: encoded("lofamo_agent_selftest_state", "half,module", testStates), Legend: "{{half}} {{module}}",
						Rare: "no module has had a test yet"}).tall(10),
				series("Slowest test message, relative to usual",
					"Ratio of the slowest message in a module's last test to the module's usual time.", "none", 7,
					Query{Expr: `max by (half,module) (lofamo_agent_selftest_latency_seconds{AGENT} / (lofamo_agent_selftest_usual_seconds{AGENT} > 0))`,
						Legend: "{{half}} {{module}}", Rare: "no module has had a test yet"}).tall(10),
				bars("Course of the last recovery", "From the detection until the old process was gone, the new one started, "+
					"serving, and proven by its self-test; 0 for a step not made.", "s", 7,
					Query{Expr: `max by (half,step) (lofamo_agent_recovery_seconds{AGENT})`, Legend: "{{half}} {{step}}"}).tall(10),
			}},
		},
	}
}

// nodeNow is the first line, with the most important numbers.
func nodeNow() []Panel {
	one := func(title, text, expr string, all []state) Panel {
		return stat(title, text, "none", 4, Query{Expr: expr, Legend: title}).telling(all)
	}
	return []Panel{
		one("State in the map", "The committed state.",
			`max(`+worst("lofamo_node_state", "node", `,node=~"$node"`, true)+`) or 0 * max(lofamo_node_info{SUP,node=~"$node"})`, states),
		one("DNP half", "Whether the host half finds the DNP half's watchdog word "+
			"valid.", `max(lofamo_agent_dnp_alive{AGENT})`, aliveness),
		one("Agent scraped", "Whether Prometheus gets this node's own metrics; the panels below need them.",
			`count(lofamo_agent_epoch{AGENT}) or vector(0)`, []state{{0, "no", colourFailed}, {1, "yes", colourNormal}}),
		one("Isolated", "No rail brings an answer from a supervisor.", `max(lofamo_agent_isolated{AGENT})`, yesNo),
		stat("Oldest report", "Age of the oldest uncommitted report.", "s", 4,
			Query{Expr: `max(lofamo_agent_reports_oldest_age_seconds{AGENT})`, Legend: "age"}).alarming(10),
		stat("Restarts", "Of halves by their recovery daemons since the machine booted.", "none", 4,
			Query{Expr: `sum(lofamo_agent_restarts_total{AGENT})`, Legend: "restarts"}),
	}
}

// bars shows current numbers as bars.
func bars(title, text, unit string, width int, queries ...Query) Panel {
	p := stat(title, text, unit, width, queries...)
	p.Kind = "bargauge"
	p.options = object{
		"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "",
			"values": false}, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": true, "valueMode": "text", "minVizWidth": 0,
		"minVizHeight": 10,
	}
	p.defaults = object{"min": 0, "color": object{"mode": "thresholds"}, "thresholds": steps(neutral)}
	return p
}

// worstEnds shows a counter at the ten link ends with the largest increase within the time range, or one line at 0 if
// there is none.
func worstEnds(counter, shown string) Query {
	return Query{
		Expr: fmt.Sprintf(
			`max by (node,dir) (%s) and on (node,dir) (topk(10, max by (node,dir) (increase(%s{AGENT}[$__range] @ end()))) > 0) or on () `+
				`label_replace(0 * max(%s), "node", "all ends", "", "")`,
			shown, counter, shown),
		Legend: "{{node}} {{dir}}",
	}
}

func links() Dashboard {
	const ten = "Of the scraped agents' link ends the ten with most within the time range."
	return Dashboard{
		UID: uidLinks, Title: "Links", Node: SomeNodes,
		Text: "The links of the torus: broken ends, ends that lose, damage or delay frames before they break, and frames that do " +
			"not come from a neighbour.",
		Rows: []Row{
			{"In the map", []Panel{
				series("Link ends that are not NORMAL", "By state, as committed.", "none", 10,
					Query{Expr: `max by (state) (lofamo_links{SUP,state!="NORMAL"})`, Legend: "{{state}}"}).with(coloured(states)...),
				table("Broken and sick ends", "In their own nodes' view, the worst first. A cut cable appears with both ends, a "+
					"dead node with all ends that lead to it.", 14, []column{
					{"Value", "State", stateCell(mapped(states))}, {"node", "Node", []property{nodeLinks("Node")}}, {"dir", "Direction",
						nil}, {"peer", "To", nil}, {"rack", "Rack", nil}, {"x", "x", narrow}, {"y", "y", narrow}, {"z", "z", narrow},
					{label: "state"}, {label: "map_x"}, {label: "map_y"},
				}, Query{Expr: `sort_desc(` + placed(worst("lofamo_link_state", "node,dir,peer", `,node=~"$node"`, false)) + `)`, Table: true,
					Rare: "all links are well"}).tall(8),
			}},
			{"Explored through the torus", []Panel{
				series("Explored silent nodes", "Nodes from which the supervisors receive nothing, by the findings of mappers: "+
					"both halves answer, only the DNP half answers, or no mapper reached the node.", "none", 9,
					Query{Expr: `max by (found) (lofamo_mapped_nodes{SUP})`, Legend: "{{found}}"}).
					with(byName("both-halves", fixed(colourNormal)), byName("dnp-alone", fixed(colourSick)), byName("not-reached", fixed(colourFailed))),
				series("Links found dead", "Links of such nodes that were found dead, without other evidence.", "none", 8,
					Query{Expr: `max(lofamo_mapped_links_dead{SUP})`, Legend: "links"}),
				series("Mappings", "Mappings by delegation led by the leader within a scrape interval, and the orders that it sent "+
					"to nodes, including repeated ones.", "none", 7,
					Query{Expr: `sum(increase(lofamo_mappings_total{SUP}[$__rate_interval]))`,
						Legend: "mappings"}, Query{Expr: `sum(increase(lofamo_map_orders_total{SUP}[$__rate_interval]))`, Legend: "orders"}).with(
					hued("mappings", "orders")...),
			}},
			{"As agents measure them", []Panel{
				series("Heartbeat acknowledged after", "Over all scraped ends. "+heartbeat, "s", 8,
					Query{Expr: `quantile(0.5, lofamo_agent_link_rtt_seconds{AGENT} > 0)`,
						Legend: "median"}, Query{Expr: `quantile(0.99, lofamo_agent_link_rtt_seconds{AGENT} > 0)`, Legend: "99th percentile"},
					Query{Expr: `max(lofamo_agent_link_rtt_seconds{AGENT})`, Legend: "slowest"}).
					with(hued("median", "slowest", "99th percentile")...),
				series("Slowest ends", ten+" "+heartbeat, "s", 8,
					Query{Expr: `max by (node,dir) (lofamo_agent_link_rtt_seconds{AGENT}) and on (node,dir) topk(10, max by (node,dir) ` +
						`(avg_over_time(lofamo_agent_link_rtt_seconds{AGENT}[$__range] @ end())))`, Legend: "{{node}} {{dir}}"}),
				series("Loss", ten+" The share of frames that never arrived or were damaged. "+
					"Frames that an end missed while it doubted itself are neither lost nor received here: see *Ends that doubt themselves*.",
					"percentunit", 8, worstEnds("lofamo_agent_link_lost_total",
						`rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) / (rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) + `+
							`rate(lofamo_agent_link_received_total{AGENT}[$__rate_interval]) > 0)`)),
				series("Damaged frames", ten+" Damage confirmed by a gap in the sequence: errors of the link.", "ops", 8,
					worstEnds("lofamo_agent_link_crc_errors_total", `rate(lofamo_agent_link_crc_errors_total{AGENT}[$__rate_interval])`)),
				series("Frames", "Accepted and sent by all scraped ends.", "ops", 8,
					Query{Expr: `sum(rate(lofamo_agent_link_sent_total{AGENT}[$__rate_interval]))`,
						Legend: "sent"}, Query{Expr: `sum(rate(lofamo_agent_link_received_total{AGENT}[$__rate_interval]))`, Legend: "accepted"}).
					with(hued("sent", "accepted")...),
				series("Ends that doubt themselves", "Times per second that an end of a link doubted itself because it ran late, "+
					"by direction: too little processor time.", "ops", 8,
					Query{Expr: `sum by (dir) (rate(lofamo_agent_link_doubts_total{AGENT}[$__rate_interval]))`, Legend: "{{dir}}"}).with(directions...),
				series("Not from a neighbour", "Frames with a wrong MAC; replayed frames; frames that are malformed or of another "+
					"link; damaged frames that no gap confirms: an attack, another key, a wrong cable.", "ops", 12,
					Query{Expr: `sum(rate(lofamo_agent_link_forged_total{AGENT}[$__rate_interval]))`,
						Legend: "forged"}, Query{Expr: `sum(rate(lofamo_agent_link_replays_total{AGENT}[$__rate_interval]))`, Legend: "replayed"},
					Query{Expr: `sum(rate(lofamo_agent_link_refused_total{AGENT}[$__rate_interval]))`,
						Legend: "refused"}, Query{Expr: `sum(rate(lofamo_agent_link_strange_total{AGENT}[$__rate_interval]))`, Legend: "strange"}).
					with(hued("refused", "replayed", "strange", "forged")...),
				series("Twice or out of order", "Frames that arrived twice, or after later frames.", "ops", 12,
					Query{Expr: `sum(rate(lofamo_agent_link_duplicates_total{AGENT}[$__rate_interval]))`,
						Legend: "twice"}, Query{Expr: `sum(rate(lofamo_agent_link_reordered_total{AGENT}[$__rate_interval]))`, Legend: "out of order"}).
					with(hued("twice", "out of order")...),
			}},
		},
	}
}
