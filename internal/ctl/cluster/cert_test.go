package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestNodesAreRevokedWhole: a node stands for both halves, and the command rejects one half or a serial number of a
// node before any call.
func TestNodesAreRevokedWhole(t *testing.T) {
	ids, err := identities("c", []string{"node/n1"})
	if want := []pki.Identity{pki.NodeIdentity("c", "n1", fault.HalfHost), pki.NodeIdentity("c", "n1", fault.HalfDNP)}; err != nil ||
		len(ids) != 2 || ids[0] != want[0] || ids[1] != want[1] {
		t.Errorf("node/n1: %v, %v: want %v", ids, err, want)
	}
	if _, err := identities("c", []string{"node/n1/dnp"}); err == nil || !strings.Contains(err.Error(), "want node/n1 for both") {
		t.Errorf("node/n1/dnp: %v: want an error that names node/n1", err)
	}
}

// TestSerialIsRefusedForIdentitiesWithTwoCertificates: a serial number would leave the other half's certificate, or the
// other pair of a replica, in force.
func TestSerialIsRefusedForIdentitiesWithTwoCertificates(t *testing.T) {
	for arg, want := range map[string]string{
		"node/n1": `--serial: given "1a" for node/n1: a serial number names a certificate of one half only: omit the flag`,
		"supervisor/s1": `--serial: given "1a" for supervisor/s1: a serial number names one of its two certificates only: omit the flag ` +
			`to revoke both, or give --begins-before`,
	} {
		cmd := CertCommand(&command.App{})
		cmd.SetArgs([]string{"revoke", "operator/ann", arg, "--serial", "1a", "--reason", "lost"})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", arg, err, want)
		}
	}
}

// TestIssuerIsARow: the issuer is listed with the certificates, in the order of their ends.
func TestIssuerIsARow(t *testing.T) {
	now := time.Now()
	cert := func(identity string, begins, ends time.Duration) *lofamov1.Certificate {
		return &lofamov1.Certificate{Identity: identity, Serial: "1a", NotBefore: timestamppb.New(now.Add(begins)),
			NotAfter: timestamppb.New(now.Add(ends))}
	}
	const day = 24 * time.Hour
	outdated := cert("lofamo://c/node/n2/host", -20*day, 5*day) // and ends soon
	outdated.Outdated = true
	rows := certificateRows(&command.App{Env: command.Env{Location: time.UTC}}, []*lofamov1.Certificate{
		cert("lofamo://c/issuer", -300*day, 65*day), cert("lofamo://c/node/n1/host", -10*day, 20*day), cert("lofamo://c/operator/ann", 0,
			365*day), outdated,
	})
	var got []string
	for _, r := range rows[1:] {
		got = append(got, r[0]+" "+r[1])
	}
	want := []string{"node/n2/host earlier issuer", "node/n1/host good", "issuer ends soon", "operator/ann good"}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q: want %q", got, want)
	}
}

// TestLostRevocationsAreNoticed: after a restore of the store, nodes have a newer list of revocations than the supervisors.
func TestLostRevocationsAreNoticed(t *testing.T) {
	for _, tc := range []struct {
		stored, next uint64
		warns        bool
	}{
		{0, 1, false}, {2, 3, false}, {0, 3, true}, {2, 5, true},
	} {
		resp := &lofamov1.ListCertificatesResponse{NextVersion: tc.next}
		if tc.stored > 0 {
			resp.List = &lofamov1.DenyList{Version: tc.stored}
		}
		if got := lostRevocations(resp); (got != "") != tc.warns {
			t.Errorf("stored version %d, next %d: %q: want a warning: %t", tc.stored, tc.next, got, tc.warns)
		}
	}
}

// TestRestoredRevocationKeepsItsLimit: a revocation of May that is restored in June refuses only certificates from before May.
func TestRestoredRevocationKeepsItsLimit(t *testing.T) {
	may, june := time.Date(2024, 5, 6, 12, 0, 0, 0, time.UTC), time.Date(2024, 6, 6, 12, 0, 0, 0, time.UTC)
	d := func(revoked time.Time) *lofamov1.Denial {
		return &lofamov1.Denial{Role: "viewer", Name: "vic", Before: timestamppb.New(pki.CutOff(may)), Revoked: timestamppb.New(revoked)}
	}
	rows := denialRows(&command.App{Env: command.Env{Location: time.UTC}}, []*lofamov1.Denial{d(may), d(may.Add(3 * time.Second)), d(june)})
	for i, want := range []string{"issued until ", "issued until ", "begun before "} {
		if got := rows[i+1][1]; !strings.HasPrefix(got, want) || !strings.Contains(got, "-05-06") {
			t.Errorf("row %d: %q: want %q and a day of May", i, got, want)
		}
	}
}
