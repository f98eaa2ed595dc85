package api

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The token of a pod's service account is evidence for the node of that pod alone.
func TestPodTokenIsForItsNodeAlone(t *testing.T) {
	t.Parallel()
	s := New(Config{Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"})})
	e := NewEnrolment(s, EnrolmentConfig{
		ServiceAccount: func(context.Context, string) (fault.NodeID, map[string]string, error) { return "worker-1", nil, nil },
		Revoked:        func(fault.NodeID) (time.Time, bool) { return time.Time{}, false },
	})
	for node, code := range map[string]codes.Code{"worker-1": codes.OK, "kube-control-plane-1": codes.PermissionDenied,
		"a": codes.PermissionDenied} {
		admit, err := e.evidence(t.Context(), &lofamov1.EnrolRequest{Node: node, ServiceAccountToken: "pod's"}, false, time.Now())
		if status.Code(err) != code || (admit.GetNode() == node) != (code == codes.OK) {
			t.Errorf("node %s: %v, %v: want %s", node, admit, err, code)
		}
	}
}
