package replica

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

type ours map[fault.NodeID]bool

func (o ours) Known(id fault.NodeID) bool { return o[id] }

// TestOtherRegionVouchesForItsRequests: the requests that a supervisor of another region may vouch for.
func TestOtherRegionVouchesForItsRequests(t *testing.T) {
	s := &Server{Names: ours{"n1": true}}
	for name, tc := range map[string]struct {
		req  *lofamov1.ForwardRequest
		want bool
	}{
		"what is signed":      {&lofamov1.ForwardRequest{Envelope: []byte("x")}, true},
		"a node of its own":   {&lofamov1.ForwardRequest{Name: "n2/host"}, true},
		"a node of ours":      {&lofamov1.ForwardRequest{Name: "n1/dnp"}, false},
		"restated digests":    {&lofamov1.ForwardRequest{Restated: []*lofamov1.RestatedDigest{{Node: "n2"}}}, false},
		"verdicts on its own": {&lofamov1.ForwardRequest{Verdicts: &lofamov1.BorderVerdicts{}}, true},
	} {
		if got := s.theirs(tc.req); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
