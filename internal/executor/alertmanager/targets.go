package alertmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/pkg/response"
)

// Targets sends alerts to the configured Alertmanagers, and to the Alertmanagers that operators have added as targets. The parameter target
// of a step names an added one; without it the configured ones get the alert. Do needs Run beside it.
type Targets struct {
	cluster  string
	standing executor.Active
	log      *slog.Logger
	changed  chan struct{} // holds a signal that the targets have changed

	mu  sync.Mutex
	all map[string]addressed // by name; "": the configured ones
}

// addressed is an executor with the target that it sends to.
type addressed struct {
	*Executor

	to notify.Target // zero: the configured ones
}

// NewTargets returns the targets of a cluster. cfg is nil if no Alertmanager is configured. standing returns the alerts to maintain.
func NewTargets(cluster string, cfg *Config, standing executor.Active, log *slog.Logger) (*Targets, error) {
	t := &Targets{cluster: cluster, standing: standing, log: log, changed: make(chan struct{}, 1), all: map[string]addressed{}}
	if cfg == nil {
		return t, nil
	}
	x, err := New(*cfg, t.of(""), log)
	if err != nil {
		return nil, err
	}
	t.all[""] = addressed{Executor: x}
	return t, nil
}

// of returns the standing alerts of one target.
func (t *Targets) of(name string) executor.Active {
	return func(ctx context.Context, kinds ...response.Kind) ([]executor.Job, bool, error) {
		all, leads, err := t.standing(ctx, kinds...)
		var jobs []executor.Job
		for _, j := range all {
			if j.Parameters["target"] == name {
				jobs = append(jobs, j)
			}
		}
		return jobs, leads, err
	}
}

// SetTargets replaces the targets that operators have added. It leaves out those that are no Alertmanager.
func (t *Targets) SetTargets(added []notify.Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]addressed{}
	if x, ok := t.all[""]; ok {
		all[""] = x
	}
	for _, to := range added {
		if to.Format != notify.Alertmanager {
			continue
		}
		if x, ok := t.all[to.Name]; ok && x.to == to {
			all[to.Name] = x
			continue
		}
		x, err := t.added(to)
		if err != nil {
			continue // unreachable: only files can be wrong, and it has none
		}
		all[to.Name] = addressed{x, to}
	}
	t.all = all
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// added returns an executor for a target that an operator has added.
func (t *Targets) added(to notify.Target) (*Executor, error) {
	cfg := Config{URLs: []string{strings.TrimSuffix(strings.TrimSuffix(to.URL, "/"), "/api/v2/alerts")},
		RequestTimeout: config.Duration(notify.RequestTimeout)}.Filled()
	x, err := newExecutor(cfg, notify.CheckAddress, t.of(to.Name), t.log)
	if err != nil {
		return nil, err
	}
	x.names = []string{"target " + to.Name}
	return x, nil
}

func (t *Targets) find(name string) (addressed, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, ok := t.all[name]
	return x, ok
}

// Run keeps alerts firing until ctx ends. It returns when all its requests have ended.
func (t *Targets) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := map[*Executor]context.CancelFunc{}
	for {
		stand := map[*Executor]bool{}
		t.mu.Lock()
		for _, x := range t.all {
			stand[x.Executor] = true
		}
		t.mu.Unlock()
		for x, end := range ends {
			if !stand[x] {
				end()
				delete(ends, x)
			}
		}
		for x := range stand {
			if ends[x] == nil {
				one, end := context.WithCancel(ctx)
				ends[x] = end
				work.Go(func() { x.Run(one) })
			}
		}
		select {
		case <-t.changed:
		case <-ctx.Done():
			return
		}
	}
}

// Do implements executor.Executor.
func (t *Targets) Do(ctx context.Context, j executor.Job) executor.Result {
	name := j.Parameters["target"]
	x, ok := t.find(name)
	switch {
	case ok:
		return x.Do(ctx, j)
	case j.Undo && name != "":
		return executor.Done("target %s was removed: its alerts end by themselves", name)
	case name != "":
		return executor.NotBegun(j, "%s: there is no target %q for it", j.Kind, name)
	default:
		return executor.NotBegun(j, "there is no executor for %s: responses.executors of the supervisors' configuration names none, and the "+
			"step names no target", j.Kind)
	}
}

// testTime is how long a test alert fires.
const testTime = time.Minute

// Test raises an alert at a target that ends by itself. Its error says why the target has not accepted the alert.
func (t *Targets) Test(ctx context.Context, to notify.Target) error {
	x, err := t.added(to)
	if err != nil {
		return err
	}
	now := time.Now()
	got := x.post(ctx, post{Alerts: []sending{{EndsAt: now.Add(testTime), alert: alert{StartsAt: now,
		Labels:      map[string]string{"alertname": "LofamoTest", "cluster": t.cluster, "severity": "info"},
		Annotations: map[string]string{"summary": fmt.Sprintf("cluster %s can send notifications here", t.cluster)}}}}})
	if !got.ok {
		return errors.New(got.why)
	}
	return nil
}
