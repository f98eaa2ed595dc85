package supervisor_test

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestDenyListAfterNewAuthority: a stored list that an operator of the former authority signed is refused, and an
// operator of the new one replaces it.
func TestDenyListAfterNewAuthority(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	former, err := pki.NewCA(supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	op, err := former.IssueSigner(pki.Identity{Cluster: supervisortest.Name, Role: pki.RoleOperator, Name: "someone"})
	if err != nil {
		t.Fatal(err)
	}
	list := func(version uint64, s *pki.Signer) *lofamov1.SignedDenyList {
		signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: supervisortest.Name, Version: version, Issued: timestamppb.Now()}, s)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	raw, err := proto.Marshal(list(3, op))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.NewEtcd(etcdClient(t, cfg), store.Options{}).PutDenied(t.Context(), nil, raw); err != nil {
		t.Fatal(err)
	}
	now, err := pki.LoadSigner(filepath.Join(c.Dir, "operator.pem"), filepath.Join(c.Dir, "operator.key"))
	if err != nil {
		t.Fatal(err)
	}
	certificates := lofamov1.NewCertificatesClient(c.Conn(t, pki.RoleOperator, cfg.GRPC))
	// The replica learns of the stored list within moments.
	for end := time.Now().Add(supervisortest.Wait); ; {
		_, err = certificates.PutDenyList(t.Context(), &lofamov1.PutDenyListRequest{Signed: list(1, now)})
		if err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatalf("a list of the new authority: %v", err)
	}
	if resp, err := certificates.ListCertificates(t.Context(), &lofamov1.ListCertificatesRequest{}); err != nil ||
		resp.GetList().GetVersion() != 1 {
		t.Errorf("in force: %v, %v: want version 1", resp.GetList(), err)
	}
}
