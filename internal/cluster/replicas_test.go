package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
)

// TestForgottenSupervisorsAreNoPattern: a replica that takes the free id of a removed one is configured like the
// existing replicas, although the pattern's own file still names the removed one.
func TestForgottenSupervisorsAreNoPattern(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 3})
	add := func(want string, all ...string) {
		t.Helper()
		id, peer, err := c.PlanSupervisor()
		if err != nil || id != want {
			t.Fatalf("planned %q, %v: want %q", id, err, want)
		}
		cfg, err := config.LoadSupervisor(c.supervisorConfig(id), nil)
		if err != nil {
			t.Fatal(err)
		}
		var replicas, members []string
		for _, r := range cfg.Replicas {
			replicas = append(replicas, r.ID)
			if s, err := c.Supervisor(r.ID); err != nil || s.GRPC != r.GRPC || s.Report != r.Report || s.HTTP != r.HTTP {
				t.Errorf("%s is named as %+v, and is %+v, %v", r.ID, r, s, err)
			}
		}
		for m := range strings.SplitSeq(cfg.Etcd.InitialCluster, ",") {
			members = append(members, strings.SplitN(m, "=", 2)[0])
		}
		if !slices.Equal(replicas, all) || !slices.Equal(members, all) {
			t.Errorf("replicas %v, members %v: want %v", replicas, members, all)
		}
		if s := c.info.Supervisors[len(c.info.Supervisors)-1]; s.ID != id || cfg.Etcd.ClusterState != "existing" ||
			!strings.HasSuffix(cfg.Etcd.InitialCluster, fmt.Sprint(id, "=", peer)) {
			t.Errorf("%s is %+v with %+v", id, s, cfg.Etcd)
		}
	}
	forget := func(id string) {
		t.Helper()
		if err := c.ForgetSupervisor(context.Background(), id); err != nil {
			t.Fatal(err)
		}
	}
	forget("sup-1")
	add("sup-1", "sup-0", "sup-2", "sup-1")
	forget("sup-0") // the pattern itself
	add("sup-0", "sup-2", "sup-1", "sup-0")
	add("sup-3", "sup-2", "sup-1", "sup-0", "sup-3")
}
