package localcluster

import (
	"encoding/json"
	"os"
)

// TargetsFile is the name of the file, in a cluster's directory, with all that a Prometheus scrapes of it: a list for `file_sd_configs`, which
// Prometheus reads again when it changes. deploy/prometheus/prometheus.yml reads it.
const TargetsFile = "prometheus-targets.json"

// Jobs of the targets; the rules and dashboards keep jobs apart, and know none by its name.
const (
	JobSupervisor = "lofamo-supervisor"
	JobAgent      = "lofamo-agent"
)

// targetGroup is one of Prometheus' file_sd: addresses, and the labels that all that is scraped there gets.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Targets returns the path of the list of what there is to scrape.
func (c *Cluster) Targets() string { return c.path(TargetsFile) }

// targets are those who serve metrics, in groups by job and cluster. Each region is a cluster of its own to Prometheus, and so is their parent:
// each tells a map, and rules would take them for one.
func (c *Cluster) targets() []targetGroup {
	groups := []targetGroup{}
	add := func(job, region, addr string) {
		if addr == "" {
			return
		}
		cluster := c.info.Cluster
		if region != "" {
			cluster += "/" + region
		}
		for i := range groups {
			if g := &groups[i]; g.Labels["job"] == job && g.Labels["cluster"] == cluster {
				g.Targets = append(g.Targets, addr)
				return
			}
		}
		groups = append(groups, targetGroup{[]string{addr}, map[string]string{"job": job, "cluster": cluster}})
	}
	for _, s := range c.info.Supervisors {
		add(JobSupervisor, s.Region, s.HTTP)
	}
	for r, n := range c.info.All() {
		region := ""
		if r < len(c.info.Nodes) {
			region = c.regionOf(r)
		}
		add(JobAgent, region, n.HTTP)
	}
	return groups
}

// saveTargets writes the list; Prometheus sees the old or the new one, never half.
func (c *Cluster) saveTargets() error {
	b, err := json.MarshalIndent(c.targets(), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Targets()+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(c.Targets()+".new", c.Targets())
}
