package metricsdoc

const head = `# Metrics

Made by ` + "`make generate`" + ` from the programs' own descriptions; do not edit.

Supervisors, host halves and the executor process serve them at ` + "`http://ADDRESS/metrics`" + ` where ` + "`http`" + ` is set in their configuration. Rules and alerts are in
[deploy/prometheus](../deploy/prometheus), a page for each alert in [runbooks](runbooks/README.md).

*stable*: the rules of this project rest on it, or dashboards draw by it; it is renamed or given another meaning only with a new major version. *evolving*: it may change with a
minor version; the changelog says so. Names end in their base unit, counters in ` + "`_total`" + `. Series that can be known before begin at 0.

A cluster of 100,000 nodes does not make millions of series. A supervisor tells counts, and by name what is not normal, the worst first, up to 1000 nodes, 1000
components and 2000 link ends; ` + "`lofamo_map_series_left_out`" + ` says how many more there would be. That is some 5,000 series with one node in a hundred dead, and
some hundreds while all is well. ` + "`lofamo_node_info` and `lofamo_link_info`" + `, by which dashboards draw the torus, are told of every node and link of a cluster
of up to 1000 nodes (4 series a node); in a larger one of the nodes that are named as not normal, and of no links. What is normal is then what is told and not named:
` + "`lofamo_node_info unless on (node) lofamo_node_state`" + `. An agent tells the detail of its own node: some 500 series. Scrape those that you look at, or all with
a Prometheus for each rack.

Nothing on the ways of heartbeats, detection and commits is paid for what can be looked at instead: the map, the links and the halves are read when somebody scrapes.
`

const (
	supervisors = "What is said of the fault map is told by the leader alone; take `max without (instance, pod)` of it."
	agents      = "Of a host half, which speaks for both halves of its node. `platform` says whether the halves share a kernel. " +
		"Counters of the DNP half come once a second by way of the register file, and begin anew at 0 when it is restarted, or at 2³²."
	executors = "Of the one that does for the supervisors what ends work (see [executor-process.md](executor-process.md)). What the supervisors say of the same attempts is in `lofamo_responses_*`."
	libraries = "Supervisors export what their libraries count as well: the embedded etcd (`etcd_*`), gRPC (`grpc_server_*`), Go and the process. These are the ones that rules and dashboards rest on."
)
