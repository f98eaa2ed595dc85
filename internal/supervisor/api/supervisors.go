package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// complaintTime is how long the other replicas may take to say what they complain of.
const complaintTime = 500 * time.Millisecond

// ListSupervisors implements the service. What a replica complains of it says itself, to whoever is asked: a store that is
// full, or has no quorum, could not carry it.
func (s *Server) ListSupervisors(ctx context.Context, req *lofamov1.ListSupervisorsRequest) (*lofamov1.ListSupervisorsResponse, error) {
	list := s.cfg.Directory.Supervisors(ctx)
	if isProxied(ctx) {
		return &lofamov1.ListSupervisorsResponse{Supervisors: list}, nil
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1"), complaintTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, sup := range list {
		conn := s.cfg.Directory.Conn(sup.GetId())
		if sup.GetId() == s.cfg.Self || conn == nil || sup.GetState() != lofamov1.State_NORMAL {
			continue
		}
		wg.Go(func() {
			resp, err := lofamov1.NewFaultSupervisorClient(conn).ListSupervisors(ctx, req)
			if err != nil {
				return // that it is not reached its state tells
			}
			for _, said := range resp.GetSupervisors() {
				if said.GetId() == sup.GetId() {
					sup.Alarms, sup.QuorumAge = said.GetAlarms(), said.GetQuorumAge()
				}
			}
		})
	}
	wg.Wait()
	return &lofamov1.ListSupervisorsResponse{Supervisors: list}, nil
}
