package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
)

// denyList returns a list that an operator of an authority has signed. It revokes supervisors.
func denyList(t *testing.T, ca *pki.CA, version uint64, supervisors ...string) []byte {
	t.Helper()
	operator, err := ca.IssueSigner(pki.Identity{Cluster: processtest.Cluster, Role: pki.RoleOperator, Name: "o"})
	if err != nil {
		t.Fatal(err)
	}
	l := &lofamov1.DenyList{Cluster: processtest.Cluster, Version: version, Issued: timestamppb.Now()}
	for _, name := range supervisors {
		l.Denials = append(l.Denials, &lofamov1.Denial{
			Role: string(pki.RoleSupervisor), Name: name, Before: timestamppb.New(pki.CutOff(time.Now())), Revoked: timestamppb.Now(),
			By: "operator/o", Reason: "stolen",
		})
	}
	signed, err := pki.SignDenyList(l, operator)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestDenyListOfFormerAuthority: the process starts and accepts a list of the new authority with a lower version. A
// corrupt list makes its start fail.
func TestDenyListOfFormerAuthority(t *testing.T) {
	b := newBench(t)
	former, err := pki.NewCA(processtest.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(b.Config.StateDir, pki.DenyListFile)
	if err := os.WriteFile(kept, denyList(t, former, 3), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := b.Start(t)
	list := denyList(t, b.CA, 1)
	if err := b.Supervisor(t, b.Config.Listen).Deny(t.Context(), list); err != nil {
		t.Errorf("a list of the new authority: %v", err)
	}
	stop()
	if now, err := os.ReadFile(kept); err != nil || string(now) != string(list) {
		t.Errorf("it keeps another list: %v", err)
	}
	if err := os.WriteFile(kept, list[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := process.New(b.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err == nil || !strings.Contains(err.Error(), pki.DenyListFile) {
		t.Errorf("with a garbled list: %v: want an error that names it", err)
	}
}
