package inventory

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestListSignedAgainOutlivesFormerAuthority: between the steps use and remove, an operator with a certificate of the former authority
// revokes a node. Only if an operator with a new certificate signs the list again, the revocation is in force after remove.
func TestListSignedAgainOutlivesFormerAuthority(t *testing.T) {
	d, inv := made(t)
	if _, err := d.Rotate(StepAdd, true); err != nil {
		t.Fatal(err)
	}
	former := t.TempDir()
	for _, f := range []string{"operator.pem", "operator.key"} {
		if err := os.WriteFile(filepath.Join(former, f), read(t, d.file("operators", f)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Rotate(StepUse, false); err != nil {
		t.Fatal(err)
	}
	stolen, err := pki.LoadSigner(d.file("nodes", "n0-0-0", "pki", "host.pem"), d.file("nodes", "n0-0-0", "pki", "host.key"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	list := &lofamov1.DenyList{Cluster: inv.Cluster, Version: 1, Issued: timestamppb.New(now)}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		list.Denials = append(list.Denials, &lofamov1.Denial{Role: "node", Name: "n0-0-0/" + h.String(), Reason: "stolen",
			Before: timestamppb.New(pki.CutOff(now)), Revoked: timestamppb.New(now)})
	}
	// accepted reports whether another node, which has started with the list in its state directory, accepts the stolen certificate.
	accepted := func(state string) bool {
		r := pki.NewRegistry()
		v, err := pki.LoadVerifier(d.file("nodes", "n1-0-0", "pki", "ca.pem"), inv.Cluster, pki.WithRegistry(r))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = pki.NewDenyListKeeper(state, inv.Cluster, v, r) // which leaves out a list that it refuses
		_, err = v.Check(stolen.Cert())
		return err == nil
	}
	states := map[string]bool{former: true, d.file("operators"): false} // the signer's directory, and whether remove ends the list
	kept := map[string]string{}
	for signer := range states {
		op, err := pki.LoadSigner(filepath.Join(signer, "operator.pem"), filepath.Join(signer, "operator.key"))
		if err != nil {
			t.Fatal(err)
		}
		signed, err := pki.SignDenyList(list, op)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := proto.Marshal(signed)
		if err != nil {
			t.Fatal(err)
		}
		kept[signer] = t.TempDir()
		if err := os.WriteFile(filepath.Join(kept[signer], pki.DenyListFile), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if accepted(kept[signer]) {
			t.Errorf("before remove, the list of %s does not revoke the certificate", signer)
		}
	}
	if _, err := d.Rotate(StepRemove, false); err != nil {
		t.Fatal(err)
	}
	for signer, ends := range states {
		if accepted(kept[signer]) != ends {
			t.Errorf("after remove, the list of %s: the certificate is accepted: %t: want %t", signer, !ends, ends)
		}
	}
}
