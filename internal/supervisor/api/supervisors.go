package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// complaintTime is how long the other replicas may take to return their alarms.
const complaintTime = 500 * time.Millisecond

// ListSupervisors implements the service. Each replica returns its own alarms, whichever replica the client asks: a
// store that is full, or has no quorum, could not carry them.
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
				return // its state shows that it is not reached
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
