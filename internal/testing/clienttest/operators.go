package clienttest

import (
	"context"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Operators are a server's answers to operators. Set it before the first call.
type Operators struct {
	Topology *lofamov1.Topology
	Applied  *lofamov1.ApplyTopologyResponse
	Marked   *lofamov1.SetMaintenanceResponse
	Masks    *lofamov1.ListMasksResponse
	// Errs are the errors of the next changes; nil: success.
	Errs []error
	// Asked has the requests for changes.
	Asked []string
	Sent  []*lofamov1.ApplyTopologyRequest
}

func (o *Operators) next(call string) error {
	o.Asked = append(o.Asked, call)
	if len(o.Errs) == 0 {
		return nil
	}
	err := o.Errs[0]
	o.Errs = o.Errs[1:]
	return err
}

// GetTopology implements the service.
func (s *Server) GetTopology(context.Context, *lofamov1.GetTopologyRequest) (*lofamov1.Topology, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Operators.Topology, s.refuse
}

// ListMasks implements the service.
func (s *Server) ListMasks(context.Context, *lofamov1.ListMasksRequest) (*lofamov1.ListMasksResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Operators.Masks, s.refuse
}

// ApplyTopology implements the service.
func (s *Server) ApplyTopology(_ context.Context, req *lofamov1.ApplyTopologyRequest) (*lofamov1.ApplyTopologyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Operators.Sent = append(s.Operators.Sent, req)
	return s.Operators.Applied, s.Operators.next("apply")
}

// SetMaintenance implements the service.
func (s *Server) SetMaintenance(_ context.Context, req *lofamov1.SetMaintenanceRequest) (*lofamov1.SetMaintenanceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Operators.Marked, s.Operators.next("set " + req.String())
}

// EndMaintenance implements the service.
func (s *Server) EndMaintenance(_ context.Context, req *lofamov1.EndMaintenanceRequest) (*lofamov1.EndMaintenanceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &lofamov1.EndMaintenanceResponse{Revision: 50}, s.Operators.next("end " + req.String())
}
