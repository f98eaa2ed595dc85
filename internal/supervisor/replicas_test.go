package supervisor

import (
	"fmt"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
)

// TestReplicaListMergesConfigurationAndStore: the configuration lists s1, s2 and s3.
func TestReplicaListMergesConfigurationAndStore(t *testing.T) {
	configured := []config.ReplicaEntry{{ID: "s2", GRPC: "c2"}, {ID: "s1", GRPC: "c1"}, {ID: "s3", GRPC: "c3"}}
	said := func(id, addr string) *lofamov1.Supervisor { return &lofamov1.Supervisor{Id: id, Address: addr} }
	removed := func(id string) *lofamov1.Supervisor { return &lofamov1.Supervisor{Id: id, Removed: true} }
	for name, tc := range map[string]struct {
		said []*lofamov1.Supervisor
		want string
	}{
		"nothing was said":             {nil, "s2=c2 s1=c1 s3=c3"},
		"all said what we know":        {[]*lofamov1.Supervisor{said("s1", "c1"), said("s2", "c2"), said("s3", "c3")}, "s2=c2 s1=c1 s3=c3"},
		"one has moved":                {[]*lofamov1.Supervisor{said("s1", "new")}, "s2=c2 s1=new s3=c3"},
		"two were added":               {[]*lofamov1.Supervisor{said("s5", "c5"), said("s4", "c4")}, "s2=c2 s1=c1 s3=c3 s4=c4 s5=c5"},
		"a configured one was removed": {[]*lofamov1.Supervisor{removed("s2"), said("s1", "c1")}, "s1=c1 s3=c3"},
		"an added one was removed":     {[]*lofamov1.Supervisor{removed("s4")}, "s2=c2 s1=c1 s3=c3"},
		"one took another's place":     {[]*lofamov1.Supervisor{removed("s3"), said("s9", "c9")}, "s2=c2 s1=c1 s9=c9"},
	} {
		var got []string
		for _, sup := range mergeReplicas(configured, tc.said) {
			got = append(got, fmt.Sprintf("%s=%s", sup.GetId(), sup.GetAddress()))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s: %s, want %s", name, s, tc.want)
		}
	}
}
