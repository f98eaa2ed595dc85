package fleet

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Steady sends every living node's digests until it is stopped, spread evenly over the digest period. A node that has signed an
// accusation sends none until the accusation is sent.
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
			if n.dead.Load() || n.signed.Load() || rank >= joined {
				continue
			}
			if err := f.speak(n); err != nil {
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

// unheard bounds the nodes whose first digest SpeakOnce has sent and that are not NORMAL yet: half of a leader's queue.
const unheard = 2048

// resendAfter is the time without progress after which SpeakOnce repeats the digests.
const resendAfter = 5 * time.Second

// SpeakOnce sends the first digest of every living node, as fast as the map takes them in, and again where one was dropped.
func (f *Fleet) SpeakOnce(ctx context.Context) error {
	next, normal, progress := 0, 0, time.Now()
	for {
		s, err := f.client.GetSummary(ctx, &lofamov1.GetSummaryRequest{})
		if err != nil {
			return err
		}
		if n := int(s.GetNodes().GetNormal()); n != normal {
			normal, progress = n, time.Now()
		}
		switch {
		case next == len(f.nodes) && normal == len(f.nodes):
			return nil
		case time.Since(progress) > resendAfter:
			next, progress = 0, time.Now()
		}
		for ; next < len(f.nodes) && next < normal+unheard; next++ {
			if err := f.speak(f.nodes[next]); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// speak sends one digest of a node.
func (f *Fleet) speak(n *Node) error {
	b, err := n.digest()
	if err != nil {
		return err
	}
	return f.wire.send(n, f.targets[n.target.Load()], b)
}
