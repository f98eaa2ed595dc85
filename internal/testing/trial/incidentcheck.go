package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// incidentBound is how long the incidents may differ from the faults that the map names, without load and hold-offs.
const incidentBound = 10 * time.Second

// incidentSet holds the incidents that a watch has shown.
type incidentSet struct {
	mu      sync.Mutex
	of      map[string]*lofamov1.Incident // by id
	most    int                           // of those not CLOSED, at once, since the round began
	changed chan struct{}                 // closed and renewed by every change
	ready   chan struct{}                 // closed by the first response
}

func newIncidentSet() *incidentSet {
	return &incidentSet{of: make(map[string]*lofamov1.Incident), changed: make(chan struct{}), ready: make(chan struct{})}
}

// watchIncidents keeps the set until ctx ends.
func (r *runner) watchIncidents(ctx context.Context) error {
	s := r.incidents
	ready := sync.OnceFunc(func() { close(s.ready) })
	err := r.lab.Client.WatchIncidents(ctx, &lofamov1.WatchIncidentsRequest{}, func(resp *lofamov1.WatchIncidentsResponse) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, in := range resp.GetIncidents() {
			s.of[in.GetId()] = in
		}
		s.most = max(s.most, len(s.standing()))
		close(s.changed)
		s.changed = make(chan struct{})
		ready()
		return nil
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// standing returns the incidents that are not CLOSED. The caller holds the mutex.
func (s *incidentSet) standing() (out []*lofamov1.Incident) {
	for _, in := range s.of {
		if in.GetState() != lofamov1.IncidentState_CLOSED {
			out = append(out, in)
		}
	}
	return out
}

// begin returns the incidents from before a round.
func (s *incidentSet) begin() map[string]*lofamov1.Incident {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = 0
	return maps.Clone(s.of)
}

// firstIncidents waits for those from before the first round.
func (r *runner) firstIncidents(ctx context.Context) error {
	bound := time.NewTimer(watchBound)
	defer bound.Stop()
	select {
	case <-r.incidents.ready:
	case <-bound.C:
		return fmt.Errorf("watch incidents: no answer within %s", watchBound)
	case <-ctx.Done():
		return ctx.Err()
	}
	if left := r.awaitIncidents(ctx, nil); len(left) > 0 {
		r.violate(fmt.Sprintf("incidents: before the first fault there are %q", left))
	}
	return nil
}

// awaitIncidents waits until the root causes of the incidents that are not CLOSED are those wanted, and returns them.
func (r *runner) awaitIncidents(ctx context.Context, want []string) []string {
	s := r.incidents
	bound := time.NewTimer(r.underLoad(incidentBound + 2*r.periods.LinkHoldOff))
	defer bound.Stop()
	for {
		s.mu.Lock()
		changed, open := s.changed, []string{}
		for _, in := range s.standing() {
			open = append(open, RootOf(r.o.Dims, in))
		}
		s.mu.Unlock()
		slices.Sort(open)
		if slices.Equal(open, want) {
			return open
		}
		select {
		case <-changed:
		case <-bound.C:
			return open
		case <-ctx.Done():
			return open
		}
	}
}

// judgeIncidents compares the incidents of a round with its faults, heals these, and waits until all incidents are CLOSED.
func (r *runner) judgeIncidents(ctx context.Context, round Round, before map[string]*lofamov1.Incident, heal func() error) error {
	if r.o.Restarts { // a half that is back is no fault any more
		return heal()
	}
	r.mu.Lock()
	faults := slices.Clone(r.truth.faults)
	r.mu.Unlock()
	score := IncidentRound{Dims: r.o.Dims, Want: Roots(r.o.Dims, r.racks, faults, nil)}
	for _, f := range faults {
		score.Kinds = append(score.Kinds, injected{Fault: f}.label())
	}
	score.Open = r.awaitIncidents(ctx, score.Want)
	if err := heal(); err != nil {
		return err
	}
	left := r.awaitIncidents(ctx, nil)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(left) > 0 {
		r.violate(fmt.Sprintf("incidents: after the heal there are %q", left))
	}
	s := r.incidents
	s.mu.Lock()
	score.Most = s.most
	var opened []string
	for id, in := range s.of {
		if before[id] != nil {
			continue
		}
		score.Ever++
		if in.GetMergedInto() == "" {
			score.Opened++
			opened = append(opened, fmt.Sprintf("%s %s", RootOf(r.o.Dims, in), in.GetSummary()))
		}
	}
	s.mu.Unlock()
	score.Outage = slices.ContainsFunc(round.Steps, func(s Step) bool { return s.Op == KillSupervisor || s.Op == StopSupervisor })
	if score.Outage {
		r.record.Incidents.Leaders++
	}
	for _, bad := range r.record.Incidents.Add(score) {
		slices.Sort(opened)
		r.violate(fmt.Sprintf("incidents: %s: open %q: want %q; opened: %s", bad, score.Open, score.Want, strings.Join(opened, "; ")))
	}
	return nil
}

// ReadScore reads a file that holds the score of a simulation; a missing file has none.
func ReadScore(path string) (*IncidentScore, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil //nolint:nilnil // no score is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read the score of incidents: %w", err)
	}
	s := new(IncidentScore)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read the score of incidents %s: %w", path, err)
	}
	return s, nil
}
