package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// office is the service Certificates over a real store, called by operators.
type office struct {
	*testing.T
	*api.Certificates

	ca       *pki.CA
	issuer   *pki.Issuer
	registry *pki.Registry
	keeper   *pki.DenyListKeeper
	store    *store.Etcd
	highest  uint64 // rises with each look, as when a node lies in each digest
}

func newOffice(t *testing.T) *office {
	t.Helper()
	ca, err := pki.NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	o := &office{T: t, ca: ca}
	r := pki.NewRegistry()
	if o.issuer, err = pki.NewIssuer("c"); err != nil {
		t.Fatal(err)
	}
	v, err := pki.NewVerifier(append(ca.CertPEM(), o.issuer.CertPEM()...), "c", pki.WithRegistry(r))
	if err != nil {
		t.Fatal(err)
	}
	k, _ := pki.NewDenyListKeeper("", "c", v, r)
	o.keeper, o.store = k, store.NewEtcd(supervisortest.NewEtcd(t, 1).Members[0].Client(), store.Options{})
	o.registry = r
	o.Certificates = api.NewCertificates(api.CertificatesConfig{
		Cluster: "c", Registry: r, Verifier: v, List: k.List, Stored: func() []byte { return k.List().Raw },
		Highest: func() uint64 { o.highest += 100; return o.highest },
		Store:   o.store,
		Taken: func(l pki.DenyList, _ uint64) {
			if _, err := k.TakeList(l); err != nil {
				t.Error(err)
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	return o
}

func (o *office) operator(name string) *pki.Signer {
	o.Helper()
	s, err := o.ca.IssueSigner(pki.Identity{Cluster: "c", Role: pki.RoleOperator, Name: name})
	if err != nil {
		o.Fatal(err)
	}
	return s
}

// put puts a list as its signer.
func (o *office) put(s *pki.Signer, version uint64, denials ...*lofamov1.Denial) error {
	o.Helper()
	return o.putAt(time.Now(), s, version, denials...)
}

// putAt is put with another clock.
func (o *office) putAt(at time.Time, s *pki.Signer, version uint64, denials ...*lofamov1.Denial) error {
	o.Helper()
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: "c", Version: version, Issued: timestamppb.New(at), Denials: denials}, s)
	if err != nil {
		o.Fatal(err)
	}
	cert, err := x509.ParseCertificate(s.Cert())
	if err != nil {
		o.Fatal(err)
	}
	ctx := peer.NewContext(o.Context(),
		&peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}})
	_, err = o.PutDenyList(ctx, &lofamov1.PutDenyListRequest{Signed: signed})
	return err
}

func (o *office) next() uint64 {
	o.Helper()
	resp, err := o.ListCertificates(context.Background(), nil)
	if err != nil {
		o.Fatal(err)
	}
	return resp.GetNextVersion()
}

// TestLyingNodeDoesNotBlockRevocation: the version that a node claims rises between an operator's read and write.
func TestLyingNodeDoesNotBlockRevocation(t *testing.T) {
	o := newOffice(t)
	ann := o.operator("ann")
	first := o.next()
	if first <= 100 {
		t.Fatalf("next version %d: want one above what a node claims", first)
	}
	if err := o.put(ann, first); err != nil {
		t.Errorf("a list while a node claims ever higher versions: %v", err)
	}
	if err := o.put(ann, first); status.Code(err) != codes.Aborted {
		t.Errorf("the same version again: %v: want Aborted", err)
	}
	if err := o.put(ann, first+1); err != nil {
		t.Errorf("the version after it: %v", err)
	}
}

// TestRevokedOperatorSignsNoMore: the revocation of an operator is final, so no node that missed a list refuses a later
// one. The revoked certificate signs no list.
func TestRevokedOperatorSignsNoMore(t *testing.T) {
	o := newOffice(t)
	ann, bob := o.operator("ann"), o.operator("bob")
	revoked := func(name string, before time.Time) *lofamov1.Denial {
		return &lofamov1.Denial{Role: string(pki.RoleOperator), Name: name, Before: timestamppb.New(before), Revoked: timestamppb.Now(),
			By: "operator/bob", Reason: "test"}
	}
	cut := pki.CutOff(time.Now())
	gone := revoked("ann", cut)
	viewer := &lofamov1.Denial{Role: string(pki.RoleViewer), Name: "vic", Before: gone.GetBefore(), Revoked: gone.GetRevoked()}
	if err := o.put(bob, 1, gone, viewer); err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]*lofamov1.Denial{
		"taken back": {viewer}, "shortened": {revoked("ann", cut.Add(-time.Hour)), viewer}, "of another": {revoked("eve", cut), viewer},
	} {
		if err := o.put(bob, 2, list...); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "operator/ann") {
			t.Errorf("%s: %v: want InvalidArgument that names operator/ann", name, err)
		}
	}
	if err := o.put(bob, 2, gone); err != nil {
		t.Errorf("a viewer's revocation taken back: %v", err)
	}
	if err := o.put(ann, 3, gone); err == nil {
		t.Error("the revoked certificate signs a list")
	}
}

// TestOneHalfIsNotRevoked: the service refuses a list with only one half of a node, and takes both.
func TestOneHalfIsNotRevoked(t *testing.T) {
	o := newOffice(t)
	ann, cut := o.operator("ann"), timestamppb.New(pki.CutOff(time.Now()))
	half := func(name string) *lofamov1.Denial {
		return &lofamov1.Denial{Role: string(pki.RoleNode), Name: name, Before: cut, Revoked: timestamppb.Now(), By: "operator/ann",
			Reason: "test"}
	}
	if err := o.put(ann, 1, half("n1/dnp")); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "both halves") {
		t.Errorf("one half: %v: want InvalidArgument", err)
	}
	if err := o.put(ann, 1, half("n1/dnp"), half("n1/host")); err != nil {
		t.Errorf("both halves: %v", err)
	}
}

// TestHalfRevokedByEarlierBuildCanBeTakenBack: a stored list with one half of a node is shown, accepts other nodes,
// and allows removal of the half.
func TestHalfRevokedByEarlierBuildCanBeTakenBack(t *testing.T) {
	o := newOffice(t)
	ann, cut := o.operator("ann"), timestamppb.New(pki.CutOff(time.Now()))
	half := func(name string) *lofamov1.Denial {
		return &lofamov1.Denial{Role: string(pki.RoleNode), Name: name, Before: cut, Revoked: timestamppb.Now(), By: "operator/ann",
			Reason: "test"}
	}
	serial := half("n2/dnp")
	serial.Before, serial.Serial = nil, "1a"
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: "c", Version: 1, Issued: timestamppb.Now(),
		Denials: []*lofamov1.Denial{half("n1/dnp"), serial}}, ann)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.store.PutDenied(t.Context(), nil, raw); err != nil {
		t.Fatal(err)
	}
	if taken, err := o.keeper.Take(raw); !taken || err != nil {
		t.Fatalf("list of an earlier build: taken %t, %v", taken, err)
	}
	resp, err := o.ListCertificates(t.Context(), nil)
	if err != nil || len(resp.GetList().GetDenials()) != 2 {
		t.Fatalf("list %v, %v: want both denials", resp.GetList(), err)
	}
	if err := o.put(ann, 2, half("n1/dnp"), serial, half("n3/host"), half("n3/dnp")); err != nil {
		t.Errorf("another node added: %v", err)
	}
	if err := o.put(ann, 3, half("n3/host"), half("n3/dnp")); err != nil {
		t.Errorf("the halves removed: %v", err)
	}
	if err := o.put(ann, 4, half("n1/dnp"), half("n3/host"), half("n3/dnp")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the half added again: %v: want InvalidArgument", err)
	}
}

// TestIssuersAreListed: the service says when the issuer ends, and not among the verified certificates.
func TestIssuersAreListed(t *testing.T) {
	o := newOffice(t)
	resp, err := o.ListCertificates(t.Context(), nil)
	if err != nil || len(resp.GetIssuers()) != 1 || len(resp.GetCertificates()) != 0 {
		t.Fatalf("issuers %v, certificates %v, %v: want one issuer and no certificate", resp.GetIssuers(), resp.GetCertificates(), err)
	}
	if i := resp.GetIssuers()[0]; i.GetIdentity() != "lofamo://c/issuer" || i.GetSerial() == "" ||
		!i.GetNotAfter().AsTime().Equal(o.issuer.Ends()) {
		t.Errorf("issuer %v: want lofamo://c/issuer that ends at %s", i, o.issuer.Ends())
	}
}

// TestListOfWrongClockIsRefused: the service refuses a list whose time is more than an hour from its own, and says
// both.
func TestListOfWrongClockIsRefused(t *testing.T) {
	o := newOffice(t)
	ann := o.operator("ann")
	for _, off := range []time.Duration{-90 * time.Minute, 90 * time.Minute} {
		if err := o.putAt(time.Now().Add(off), ann, 1); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "issued: given") || !strings.Contains(err.Error(), "want at most 1h0m0s") {
			t.Errorf("a clock that is off by %s: %v: want InvalidArgument that names both times", off, err)
		}
	}
	if err := o.putAt(time.Now().Add(-30*time.Minute), ann, 1); err != nil {
		t.Errorf("a clock that lags 30 minutes: %v", err)
	}
}

// TestRevocationBySlowClockIsRefused: the service refuses a revocation of all certificates of an identity that would leave one valid, and
// names both clocks. It takes revocations of certificates before an earlier time, and those of the list in force.
func TestRevocationBySlowClockIsRefused(t *testing.T) {
	o := newOffice(t)
	ann := o.operator("ann")
	by := func(clock time.Time, name string) *lofamov1.Denial {
		return &lofamov1.Denial{Role: string(pki.RoleViewer), Name: name, Before: timestamppb.New(pki.CutOff(clock)),
			Revoked: timestamppb.New(clock), By: "operator/ann", Reason: "test"}
	}
	refused := func(what string, err error, says ...string) {
		t.Helper()
		if status.Code(err) != codes.InvalidArgument {
			t.Fatalf("%s: %v: want InvalidArgument", what, err)
		}
		for _, text := range says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v: want %q", what, err, text)
			}
		}
	}
	slow := time.Now().Add(-6 * time.Minute)
	refused("6 minutes behind", o.putAt(slow, ann, 1, by(slow, "vic")), "viewer/vic", slow.UTC().Format(time.RFC3339), "clock")
	seen, err := o.ca.IssueSigner(pki.Identity{Cluster: "c", Role: pki.RoleViewer, Name: "vic"})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(seen.Cert())
	if err == nil {
		err = o.registry.CheckCertificate(cert)
	}
	if err != nil {
		t.Fatal(err)
	}
	slow = time.Now().Add(-30 * time.Second)
	refused("a known certificate is newer", o.putAt(slow, ann, 1, by(slow, "vic")), "viewer/vic", cert.NotBefore.Format(time.RFC3339), "clock")
	if err := o.putAt(slow, ann, 1, by(slow, "eve")); err != nil {
		t.Errorf("30 seconds behind, without a newer certificate: %v", err)
	}
	limited := by(time.Now(), "vic")
	limited.Before = timestamppb.New(time.Now().AddDate(0, 0, -7))
	if err := o.put(ann, 2, limited); err != nil {
		t.Errorf("certificates of last week: %v", err)
	}
	if err := o.put(ann, 3, by(time.Now().Add(time.Second), "vic")); err != nil || o.registry.CheckCertificate(cert) == nil {
		t.Errorf("all certificates: %v, valid %t", err, o.registry.CheckCertificate(cert) == nil)
	}
	// An earlier version took a list by a slow clock.
	old := by(time.Now().Add(-6*time.Minute), "eve")
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: "c", Version: 4, Issued: timestamppb.Now(),
		Denials: []*lofamov1.Denial{old}}, ann)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(signed)
	if err == nil {
		_, err = o.store.PutDenied(t.Context(), o.keeper.List().Raw, raw)
	}
	if err == nil {
		_, err = o.keeper.Take(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := o.put(ann, 5, old, by(time.Now(), "bob")); err != nil {
		t.Errorf("a denial of the list in force: %v", err)
	}
}

// TestStolenOperatorKeyDoesNotUseUpVersions: no list could follow the last version, so nothing could be revoked any more.
func TestStolenOperatorKeyDoesNotUseUpVersions(t *testing.T) {
	o := newOffice(t)
	eve, bob := o.operator("eve"), o.operator("bob")
	for _, version := range []uint64{math.MaxUint64, o.next() + 2*pki.MaxVersionJump} {
		if err := o.put(eve, version); status.Code(err) != codes.InvalidArgument {
			t.Errorf("version %d: %v: want InvalidArgument", version, err)
		}
	}
	d := &lofamov1.Denial{Role: "operator", Name: "eve", Before: timestamppb.New(pki.CutOff(time.Now())), Revoked: timestamppb.Now()}
	if err := o.put(bob, o.next(), d); err != nil {
		t.Errorf("the revocation of eve: %v", err)
	}
}
