package supervisor

import (
	"context"
	"fmt"
	"sync"
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
	rooms := make(map[string]room)
	for {
		short, roomy := s.countRoom(ctx, rooms)
		s.store.member.Hold(holds(len(s.engine.replicas.all()), short, roomy))
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// holds reports whether n replicas hold their writes when some are short of room and some have room. The others are silent.
func holds(n, short, roomy int) bool { return short > 0 && roomy < n/2+1 }

// room is what another replica last answered about its disk. One that has not answered yet counts as one with room.
type room struct {
	short  bool
	silent int // rounds since then
}

// silentRounds is the number of rounds for which an answer counts: a replica that restarts has time for that.
const silentRounds = 15

// countRoom counts the replicas that are short of room, and those that have room, by their last answers.
func (s *Supervisor) countRoom(ctx context.Context, rooms map[string]room) (short, roomy int) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	all := s.engine.replicas.all()
	now := make([]room, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		if r.GetId() == s.cfg.ID {
			now[i].short = s.store.member.Short()
			continue
		}
		now[i] = rooms[r.GetId()]
		now[i].silent++
		if conn := s.engine.peers.Conn(r.GetId()); conn != nil {
			wg.Go(func() {
				resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: api.HealthRoom})
				if err == nil {
					now[i] = room{short: resp.GetStatus() != healthpb.HealthCheckResponse_SERVING}
				}
			})
		}
	}
	wg.Wait()
	for i, r := range all {
		rooms[r.GetId()] = now[i]
	}
	return count(now)
}

// count counts the replicas that are short of room, and those that have room.
func count(rooms []room) (short, roomy int) {
	for _, r := range rooms {
		switch {
		case r.silent > silentRounds:
		case r.short:
			short++
		default:
			roomy++
		}
	}
	return short, roomy
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
