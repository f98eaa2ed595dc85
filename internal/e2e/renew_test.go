package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// serials returns the newest certificate of each half that any supervisor has verified, by identity.
func (t trial) serials() map[string]string {
	t.Helper()
	begins, out := map[string]time.Time{}, map[string]string{}
	for _, s := range t.Cluster.Info().Supervisors {
		replica := t.at(s.ID, pki.RoleViewer)
		resp := answered(t.T, "list the certificates of "+s.ID, func() (*lofamov1.ListCertificatesResponse, error) {
			return replica.ListCertificates(t.Context())
		})
		for _, c := range resp.GetCertificates() {
			if id := c.GetIdentity(); strings.Contains(id, "/node/") && c.GetNotBefore().AsTime().After(begins[id]) {
				begins[id], out[id] = c.GetNotBefore().AsTime(), c.GetSerial()
			}
		}
	}
	return out
}

// allNormal fails the test unless every node but the guilty one is NORMAL.
func (t trial) allNormal(guilty string) {
	t.Helper()
	for _, n := range t.Cluster.Info().Nodes {
		if got := t.node(string(n.ID)); string(n.ID) != guilty && got.GetState() != normal {
			t.Fatalf("%s is %s (%s): want NORMAL", n.ID, got.GetState(), got.GetReason())
		}
	}
}

// renew waits until every half but those of the guilty node has used the given number of further certificates.
func (t trial) renew(times int, guilty string) (took time.Duration) {
	t.Helper()
	now := t.serials()
	left, start := map[string]int{}, time.Now()
	for _, n := range t.Cluster.Info().Nodes {
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			if string(n.ID) != guilty {
				left[pki.NodeIdentity(t.Cluster.Info().Cluster, n.ID, h).String()] = times
			}
		}
	}
	for len(left) > 0 {
		if time.Since(start) > 10*time.Minute {
			t.Fatalf("not renewed: %v", left)
		}
		time.Sleep(time.Second)
		t.allNormal(guilty)
		next := t.serials()
		for id := range maps.Clone(left) {
			if next[id] != "" && next[id] != now[id] {
				left[id]--
			}
			if left[id] == 0 {
				delete(left, id)
			}
		}
		now = next
	}
	return time.Since(start)
}

// awaits waits for a condition that may take as long as a certificate lives.
func awaits(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// TestClusterWithoutIssuerGetsOne: a cluster of an earlier version runs as before: no half asks. When all trust an
// issuer and no supervisor has its key, requests get no answer and do no harm. With the key, halves renew, and so does
// a spare without coordinates.
func TestClusterWithoutIssuerGetsOne(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 3, Spares: 1, NodeLifetime: 90 * time.Second, NoIssuer: true,
		Preset: config.PresetRelaxed, Periods: manyMisses()})
	tr := begin(t, l)
	i, err := pki.NewIssuer(l.Cluster.Info().Cluster)
	if err == nil {
		err = i.Save(l.Cluster.PKI("issuer.pem"), l.Cluster.PKI("issuer.key"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := tr.requests(); n != 0 {
		t.Errorf("%v requests without an issuer: want none", n)
	}
	restart := func() {
		t.Helper()
		if err := l.Cluster.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Cluster.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if err := l.Cluster.WaitNormal(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := os.ReadFile(l.Cluster.PKI("ca.pem"))
	if err == nil {
		err = os.WriteFile(l.Cluster.PKI("ca.pem"), append(ca, i.CertPEM()...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	restart()
	awaits(t, "the halves to ask", func() bool { return tr.requests() >= 4 })
	tr.allNormal("")
	for _, s := range l.Cluster.Info().Supervisors {
		if m := scrape(t, s.HTTP); m.total("lofamo_renewals_total", "") != 0 {
			t.Errorf("%s without the issuer's key answers requests", s.ID)
		}
		if err := l.Cluster.ReconfigureSupervisor(s.ID, func(c *config.Supervisor) {
			c.Renewal = config.RenewalConfig{Cert: l.Cluster.PKI("issuer.pem"), Key: l.Cluster.PKI("issuer.key"),
				Lifetime: config.Duration(20 * time.Second)}
		}); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	awaits(t, "all halves, the spare's too, to have renewed certificates", func() bool {
		files, err := filepath.Glob(filepath.Join(l.Cluster.Dir(), "nodes", "*", "state", "*.renewed"))
		return err == nil && len(files) == 6
	})
	tr.allNormal("")
}

// epochs returns the boot epochs of the host halves by node: each restart changes them.
func (t trial) epochs() map[fault.NodeID]float64 {
	t.Helper()
	out := map[fault.NodeID]float64{}
	for _, n := range t.Cluster.Info().Nodes {
		if out[n.ID] = scrape(t.T, n.HTTP).total("lofamo_agent_epoch", ""); out[n.ID] == 0 {
			t.Errorf("%s has no boot epoch", n.ID)
		}
	}
	return out
}

// requests sums the requests for certificates that all halves have sent.
func (t trial) requests() (sum float64) {
	t.Helper()
	for _, n := range t.Cluster.Info().Nodes {
		sum += scrape(t.T, n.HTTP).total("lofamo_agent_certificate_requests_total", "half")
	}
	return sum
}

// TestHalvesRenewCertificates: a cluster whose node certificates are valid for 20 s runs for several lifetimes without
// a fault and without a restart; a revoked node gets no further certificate, and new files bring it back.
func TestHalvesRenewCertificates(t *testing.T) {
	t.Parallel()
	const life, guilty = 20 * time.Second, "n1-0-0" // the shortest that the configuration allows
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, NodeLifetime: life, Preset: config.PresetRelaxed, Periods: manyMisses()})
	tr := begin(t, l)
	epochs := tr.epochs()
	took := tr.renew(5, "")
	t.Logf("every half has used six certificates of %s within %s; they sent %v requests", life, took, tr.requests())
	for _, n := range tr.Cluster.Info().All() {
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			if ends, err := pki.Ends(l.Cluster.PKI(string(n.ID) + "-" + h.String() + ".pem")); err != nil || ends.After(time.Now()) {
				t.Errorf("%s/%s: the certificate in its file ends at %s, %v: want it ended", n.ID, h, ends, err)
			}
		}
	}
	if now := tr.epochs(); !maps.Equal(now, epochs) {
		t.Errorf("boot epochs %v: want %v: no restart", now, epochs)
	}
	tr.neverFailed()
	if out := tr.lofamoctl("cert", "list"); !strings.Contains(out, "node/n0-0-0/dnp") {
		t.Errorf("cert list:\n%s", out)
	}

	tr.lofamoctl("cert", "revoke", "node/"+guilty, "--reason", "test")
	eventually(t, "the map to show the revocation", func() bool { return tr.node(guilty).GetState() == unknown })
	kept := filepath.Join(l.Cluster.Dir(), "nodes", guilty, "state", "host.renewed")
	tr.renew(1, guilty) // a certificate that was on its way when the node was revoked has arrived
	before, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	tr.renew(3, guilty) // for more than a lifetime
	if after, err := os.ReadFile(kept); err != nil || string(after) != string(before) {
		t.Errorf("the revoked node has another certificate, %v", err)
	}
	// New files of the operator, that live 20 s too: the node is back, and renews them.
	ca, err := pki.LoadCA(l.Cluster.PKI("ca.pem"), l.Cluster.PKI("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca.SetNodeLifetime(life)
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		file := l.Cluster.PKI(guilty + "-" + h.String())
		if err := ca.IssueTo(file+".pem", file+".key", pki.NodeIdentity(ca.Cluster(), guilty, h), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the node to be trusted again", func() bool { return tr.node(guilty).GetState() == normal })
	tr.renew(2, "")
	tr.settled()
	tr.mayFail(guilty, "service-network") // its first report tells of the time without answers
	tr.neverFailed()
}
