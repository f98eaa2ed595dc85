package fleet

import (
	"context"
	"sync"
	"time"
)

// Steady sends every living node's digests until it is stopped, spread evenly over the digest period.
type Steady struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	err  error
	late time.Duration // the most that a digest was behind its time
}

// joining is the number of nodes that begin to speak in a second: they are switched on one after the other.
const joining = 1000

// Steady begins. The digests' period is the supervisors' period.
func (f *Fleet) Steady(ctx context.Context) *Steady {
	ctx, cancel := context.WithCancel(ctx)
	s := &Steady{cancel: cancel}
	s.wg.Go(func() {
		if err := s.run(ctx, f); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
		}
	})
	return s
}

// step is the number of parts of a period: digests of one part go together.
const step = 5 * time.Millisecond

func (s *Steady) run(ctx context.Context, f *Fleet) error {
	begun := time.Now()
	period := f.periods.DigestPeriod
	for sent := 0; ctx.Err() == nil; {
		due := int(float64(len(f.nodes)) * float64(time.Since(begun)) / float64(period))
		joined := int(joining * time.Since(begun).Seconds())
		for ; sent < due; sent++ {
			rank := sent % len(f.nodes)
			n := f.nodes[rank]
			if n.dead.Load() || rank >= joined {
				continue
			}
			b, err := n.digest()
			if err != nil {
				return err
			}
			if err := f.wire.send(f.targets[n.target], b); err != nil {
				return err
			}
		}
		behind := time.Since(begun) - time.Duration(float64(sent)*float64(period)/float64(len(f.nodes)))
		s.mu.Lock()
		s.late = max(s.late, behind)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(step):
		}
	}
	return nil
}

// Stop ends it, and returns how far behind its time a digest ever was.
func (s *Steady) Stop() (late time.Duration, err error) {
	s.cancel()
	s.wg.Wait()
	return s.late, s.err
}

// SpeakOnce sends one digest of every living node, spread over a time.
func (f *Fleet) SpeakOnce(ctx context.Context, over time.Duration) error {
	begun := time.Now()
	for i, n := range f.nodes {
		if d := time.Until(begun.Add(over * time.Duration(i) / time.Duration(len(f.nodes)))); d > step {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
			}
		}
		b, err := n.digest()
		if err != nil {
			return err
		}
		if err := f.wire.send(f.targets[n.target], b); err != nil {
			return err
		}
	}
	return nil
}
