package clienttest

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Certificates is the service Certificates of a server. Its fields must not change after the first call.
type Certificates struct {
	lofamov1.UnimplementedCertificatesServer

	List *lofamov1.ListCertificatesResponse
	Hang bool  // ListCertificates does not answer
	Err  error // of PutDenyList
	// Put counts the calls of PutDenyList.
	Put int
	// Hold, if set, blocks each PutDenyList: the call sends a value on Hold, and then waits to receive one from Hold.
	Hold chan struct{}
}

// ListCertificates implements the service.
func (c *Certificates) ListCertificates(ctx context.Context, _ *lofamov1.ListCertificatesRequest) (*lofamov1.ListCertificatesResponse,
	error) {
	if c.Hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.List, nil
}

// PutDenyList implements the service.
func (c *Certificates) PutDenyList(context.Context, *lofamov1.PutDenyListRequest) (*lofamov1.PutDenyListResponse, error) {
	c.Put++
	if c.Hold != nil {
		c.Hold <- struct{}{}
		<-c.Hold
	}
	return &lofamov1.PutDenyListResponse{}, c.Err
}
