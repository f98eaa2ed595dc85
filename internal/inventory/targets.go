package inventory

import "encoding/json"

// TargetsFile is the name of the file with all Prometheus targets of a cluster, in the cluster's directory. Prometheus reads
// it through `file_sd_configs`, again after each change.
const TargetsFile = "prometheus-targets.json"

// Jobs of the targets. Rules and dashboards depend on no job's name.
const (
	JobSupervisor = "lofamo-supervisor"
	JobAgent      = "lofamo-agent"
)

// Targets lists the members that serve metrics, grouped by job and cluster, for Prometheus' file_sd_configs. Each region and
// their parent are separate clusters to Prometheus, because each reports its own fault map.
type Targets []targetGroup

// targetGroup is one group of file_sd: addresses, and labels for all their metrics.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Add adds a target to the group of its job and cluster. It ignores an empty address.
func (t *Targets) Add(job, cluster, addr string) {
	if addr == "" {
		return
	}
	for i := range *t {
		if g := &(*t)[i]; g.Labels["job"] == job && g.Labels["cluster"] == cluster {
			g.Targets = append(g.Targets, addr)
			return
		}
	}
	*t = append(*t, targetGroup{[]string{addr}, map[string]string{"job": job, "cluster": cluster}})
}

// JSON returns the list in Prometheus' format.
func (t Targets) JSON() ([]byte, error) {
	if t == nil {
		t = Targets{} // an empty list, not null
	}
	b, err := json.MarshalIndent(t, "", "  ")
	return append(b, '\n'), err
}
