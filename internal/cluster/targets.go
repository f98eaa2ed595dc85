package cluster

import (
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/inventory"
)

// Targets returns the path of the list of scrape targets. deploy/prometheus/prometheus.yml reads it.
func (c *Cluster) Targets() string { return c.path(inventory.TargetsFile) }

// targets are the members with metrics.
func (c *Cluster) targets() inventory.Targets {
	var out inventory.Targets
	cluster := func(region string) string {
		if region == "" {
			return c.info.Cluster
		}
		return c.info.Cluster + "/" + region
	}
	for _, s := range c.info.Supervisors {
		out.Add(inventory.JobSupervisor, cluster(s.Region), s.HTTP)
	}
	for r, n := range c.info.All() {
		region := ""
		if r < len(c.info.Nodes) {
			region = c.regionOf(r)
		}
		out.Add(inventory.JobAgent, cluster(region), n.HTTP)
	}
	return out
}

// saveTargets writes the list; Prometheus sees the old or the new one, never half.
func (c *Cluster) saveTargets() error {
	b, err := c.targets().JSON()
	if err != nil {
		return err
	}
	return durable.WriteFile(c.Targets(), b, 0o644)
}
