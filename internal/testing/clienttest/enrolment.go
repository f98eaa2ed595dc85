package clienttest

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Enrolment is the service Enrolment of a server: it makes the same token for every request.
type Enrolment struct {
	lofamov1.UnimplementedEnrolmentServer

	Token string
}

// CreateToken implements the service.
func (e *Enrolment) CreateToken(context.Context, *lofamov1.CreateTokenRequest) (*lofamov1.CreateTokenResponse, error) {
	return &lofamov1.CreateTokenResponse{Token: e.Token}, nil
}
