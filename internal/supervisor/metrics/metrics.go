// Package metrics holds the metrics of a supervisor: counters of its work (metrics.go), and the fault map (map.go)
// and the state of the replica (replica.go), which each scrape computes.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// Metrics of one replica.
type Metrics struct {
	Reports    *prometheus.CounterVec // path: reports received, duplicates included
	Digests    prometheus.Counter
	Answers    prometheus.Counter
	Holds      prometheus.Counter
	AnswerTime prometheus.Histogram   // from a challenge to its first answer
	Verdicts   *prometheus.CounterVec // verdict of the leader's inbox
	Refused    *prometheus.CounterVec // class of refusal
	Dropped    *prometheus.CounterVec // the full queue
	Closed     *prometheus.CounterVec // listener, reason: connections closed because of limits
	Calls      *prometheus.CounterVec // reason: gRPC calls refused before their requests were decoded
	Acks       *prometheus.CounterVec // status
	SendFails  prometheus.Counter

	Duplicates   *prometheus.CounterVec   // path of the copy
	ReportAge    *prometheus.HistogramVec // path
	PerDatagram  prometheus.Histogram
	Damaged      prometheus.Counter
	Again        *prometheus.CounterVec // outcome
	Sessions     prometheus.Gauge
	PathRequests *prometheus.CounterVec // outcome
	AcksCarried  prometheus.Histogram

	Diagnoses     *prometheus.CounterVec // result
	Procedures    *prometheus.CounterVec // result
	diagnosing    prometheus.Histogram
	procedureTime prometheus.Histogram
	Bulk          *prometheus.CounterVec // result
	BulkPackets   *prometheus.CounterVec // their outcome

	Challenges        prometheus.Counter
	TopologiesRefused prometheus.Counter // changes of places that this replica as leader could not have followed
	// ChallengesRefused counts those that the node's kernel refused at every address.
	ChallengesRefused prometheus.Counter
	Commit            prometheus.Histogram
	// CommitRetries counts attempts that the store did not accept: no quorum, no space, no answer.
	CommitRetries prometheus.Counter
	BatchOps      prometheus.Histogram
	awareness     *prometheus.HistogramVec // cause
	failureTime   *prometheus.HistogramVec // cause
	failures      *prometheus.CounterVec   // cause, outcome
	late          *prometheus.CounterVec   // cause
	bound         *prometheus.GaugeVec     // cause
	dpuBound      *prometheus.GaugeVec     // cause
	promised      Bounds
	Changes       *prometheus.CounterVec // to
	Recoveries    *prometheus.CounterVec // half, outcome
	Starvations   *prometheus.CounterVec // half

	Alarm    *prometheus.GaugeVec // alarm
	Depth    *prometheus.GaugeVec // queue
	Leader   prometheus.Gauge
	Terms    prometheus.Counter
	Revision prometheus.Gauge
	// RegionCut and RegionHeard are set by a parent's leader.
	RegionCut   *prometheus.GaugeVec // region
	RegionHeard *prometheus.GaugeVec // region
	// Mappings and MapOrders count mapping by delegation; Mapped sets the others.
	Mappings   prometheus.Counter
	MapOrders  prometheus.Counter
	mapped     *prometheus.GaugeVec // found
	mappedDead prometheus.Gauge
	// Maintenance and Topology describe this replica's own copy of the store.
	Maintenance prometheus.Gauge
	Topology    prometheus.Gauge
	// DenyVersion and Denials describe the list of revoked certificates in force.
	DenyVersion, Denials prometheus.Gauge
	// Renewals counts the requests for new certificates by their result.
	Renewals *prometheus.CounterVec
	// Enrolments counts the requests of nodes that enrol by their result.
	Enrolments *prometheus.CounterVec
	IssuerEnds prometheus.Gauge
	Notified   prometheus.Gauge
	Watchers   prometheus.Gauge
	SlowCut    prometheus.Counter
	// IncidentsSkipped counts versions of incidents that slow watchers did not get.
	IncidentsSkipped prometheus.Counter
}

// latencies are the buckets of all latencies, from a fast commit to a failed one, in seconds.
var latencies = []float64{.001, .002, .005, .01, .02, .04, .06, .08, .1, .15, .2, .25, .35, .5, 1, 2, 5, 10}

// New creates and registers the metrics. It is long because it has a line for each metric.
func New(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "lofamo", Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "lofamo", Name: name, Help: help}, labels)
		reg.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "lofamo", Name: name, Help: help, Buckets: buckets}, labels)
		reg.MustRegister(h)
		return h
	}
	m := &Metrics{
		Reports:  counter("reports_total", "Verified reports received, by rail, duplicates included.", "path"),
		Digests:  counter("digests_total", "Verified digests received.").WithLabelValues(),
		Answers:  counter("challenge_answers_total", "Verified answers to challenges received.").WithLabelValues(),
		Verdicts: counter("inbox_verdicts_total", "The leader's inbox's verdicts on reports.", "verdict"),
		Refused:  counter("refused_total", "Refused datagrams and forwarded envelopes, by class.", "class"),
		Dropped: counter("dropped_total", "Messages dropped by a full queue, or by the budget of strangers, of one known source or "+
			"of one origin; senders retry.", "queue"),
		Acks: counter("acks_total", "Acknowledgements sent, by status.", "status"),
		Calls: counter("calls_refused_total",
			"gRPC calls refused before their requests were decoded: role (the role may not call the method), open (the subject has "+
				"too many calls in progress), slow (the request did not arrive in time), size (the request is too long), answers "+
				"(the subject does not read its answers, or has too many reads in progress).", "reason"),
		Closed: counter("connections_closed_total",
			"Connections that a listener (grpc, http, web, enrolment, etcd-client, etcd-peer) closed because there were too many: "+
				"evicted (for a newer one), refused (no room), subject (the subject has too many).", "listener", "reason"),

		Bulk: counter("bulk_transfers_total", "Finished transfers of large objects, by result.", "result"),
		BulkPackets: counter("bulk_packets_total", "Packets of large objects: chunk (of a transfer), foreign (of no known "+
			"transfer), malformed, dropped (the queue was full).", "what"),

		SendFails:  counter("send_failures_total", "Datagrams that could not be sent.").WithLabelValues(),
		Challenges: counter("challenges_total", "Challenges sent by this replica as leader.").WithLabelValues(),
		TopologiesRefused: counter("topologies_refused_total",
			"Changes of nodes' places that this replica as leader refused, because its fault awareness cannot follow them.").WithLabelValues(),
		ChallengesRefused: counter("challenges_refused_total",
			"Challenges that the node's kernel refused at every address: no process listens there.").WithLabelValues(),
		CommitRetries: counter("commit_retries_total",
			"Commits that the store did not accept: no quorum, no space, no answer.").WithLabelValues(),
		Commit: histogram("commit_duration_seconds", "Duration of one commit to the store.",
			latencies).WithLabelValues().(prometheus.Histogram),
		BatchOps: histogram("commit_operations", "Operations in one commit.",
			prometheus.ExponentialBuckets(1, 4, 8)).WithLabelValues().(prometheus.Histogram),
		awareness: histogram("awareness_latency_seconds",
			"Time from a change to SICK, FAILED or UNKNOWN to its commit in the fault map, from the ages stated by observers and hops; "+
				"of all components, with and without a bound.", latencies, "cause"),
		Changes: counter("changes_total", "Committed changes of the fault map, by the new state.", "to"),
		Recoveries: counter("recoveries_total",
			"Restarts of halves by their daemons, as committed in events (outcome serving), and halves given up (outcome given-up).",
			"half", "outcome"),
		Starvations: counter("starvations_total", "Times that a half was starved of processor time, as committed in events.", "half"),
		Alarm: gauge("alarm", "1 while this replica raises the alarm: store full, store corrupt, store slow, no quorum, region cut off, "+
			"responses unreadable, response breaker open, disk low, disk full, data directory gone, store rolled back, "+
			"revocations missing.", "alarm"),
		Depth:    gauge("queue_depth", "Entries in a queue.", "queue"),
		Terms:    counter("leader_terms_total", "Terms in which this replica became leader.").WithLabelValues(),
		Leader:   gauge("leader", "1 while this replica leads.").WithLabelValues(),
		Revision: gauge("store_revision", "Revision of the last commit of this replica as leader.").WithLabelValues(),
		RegionCut: gauge("region_cut_off", "1 while a parent receives nothing from a region and shows its nodes as UNKNOWN; "+
			"exported by the parent's leader only.", "region"),
		RegionHeard: gauge("region_heard_timestamp_seconds",
			"Time of the last message from a region, in seconds since 1970; exported by the parent's leader only, for regions it "+
				"has heard from.", "region"),
		Maintenance: gauge("maintenance_nodes", "Nodes under maintenance.").WithLabelValues(),
		DenyVersion: gauge("deny_list_version",
			"Version of the list of revoked certificates in force at this replica; 0: none.").WithLabelValues(),
		Denials: gauge("deny_list_denials", "Entries of the list of revoked certificates in force at this replica.").WithLabelValues(),
		Renewals: counter("renewals_total", "Requests of halves for new certificates: issued, repeated (the answer was lost), refused (the "+
			"half learns why), replayed (an old request: no answer), dropped (too many at once).", "result"),
		IssuerEnds: gauge("renewal_issuer_expires_timestamp_seconds",
			"End of the certificate of the issuer with which this replica renews certificates of nodes; no issued certificate "+
				"outlives it. 0: the replica renews none.").WithLabelValues(),
		Topology: gauge("topology_revision",
			"Revision of the topology in force; 0: the topology of the configuration, because none is stored yet.").WithLabelValues(),
		Notified: gauge("told_halves", "Host halves that this replica notifies of relevant changes of the fault map.").WithLabelValues(),
		Watchers: gauge("watchers", "Open watches.").WithLabelValues(),
		SlowCut:  counter("slow_watchers_total", "Watches closed because their client was too slow.").WithLabelValues(),
		IncidentsSkipped: counter("incident_versions_skipped_total",
			"Versions of incidents that watches left out because their clients read too slowly; each client got a later version.").WithLabelValues(),
	}
	m.delivery(counter, gauge, histogram)
	m.bounded(counter, histogram, gauge)
	m.managed(counter, histogram)
	m.delegated(counter, gauge)
	m.preset()
	return m
}

// The outcomes for damaged messages: requested again, or over the limit of requests.
const (
	AgainSent    = "sent"
	AgainLimited = "limited"
)

type (
	makeCounter   = func(name, help string, labels ...string) *prometheus.CounterVec
	makeGauge     = func(name, help string, labels ...string) *prometheus.GaugeVec
	makeHistogram = func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec
)

// delivery creates the metrics of the rails.
func (m *Metrics) delivery(counter makeCounter, gauge makeGauge, histogram makeHistogram) {
	m.Duplicates = counter("supervisor_duplicates_total",
		"Dropped copies of reports that had already been accepted, by the rail of the copy.", "path")
	m.ReportAge = histogram("supervisor_report_age_seconds",
		"Time from the first sign of a reported change to the arrival of the report, from the ages stated by observers and hops, "+
			"by rail; without digests and duplicates.", latencies, "path")
	m.Holds = counter("verdict_holds_total",
		"Times that verdicts began to wait because this replica drops messages of known sources.").WithLabelValues()
	m.AnswerTime = histogram("challenge_answer_seconds",
		"Time from this replica's first copy of a challenge to the first verified answer.",
		latencies).WithLabelValues().(prometheus.Histogram)
	m.PerDatagram = histogram("supervisor_reports_per_datagram", "Reports and digests under one signature.",
		prometheus.ExponentialBuckets(1, 2, 7)).WithLabelValues().(prometheus.Histogram)
	m.Damaged = counter("supervisor_damaged_total", "Packets damaged in transit; they do not count as refused.").WithLabelValues()
	m.Again = counter("supervisor_again_total", "Damaged packets for which this replica requested a repetition (sent), or did not "+
		"because there were too many (limited).", "outcome")
	m.Sessions = gauge("supervisor_sessions", "Sessions whose MAC may replace a signature.").WithLabelValues()
	m.PathRequests = counter("supervisor_path_requests_total", "Messages of the exchanges that establish paths, by outcome.",
		"outcome")
	m.AcksCarried = histogram("supervisor_acks_per_message", "Acknowledgements carried by one message to a half.",
		[]float64{0, 1, 2, 3, 4, 5, 6, 7, 8}).WithLabelValues().(prometheus.Histogram)
}

// The results of diagnoses.
const (
	DiagnosisClean  = "clean"  // no fault
	DiagnosisFaults = "faults" // at least one part must be at fault
	DiagnosisOpen   = "open"   // something is wrong, but nothing is proven
	DiagnosisFailed = "failed" // no report: the caller left, or this replica lost the lead
)

// The results of fault management procedures.
const (
	ProcedureClear    = "clear"     // the torus was empty
	ProcedureNotClear = "not-clear" // its drain timed out
	ProcedureFailed   = "failed"    // no report: no node began it, or this replica lost the lead
)

// managing are the buckets of diagnoses and procedures, in seconds.
var managing = []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 8, 15, 30, 60}

// managed creates the metrics of diagnoses and procedures.
func (m *Metrics) managed(counter makeCounter, histogram makeHistogram) {
	m.Enrolments = counter("enrolments_total", "Requests of nodes to enrol: enrolled, refused, or dropped (too many at once).", "result")
	m.Diagnoses = counter("diagnoses_total", "Diagnoses led by this replica, including those of procedures, by result: clean, "+
		"faults, open, failed.", "result")
	m.Procedures = counter("procedures_total", "Fault management procedures reported by this replica, including those that nodes "+
		"began by themselves, by result: clear, not-clear, failed.", "result")
	m.diagnosing = histogram("diagnosis_duration_seconds", "Time from the first order of a diagnosis to its end.",
		managing).WithLabelValues().(prometheus.Histogram)
	m.procedureTime = histogram("procedure_duration_seconds", "Time from the order of a procedure, or from its first status, to its report.",
		managing).WithLabelValues().(prometheus.Histogram)
	for _, r := range []string{DiagnosisClean, DiagnosisFaults, DiagnosisOpen, DiagnosisFailed} {
		m.Diagnoses.WithLabelValues(r)
	}
	for _, r := range []string{ProcedureClear, ProcedureNotClear, ProcedureFailed} {
		m.Procedures.WithLabelValues(r)
	}
}

// The findings of mapping by delegation about a node.
const (
	MappedHalves = "both-halves" // both answer
	MappedDNP    = "dnp-alone"   // its DNP half answers, and its host half does not or was found dead
	MappedNot    = "not-reached" // no mapper reached it through the torus
)

// delegated creates the metrics of mapping by delegation.
func (m *Metrics) delegated(counter makeCounter, gauge makeGauge) {
	m.Mappings = counter("mappings_total", "Mappings by delegation led by this replica: nodes at the border of a silent region "+
		"explore it through the torus.").WithLabelValues()
	m.MapOrders = counter("map_orders_total", "Orders to map sent by this replica, including repeated ones.").WithLabelValues()
	m.mapped = gauge("mapped_nodes", "Silent nodes explored through the torus, by finding: both-halves (they answer), dnp-alone, "+
		"not-reached. Exported by the leader only.", "found")
	m.mappedDead = gauge("mapped_links_dead", "Links of such nodes that were found dead, without other evidence. Exported by the "+
		"leader only.").WithLabelValues()
	m.Mapped(nil, 0)
}

// Mapped sets the number of nodes by finding, 0 for those not named, and the number of links found dead.
func (m *Metrics) Mapped(nodes map[string]int, dead int) {
	for _, found := range []string{MappedHalves, MappedDNP, MappedNot} {
		m.mapped.WithLabelValues(found).Set(float64(nodes[found]))
	}
	m.mappedDead.Set(float64(dead))
}

// Diagnosis counts a diagnosis that has ended, and its duration.
func (m *Metrics) Diagnosis(result string, took time.Duration) {
	m.Diagnoses.WithLabelValues(result).Inc()
	m.diagnosing.Observe(took.Seconds())
}

// Procedure counts a procedure that has ended, and its duration.
func (m *Metrics) Procedure(result string, took time.Duration) {
	m.Procedures.WithLabelValues(result).Inc()
	m.procedureTime.Observe(took.Seconds())
}

// preset makes every known series begin at 0, so that rates and alerts see the first increase.
func (m *Metrics) preset() {
	for p := fault.PathDirect; p.Valid(); p++ {
		m.Reports.WithLabelValues(p.String())
		m.Duplicates.WithLabelValues(p.String())
		m.ReportAge.WithLabelValues(p.String())
	}
	for r := servicenet.Refusal(1); int(r) < servicenet.NumRefusals; r++ {
		m.Refused.WithLabelValues(r.String())
	}
	for _, class := range []string{"unknown-node", "unexpected", "epoch-jump", "not-leading"} {
		m.Refused.WithLabelValues(class)
	}
	for _, q := range []string{"answers", "datagrams", "evidence", "forward", "send", "acks"} {
		m.Dropped.WithLabelValues(q)
		m.Depth.WithLabelValues(q)
	}
	for _, q := range []string{"forward-digests", "masks", "peers"} { // replaced by newer ones; repeated
		m.Dropped.WithLabelValues(q)
	}
	for _, q := range []string{"strangers", "sources", "origins"} { // budgets, not queues
		m.Dropped.WithLabelValues(q)
	}
	for _, q := range []string{"configurations", "mappings", "told"} {
		m.Dropped.WithLabelValues(q)
	}
	for _, reason := range []string{"role", "open", "slow", "size", "answers"} {
		m.Calls.WithLabelValues(reason)
	}
	for _, l := range []string{"grpc", "http", "web", "enrolment", "etcd-client", "etcd-peer"} {
		for _, reason := range []string{bounded.Evicted, bounded.Refused, bounded.Subject} {
			m.Closed.WithLabelValues(l, reason)
		}
	}
	for r := bulk.Complete; r <= bulk.Cancelled; r++ {
		m.Bulk.WithLabelValues(r.String())
	}
	m.Bulk.WithLabelValues("busy")
	for _, what := range []string{"chunk", "foreign", "malformed", "dropped"} {
		m.BulkPackets.WithLabelValues(what)
	}
	for _, o := range []string{AgainSent, AgainLimited} {
		m.Again.WithLabelValues(o)
	}
	for _, s := range []string{"RECEIVED", "COMMITTED", "STALE_EPOCH"} {
		m.Acks.WithLabelValues(s)
	}
	for c := fault.CauseNone + 1; c <= fault.CauseBus; c++ {
		m.awareness.WithLabelValues(c.String())
	}
	for s := fault.Unknown; s.Valid(); s++ {
		m.Changes.WithLabelValues(s.String())
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		for _, outcome := range []string{"serving", "given-up"} {
			m.Recoveries.WithLabelValues(h.String(), outcome)
		}
		m.Starvations.WithLabelValues(h.String())
	}
}

// Bounds are the longest times from a failure to its commit in the fault map.
type Bounds struct {
	Half, DPUHalf    time.Duration // of one half: on a node with one kernel, and on a node with two
	Node, SingleNode time.Duration // of a whole node: with enough living witnesses, and with fewer
}

// of returns the bound of a failure, and false if failures of that cause have no bound.
func (b Bounds) of(c fault.Cause, p fault.Platform, singleWitness bool) (time.Duration, bool) {
	half := c == fault.CauseHost || c == fault.CauseDNP
	switch {
	case half && p == fault.PlatformDPU:
		return b.DPUHalf, true
	case half:
		return b.Half, true
	case c == fault.CauseNode && singleWitness:
		return b.SingleNode, true
	}
	return b.Node, c == fault.CauseNode
}

// Promise sets the bounds that Failed compares latencies with. Call it once, before the replica works.
func (m *Metrics) Promise(b Bounds) {
	m.promised = b
	for _, c := range []fault.Cause{fault.CauseHost, fault.CauseDNP, fault.CauseNode} {
		within, _ := b.of(c, fault.PlatformSharedKernel, false)
		m.bound.WithLabelValues(c.String()).Set(within.Seconds())
		if c != fault.CauseNode {
			m.dpuBound.WithLabelValues(c.String()).Set(b.DPUHalf.Seconds())
		}
		m.late.WithLabelValues(c.String())
		m.failureTime.WithLabelValues(c.String())
		for _, outcome := range []string{FailureInTime, FailureLate, FailureUnmeasured} {
			m.failures.WithLabelValues(c.String(), outcome)
		}
	}
}

// Aware records that a change to SICK, FAILED or UNKNOWN was committed some time after its fault.
func (m *Metrics) Aware(c fault.Cause, took time.Duration) {
	m.awareness.WithLabelValues(c.String()).Observe(took.Seconds())
}

// The outcomes of committed failures. Every failure of a half or a node has exactly one.
const (
	FailureInTime     = "in-time"
	FailureLate       = "late"
	FailureUnmeasured = "unmeasured" // its start is unknown
)

// bounded creates the metrics of failures whose detection time has a bound.
func (m *Metrics) bounded(counter makeCounter, histogram makeHistogram, gauge makeGauge) {
	m.bound = gauge("awareness_bound_seconds",
		"The bound computed from the periods, with enough living witnesses; for halves, of nodes with one kernel.", "cause")
	m.dpuBound = gauge("awareness_dpu_bound_seconds",
		"The bound computed from the periods, for a half of a node with two kernels (platform DPU).", "cause")
	m.failureTime = histogram("failure_latency_seconds", "Time from the failure of a half or a node to its commit in the fault map; "+
		"unmeasured failures are in lofamo_failures_total alone.", latencies, "cause")
	m.failures = counter("failures_total", "Committed failures of halves and nodes, by outcome: in-time, late (later than the bound "+
		"computed from the periods), unmeasured (its start is unknown).", "cause", "outcome")
	m.late = counter("awareness_late_total", "Committed failures of halves and nodes that took longer than the bound computed "+
		"from the periods.", "cause")
}

// Failed counts a committed failure of a half or a node. p is the node's platform, and took the time from the failure to the
// commit; a negative took means that the time is unknown.
func (m *Metrics) Failed(c fault.Cause, p fault.Platform, singleWitness bool, took time.Duration) {
	outcome := FailureUnmeasured
	if within, ok := m.promised.of(c, p, singleWitness); ok && took >= 0 {
		outcome = FailureInTime
		if took > within {
			outcome = FailureLate
			m.late.WithLabelValues(c.String()).Inc()
		}
		m.failureTime.WithLabelValues(c.String()).Observe(took.Seconds())
	}
	m.failures.WithLabelValues(c.String(), outcome).Inc()
}

// Region sets the state of a region, and the time of its last contact; zero: none yet.
func (m *Metrics) Region(name string, cut bool, heard time.Time) {
	m.RegionCut.WithLabelValues(name).Set(one(cut))
	if !heard.IsZero() {
		m.RegionHeard.WithLabelValues(name).Set(float64(heard.UnixMilli()) / 1000)
	}
}

// NoRegions resets the metrics of regions.
func (m *Metrics) NoRegions() {
	m.RegionCut.Reset()
	m.RegionHeard.Reset()
}
