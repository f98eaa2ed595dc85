package cluster

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/inventory"
)

// listed returns the targets in a cluster's list, by job and cluster.
func listed(t *testing.T, c *Cluster) map[[2]string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, "prometheus-targets.json"))
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	if err := json.Unmarshal(b, &groups); err != nil {
		t.Fatal(err)
	}
	out := map[[2]string][]string{}
	for _, g := range groups {
		k := [2]string{g.Labels["job"], g.Labels["cluster"]}
		if len(g.Labels) != 2 || k[0] == "" || k[1] == "" || out[k] != nil || len(g.Targets) == 0 {
			t.Errorf("group %+v", g)
		}
		out[k] = g.Targets
	}
	return out
}

// The list has every metrics address, as in each member's own configuration, and each region is a separate cluster.
func TestTargetsListEveryMetricsAddress(t *testing.T) {
	for _, o := range []Options{{Dims: dims(t, "2x2x1"), Supervisors: 3, Spares: 1}, {Dims: dims(t, "2x2x1"), Supervisors: 1, Regions: 2}} {
		c := create(t, o)
		want := map[[2]string][]string{}
		add := func(job, region, http string) {
			cluster := "local"
			if region != "" {
				cluster += "/" + region
			}
			want[[2]string{job, cluster}] = append(want[[2]string{job, cluster}], http)
		}
		var regions []string // of the nodes, as the supervisors have them
		for _, s := range c.info.Supervisors {
			cfg, err := config.LoadSupervisor(c.supervisorConfig(s.ID), nil)
			if err != nil {
				t.Fatal(err)
			}
			add("lofamo-supervisor", cfg.Region, cfg.HTTP)
			regions = nil
			for _, n := range cfg.Nodes {
				regions = append(regions, n.Region)
			}
		}
		for i, n := range c.info.All() {
			cfg, err := config.LoadAgent(filepath.Join(c.nodeDir(n.ID), "agent.yaml"), nil)
			if err != nil {
				t.Fatal(err)
			}
			add("lofamo-agent", append(regions, make([]string, o.Spares)...)[i], cfg.HTTP)
		}
		if got := listed(t, c); !maps.EqualFunc(got, want, slices.Equal) || len(got) != 2+2*o.Regions-min(o.Regions, 1) {
			t.Errorf("the list has %v, want %v", got, want)
		}
	}
}

// The list follows the replicas, and is removed with the cluster. For a cluster made before nodes served metrics, it
// has only the supervisors.
func TestTargetsFollowReplicas(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	supervisors, agents := [2]string{inventory.JobSupervisor, "local"}, [2]string{inventory.JobAgent, "local"}
	if _, _, err := c.PlanSupervisor(); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(t, c)[supervisors], []string{c.info.Supervisors[0].HTTP, c.info.Supervisors[1].HTTP}; !slices.Equal(got, want) {
		t.Errorf("with one more %v, want %v", got, want)
	}
	if err := c.ForgetSupervisor(context.Background(), "sup-1"); err != nil {
		t.Fatal(err)
	}
	for i := range c.info.Nodes {
		c.info.Nodes[i].HTTP = ""
	}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, c); len(got[supervisors]) != 1 || got[agents] != nil {
		t.Errorf("an old one: %v", got)
	}
	if err := c.Purge(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}
