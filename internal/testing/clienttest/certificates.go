package clienttest

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Certificates is the service Certificates of a server. Its fields must not change after the first call.
type Certificates struct {
	lofamov1.UnimplementedCertificatesServer

	List *lofamov1.ListCertificatesResponse
}

// ListCertificates implements the service.
func (c *Certificates) ListCertificates(context.Context, *lofamov1.ListCertificatesRequest) (*lofamov1.ListCertificatesResponse, error) {
	return c.List, nil
}
