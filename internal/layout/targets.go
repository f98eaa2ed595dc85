package layout

import "encoding/json"

// TargetsFile is the name of the file, in a cluster's directory, with all that a Prometheus scrapes of it: a list for
// `file_sd_configs`, which Prometheus reads again when it changes.
const TargetsFile = "prometheus-targets.json"

// Jobs of the targets; the rules and dashboards keep jobs apart, and know none by its name.
const (
	JobSupervisor = "lofamo-supervisor"
	JobAgent      = "lofamo-agent"
)

// Targets are those who serve metrics, in groups by job and cluster: a list for Prometheus' file_sd_configs. Each region is a
// cluster of its own to Prometheus, and so is their parent: each tells a map, and rules would take them for one.
type Targets []targetGroup

// targetGroup is one of Prometheus' file_sd: addresses, and the labels that all that is scraped there gets.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Add adds one of a job and cluster. An empty address is of one that serves none.
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

// JSON is the list as Prometheus reads it.
func (t Targets) JSON() ([]byte, error) {
	if t == nil {
		t = Targets{} // an empty list, not null
	}
	b, err := json.MarshalIndent(t, "", "  ")
	return append(b, '\n'), err
}
