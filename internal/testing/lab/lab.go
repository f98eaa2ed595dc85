// Package lab is a local cluster under observation: it starts one, watches its fault map, and waits
// for changes with a bound. The end-to-end tests and the measurements use it.
//
// It adds nothing to the cluster and judges nothing; internal/cluster makes the cluster and the
// faults.
package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
)

// Seen is a change of the fault map and when it was received.
type Seen struct {
	*lofamov1.Event
	At int64 // cluster.Monotonic, in nanoseconds
}

// String prints a change in one line.
func (s Seen) String() string {
	return fmt.Sprintf("%s %s %s→%s cause %s path %s (%s)", s.GetNode(), s.GetComponent(), s.GetFrom(), s.GetTo(), s.GetCause(), s.GetPath(),
		s.GetReason())
}

// Lab is a running local cluster and the record of its changes.
type Lab struct {
	Cluster *cluster.Cluster
	Client  *client.Client

	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	seen    []Seen
	more    chan struct{} // closed and replaced whenever seen grows
	watched error
}

// Start makes a cluster, starts it, waits until all its nodes are NORMAL and begins the record.
// The caller closes the Lab.
func Start(ctx context.Context, o cluster.Options) (*Lab, error) {
	c, err := cluster.Create(o)
	if err != nil {
		return nil, err
	}
	l := &Lab{Cluster: c, more: make(chan struct{}), done: make(chan struct{})}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	if err := l.Cluster.Start(ctx, nil); err != nil {
		return err
	}
	if err := l.Cluster.WaitNormal(ctx, nil); err != nil {
		return err
	}
	cl, err := l.Cluster.Client()
	if err != nil {
		return err
	}
	var now *lofamov1.ListEventsResponse
	for { // on a busy machine one try may time out
		if now, err = cl.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1}); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, cl.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
	l.Client = cl
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.watch(watching, now.GetRevision())
	return nil
}

func (l *Lab) watch(ctx context.Context, after uint64) {
	defer close(l.done)
	err := l.Client.Watch(ctx, client.WatchOptions{After: after}, func(r *lofamov1.WatchResponse) error {
		at := cluster.Monotonic()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, e := range r.GetEvents() {
			l.seen = append(l.seen, Seen{e, at})
		}
		close(l.more)
		l.more = make(chan struct{})
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched = err
	close(l.more)
	l.more = make(chan struct{})
}

// Close ends the record and the cluster.
func (l *Lab) Close() error {
	l.stop()
	<-l.done
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return errors.Join(l.Client.Close(), l.Cluster.Stop(ctx))
}

// Mark returns the present end of the record.
func (l *Lab) Mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// Since returns the record after a mark.
func (l *Lab) Since(mark int) []Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen[mark:])
}

// Wait returns the first change after mark that match accepts, waiting for it until ctx ends. The
// error lists the record instead.
func (l *Lab) Wait(ctx context.Context, mark int, match func(Seen) bool) (Seen, error) {
	next := mark
	for {
		l.mu.Lock()
		fresh, more, watched := l.seen[next:], l.more, l.watched
		l.mu.Unlock()
		for _, s := range fresh {
			if match(s) {
				return s, nil
			}
		}
		next += len(fresh)
		if watched != nil {
			return Seen{}, fmt.Errorf("watch the fault map: %w", watched)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Seen{}, fmt.Errorf("%w; seen meanwhile:%s", ctx.Err(), lines(l.Since(mark)))
		}
	}
}

func lines(seen []Seen) string {
	if len(seen) == 0 {
		return " nothing"
	}
	var b strings.Builder
	for _, s := range seen {
		b.WriteString("\n  " + s.String())
	}
	return b.String()
}

// Becomes matches the change of one component of a node to one of the states.
func Becomes(node, component string, states ...lofamov1.State) func(Seen) bool {
	return func(s Seen) bool {
		return s.GetNode() == node && s.GetComponent() == component && slices.Contains(states, s.GetTo())
	}
}

// Settle waits until every node is NORMAL and a supervisor has heard it since Settle began. Then it waits until no link is SICK or FAILED,
// because a node with such a link is NORMAL itself, and a link that has flapped recovers later.
func (l *Lab) Settle(ctx context.Context) error {
	if err := l.Cluster.WaitNormalSince(ctx, time.Now(), nil); err != nil {
		return err
	}
	for {
		bad := "the supervisors do not answer"
		if all, err := l.Client.ListNodes(ctx, &lofamov1.ListNodesRequest{}); err == nil {
			if bad = badLink(all.GetNodes()); bad == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the links to be NORMAL: %w; last seen: %s", ctx.Err(), bad)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// badLink names one link that is SICK or FAILED; empty: there is none.
func badLink(nodes []*lofamov1.Node) string {
	for _, n := range nodes {
		for _, c := range n.GetComponents() {
			bad := c.GetState() == lofamov1.State_SICK || c.GetState() == lofamov1.State_FAILED
			if bad && strings.HasPrefix(c.GetName(), "link/") {
				return n.GetId() + " " + c.GetName() + " " + c.GetState().String()
			}
		}
	}
	return ""
}
