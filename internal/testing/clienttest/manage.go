package clienttest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Manage are a server's answers as lofamo.v1.Manage. Set it before the first call.
type Manage struct {
	lofamov1.UnimplementedManageServer

	Responses []*lofamov1.DiagnoseResponse // of Diagnose
	Last      *lofamov1.DiagnosisReport
	Procedure []*lofamov1.StartProcedureResponse // of StartProcedure
	LastOver  *lofamov1.ProcedureReport
	// Err is the error of all calls; streams return it at their end.
	Err error
	// Asked has the requests, in words.
	Asked []string
}

// Diagnose implements the service.
func (m *Manage) Diagnose(req *lofamov1.DiagnoseRequest, s grpc.ServerStreamingServer[lofamov1.DiagnoseResponse]) error {
	m.Asked = append(m.Asked, req.GetNode()+" "+req.GetLink())
	for _, r := range m.Responses {
		if err := s.Send(r); err != nil {
			return err
		}
	}
	return m.Err
}

// StartProcedure implements the service.
func (m *Manage) StartProcedure(req *lofamov1.StartProcedureRequest, s grpc.ServerStreamingServer[lofamov1.StartProcedureResponse]) error {
	m.Asked = append(m.Asked, fmt.Sprintf("drain %t %s %d %s", req.GetDiagnose(), req.GetNode(), req.GetDrainTimeoutMs(), req.GetReason()))
	for _, r := range m.Procedure {
		if err := s.Send(r); err != nil {
			return err
		}
	}
	return m.Err
}

// GetProcedure implements the service.
func (m *Manage) GetProcedure(context.Context, *lofamov1.GetProcedureRequest) (*lofamov1.ProcedureReport, error) {
	return m.LastOver, m.Err
}

// GetDiagnosis implements the service.
func (m *Manage) GetDiagnosis(context.Context, *lofamov1.GetDiagnosisRequest) (*lofamov1.DiagnosisReport, error) {
	return m.Last, m.Err
}
