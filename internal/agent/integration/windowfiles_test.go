package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// denyList returns a signed list that revokes an operator.
func (n *testNet) denyList(version uint64) pki.DenyList {
	n.t.Helper()
	ca, err := pki.LoadCA(n.path("ca.pem"), n.path("ca.key"))
	if err != nil {
		n.t.Fatal(err)
	}
	op, err := ca.IssueSigner(pki.Identity{Cluster: testCluster, Role: pki.RoleOperator, Name: "o"})
	if err != nil {
		n.t.Fatal(err)
	}
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: testCluster, Version: version, Issued: timestamppb.Now(),
		Denials: []*lofamov1.Denial{{
			Role: string(pki.RoleOperator), Name: "gone", Before: timestamppb.Now(), Revoked: timestamppb.Now(), By: "operator/o", Reason: "lost",
		}}}, op)
	if err != nil {
		n.t.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		n.t.Fatal(err)
	}
	l, err := pki.OpenDenyList(raw, n.super.verifier, testCluster)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// sendDenyList sends a list to the first node, as a supervisor does.
func (n *testNet) sendDenyList(l pki.DenyList) {
	for _, p := range l.Parts() {
		n.super.send(netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), "n0-0-0", fault.PathDirect,
			&lofamov1.Message{Body: &lofamov1.Message_DenyPart{DenyPart: p}})
	}
}

// hasList reports whether a state directory has the list.
func hasList(dir string, l pki.DenyList) bool {
	b, err := os.ReadFile(filepath.Join(dir, pki.DenyListFile))
	return err == nil && string(b) == string(l.Raw)
}

// TestRevocationReachesBothKernels: the list gets to the DNP half through the window. The node acknowledges it to the
// supervisors only when the DNP half has it on disk.
func TestRevocationReachesBothKernels(t *testing.T) {
	n := newWindowNet(t)
	n.startAll()
	n.awaitWindow()
	host, dnp := n.cfgs[at0].StateDir, n.apart[dnp0].StateDir
	first := n.denyList(1)
	n.sendDenyList(first)
	n.super.awaitThat("the acknowledgement of list 1", func() bool { return n.super.denied["n0-0-0"] == 1 })
	if !hasList(host, first) || !hasList(dnp, first) {
		t.Error("acknowledged before both halves have the list on disk")
	}

	n.cutWindow(true)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentBus, fault.Failed, fault.KindSilence)
	second := n.denyList(2)
	n.sendDenyList(second)
	agenttest.Await(t, "list 2 in the host half's directory", func() bool { return hasList(host, second) })
	n.super.forget()
	n.cutWindow(false)
	n.super.awaitThat("the acknowledgement of list 2", func() bool {
		if n.super.denied["n0-0-0"] != 2 {
			return false
		}
		if !hasList(dnp, second) {
			t.Error("acknowledged before the DNP half has the list on disk")
		}
		return true
	})
}

// TestFilesCrossTheWindow: the host half gets the peers from the supervisors, and the DNP half's request for a certificate.
func TestFilesCrossTheWindow(t *testing.T) {
	n := newWindowNet(t)
	n.startAll()
	n.awaitWindow()
	host, dnp := n.cfgs[at0], n.apart[dnp0]
	n.tell(host, &lofamov1.PeerOrder{Number: 10, Peers: []*lofamov1.Peer{toward(grid.XPlus, n.cfgs[grid.Coord{X: 1}])}})
	agenttest.Await(t, "the peers in the host half's directory", func() bool {
		s, err := storage.PeerOrders().Load(host.StateDir)
		return err == nil && s.Number == 10
	})

	signer, err := pki.LoadSigner(dnp.TLS.DNPCert, dnp.TLS.DNPKey)
	if err != nil {
		t.Fatal(err)
	}
	request, err := half.SealAnswer([]byte("0123456789abcdef"), dnp0, 1, signer)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, from, to string
	}{
		{half.DnpRequestFile, dnp.StateDir, host.StateDir},
		{half.DnpAnswerFile, host.StateDir, dnp.StateDir},
	} {
		if err := os.WriteFile(filepath.Join(tc.from, tc.name), request, 0o600); err != nil {
			t.Fatal(err)
		}
		agenttest.Await(t, tc.name+" at the other half", func() bool {
			b, err := os.ReadFile(filepath.Join(tc.to, tc.name))
			return err == nil && string(b) == string(request)
		})
	}
}
