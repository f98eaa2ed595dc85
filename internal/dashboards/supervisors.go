package dashboards

import (
	"fmt"
	"strings"
)

// promised are the causes whose detection time is bounded.
var promised = []string{"HOST", "DNP", "NODE"}

// within returns a quantile of a histogram over a recent interval, by labels. Rare events need a longer interval than
// Grafana's own.
func within(quantile, metric, by, while string) string {
	return fmt.Sprintf(`histogram_quantile(%s, sum by (%s) (increase(%s_bucket{SUP}[%s])))`, quantile,
		strings.TrimPrefix(by+",le", ","), metric, while)
}

// awareness is long because it lists all panels of the dashboard.
func awareness() Dashboard {
	const rare = "nothing has failed within the time"
	latency := "lofamo_failure_latency_seconds"
	var now []Panel
	for _, c := range promised {
		p := stat(c+" in time", "Of all committed failures of this kind within the time range, the share committed within their bound; "+
			"with few living witnesses the bound is longer. A failure that could not be measured counts as not in time.", "percentunit", 4,
			Query{Expr: fmt.Sprintf(`sum(increase(lofamo_failures_total{SUP,cause=%q,outcome="in-time"}[$__range])) / `+
				`sum(increase(lofamo_failures_total{SUP,cause=%q}[$__range]))`, c, c), Legend: c, Rare: rare})
		p.defaults = object{
			"color": object{"mode": "thresholds"}, "thresholds": steps(colourFailed, step{0.99, colourSick}, step{1, colourNormal}), "decimals": 1,
			"mappings": []object{{"type": "special", "options": object{"match": "nan",
				"result": object{"text": "none failed", "color": colourCable, "index": 0}}}},
		}
		now = append(now, p)
	}
	now = append(now,
		stat("Failures", "Of halves and nodes, committed within the time range: the denominator of the percentages.", "none", 3,
			Query{Expr: `sum(increase(lofamo_failures_total{SUP}[$__range]))`, Legend: "failures"}).whole(),
		stat("Late", "Failures of halves and nodes within the time range that took longer than the bound.", "none", 3,
			Query{Expr: `sum(increase(lofamo_failures_total{SUP,outcome="late"}[$__range]))`, Legend: "late"}).alarming(1).whole(),
		stat("Not measured", "Failures of halves and nodes within the time range whose start is unknown: they are "+
			"in no average and in no distribution below.", "none", 3,
			Query{Expr: `sum(increase(lofamo_failures_total{SUP,outcome="unmeasured"}[$__range]))`, Legend: "unmeasured"}).alarming(1).whole(),
		stat("Strictest bound", "The smallest bound computed from the periods, with enough living witnesses.", "s", 3,
			Query{Expr: `min(lofamo_awareness_bound_seconds{SUP})`, Legend: "bound"}))
	average := func(of string) string {
		return `sum by (cause) (increase(` + of + `_sum{SUP}[5m])) / sum by (cause) (increase(` + of + `_count{SUP}[5m]))`
	}
	causes := hued("HOST", "NODE", "DNP", "LINK", "SERVICE_NETWORK", "MEMORY", "SENSOR", "PERIPHERAL")
	heat := Panel{
		Kind: "heatmap", Title: "Distribution", Unit: "s", Width: 12, Height: 10,
		Text:    "Measured failures of halves and nodes by the time from their first sign to the commit.",
		Queries: []Query{{Expr: `sum by (le) (increase(` + latency + `_bucket{SUP}[$__rate_interval]))`, Legend: "{{le}}", Heat: true}},
		options: object{
			"calculate": false, "cellGap": 1, "color": object{"mode": "scheme", "scheme": "Oranges", "steps": 32, "exponent": 0.5,
				"reverse": false, "fill": "dark-orange", "scale": "exponential"},
			"yAxis": object{"unit": "s", "axisPlacement": "left",
				"reverse": false}, "rowsFrame": object{"layout": "auto"}, "filterValues": object{"le": 1e-9}, "cellValues": object{"unit": "none"},
			"legend": object{"show": true}, "showValue": "never", "tooltip": object{"show": true,
				"yHistogram": false}, "exemplars": object{"color": "rgba(255,0,255,0.7)"},
		},
		custom: object{"scaleDistribution": object{"type": "linear"}, "hideFrom": object{"legend": false, "tooltip": false, "viz": false}},
	}
	return Dashboard{
		UID: uidAwareness, Title: "Awareness",
		Text: "The time from a fault to its commit, against the bound computed from the periods, and the rails that carried the reports.",
		Rows: []Row{
			{"The promise", now},
			{"Latency", []Panel{
				series("Average against the bound", "From the failure of a half or a node to its commit in the fault map, from the ages "+
					"stated by observers and hops, for the measured failures within 5 minutes. Dashed: the bound with enough living "+
					"witnesses. If some nodes have two kernels, the panel also shows the longer bound of their halves.", "s", 12,
					Query{Expr: average(latency), Legend: "{{cause}}", Rare: rare}, Query{Expr: `max by (cause) (lofamo_awareness_bound_seconds{SUP})`,
						Legend: "bound of {{cause}}"}, Query{Expr: `max by (cause) (lofamo_awareness_dpu_bound_seconds{SUP}) ` +
						`and on () (sum(lofamo_platform_nodes{SUP,platform="dpu"}) > 0)`, Legend: "bound of {{cause}}, two kernels",
						Rare: "no node has two kernels"}).
					dotted().with(append(causes, dashed("/^bound/"), byName("bound of HOST", fixed(hues[0])),
					byName("bound of NODE", fixed(hues[1])), byName("bound of DNP", fixed(hues[2])),
					byName("bound of HOST, two kernels", fixed(hues[0])), byName("bound of DNP, two kernels", fixed(hues[2])))...).tall(10),
				heat,
				series("99th percentile", "Of the measured failures within 5 minutes, estimated from the histogram's buckets: it may exceed "+
					"every measured value, up to the end of the bucket.", "s", 6,
					Query{Expr: within("0.99", latency, "cause", "5m"), Legend: "{{cause}}", Rare: rare}).dotted().with(causes...),
				series("Failures by outcome", "Failures of halves and nodes by cause and outcome, within the rate interval.", "none", 6,
					Query{Expr: `sum by (cause,outcome) (increase(lofamo_failures_total{SUP}[$__rate_interval]))`, Legend: "{{cause}} {{outcome}}"}),
				series("Average of all changes", "From any change to SICK, FAILED or UNKNOWN to its commit, of nodes, parts and links, within 5 "+
					"minutes. Most have no bound: a threshold that must be exceeded for 40 s makes 40 s.", "s", 6,
					Query{Expr: average("lofamo_awareness_latency_seconds"), Legend: "{{cause}}", Rare: rare}).dotted().with(causes...),
				series("Changes of the map", "Committed, by the new state.", "none", 6,
					Query{Expr: `sum by (to) (increase(lofamo_changes_total{SUP}[$__rate_interval]))`, Legend: "{{to}}"}).with(coloured(states)...),
			}},
			{"Rails of reports", []Panel{
				series("Age of reports at their arrival", "99th percentile by rail within 5 minutes: directly over the service "+
					"network, by a "+
					"neighbour over the torus, by "+
					"gossip.", "s", 12, Query{Expr: within("0.99", "lofamo_supervisor_report_age_seconds", "path", "5m"),
					Legend: "{{path}}", Rare: "no reports, only digests"}).dotted().with(rails...),
				series("Reports", "Verified ones by rail, duplicates included.", "ops", 12,
					Query{Expr: `sum by (path) (rate(lofamo_reports_total{SUP}[$__rate_interval]))`, Legend: "{{path}}"}).with(rails...),
				series("Recoveries", "Halves restarted by their daemons, and halves given up.", "none", 12,
					Query{Expr: `sum by (half,outcome) (increase(lofamo_recoveries_total{SUP}[$__rate_interval]))`, Legend: "{{half}} {{outcome}}"}).
					with(hued("host serving", "host given-up", "dnp serving", "dnp given-up")...),
				series("Diagnoses and procedures", "Led by the leader, by result.", "none", 12,
					Query{Expr: `sum by (result) (increase(lofamo_diagnoses_total{SUP}[$__rate_interval]))`, Legend: "diagnosis {{result}}"},
					Query{Expr: `sum by (result) (increase(lofamo_procedures_total{SUP}[$__rate_interval]))`, Legend: "procedure {{result}}"}),
			}},
		},
	}
}

// rails have the same colours on all dashboards.
var rails = hued("DIRECT", "TORUS", "GOSSIP")

// leads are the roles of a replica.
var leads = []state{{0, "follows", colourCable}, {1, "leads", neutral}}

// supervisor is long because it lists all panels of the dashboard.
func supervisor() Dashboard {
	const each = "{{instance}}"
	return Dashboard{
		UID: uidSupervisor, Title: "Supervisor",
		Text: "The replicas that keep the map: the leader, the quorum, the duration of commits, drops of queues, and the fill " +
			"level of the store.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Leaders", "Replicas that lead: one. During a change of leader there may be two for a moment.", "none", 4,
					Query{Expr: `sum(lofamo_leader{SUP})`, Legend: "leaders"}).leading(),
				stat("Replicas scraped", "Replicas that Prometheus scrapes.", "none", 4,
					Query{Expr: `count(lofamo_leader{SUP})`, Legend: "replicas"}),
				stat("May be lost yet", "Replicas that may still fail before the majority is lost, in the leader's view.", "none", 4,
					Query{Expr: `min(sum by (instance) (lofamo_replica_up{SUP}) - floor(count by (instance) (lofamo_replica_up{SUP}) / 2) - 1)`,
						Legend: "spare"}).wanted(1),
				stat("Quorum heard", "Time since a quorum last confirmed a replica, for the replica that waits longest; a replica "+
					"never confirmed since its start counts as a million seconds.", "s", 4,
					Query{Expr: `max(lofamo_supervisor_quorum_age_seconds{SUP} >= 0 or lofamo_supervisor_quorum_age_seconds{SUP} * 0 + 1e6)`,
						Legend: "ago"}).alarming(10),
				stat("Regions cut off", "Regions from which the leader of a parent receives nothing; also 0 without regions.", "none", 4,
					Query{Expr: `sum(max by (region) (lofamo_region_cut_off{SUP})) or vector(0)`, Legend: "regions"}).alarming(1),
				stat("Nodes kept informed", "Nodes whose host half a replica notifies of changes of the map that concern it.", "none", 4,
					Query{Expr: `sum(lofamo_told_halves{SUP})`, Legend: "nodes"}),
			}},
			{"Replicas", []Panel{
				timeline("Leadership", "Which replica leads.", 8, leads, Query{Expr: `max by (instance) (lofamo_leader{SUP})`, Legend: each}),
				timeline("Reached", "Which replica reaches which.", 8, upDown,
					Query{Expr: `max by (instance,replica) (lofamo_replica_up{SUP})`, Legend: each + " to {{replica}}"}),
				timeline("Alarms", "Alarms of any replica.", 8, yesNo,
					Query{Expr: `max by (alarm) (lofamo_alarm{SUP})`, Legend: "{{alarm}}"}),
				series("Age of the quorum's confirmation", "Time since a quorum last confirmed each replica.", "s", 8,
					Query{Expr: `max by (instance) (lofamo_supervisor_quorum_age_seconds{SUP})`, Legend: each}),
				series("Processor", "Of one core.", "percentunit", 8,
					Query{Expr: `sum by (instance) (rate(process_cpu_seconds_total{SUP}[$__rate_interval]))`, Legend: each}),
				series("Memory", "Resident.", "bytes", 8, Query{Expr: `max by (instance) (process_resident_memory_bytes{SUP})`, Legend: each}),
			}},
			{"Commits and store", []Panel{
				series("Commits", "Time that commits to the store took, within 5 minutes.", "s", 8,
					Query{Expr: within("0.5", "lofamo_commit_duration_seconds", "", "5m"), Legend: "median", Rare: "nothing was committed"},
					Query{Expr: within("0.99", "lofamo_commit_duration_seconds", "", "5m"), Legend: "99th percentile",
						Rare: "nothing was committed"}).with(hued("median", "99th percentile")...),
				series("Commits a second", "And attempts that the store did not accept.", "ops", 8,
					Query{Expr: `sum(rate(lofamo_commit_duration_seconds_count{SUP}[$__rate_interval]))`,
						Legend: "commits"}, Query{Expr: `sum(rate(lofamo_commit_retries_total{SUP}[$__rate_interval]))`, Legend: "retries"}).
					with(byName("commits", fixed(hues[0])), byName("retries", fixed(colourFailed))),
				series("Sync of the store's log", "99th percentile of syncs of the embedded etcd within 5 minutes: the speed of "+
					"the disk. An external etcd exports this itself.", "s", 8,
					Query{Expr: within("0.99", "etcd_disk_wal_fsync_duration_seconds", "instance", "5m"), Legend: each, Rare: "an outside etcd"}),
				series("Store used", "Share of the embedded etcd's quota.", "percentunit", 8,
					Query{Expr: `max by (instance) (etcd_mvcc_db_total_size_in_bytes{SUP} / (etcd_server_quota_backend_bytes{SUP} > 0))`,
						Legend: each, Rare: "an outside etcd"}),
				series("Terms", "Times that a replica became leader, within a scrape interval. Many: a slow disk, or a bad network "+
					"between replicas.",
					"none", 8, Query{Expr: `sum by (instance) (increase(lofamo_leader_terms_total{SUP}[$__rate_interval]))`, Legend: each}),
				series("Queues", "Entries in each queue, at the replica with most entries.", "none", 8,
					Query{Expr: `max by (queue) (lofamo_queue_depth{SUP})`, Legend: "{{queue}}"}),
			}},
			{"Incoming messages", []Panel{
				series("Reports and digests", "Verified ones.", "ops", 8,
					Query{Expr: `sum by (path) (rate(lofamo_reports_total{SUP}[$__rate_interval]))`,
						Legend: "{{path}}"}, Query{Expr: `sum(rate(lofamo_digests_total{SUP}[$__rate_interval]))`, Legend: "digests"}).
					with(append(hued("DIRECT", "TORUS", "GOSSIP"), byName("digests", fixed(hues[4])))...),
				series("Dropped", "By full queues, and by the kernel because a replica was too slow; senders retry.", "ops", 8,
					Query{Expr: `sum by (queue) (rate(lofamo_dropped_total{SUP}[$__rate_interval]))`, Legend: "{{queue}}"},
					Query{Expr: `sum(rate(lofamo_supervisor_kernel_dropped_total{SUP}[$__rate_interval]))`, Legend: "kernel"}),
				series("Refused", "Refused datagrams and forwarded envelopes, by class.", "ops", 8,
					Query{Expr: `sum by (class) (rate(lofamo_refused_total{SUP}[$__rate_interval]))`, Legend: "{{class}}"}),
				series("Watches and sessions", "Open watches of clients, and sessions whose MAC replaces a signature.", "none", 12,
					Query{Expr: `sum(lofamo_watchers{SUP})`, Legend: "watches"}, Query{Expr: `sum(lofamo_supervisor_sessions{SUP})`,
						Legend: "sessions"}).with(hued("watches", "sessions")...),
				table("Builds", "The build of each replica, and its start.", 12,
					[]column{{"instance", "Replica", nil}, {"version", "Version", nil}, {"goversion", "Go", nil},
						{"Value", "Started", []property{{"unit", "dateTimeAsIso"}}}},
					Query{Expr: `1000 * max by (instance) (process_start_time_seconds{SUP}) * on (instance) group_right max by ` +
						`(instance,version,goversion) (lofamo_build_info{SUP})`, Table: true}).tall(8),
			}},
		},
	}
}

// leading expects exactly one.
func (p Panel) leading() Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourFailed, step{1, colourNormal}, step{2, colourSick})}
	return p
}

// wanted shows a number in the colour of failures below a value.
func (p Panel) wanted(least float64) Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourFailed, step{least, colourNormal})}
	return p
}

// openClosed are the states of the breaker.
var openClosed = []state{{0, "closed", colourNormal}, {1, "open", colourFailed}}

func responses() Dashboard {
	open := []state{
		{0, "proposed", neutral}, {1, "waiting", colourSick}, {2, "approved", hues[5]}, {3, "running", hues[6]}, {4, "done",
			colourNormal}, {5, "failed", colourFailed}, {6, "undone", colourCable}, {7, "expired", colourUnknown},
	}
	const rare = "no executor has tried anything"
	return Dashboard{
		UID: uidResponses, Title: "Responses",
		Text: "Responses to faults: open and waiting responses, decisions and refusals with their reasons, results of executors, " +
			"and the circuit breaker.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Circuit breaker", "Open: only notifications start until a person closes it.", "none", 4,
					Query{Expr: `max(lofamo_responses_breaker_open{SUP})`, Legend: "breaker"}).telling(openClosed),
				stat("Cannot resume", "The leader could not resume the committed responses when its term began: it responds to no "+
					"fault.", "none",
					4, Query{Expr: `max(lofamo_responses_broken{SUP})`, Legend: "broken"}).telling(yesNo),
				stat("Wait for approval", "Open responses that a person must approve.", "none", 4,
					Query{Expr: `max(lofamo_responses_waiting{SUP,reason="approval"})`, Legend: "responses"}).awaited(),
				stat("Nodes acted on", "Nodes with an action that was not undone.", "none", 4,
					Query{Expr: `max(lofamo_responses_nodes{SUP})`, Legend: "nodes"}),
				stat("Attempts running", "Of executors.", "none", 4, Query{Expr: `max(lofamo_responses_attempts_running{SUP})`, Legend: "attempts"}),
				stat("Audit damaged", "Number of times that the audit was damaged, or its chain broken.", "none", 4,
					Query{Expr: `sum(lofamo_responses_audit_failures_total{SUP})`, Legend: "times"}).alarming(1),
			}},
			{"Responses", []Panel{
				series("Open responses", "By state.", "none", 12,
					Query{Expr: `max by (state) (lofamo_responses_open{SUP})`, Legend: "{{state}}"}).stacked().with(coloured(open)...),
				series("Waiting responses", "Open responses that wait, by reason.", "none", 12,
					Query{Expr: `max by (reason) (lofamo_responses_waiting{SUP})`, Legend: "{{reason}}"}).stacked(),
				series("Decisions", "Lines of the audit within a scrape interval, by act.", "none", 12,
					Query{Expr: `sum by (act) (increase(lofamo_responses_decisions_total{SUP}[$__rate_interval]))`, Legend: "{{act}}"}),
				bars("Decisions within the time range", "By act.", "none", 12,
					Query{Expr: `sum by (act) (increase(lofamo_responses_decisions_total{SUP}[$__range])) > 0 or on () label_replace(vector(0), "act", ` +
						`"none", "", "")`, Legend: "{{act}}"}).whole().tall(8),
				bars("Actions not taken within the time range", "By reason.", "none", 12,
					Query{Expr: `sum by (reason) (increase(lofamo_responses_refused_total{SUP}[$__range])) > 0 or on () label_replace(vector(0), ` +
						`"reason", "none", "", "")`, Legend: "{{reason}}"}).whole().tall(8),
				series("Policies in force", "By mode; unreadable ones are left out.", "none", 12,
					Query{Expr: `max by (mode) (lofamo_responses_policies{SUP})`, Legend: "{{mode}}"}).
					with(byName("enforce", fixed(colourSick)), byName("observe-only", fixed(neutral)), byName("unreadable", fixed(colourFailed))),
			}},
			{"Executors", []Panel{
				series("Attempts that ended", "Within a scrape interval, by executor and outcome.", "none", 8,
					Query{Expr: `sum by (kind,outcome) (increase(lofamo_responses_results_total{SUP}[$__rate_interval]))`,
						Legend: "{{kind}} {{outcome}}", Rare: rare}),
				series("Duration of attempts", "99th percentile by executor within 15 minutes.", "s", 8,
					Query{Expr: within("0.99", "lofamo_responses_attempt_seconds", "kind", "15m"), Legend: "{{kind}}", Rare: rare}).dotted(),
				series("Commits of decisions", "99th percentile of the store's time, within 15 minutes.", "s", 8,
					Query{Expr: within("0.99", "lofamo_responses_commit_seconds", "", "15m"), Legend: "99th percentile",
						Rare: "nothing was decided"}).dotted(),
			}},
			{"Executor process", executorProcess()},
		},
	}
}

// executorProcess shows the metrics of the process that runs commands, drains nodes in Slurm and resets nodes. A
// cluster may have none.
func executorProcess() []Panel {
	const none = "no executor process is scraped"
	return []Panel{
		stat("Processes scraped", "Executor processes that Prometheus scrapes; also 0 if there is none. The alert "+
			"LofamoExecutorDown reports a lost one.", "none", 8,
			Query{Expr: `count(lofamo_executor_build_info{CLUSTER}) or vector(0)`, Legend: "processes"}),
		stat("Highest token", "The highest fencing token that a process has seen: the process refuses lower ones.", "none", 8,
			Query{Expr: `max(lofamo_executor_highest_token{CLUSTER}) or vector(0)`, Legend: "token"}),
		stat("Ledger not written", "Failed writes of the ledger: the process then ends, and its service manager restarts it.",
			"none", 8,
			Query{Expr: `sum(lofamo_executor_ledger_failures_total{CLUSTER}) or vector(0)`, Legend: "times"}).alarming(1),
		series("Open attempts", "Running attempts, and attempts that wait for another to end.", "none", 6,
			Query{Expr: `max by (instance) (lofamo_executor_attempts_running{CLUSTER})`, Legend: "{{instance}}", Rare: none}),
		series("Finished attempts", "Since its start, by executor and outcome; only kinds with a finished attempt.", "none", 6,
			Query{Expr: `sum by (kind,outcome) (lofamo_executor_attempts_total{CLUSTER}) > 0`, Legend: "{{kind}} {{outcome}}", Rare: none}),
		series("Refused attempts", "Within a scrape interval: stale_token: from a former leader; late: older than a known attempt; "+
			"full: too many remembered attempts.", "none", 6,
			Query{Expr: `sum by (reason) (increase(lofamo_executor_refused_total{CLUSTER}[$__rate_interval]))`, Legend: "{{reason}}",
				Rare: none}).with(hued("stale_token", "late", "full")...),
		series("Attempts remembered", "In the ledger, of at most 20000; each is forgotten 48 hours after its end at the earliest. A full ledger "+
			"accepts no attempt.", "none", 6,
			Query{Expr: `max by (instance) (lofamo_executor_attempts_remembered{CLUSTER})`, Legend: "{{instance}}", Rare: none}),
	}
}

// awaited shows a number from 1 upwards in the colour of things that need a person.
func (p Panel) awaited() Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourNormal, step{1, colourSick})}
	return p
}
