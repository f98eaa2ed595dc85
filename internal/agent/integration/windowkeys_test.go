package integration

import (
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestWindowRefusesKeysOfAnotherAuthority: a process at the other end of the window has the DNP half's name, and keys of another
// certificate authority. The host half begins no session, takes no register word, and continues to serve.
func TestWindowRefusesKeysOfAnotherAuthority(t *testing.T) {
	n := newWindowNet(t)
	dir, c := agenttest.Dir(t), n.apart[dnp0]
	ca := agenttest.NewCA(t, dir)
	c.TLS.CA, c.TLS.DNPCert, c.TLS.DNPKey = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "dnp.pem"), filepath.Join(dir, "dnp.key")
	if err := ca.IssueTo(c.TLS.DNPCert, c.TLS.DNPKey, pki.NodeIdentity(testCluster, c.Node, fault.HalfDNP), nil, nil); err != nil {
		t.Fatal(err)
	}
	n.apart[dnp0] = c
	n.startAll()
	s := n.awaitStatus(at0, "refused handshakes", func(s local.Status) bool { return s.Window != nil && s.Window.FailedSessions > 0 })
	if w := s.Window; w.Sessions != 0 || w.Statements != 0 || w.Messages != 0 || s.DNP.Epoch != 0 {
		t.Errorf("window %+v, DNP half %+v: want no session and no word of it", w, s.DNP)
	}
	n.super.awaitState(host0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindSelf)
	n.super.noneOf(t, fault.ComponentHost, fault.Failed)
}
