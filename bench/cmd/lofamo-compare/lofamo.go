package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// ourName is the name of this project among the systems.
const ourName = "LO|FA|MO"

// lofamo is a cluster of this project: a daemon and two halves for each member, three supervisors with embedded etcd.
// Each member has a watch at a supervisor.
type lofamo struct {
	cell   *cell
	preset string
	c      *cluster.Cluster
}

// dimsOf returns the torus with so many nodes.
func dimsOf(members int) (grid.Dims, error) {
	for _, d := range []grid.Dims{{X: 2, Y: 2, Z: 2}, {X: 4, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 3}, {X: 4, Y: 4, Z: 2}, {X: 4, Y: 4, Z: 4}} {
		if d.Nodes() == members {
			return d, nil
		}
	}
	return grid.Dims{}, fmt.Errorf("members %d: want 8, 16, 27, 32 or 64, the sizes of a torus", members)
}

func (l *lofamo) overlap() bool { return false }

func (l *lofamo) note() string { return "preset " + l.preset }

func (l *lofamo) start(ctx context.Context) error {
	dims, err := dimsOf(l.cell.members)
	if err != nil {
		return err
	}
	l.preset = cluster.FitPreset(dims, 0, runtime.NumCPU()).Preset // as lofamoctl up chooses it
	l.c, err = cluster.Create(cluster.Options{
		Dir: filepath.Join(l.cell.dir, "c"), Dims: dims, Supervisors: 3, Preset: l.preset, LogLevel: "warn", Restart: "always",
	})
	if err != nil {
		return err
	}
	// Earlier than the cell's own bound, so that the failure names the nodes that lack and quotes their logs.
	starting, cancel := context.WithTimeoutCause(ctx, startBound-startReport, fmt.Errorf("longer than %s", startBound-startReport))
	defer cancel()
	if err := errors.Join(l.c.Start(starting, nil), l.c.WaitNormal(starting, nil)); err != nil {
		return err
	}
	for o := range l.cell.members {
		if err := l.watch(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// watch begins one member's watch; its client chooses a supervisor.
func (l *lofamo) watch(ctx context.Context, observer int) error {
	cl, err := l.c.Client()
	if err != nil {
		return err
	}
	now, err := cl.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		return errors.Join(err, cl.Close())
	}
	nodes := l.c.Info().Nodes
	for m := range nodes { // WaitNormal has seen them
		l.cell.board.saw(observer, m, true, cluster.Monotonic())
	}
	go func() {
		err := cl.Watch(context.WithoutCancel(ctx), client.WatchOptions{After: now.GetRevision()}, func(r *lofamov1.WatchResponse) error {
			at := cluster.Monotonic()
			for _, e := range r.GetEvents() {
				m := slices.IndexFunc(nodes, func(n cluster.NodeInfo) bool { return string(n.ID) == e.GetNode() })
				if m >= 0 {
					l.event(observer, m, e, at)
				}
			}
			return nil
		})
		l.cell.board.fail(fmt.Errorf("watch of member %d: %w", observer, err))
	}()
	return nil
}

func (l *lofamo) event(observer, member int, e *lofamov1.Event, at int64) {
	failed := e.GetTo() == lofamov1.State_FAILED
	switch e.GetComponent() {
	case "node":
		if observer == 0 {
			_, _ = fmt.Fprintf(l.cell.log, "member %d: %s → %s: %s\n", member, e.GetFrom(), e.GetTo(), e.GetReason())
		}
		if e.GetTo() != lofamov1.State_UNKNOWN { // under loss, living nodes are SICK
			l.cell.board.saw(observer, member, !failed, at)
		}
	case "host", "dnp":
		if failed && observer == 0 {
			l.cell.board.halfFailed(member, at)
		}
	}
}

func (l *lofamo) session(member int) int { return l.c.Info().Nodes[member].RunPID }

func (l *lofamo) restart(_ context.Context, member int) error {
	return l.c.StartRun(string(l.c.Info().Nodes[member].ID))
}
