package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// CertificatesConfig configures the service Certificates.
type CertificatesConfig struct {
	Cluster  string
	Registry *pki.Registry
	Verifier *pki.Verifier
	List     func() pki.DenyList // in force
	Highest  func() uint64       // highest version that any node claims to have: only a hint for the next one
	Stored   func() []byte       // list in the store, also one that was refused; nil: none
	Store    interface {
		PutDenied(ctx context.Context, old, signed []byte) (revision uint64, err error)
	}
	Taken  func(l pki.DenyList, revision uint64) // puts a stored list in force on this replica; other replicas follow the store
	Logger *slog.Logger
}

// Certificates implements lofamov1.CertificatesServer.
type Certificates struct {
	lofamov1.UnimplementedCertificatesServer

	cfg CertificatesConfig
}

// NewCertificates returns the service.
func NewCertificates(cfg CertificatesConfig) *Certificates { return &Certificates{cfg: cfg} }

// ListCertificates implements the service.
func (c *Certificates) ListCertificates(context.Context, *lofamov1.ListCertificatesRequest) (*lofamov1.ListCertificatesResponse, error) {
	l := c.cfg.List()
	resp := &lofamov1.ListCertificatesResponse{NextVersion: max(l.GetVersion(), c.cfg.Highest()) + 1, Clock: timestamppb.Now()}
	if l.GetVersion() > 0 {
		resp.List, resp.Signed = l.DenyList, new(lofamov1.SignedDenyList)
		if err := proto.Unmarshal(l.Raw, resp.Signed); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	for _, s := range c.cfg.Registry.Seen() {
		resp.Certificates = append(resp.Certificates, &lofamov1.Certificate{
			Identity: s.Identity.String(), Serial: s.Serial, NotBefore: timestamppb.New(s.NotBefore), NotAfter: timestamppb.New(s.NotAfter),
			Revoked: c.cfg.Registry.Revoked(s), Outdated: c.cfg.Verifier.Earlier(s.Issuer),
		})
	}
	for _, i := range c.cfg.Verifier.Issuers() {
		resp.Issuers = append(resp.Issuers, &lofamov1.Certificate{
			Identity: "lofamo://" + c.cfg.Cluster + "/issuer", Serial: i.SerialNumber.Text(16), NotBefore: timestamppb.New(i.NotBefore),
			NotAfter: timestamppb.New(i.NotAfter),
		})
	}
	return resp, nil
}

// maxSkew limits the difference of the clocks of an operator and a supervisor. The times of a list decide from when on
// certificates are refused, and whether a new leader takes a revocation for an old one.
const maxSkew = time.Hour

// PutDenyList implements the service.
func (c *Certificates) PutDenyList(ctx context.Context, req *lofamov1.PutDenyListRequest) (*lofamov1.PutDenyListResponse, error) {
	if req.GetSigned() == nil {
		return nil, status.Error(codes.InvalidArgument, "signed: missing: want a list that an operator signed")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.GetSigned())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	l, err := pki.OpenDenyList(raw, c.cfg.Verifier, c.cfg.Cluster)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	stored, now := c.cfg.Stored(), c.cfg.List()
	if err := pki.CheckHalves(l.DenyList, now.DenyList); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%v: nothing was changed", err)
	}
	if err := l.Fits(); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "signed: %v: nothing was changed", err)
	}
	if own := certificate(ctx); own == nil || !bytes.Equal(own.Raw, req.GetSigned().GetCertificate()) {
		return nil, status.Errorf(codes.PermissionDenied,
			"the list is signed with another certificate of %s than the call's: nothing was changed", l.Signer)
	}
	if issued, clock := l.GetIssued().AsTime(), time.Now().UTC(); issued.Before(clock.Add(-maxSkew)) || issued.After(clock.Add(maxSkew)) {
		return nil, status.Errorf(codes.InvalidArgument,
			"issued: given %s, and this supervisor's clock says %s: want at most %s between them: set the clock that is wrong: nothing was changed",
			issued.Format(time.RFC3339), clock.Format(time.RFC3339), maxSkew)
	}
	if l.GetVersion() <= now.GetVersion() {
		return nil, status.Errorf(codes.Aborted, "version: given %d: want at least %d: nothing was changed", l.GetVersion(), now.GetVersion()+1)
	}
	if known := max(now.GetVersion(), c.cfg.Highest()); l.GetVersion() > known && l.GetVersion()-known > pki.MaxVersionJump {
		return nil, status.Errorf(codes.InvalidArgument, "version: given %d: want at most %d: nothing was changed", l.GetVersion(),
			known+pki.MaxVersionJump)
	}
	for _, d := range l.Denials() {
		if d.Identity == l.Signer {
			return nil, status.Errorf(codes.InvalidArgument,
				"denials: %s would revoke its own certificate: another operator has to: nothing was changed", l.Signer)
		}
	}
	if id, back := operatorTakenBack(now, l); back {
		return nil, status.Errorf(codes.InvalidArgument,
			"denials: the revocation of %s cannot be undone: issue a new certificate: nothing was changed", id)
	}
	if err := c.spared(l, now); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "denials: %v: nothing was changed", err)
	}
	revision, err := c.cfg.Store.PutDenied(ctx, stored, raw)
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil, status.Error(codes.Aborted, "another list was stored meanwhile: nothing was changed: read the list again")
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "%v: whether it was changed is not known: read the list", err)
	}
	c.cfg.Taken(l, revision)
	c.cfg.Logger.Info("list of revoked certificates replaced", "by", l.Signer.Name, "version", l.GetVersion(), "denials", len(l.GetDenials()))
	return &lofamov1.PutDenyListResponse{Version: l.GetVersion()}, nil
}

// maxLag limits how far a revocation may be behind this replica's clock. The operator's command reads its clock, then asks all supervisors,
// and then sends the list.
const maxLag = time.Minute

// spared returns an error if a new revocation of all certificates of an identity leaves one valid, because the operator's clock is behind.
func (c *Certificates) spared(l, before pki.DenyList) error {
	type key struct {
		pki.Identity
		before, revoked int64
	}
	keyOf := func(d pki.Denial) key { return key{d.Identity, d.Before.UnixNano(), d.Revoked.UnixNano()} }
	old := make(map[key]bool)
	for _, d := range before.Denials() {
		old[keyOf(d)] = true
	}
	clock := time.Now().UTC()
	for _, d := range l.Denials() {
		if !d.All() || old[keyOf(d)] {
			continue
		}
		if pki.CutOff(clock).Sub(d.Before) > maxLag {
			return fmt.Errorf("%s: revoked at %s by the operator's clock, and this supervisor's clock says %s: certificates issued since then "+
				"would stay valid: want at most %s between them: set the clock that is wrong", d.Identity, d.Revoked.UTC().Format(time.RFC3339),
				clock.Format(time.RFC3339), maxLag)
		}
		if n, known := c.cfg.Registry.Newest(d.Identity); known && !n.Descends.Before(d.Before) {
			return fmt.Errorf("%s: has a certificate that begins at %s, and only those that begin before %s would be refused: revoked at %s by "+
				"the operator's clock, and this supervisor's clock says %s: set the clock that is wrong, or give a later --begins-before",
				d.Identity, n.Descends.UTC().Format(time.RFC3339), d.Before.UTC().Format(time.RFC3339), d.Revoked.UTC().Format(time.RFC3339),
				clock.Format(time.RFC3339))
		}
	}
	return nil
}

// operatorTakenBack finds an operator whose revocation a newer list leaves out or shortens. Such an operator could
// sign again, and nodes that missed the newer list would refuse all lists that follow.
func operatorTakenBack(old, newer pki.DenyList) (id pki.Identity, back bool) {
	list := newer.Denials()
	for _, was := range old.Denials() {
		if was.Identity.Role == pki.RoleOperator && !slices.ContainsFunc(list, func(d pki.Denial) bool {
			return d.Identity == was.Identity && d.Serial == was.Serial && !d.Before.Before(was.Before)
		}) {
			return was.Identity, true
		}
	}
	return id, false
}
