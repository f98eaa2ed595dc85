package clienttest

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// ListIncidents implements the service. It filters by state only, and cuts the list into pages.
func (s *Server) ListIncidents(_ context.Context, req *lofamov1.ListIncidentsRequest) (*lofamov1.ListIncidentsResponse, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	resp := &lofamov1.ListIncidentsResponse{Revision: s.m.revision(), MissingRegions: s.m.MissingRegions[req.GetContinue()]}
	var chosen []*lofamov1.Incident
	for _, in := range s.m.Incidents {
		if len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), in.GetState()) {
			chosen = append(chosen, in)
		}
	}
	var err error
	resp.Incidents, resp.Continue, err = page(s, chosen, req.GetLimit(), req.GetContinue())
	return resp, err
}

// GetIncident implements the service.
func (s *Server) GetIncident(_ context.Context, req *lofamov1.GetIncidentRequest) (*lofamov1.Incident, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	return s.incident(req.GetId())
}

func (s *Server) incident(id string) (*lofamov1.Incident, error) {
	i := slices.IndexFunc(s.m.Incidents, func(in *lofamov1.Incident) bool { return in.GetId() == id })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "incident %s: there is none, or it is no longer kept", id)
	}
	return s.m.Incidents[i], nil
}

// WatchIncidents implements the service, as Map.IncidentWatches says.
func (s *Server) WatchIncidents(req *lofamov1.WatchIncidentsRequest,
	stream grpc.ServerStreamingServer[lofamov1.WatchIncidentsResponse]) error {
	if err := s.ask(req); err != nil {
		return err
	}
	s.m.mu.Lock()
	var script []*lofamov1.WatchIncidentsResponse
	if len(s.m.IncidentWatches) > 0 {
		script, s.m.IncidentWatches = s.m.IncidentWatches[0], s.m.IncidentWatches[1:]
	}
	s.m.mu.Unlock()
	if script != nil {
		for _, resp := range script {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "cut")
	}
	if err := stream.Send(&lofamov1.WatchIncidentsResponse{Incidents: s.m.Incidents, Revision: 1}); err != nil {
		return err
	}
	return status.Error(codes.PermissionDenied, "the end")
}

// AcknowledgeIncident implements the service.
func (s *Server) AcknowledgeIncident(_ context.Context,
	req *lofamov1.AcknowledgeIncidentRequest) (*lofamov1.AcknowledgeIncidentResponse, error) {
	if err := s.ask(req); err != nil {
		return nil, err
	}
	in, err := s.incident(req.GetId())
	if err != nil {
		return nil, err
	}
	return &lofamov1.AcknowledgeIncidentResponse{Incident: in, Revision: 2}, nil
}
