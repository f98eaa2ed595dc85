package client_test

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestStreamErrorsKeepCodeAndCause: a caller that tries again later needs the supervisor's code, and its own error if it ended the call.
func TestStreamErrorsKeepCodeAndCause(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Manage.Err = status.Error(codes.ResourceExhausted, "another diagnosis runs")
	s.Admin.Steps, s.Admin.Err = []*lofamov1.MemberProgress{{}}, status.Error(codes.Aborted, "another change of members")
	s.Responses.Changes, s.Responses.Lines = []*lofamov1.WatchResponsesResponse{{}}, auditLines(1, 1)
	c, own := dial(t, dir, s.Address), errors.New("disk full")
	if _, err := c.Diagnose(bounded(t), &lofamov1.DiagnoseRequest{}, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a busy cluster: %v: want ResourceExhausted", err)
	}
	err := c.AddMember(bounded(t), &lofamov1.AddMemberRequest{}, func(*lofamov1.MemberProgress) error { return nil })
	if status.Code(err) != codes.Aborted {
		t.Errorf("a change that fails after its first step: %v: want Aborted", err)
	}
	err = c.ExportAudit(bounded(t), &lofamov1.ExportAuditRequest{}, func([]*lofamov1.AuditLine) error { return own })
	if !errors.Is(err, own) {
		t.Errorf("an export that its caller ends: %v: want the caller's error", err)
	}
}
