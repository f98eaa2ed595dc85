package supervisor

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/supervisor/api"
)

// A member of the store that has no room for its log ends. While a majority has room, that is a replica less, and the others go on. If
// the disks of a majority are short, all replicas hold their writes instead: they stay, keep their leader, which finds and shows faults
// as before, and commit everything once there is room again.

// holdWrites holds this replica's writes while too few replicas have room, until ctx ends. It asks the others every probePeriod.
func (s *Supervisor) holdWrites(ctx context.Context) {
	t := time.NewTicker(probePeriod)
	defer t.Stop()
	for {
		short, roomy := s.countRoom(ctx)
		s.store.member.Hold(holds(len(s.engine.replicas.all()), short, roomy))
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// holds reports whether n replicas hold their writes when some are short of room and some have room. The others do not answer.
func holds(n, short, roomy int) bool { return short > 0 && roomy < n/2+1 }

// countRoom counts the replicas that are short of room, and those that have room.
func (s *Supervisor) countRoom(ctx context.Context) (short, roomy int) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var shorts, roomies atomic.Int64
	var wg sync.WaitGroup
	for _, r := range s.engine.replicas.all() {
		if r.GetId() == s.cfg.ID {
			if s.store.member.Short() {
				shorts.Add(1)
			} else {
				roomies.Add(1)
			}
			continue
		}
		if conn := s.engine.peers.Conn(r.GetId()); conn != nil {
			wg.Go(func() {
				resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: api.HealthRoom})
				switch {
				case err != nil:
				case resp.GetStatus() == healthpb.HealthCheckResponse_SERVING:
					roomies.Add(1)
				default:
					shorts.Add(1)
				}
			})
		}
	}
	wg.Wait()
	return int(shorts.Load()), int(roomies.Load())
}

// noRoom returns the alarm about disks that are too full for the store.
func (s *Supervisor) noRoom() []string {
	m := s.store.member
	if m == nil || !m.Short() && !m.Held() {
		return nil
	}
	text := "this replica has room, but too few others have"
	if room, err := durable.RoomOf(s.cfg.DataDir); m.Short() && err == nil {
		text = room.String()
	}
	if m.Held() {
		text += ": nothing is committed"
	}
	return []string{fmt.Sprintf("%s: %s", alarmNoRoom, text)}
}
