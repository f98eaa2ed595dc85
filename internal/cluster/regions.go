package cluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// RegionName returns the name of the region of that number.
func RegionName(k int) string { return fmt.Sprintf("region-%d", k) }

// RegionSupervisorID returns the name of a replica of a region.
func RegionSupervisorID(region string, i int) string { return region + "-" + SupervisorID(i) }

// largest returns the number of the torus' largest dimension and its size.
func largest(d grid.Dims) (axis, size int) {
	for i, n := range []int{d.X, d.Y, d.Z} {
		if n > size {
			axis, size = i, n
		}
	}
	return axis, size
}

// RegionNames returns the names of the regions; none in an undivided cluster.
func (c *Cluster) RegionNames() []string {
	var out []string
	for k := range c.info.Regions {
		out = append(out, RegionName(k))
	}
	return out
}

// ErrNoRegion is the error for a region that the cluster does not have.
var ErrNoRegion = errors.New("no such region")

// noRegion is the error for a region that the cluster does not have.
func (c *Cluster) noRegion(region string) error {
	if c.info.Regions == 0 {
		return fmt.Errorf("region %q: %w: the cluster in %s has no regions: leave --region out", region, ErrNoRegion, c.dir)
	}
	return fmt.Errorf("region %q: %w: the cluster in %s has the regions %s", region, ErrNoRegion, c.dir, strings.Join(c.RegionNames(), ", "))
}

// regionOf returns the region of the node with this grid index: the torus is cut across its largest dimension.
func (c *Cluster) regionOf(node int) string {
	if c.info.Regions == 0 {
		return ""
	}
	axis, size := largest(c.dims)
	at := c.dims.Node(node)
	return RegionName([]int{at.X, at.Y, at.Z}[axis] * c.info.Regions / size)
}

// planSupervisors names the replicas: with regions, first those of their parent.
func (c *Cluster) planSupervisors(each int) {
	for i := range each {
		c.info.Supervisors = append(c.info.Supervisors, SupervisorInfo{ID: SupervisorID(i)})
	}
	for _, name := range c.RegionNames() {
		for i := range each {
			c.info.Supervisors = append(c.info.Supervisors, SupervisorInfo{ID: RegionSupervisorID(name, i), Region: name})
		}
	}
}

// Serving returns the replicas of a region; of the empty one those that serve the whole torus.
func (c *Cluster) Serving(region string) []SupervisorInfo {
	var out []SupervisorInfo
	for _, i := range c.serving(region) {
		out = append(out, c.info.Supervisors[i])
	}
	return out
}

// serving returns their numbers.
func (c *Cluster) serving(region string) []int {
	var out []int
	for i, s := range c.info.Supervisors {
		if s.Region == region {
			out = append(out, i)
		}
	}
	return out
}

// divide adds the assignment of nodes and replicas to regions to a replica's configuration.
func (c *Cluster) divide(cfg *config.Supervisor, self SupervisorInfo) {
	for _, name := range c.RegionNames() {
		r := config.RegionEntry{Name: name}
		for _, s := range c.Serving(name) {
			r.Supervisors = append(r.Supervisors, config.UpstreamEntry{ID: s.ID, GRPC: s.GRPC})
		}
		cfg.Regions = append(cfg.Regions, r)
	}
	if self.Region != "" {
		for _, s := range c.Serving("") {
			cfg.Upstream = append(cfg.Upstream, config.UpstreamEntry{ID: s.ID, GRPC: s.GRPC})
		}
	}
	if cfg.Parent() { // no agent talks to it
		cfg.Report, cfg.ReportAlternates, cfg.GossipListen, cfg.GossipJoin, cfg.GossipKeyFile = "", nil, "", nil, ""
		for i := range cfg.Replicas {
			cfg.Replicas[i].Report = ""
		}
	}
}
