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

func node() Dashboard {
	return Dashboard{
		UID: uidNode, Title: "Node", Node: OneNode,
		Text: "One node: what the map says of it, and what its own agent says of its halves, parts, links, rails, reports and self-tests. Its agent has to be scraped.",
		Rows: []Row{
			{"Now", nodeNow()},
			{"Halves and parts", []Panel{
				timeline("Parts", "State of each part of the node as its host half states it.", 12, states,
					Query{Expr: encoded("lofamo_agent_component_state", "component", states), Legend: "{{component}}"}).tall(10),
				timeline("Halves", "What each half does as its recovery daemon has it; nothing where no daemon has said so.", 6, recoveryStates,
					Query{Expr: encoded("lofamo_agent_recovery_state", "half", recoveryStates), Legend: "{{half}}",
						Rare: "no recovery daemon: halves under a service manager alone"}).tall(10),
				timeline("Path to the supervisors", "ARMED: a path works and another one is ready. MIGRATED: reports go by the other one. REESTABLISHING: none works.", 6, pathStates,
					Query{Expr: encoded("lofamo_agent_path_state", "node", pathStates), Legend: "path"}).tall(10),
				series("Watchdog misses", "Reads of the other half's watchdog word that did not find it valid, by the half that read.", "ops",
					8, Query{Expr: `sum by (half) (rate(lofamo_agent_watchdog_misses_total{AGENT}[$__rate_interval]))`,
						Legend: "{{half}}"}).with(halves...),
				series("Late reads", "Reads that came late by more than half a period: the half doubts itself then, and accuses nobody. Many of them mean too little processor time.", "ops", 8,
					Query{Expr: `sum by (half) (rate(lofamo_agent_watchdog_late_total{AGENT}[$__rate_interval]))`, Legend: "{{half}}"}).with(halves...),
				series("Ends and hangs of halves", "That the recovery daemon saw since the machine was booted, by cause.", "none", 8,
					Query{Expr: `sum by (half,cause) (lofamo_agent_failures_total{AGENT}) > 0 or sum by (half) (lofamo_agent_restarts_total{AGENT})`, Legend: "{{half}} {{cause}}"}),
			}},
			{"Links", []Panel{
				timeline("State of links", "Each link at this end.", 8, linkStates,
					Query{Expr: encoded("lofamo_agent_link_state", "dir", linkStates), Legend: "{{dir}}"}),
				series("Round trip", "From a heartbeat to the first frame that acknowledges it; the wait for the neighbour's next frame, up to a period, is in it.", "s", 8, Query{Expr: `max by (dir) (lofamo_agent_link_rtt_seconds{AGENT})`, Legend: "{{dir}}"}).with(directions...),
				series("Frames lost or damaged", "Frames that never came, and damaged ones that a gap bears out, in a second.", "ops", 8,
					Query{Expr: `sum by (dir) (rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) + rate(lofamo_agent_link_crc_errors_total{AGENT}[$__rate_interval]))`, Legend: "{{dir}}"}).with(directions...),
			}},
			{"Reports", []Panel{
				timeline("Rails", "Whether a rail to the supervisors is known not to work.", 8, upDown,
					Query{Expr: `max by (rail) (lofamo_agent_rail_up{AGENT})`, Legend: "{{rail}}"}),
				series("Time to an answer", "Smoothed time from a report to its answer by rail, 0 before the first.", "s", 8,
					Query{Expr: `max by (rail) (lofamo_agent_rail_rtt_seconds{AGENT})`, Legend: "{{rail}}"}),
				series("Reports sent", "By the rail on which they went.", "ops", 8,
					Query{Expr: `sum by (rail) (rate(lofamo_agent_rail_reports_sent_total{AGENT}[$__rate_interval]))`, Legend: "{{rail}}"}),
				series("Reports in the log", "That the sender keeps until they are committed; unanswered ones no supervisor has received yet; kept ones would outlive a restart.", "none", 8,
					Query{Expr: `sum(lofamo_agent_reports_pending{AGENT})`,
						Legend: "pending"}, Query{Expr: `sum(lofamo_agent_reports_unanswered{AGENT})`, Legend: "unanswered"}, Query{Expr: `sum(lofamo_agent_spool_reports{AGENT})`, Legend: "on disk"}).with(hued("pending", "unanswered", "on disk")...),
				series("Changes of the path", "Of the primary path to the supervisors, by reason.", "none", 8,
					Query{Expr: `sum by (reason) (increase(lofamo_agent_path_migrations_total{AGENT}[$__rate_interval]))`, Legend: "{{reason}}"}).
					with(hued("unanswered", "interface-down", "leader", "path-error", "re-established")...),
				series("Refused messages", "Messages that this node did not believe, by reason: another key, another session, damage, an attack.", "ops", 8, Query{Expr: `sum by (reason) (rate(lofamo_agent_refused_total{AGENT}[$__rate_interval]))`, Legend: "{{reason}}"}),
			}},
			{"Self-tests and recovery", []Panel{
				timeline("Self-tests", "What the last test of each module found; IDLE: it was in use, and needed no test.", 10, testStates,
					Query{Expr: encoded("lofamo_agent_selftest_state", "half,module", testStates), Legend: "{{half}} {{module}}",
						Rare: "no module has had a test yet"}).tall(10),
				series("Slowest test message against what is usual",
					"Ratio of the slowest message of the last test of a module to what it has shown to be usual.", "none", 7,
					Query{Expr: `max by (half,module) (lofamo_agent_selftest_latency_seconds{AGENT} / (lofamo_agent_selftest_usual_seconds{AGENT} > 0))`, Legend: "{{half}} {{module}}", Rare: "no module has had a test yet"}).tall(10),
				bars("Course of the last recovery", "From the detection until the old process was gone, the new one started, serving, and proven by its self-test; 0 for a step not made.", "s", 7,
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
		one("State in the map", "As the supervisors have committed it.",
			`max(`+worst("lofamo_node_state", "node", `,node=~"$node"`, true)+`) or 0 * max(lofamo_node_info{SUP,node=~"$node"})`, states),
		one("DNP half", "Whether it validates its watchdog word, as the host half reads it.", `max(lofamo_agent_dnp_alive{AGENT})`, aliveness),
		one("Agent scraped", "Whether Prometheus gets this node's own metrics: all below rests on it.",
			`count(lofamo_agent_epoch{AGENT}) or vector(0)`, []state{{0, "no", colourFailed}, {1, "yes", colourNormal}}),
		one("Isolated", "No rail at all brings an answer of a supervisor.", `max(lofamo_agent_isolated{AGENT})`, yesNo),
		stat("Oldest report", "Age of the oldest report that is not committed.", "s", 4,
			Query{Expr: `max(lofamo_agent_reports_oldest_age_seconds{AGENT})`, Legend: "age"}).alarming(10),
		stat("Restarts", "Of halves by their recovery daemons since the machine was booted.", "none", 4,
			Query{Expr: `sum(lofamo_agent_restarts_total{AGENT})`, Legend: "restarts"}),
	}
}

// bars shows current numbers as bars.
func bars(title, text, unit string, width int, queries ...Query) Panel {
	p := stat(title, text, unit, width, queries...)
	p.Kind = "bargauge"
	p.options = object{
		"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "",
			"values": false}, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": true, "valueMode": "text", "minVizWidth": 0, "minVizHeight": 10,
	}
	p.defaults = object{"min": 0, "color": object{"mode": "thresholds"}, "thresholds": steps(neutral)}
	return p
}

// worstEnds shows a counter at the ten link ends with the largest increase within the time range, or one line at 0 if
// there is none.
func worstEnds(counter, shown string) Query {
	return Query{
		Expr: fmt.Sprintf(`max by (node,dir) (%s) and on (node,dir) (topk(10, max by (node,dir) (increase(%s{AGENT}[$__range] @ end()))) > 0) or on () label_replace(0 * max(%s), "node", "all ends", "", "")`,
			shown, counter, shown),
		Legend: "{{node}} {{dir}}",
	}
}

func links() Dashboard {
	const ten = "Of the scraped agents' link ends the ten with most within the time range."
	return Dashboard{
		UID: uidLinks, Title: "Links", Node: SomeNodes,
		Text: "The links of the torus: which ends are broken, which lose, damage or delay frames before they break, and whether somebody sends what is not a neighbour's.",
		Rows: []Row{
			{"In the map", []Panel{
				series("Link ends that are not NORMAL", "By state, as committed.", "none", 10,
					Query{Expr: `max by (state) (lofamo_links{SUP,state!="NORMAL"})`, Legend: "{{state}}"}).with(coloured(states)...),
				table("Broken and sick ends", "In their own nodes' view, the worst first. Both ends of a cut cable are there; all ends at a dead node are.", 14, []column{
					{"Value", "State", stateCell(mapped(states))}, {"node", "Node", []property{nodeLinks("Node")}}, {"dir", "Direction",
						nil}, {"peer", "To", nil}, {"rack", "Rack", nil}, {"x", "x", narrow}, {"y", "y", narrow}, {"z", "z", narrow},
					{label: "state"}, {label: "map_x"}, {label: "map_y"},
				}, Query{Expr: `sort_desc(` + placed(worst("lofamo_link_state", "node,dir,peer", `,node=~"$node"`, false)) + `)`, Table: true,
					Rare: "all links are well"}).tall(8),
			}},
			{"Looked for through the torus", []Panel{
				series("Silent nodes that were looked for", "Nodes of which the supervisors hear nothing, by what their neighbours found at the leader's word: both halves answer, the DNP half alone does, or nobody reached them.", "none", 9,
					Query{Expr: `max by (found) (lofamo_mapped_nodes{SUP})`, Legend: "{{found}}"}).
					with(byName("both-halves", fixed(colourNormal)), byName("dnp-alone", fixed(colourSick)), byName("not-reached", fixed(colourFailed))),
				series("Links found dead", "Links of such nodes that were found dead, and of which nothing else is known.", "none", 8,
					Query{Expr: `max(lofamo_mapped_links_dead{SUP})`, Legend: "links"}),
				series("Mappings", "Mappings by delegation that the leader led within a scrape interval, and the orders to nodes that it sent for them, repeated ones included.", "none", 7,
					Query{Expr: `sum(increase(lofamo_mappings_total{SUP}[$__rate_interval]))`,
						Legend: "mappings"}, Query{Expr: `sum(increase(lofamo_map_orders_total{SUP}[$__rate_interval]))`, Legend: "orders"}).with(hued("mappings", "orders")...),
			}},
			{"As agents measure them", []Panel{
				series("Round trip", "From a heartbeat to the first frame that acknowledges it, over all scraped ends; the wait for the neighbour's next frame, up to a period, is in it.", "s", 8,
					Query{Expr: `quantile(0.5, lofamo_agent_link_rtt_seconds{AGENT} > 0)`,
						Legend: "median"}, Query{Expr: `quantile(0.99, lofamo_agent_link_rtt_seconds{AGENT} > 0)`, Legend: "99th percentile"}, Query{Expr: `max(lofamo_agent_link_rtt_seconds{AGENT})`, Legend: "slowest"}).
					with(hued("median", "slowest", "99th percentile")...),
				series("Slowest ends", ten+" Smoothed round trip.", "s", 8,
					Query{Expr: `max by (node,dir) (lofamo_agent_link_rtt_seconds{AGENT}) and on (node,dir) topk(10, max by (node,dir) (avg_over_time(lofamo_agent_link_rtt_seconds{AGENT}[$__range] @ end())))`, Legend: "{{node}} {{dir}}"}),
				series("Loss", ten+" Frames that never came, of those that should have.", "percentunit", 8, worstEnds("lofamo_agent_link_lost_total",
					`rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) / (rate(lofamo_agent_link_lost_total{AGENT}[$__rate_interval]) + rate(lofamo_agent_link_received_total{AGENT}[$__rate_interval]) > 0)`)),
				series("Damaged frames", ten+" Damage that a gap in the sequence bears out: errors of the link.", "ops", 8,
					worstEnds("lofamo_agent_link_crc_errors_total", `rate(lofamo_agent_link_crc_errors_total{AGENT}[$__rate_interval])`)),
				series("Frames", "Accepted and sent by all scraped ends.", "ops", 8,
					Query{Expr: `sum(rate(lofamo_agent_link_sent_total{AGENT}[$__rate_interval]))`,
						Legend: "sent"}, Query{Expr: `sum(rate(lofamo_agent_link_received_total{AGENT}[$__rate_interval]))`, Legend: "accepted"}).
					with(hued("sent", "accepted")...),
				series("Ends that doubt themselves", "Times that an end of a link doubted itself because it ran late, in a second, by direction: too little processor time.", "ops", 8,
					Query{Expr: `sum by (dir) (rate(lofamo_agent_link_doubts_total{AGENT}[$__rate_interval]))`, Legend: "{{dir}}"}).with(directions...),
				series("Not a neighbour's", "Frames with a wrong MAC, replayed ones, malformed or of another link, and damaged ones that no gap bears out: an attack, another key, a wrong cable.", "ops", 12,
					Query{Expr: `sum(rate(lofamo_agent_link_forged_total{AGENT}[$__rate_interval]))`,
						Legend: "forged"}, Query{Expr: `sum(rate(lofamo_agent_link_replays_total{AGENT}[$__rate_interval]))`, Legend: "replayed"},
					Query{Expr: `sum(rate(lofamo_agent_link_refused_total{AGENT}[$__rate_interval]))`,
						Legend: "refused"}, Query{Expr: `sum(rate(lofamo_agent_link_strange_total{AGENT}[$__rate_interval]))`, Legend: "strange"}).
					with(hued("refused", "replayed", "strange", "forged")...),
				series("Twice or out of order", "Frames that came twice, or after later ones.", "ops", 12,
					Query{Expr: `sum(rate(lofamo_agent_link_duplicates_total{AGENT}[$__rate_interval]))`,
						Legend: "twice"}, Query{Expr: `sum(rate(lofamo_agent_link_reordered_total{AGENT}[$__rate_interval]))`, Legend: "out of order"}).
					with(hued("twice", "out of order")...),
			}},
		},
	}
}
