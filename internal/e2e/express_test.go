package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// listeners are processes of a job, one at each node.
type listeners struct {
	t       trial
	job     string
	clients map[string]*jobs.Client
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu    sync.Mutex
	heard map[string]map[string]int // by node, then by body
	news  chan struct{}
}

// listen lets a process at each node watch the eurekas of a job, and waits until all do.
func (t trial) listen(job string) *listeners {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &listeners{t: t, job: job, clients: map[string]*jobs.Client{}, stop: stop, heard: map[string]map[string]int{},
		news: make(chan struct{}, 1)}
	ready := make(chan string, len(t.Cluster.Info().Nodes))
	for _, n := range t.Cluster.Info().Nodes {
		c, err := jobs.Dial(filepath.Join(n.StateDir, "local.sock"))
		if err != nil {
			t.Fatal(err)
		}
		node := string(n.ID)
		l.clients[node], l.heard[node] = c, map[string]int{}
		l.done.Go(func() {
			_ = c.WatchEureka(ctx, job, func(h jobs.Heard) error {
				if h.Eureka == nil {
					ready <- node
					return nil
				}
				l.mu.Lock()
				l.heard[node][string(h.Eureka.Body)]++
				l.mu.Unlock()
				select {
				case l.news <- struct{}{}:
				default:
				}
				return nil
			})
		})
	}
	t.Cleanup(func() {
		stop()
		l.done.Wait()
		for _, c := range l.clients {
			_ = c.Close()
		}
	})
	for range l.clients {
		select {
		case <-ready:
		case <-time.After(patience):
			t.Fatal("not all nodes let their jobs watch eurekas")
		}
	}
	return l
}

// reaches waits until a eureka raised at a node has arrived everywhere.
func (l *listeners) reaches(from, body string) time.Duration {
	l.t.Helper()
	begin := time.Now()
	if err := l.clients[from].RaiseEureka(l.t.Context(), l.job, jobs.Eureka{Topic: "test", Body: []byte(body), Priority: 3}); err != nil {
		l.t.Fatal(err)
	}
	deadline := time.After(patience)
	for {
		var missing []string
		l.mu.Lock()
		for node, heard := range l.heard {
			if heard[body] == 0 {
				missing = append(missing, node)
			}
		}
		l.mu.Unlock()
		if len(missing) == 0 {
			return time.Since(begin)
		}
		select {
		case <-l.news:
		case <-deadline:
			l.t.Fatalf("%q of %s has not reached %v", body, from, missing)
		}
	}
}

// TestEurekaAroundCuts: real processes, no service network at any node, and half of the links cut, one of them in one
// direction: a job's eureka from one node arrives at all others, once (seed 003 §4.2); and a barrier of all nodes
// completes.
func TestEurekaAroundCuts(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "3x3x1", cluster.Options{Supervisors: 1, Periods: patient()})
	try(t, l, "eureka", func(t trial) {
		heard := t.listen("cuts")
		took := heard.reaches("n0-0-0", "whole")
		t.Logf("whole torus: %s", took)
		nodes := t.Cluster.Info().Nodes
		var members []string
		for _, n := range nodes {
			members = append(members, string(n.ID))
			t.mayFail(string(n.ID), "service-network")
			t.inject(string(n.ID), simple(cluster.CutService))
		}
		// The remaining links form one path from 0,0 through all nodes: along the rows, and up at their ends.
		cut := func(node string, d grid.Direction, oneWay bool) {
			t.inject(node, cluster.Fault{Kind: cluster.CutLink, Dir: d, OneWay: oneWay})
		}
		for y := range 3 {
			cut(fmt.Sprintf("n2-%d-0", y), grid.XPlus, false)
			for x := range 3 {
				if y == 2 || y == 0 && x != 2 || y == 1 && x != 0 {
					cut(fmt.Sprintf("n%d-%d-0", x, y), grid.YPlus, y == 2 && x == 1)
				}
			}
		}
		for i, n := range nodes {
			body := fmt.Sprintf("cut %d", i)
			t.Logf("from %s: %s", n.ID, heard.reaches(string(n.ID), body))
		}
		heard.mu.Lock()
		for node, by := range heard.heard {
			for body, n := range by {
				if n != 1 {
					t.Errorf("%s heard %q %d times", node, body, n)
				}
			}
		}
		heard.mu.Unlock()
		var wait sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for node, c := range heard.clients {
			wait.Go(func() {
				if err := c.Job(jobs.Job{Name: "cuts", Members: members, Participant: node}).Barrier(ctx, "step"); err != nil {
					t.Errorf("barrier at %s: %v", node, err)
				}
			})
		}
		wait.Wait()
	})
}
