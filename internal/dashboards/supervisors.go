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
	latency := "lofamo_awareness_latency_seconds"
	var now []Panel
	for _, c := range promised {
		p := stat(c+" in time", "Of the failures of this kind within the time range, the part that was committed within its own bound: with few living witnesses more time is allowed.", "percentunit", 4,
			Query{Expr: fmt.Sprintf(`1 - sum(increase(lofamo_awareness_late_total{SUP,cause=%q}[$__range])) / sum(increase(%s_count{SUP,cause=%q}[$__range]))`, c, latency, c), Legend: c, Rare: rare})
		p.defaults = object{
			"color": object{"mode": "thresholds"}, "thresholds": steps(colourFailed, step{0.99, colourSick}, step{1, colourNormal}), "decimals": 1,
			"mappings": []object{{"type": "special", "options": object{"match": "nan",
				"result": object{"text": "none failed", "color": colourCable, "index": 0}}}},
		}
		now = append(now, p)
	}
	now = append(now,
		stat("Late", "Failures of halves and nodes within the time range that took longer than promised.", "none", 4,
			Query{Expr: `sum(increase(lofamo_awareness_late_total{SUP}[$__range]))`, Legend: "late"}).alarming(1).whole(),
		stat("Failures", "Committed within the time range with a known latency, of all causes.", "none", 4,
			Query{Expr: `sum(increase(` + latency + `_count{SUP}[$__range]))`, Legend: "failures"}).whole(),
		stat("Strictest bound", "The least of the bounds that the periods promise, with enough living witnesses.", "s", 4,
			Query{Expr: `min(lofamo_awareness_bound_seconds{SUP})`, Legend: "bound"}))
	average := `sum by (cause) (increase(` + latency + `_sum{SUP}[5m])) / sum by (cause) (increase(` + latency + `_count{SUP}[5m]))`
	causes := hued("HOST", "NODE", "DNP", "LINK", "SERVICE_NETWORK", "MEMORY", "SENSOR", "PERIPHERAL")
	heat := Panel{
		Kind: "heatmap", Title: "Distribution", Unit: "s", Width: 12, Height: 10,
		Text: "How many failures of halves and nodes took how long, from their first sign to the commit.",
		Queries: []Query{{Expr: `sum by (le) (increase(` + latency + `_bucket{SUP,cause=~"` + strings.Join(promised,
			"|") + `"}[$__rate_interval]))`, Legend: "{{le}}", Heat: true}},
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
		Text: "How soon the machine knows of its faults, against what its periods promise, and by which ways the reports came.",
		Rows: []Row{
			{"The promise", now},
			{"Latency", []Panel{
				series("Average against the bound", "From a failure to its commit in the fault map, by the ages that observers and hops gave, of the failures within 5 minutes. Dashed: the bound with enough living witnesses.", "s", 12,
					Query{Expr: average, Legend: "{{cause}}", Rare: rare}, Query{Expr: `max by (cause) (lofamo_awareness_bound_seconds{SUP})`,
						Legend: "bound of {{cause}}"}).
					dotted().with(append(causes, dashed("/^bound/"), byName("bound of HOST", fixed(hues[0])),
					byName("bound of NODE", fixed(hues[1])), byName("bound of DNP", fixed(hues[2])))...).tall(10),
				heat,
				series("99th percentile", "Of all causes within 5 minutes, as far as the histogram's buckets tell: it may be above what was ever measured, up to the end of its bucket.", "s", 6, Query{Expr: within("0.99", latency, "cause", "5m"), Legend: "{{cause}}", Rare: rare}).dotted().with(causes...),
				series("Failures by cause", "Committed, by cause, each counted for as long as rates are taken over.", "none", 6,
					Query{Expr: `sum by (cause) (increase(` + latency + `_count{SUP}[$__rate_interval]))`, Legend: "{{cause}}"}).with(causes...),
				series("Late ones by cause", "Failures that took longer than the bound, by cause.", "none", 6,
					Query{Expr: `sum by (cause) (increase(lofamo_awareness_late_total{SUP}[$__rate_interval]))`, Legend: "{{cause}}"}).with(causes...),
				series("Changes of the map", "Committed, by the new state.", "none", 6,
					Query{Expr: `sum by (to) (increase(lofamo_changes_total{SUP}[$__rate_interval]))`, Legend: "{{to}}"}).with(coloured(states)...),
			}},
			{"Ways of reports", []Panel{
				series("Age of reports at their arrival", "99th percentile by rail within 5 minutes: directly over the service network, by a neighbour over the torus, by gossip.", "s", 12, Query{Expr: within("0.99", "lofamo_supervisor_report_age_seconds", "path", "5m"), Legend: "{{path}}", Rare: "no reports, only digests"}).dotted().with(rails...),
				series("Reports", "Verified ones by rail, duplicates included.", "ops", 12,
					Query{Expr: `sum by (path) (rate(lofamo_reports_total{SUP}[$__rate_interval]))`, Legend: "{{path}}"}).with(rails...),
				series("Recoveries", "Halves that their daemons started anew, and those given up.", "none", 12,
					Query{Expr: `sum by (half,outcome) (increase(lofamo_recoveries_total{SUP}[$__rate_interval]))`, Legend: "{{half}} {{outcome}}"}).
					with(hued("host serving", "host given-up", "dnp serving", "dnp given-up")...),
				series("Diagnoses and procedures", "That the leader led, by result.", "none", 12,
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
		Text: "The replicas that keep the map: who leads, whether there is a quorum, what commits take, what queues drop, and how full the store is.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Leaders", "Replicas that lead: one. For a moment two may say so, when the leadership goes over.", "none", 4,
					Query{Expr: `sum(lofamo_leader{SUP})`, Legend: "leaders"}).leading(),
				stat("Replicas scraped", "Replicas of which Prometheus gets metrics.", "none", 4,
					Query{Expr: `count(lofamo_leader{SUP})`, Legend: "replicas"}),
				stat("May be lost yet", "Replicas that may be lost before there is no majority, in the leader's view.", "none", 4,
					Query{Expr: `min(sum by (instance) (lofamo_replica_up{SUP}) - floor(count by (instance) (lofamo_replica_up{SUP}) / 2) - 1)`,
						Legend: "spare"}).wanted(1),
				stat("Quorum heard", "Since a replica last had the word of a quorum, of the replica that waits longest; a replica that never had it since it started counts as a million seconds.", "s", 4, Query{Expr: `max(lofamo_supervisor_quorum_age_seconds{SUP} >= 0 or lofamo_supervisor_quorum_age_seconds{SUP} * 0 + 1e6)`, Legend: "ago"}).alarming(10),
				stat("Regions cut off", "Regions of which the leader of a parent hears nothing; 0 too where there are none.", "none", 4,
					Query{Expr: `sum(max by (region) (lofamo_region_cut_off{SUP})) or vector(0)`, Legend: "regions"}).alarming(1),
				stat("Halves told", "Host halves that replicas tell what of the map concerns them.", "none", 4,
					Query{Expr: `sum(lofamo_told_halves{SUP})`, Legend: "halves"}),
			}},
			{"Replicas", []Panel{
				timeline("Leadership", "Which replica leads.", 8, leads, Query{Expr: `max by (instance) (lofamo_leader{SUP})`, Legend: each}),
				timeline("Reached", "Which replica reaches which.", 8, upDown,
					Query{Expr: `max by (instance,replica) (lofamo_replica_up{SUP})`, Legend: each + " to {{replica}}"}),
				timeline("Alarms", "What any replica has to complain of.", 8, yesNo,
					Query{Expr: `max by (alarm) (lofamo_alarm{SUP})`, Legend: "{{alarm}}"}),
				series("Age of the quorum's word", "Since each replica last had it.", "s", 8,
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
				series("Commits a second", "And attempts that the store did not take.", "ops", 8,
					Query{Expr: `sum(rate(lofamo_commit_duration_seconds_count{SUP}[$__rate_interval]))`,
						Legend: "commits"}, Query{Expr: `sum(rate(lofamo_commit_retries_total{SUP}[$__rate_interval]))`, Legend: "retries"}).
					with(byName("commits", fixed(hues[0])), byName("retries", fixed(colourFailed))),
				series("Sync of the store's log", "99th percentile of syncs of the embedded etcd within 5 minutes: the disk's word. An outside etcd tells this itself.", "s", 8,
					Query{Expr: within("0.99", "etcd_disk_wal_fsync_duration_seconds", "instance", "5m"), Legend: each, Rare: "an outside etcd"}),
				series("Store used", "Of what the embedded etcd may grow to.", "percentunit", 8,
					Query{Expr: `max by (instance) (etcd_mvcc_db_total_size_in_bytes{SUP} / (etcd_server_quota_backend_bytes{SUP} > 0))`,
						Legend: each, Rare: "an outside etcd"}),
				series("Terms", "Times that a replica began to lead, within a scrape interval. Many: a slow disk, or a bad network between replicas.", "none", 8, Query{Expr: `sum by (instance) (increase(lofamo_leader_terms_total{SUP}[$__rate_interval]))`, Legend: each}),
				series("Queues", "Entries in each, of the replica with most.", "none", 8,
					Query{Expr: `max by (queue) (lofamo_queue_depth{SUP})`, Legend: "{{queue}}"}),
			}},
			{"What comes in", []Panel{
				series("Reports and digests", "Verified ones.", "ops", 8,
					Query{Expr: `sum by (path) (rate(lofamo_reports_total{SUP}[$__rate_interval]))`,
						Legend: "{{path}}"}, Query{Expr: `sum(rate(lofamo_digests_total{SUP}[$__rate_interval]))`, Legend: "digests"}).
					with(append(hued("DIRECT", "TORUS", "GOSSIP"), byName("digests", fixed(hues[4])))...),
				series("Dropped", "By full queues, and by the kernel because a replica was too slow; senders try again.", "ops", 8,
					Query{Expr: `sum by (queue) (rate(lofamo_dropped_total{SUP}[$__rate_interval]))`, Legend: "{{queue}}"},
					Query{Expr: `sum(rate(lofamo_supervisor_kernel_dropped_total{SUP}[$__rate_interval]))`, Legend: "kernel"}),
				series("Refused", "Datagrams and forwarded envelopes that were not believed, by class.", "ops", 8,
					Query{Expr: `sum by (class) (rate(lofamo_refused_total{SUP}[$__rate_interval]))`, Legend: "{{class}}"}),
				series("Watches and sessions", "Open watches of clients, and sessions whose MAC stands for a signature.", "none", 12,
					Query{Expr: `sum(lofamo_watchers{SUP})`, Legend: "watches"}, Query{Expr: `sum(lofamo_supervisor_sessions{SUP})`,
						Legend: "sessions"}).with(hued("watches", "sessions")...),
				table("Builds", "What each replica runs, since when.", 12,
					[]column{{"instance", "Replica", nil}, {"version", "Version", nil}, {"goversion", "Go", nil},
						{"Value", "Started", []property{{"unit", "dateTimeAsIso"}}}},
					Query{Expr: `1000 * max by (instance) (process_start_time_seconds{SUP}) * on (instance) group_right max by (instance,version,goversion) (lofamo_build_info{SUP})`, Table: true}).tall(8),
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
		Text: "What is done about faults: what is open and waits for whom, what was decided and why something was not done, how executors fared, and whether the circuit breaker is open.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Circuit breaker", "Open: nothing more than notifications until a person closes it.", "none", 4,
					Query{Expr: `max(lofamo_responses_breaker_open{SUP})`, Legend: "breaker"}).telling(openClosed),
				stat("Cannot go on", "What is committed could not be gone on with when the leader began: nothing is done about faults.", "none",
					4, Query{Expr: `max(lofamo_responses_broken{SUP})`, Legend: "broken"}).telling(yesNo),
				stat("Wait for approval", "Open responses that a person has to approve.", "none", 4,
					Query{Expr: `max(lofamo_responses_waiting{SUP,reason="approval"})`, Legend: "responses"}).awaited(),
				stat("Nodes acted on", "Something was done to them, and not put back.", "none", 4,
					Query{Expr: `max(lofamo_responses_nodes{SUP})`, Legend: "nodes"}),
				stat("Attempts running", "Of executors.", "none", 4, Query{Expr: `max(lofamo_responses_attempts_running{SUP})`, Legend: "attempts"}),
				stat("Audit damaged", "Times that the audit was found damaged, or its chain broken.", "none", 4,
					Query{Expr: `sum(lofamo_responses_audit_failures_total{SUP})`, Legend: "times"}).alarming(1),
			}},
			{"Responses", []Panel{
				series("Open responses", "By state.", "none", 12,
					Query{Expr: `max by (state) (lofamo_responses_open{SUP})`, Legend: "{{state}}"}).stacked().with(coloured(open)...),
				series("What they wait for", "Open responses that wait, by reason.", "none", 12,
					Query{Expr: `max by (reason) (lofamo_responses_waiting{SUP})`, Legend: "{{reason}}"}).stacked(),
				series("Decisions", "Lines of the audit within a scrape interval, by act.", "none", 12,
					Query{Expr: `sum by (act) (increase(lofamo_responses_decisions_total{SUP}[$__rate_interval]))`, Legend: "{{act}}"}),
				bars("Decisions within the time range", "By act.", "none", 12,
					Query{Expr: `sum by (act) (increase(lofamo_responses_decisions_total{SUP}[$__range])) > 0 or on () label_replace(vector(0), "act", "none", "", "")`, Legend: "{{act}}"}).whole().tall(8),
				bars("Why something was not done, within the time range", "By reason.", "none", 12,
					Query{Expr: `sum by (reason) (increase(lofamo_responses_refused_total{SUP}[$__range])) > 0 or on () label_replace(vector(0), "reason", "none", "", "")`, Legend: "{{reason}}"}).whole().tall(8),
				series("Policies in force", "By mode; unreadable ones are left out.", "none", 12,
					Query{Expr: `max by (mode) (lofamo_responses_policies{SUP})`, Legend: "{{mode}}"}).
					with(byName("enforce", fixed(colourSick)), byName("observe-only", fixed(neutral)), byName("unreadable", fixed(colourFailed))),
			}},
			{"Executors", []Panel{
				series("Attempts that ended", "Within a scrape interval, by executor and outcome.", "none", 8,
					Query{Expr: `sum by (kind,outcome) (increase(lofamo_responses_results_total{SUP}[$__rate_interval]))`,
						Legend: "{{kind}} {{outcome}}", Rare: rare}),
				series("How long they took", "99th percentile by executor within 15 minutes.", "s", 8,
					Query{Expr: within("0.99", "lofamo_responses_attempt_seconds", "kind", "15m"), Legend: "{{kind}}", Rare: rare}).dotted(),
				series("Commits of what was decided", "99th percentile of the time that the store took, within 15 minutes.", "s", 8,
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
		stat("Processes scraped", "Executor processes of which Prometheus gets metrics: 0 too where there is none. The alert LofamoExecutorDown tells of one that was there.", "none", 8,
			Query{Expr: `count(lofamo_executor_build_info{CLUSTER}) or vector(0)`, Legend: "processes"}),
		stat("Highest token", "The highest fencing token that a process has seen: what a leader asks under a lower one is refused.", "none", 8,
			Query{Expr: `max(lofamo_executor_highest_token{CLUSTER}) or vector(0)`, Legend: "token"}),
		stat("Ledger not written", "Times that the ledger could not be written: the process ends then, and its service manager starts it anew.", "none", 8,
			Query{Expr: `sum(lofamo_executor_ledger_failures_total{CLUSTER}) or vector(0)`, Legend: "times"}).alarming(1),
		series("Attempts in its hands", "Under way, those included that wait for another to end.", "none", 6,
			Query{Expr: `max by (instance) (lofamo_executor_attempts_running{CLUSTER})`, Legend: "{{instance}}", Rare: none}),
		series("Attempts that it ended", "Since it was started, by executor and how they ended; only kinds that ended any.", "none", 6,
			Query{Expr: `sum by (kind,outcome) (lofamo_executor_attempts_total{CLUSTER}) > 0`, Legend: "{{kind}} {{outcome}}", Rare: none}),
		series("Attempts that it refused", "Within a scrape interval: stale_token is a leader of old, late an attempt older than one that was seen, full too many that are remembered.", "none", 6,
			Query{Expr: `sum by (reason) (increase(lofamo_executor_refused_total{CLUSTER}[$__rate_interval]))`, Legend: "{{reason}}",
				Rare: none}).with(hued("stale_token", "late", "full")...),
		series("Attempts remembered", "In the ledger, of at most 20000; each is forgotten 48 hours after its end. A full ledger takes no attempt.", "none", 6,
			Query{Expr: `max by (instance) (lofamo_executor_attempts_remembered{CLUSTER})`, Legend: "{{instance}}", Rare: none}),
	}
}

// awaited shows a number from 1 upwards in the colour of things that need a person.
func (p Panel) awaited() Panel {
	p.defaults = object{"color": object{"mode": "thresholds"}, "thresholds": steps(colourNormal, step{1, colourSick})}
	return p
}
