package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// lofamoctl runs a command on the cluster and returns its output.
func (t trial) lofamoctl(args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(binaries, "lofamoctl"), append(args, "--dir", t.Cluster.Dir())...).CombinedOutput()
	if err != nil {
		t.Fatalf("lofamoctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// refusedBySupervisors sums the refusals of the class revoked over all supervisors.
func (t trial) refusedBySupervisors() (sum float64) {
	for _, s := range t.Cluster.Info().Supervisors {
		sum += scrape(t.T, s.HTTP).refused("revoked")
	}
	return sum
}

// TestRevokedNodeIsRefusedWithinSeconds: supervisors and neighbours refuse a revoked node, its silence harms no other
// node, and with new keys it comes back without any restart.
func TestRevokedNodeIsRefusedWithinSeconds(t *testing.T) {
	t.Parallel()
	const guilty = "n1-0-1"
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Preset: config.PresetRelaxed, Periods: manyMisses()})
	tr := begin(t, l)
	start := time.Now()
	tr.lofamoctl("cert", "revoke", "node/"+guilty, "--reason", "test")
	eventually(t, "the map to show the revocation", func() bool {
		n := tr.node(guilty)
		return n.GetState() == unknown && n.GetReason() == "revoked"
	})
	inMap := time.Since(start)
	eventually(t, "supervisors to refuse the node's reports", func() bool { return tr.refusedBySupervisors() > 0 })
	refused := time.Since(start)
	// Each neighbour, as seen by two separate supervisors, has ended its sessions with the node, so that the node's own
	// links are silent.
	eventually(t, "a neighbour's link to the node to be out of use", func() bool {
		for _, c := range tr.node("n0-0-1").GetComponents() {
			if c.GetName() == "link/X+" {
				return c.GetState() == unknown
			}
		}
		return false
	})
	eventually(t, "the list to be kept by a neighbour", func() bool {
		return exec.CommandContext(t.Context(), "test", "-s", filepath.Join(l.Cluster.Dir(), "nodes", "n0-0-1", "state", "revoked")).Run() == nil
	})
	t.Logf("in the map after %s, reports refused after %s, kept by a neighbour after %s", inMap, refused, time.Since(start))
	if out := tr.lofamoctl("cert", "list"); !strings.Contains(out, "node/"+guilty+"/dnp") || !strings.Contains(out, "revoked") {
		t.Errorf("cert list does not show it:\n%s", out)
	}
	tr.stays(10*time.Second, guilty)

	// New keys, in the same files, without a restart. The revocation of the old ones remains.
	ca, err := pki.LoadCA(l.Cluster.PKI("ca.pem"), l.Cluster.PKI("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second to pass: certificates begin on whole ones", func() bool { return time.Since(start) > 2*time.Second })
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		file := l.Cluster.PKI(guilty + "-" + h.String())
		if err := ca.IssueTo(file+".pem", file+".key", pki.NodeIdentity(ca.Cluster(), guilty, h), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the node to be trusted again", func() bool { return tr.node(guilty).GetState() == normal })
	tr.settled()
	tr.mayFail(guilty, "service-network") // its first report tells of the time without answers
	tr.neverFailed()
	tr.othersWereSpared(guilty)
}

// stays checks for a while that every other node is NORMAL and none is called FAILED.
func (t trial) stays(d time.Duration, guilty string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for _, n := range t.Cluster.Info().All() {
			if got := t.node(string(n.ID)); string(n.ID) != guilty && got.GetState() != normal {
				t.Fatalf("%s is %s (%s): want NORMAL beside a revoked node", n.ID, got.GetState(), got.GetReason())
			}
		}
	}
	t.neverFailed()
}

// TestRevokedPersonIsRefused: calls and streams of a revoked person end, those of others do not; the list outlives its
// leader.
func TestRevokedPersonIsRefused(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 3, Preset: config.PresetRelaxed, Periods: manyMisses()})
	tr := begin(t, l)
	s := l.Cluster.Info().Supervisors[0].ID
	approver := tr.at(s, pki.RoleApprover)
	if _, err := approver.ListSupervisors(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		ended <- approver.WatchResponses(ctx, &lofamov1.ListResponsesRequest{}, func(*lofamov1.WatchResponsesResponse, bool) error { return nil })
	}()
	tr.lofamoctl("cert", "revoke", "approver/local-approver", "--reason", "left")
	eventually(t, "calls over the open connection to be refused", func() bool {
		_, err := approver.ListSupervisors(t.Context())
		return status.Code(err) == codes.PermissionDenied
	})
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the stream ended without an error")
		}
	case <-ctx.Done():
		t.Error("a stream of a revoked person goes on")
	}
	tr.node("n0-0-0") // a viewer
	tr.lofamoctl("cert", "unrevoke", "approver/local-approver")
	eventually(t, "calls to be allowed again", func() bool {
		_, err := approver.ListSupervisors(t.Context())
		return err == nil
	})
}
