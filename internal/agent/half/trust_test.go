package half

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestRevocationsAreReadAgainAfterFailure: the DNP half has no other source of the list than its file. After a failed reading, here of a
// link, it reads the file again, although its time and size have not changed.
func TestRevocationsAreReadAgainAfterFailure(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	operator, err := ca.IssueSigner(pki.Identity{Cluster: "c", Role: pki.RoleOperator, Name: "o"})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ca.IssueSigner(pki.NodeIdentity("c", "n0", fault.HalfDNP))
	if err != nil {
		t.Fatal(err)
	}
	registry := pki.NewRegistry()
	verifier, err := pki.NewVerifier(ca.CertPEM(), "c", pki.WithRegistry(registry))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: "c", Version: 1, Issued: timestamppb.Now(), Denials: []*lofamov1.Denial{{
		Role: string(pki.RoleExecutor), Name: "e", Before: timestamppb.Now(), Revoked: timestamppb.Now()}}}, operator)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	tr := newTrust(&Common{Config: config.Agent{Cluster: "c", Node: "n0", StateDir: dir}, Half: fault.HalfDNP,
		Log: slog.New(slog.DiscardHandler), Signer: signer, Verifier: verifier}, registry)
	list, elsewhere := filepath.Join(dir, pki.DenyListFile), filepath.Join(dir, "elsewhere")
	if err := os.WriteFile(elsewhere, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, list); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	loaded, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		tr.Run(ctx, func() { loaded <- struct{}{} })
	}()
	defer func() { cancel(); <-done }()
	for range 3 { // when the second one was taken, the first one was handled
		tr.look <- struct{}{}
	}
	if err := os.Rename(elsewhere, list); err != nil {
		t.Fatal(err)
	}
	tr.look <- struct{}{}
	select {
	case <-loaded:
	case <-time.After(10 * time.Second):
		t.Error("the list was not read again")
	}
}
