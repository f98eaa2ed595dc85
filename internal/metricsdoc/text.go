package metricsdoc

const head = `# Metrics

` + "`make generate`" + ` makes this page from the programs' own descriptions; do not edit it.

Supervisors, host halves and the executor process serve these metrics at ` + "`http://ADDRESS/metrics`" + ` if
` + "`http`" + ` is set in their configuration. [deploy/prometheus](../deploy/prometheus) has rules and alerts, and each
alert has a page in [runbooks](runbooks/README.md).

*stable*: rules or dashboards of this project use the metric; only a new major version renames it or changes its
meaning. *evolving*: a minor version may change it; the changelog says so. Names end in their base unit, names of
counters in ` + "`_total`" + `. Series whose labels are known in advance begin at 0.

A cluster of 100,000 nodes does not make millions of series. A supervisor exports counts, and by name only the parts
that are not NORMAL, the worst first: up to 1000 nodes, 1000 components, 2000 link ends, 500 given-up halves and 500 incidents.
` + "`lofamo_map_series_left_out`" + ` counts the omitted ones. That makes some 5,000 series with one node in a hundred
dead, and some hundreds while all is well. Dashboards draw the torus from
` + "`lofamo_node_info` and `lofamo_link_info`" + `. In a cluster of up to 1000 nodes these cover every node and link (4
series a node); in a larger one only the nodes that are not NORMAL, and no links. The nodes that are NORMAL are
` + "`lofamo_node_info unless on (node) lofamo_node_state`" + `. An agent exports the details of its own node: some 500
series. Scrape only the agents that you look at, or all of them with one Prometheus for each rack.

Metrics add no cost to heartbeats, detection and commits if they can be computed from the map, the links and the halves:
these are read at each scrape.
`

const (
	supervisors = "Only the leader exports metrics of the fault map; query them with `max without (instance, pod)`."
	agents      = "Each host half exports these for both halves of its node. `platform` says whether the halves share a kernel. " +
		"Counters of the DNP half arrive once a second through the register file, and restart at 0 when the half restarts, or at 2³²."
	executors = "The executor process runs actions that end work (see [executor-process.md](executor-process.md)). " +
		"`lofamo_responses_*` has the supervisors' view of the same attempts."
	libraries = "Supervisors also export the metrics of their libraries: the embedded etcd (`etcd_*`), gRPC (`grpc_server_*`), " +
		"Go and the process. Rules and dashboards use these:"
)
