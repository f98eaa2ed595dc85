package client

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// ListCertificates asks every supervisor. It returns the newest list of revoked certificates, the newest certificate of each
// identity that any supervisor has seen, the issuers that any supervisor trusts, and the latest of the supervisors' clocks at the return.
// It fails if no supervisor answers.
func (c *Client) ListCertificates(ctx context.Context) (*lofamov1.ListCertificatesResponse, error) {
	out := &lofamov1.ListCertificatesResponse{}
	at := make(map[string]int)
	var ahead time.Duration // of the latest clock
	var tried []Try
	for i, target := range c.cfg.Targets {
		err := c.watchAt(ctx, i, func(ctx context.Context, conn *grpc.ClientConn) error {
			ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
			defer cancel()
			resp, err := lofamov1.NewCertificatesClient(conn).ListCertificates(ctx, &lofamov1.ListCertificatesRequest{})
			if err != nil {
				return err
			}
			if out.GetNextVersion() == 0 || resp.GetList().GetVersion() > out.GetList().GetVersion() {
				out.List, out.Signed = resp.GetList(), resp.GetSigned()
			}
			out.NextVersion = max(out.GetNextVersion(), resp.GetNextVersion())
			if at := resp.GetClock(); at != nil {
				if by := time.Until(at.AsTime()); out.GetClock() == nil || by > ahead {
					out.Clock, ahead = at, by
				}
			}
			for _, one := range resp.GetCertificates() {
				k, known := at[one.GetIdentity()]
				switch {
				case !known:
					at[one.GetIdentity()] = len(out.Certificates)
					out.Certificates = append(out.Certificates, one)
				case one.GetNotBefore().AsTime().After(out.Certificates[k].GetNotBefore().AsTime()):
					out.Certificates[k] = one
				}
			}
			for _, one := range resp.GetIssuers() {
				if !slices.ContainsFunc(out.Issuers, func(o *lofamov1.Certificate) bool { return o.GetSerial() == one.GetSerial() }) {
					out.Issuers = append(out.Issuers, one)
				}
			}
			return nil
		})
		if err != nil {
			if !otherMayAnswer(err) {
				return nil, err
			}
			tried = append(tried, Try{target, err})
		}
	}
	if len(tried) == len(c.cfg.Targets) {
		return nil, &NoAnswerError{tried}
	}
	if out.GetClock() != nil {
		out.Clock = timestamppb.New(time.Now().Add(ahead))
	}
	return out, nil
}

// PutDenyList replaces the list of revoked certificates.
func (c *Client) PutDenyList(ctx context.Context, signed *lofamov1.SignedDenyList) (*lofamov1.PutDenyListResponse, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.PutDenyListResponse, error) {
		return lofamov1.NewCertificatesClient(conn).PutDenyList(ctx, &lofamov1.PutDenyListRequest{Signed: signed})
	})
}
