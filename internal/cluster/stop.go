package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Running names the running processes of the cluster, from cluster.json and /proc. Empty for a stopped one.
func (c *Cluster) Running() []string {
	var out []string
	for _, s := range c.info.Supervisors {
		if alive(s.PID, s.Started) {
			out = append(out, fmt.Sprintf("supervisor %s is process %d", s.ID, s.PID))
		}
	}
	for _, n := range c.info.All() {
		if alive(n.RunPID, n.Started) {
			out = append(out, fmt.Sprintf("node %s is process %d", n.ID, n.RunPID))
		}
	}
	if len(out) == 0 {
		for _, s := range c.strays() {
			out = append(out, fmt.Sprintf("process %d of the cluster", s.pid))
		}
	}
	return out
}

// stopGrace is the time for processes to end by themselves before they are killed.
const stopGrace = 5 * time.Second

// Stop ends every process of the cluster: politely, then by force. It signals only processes that
// it knows to be its own by their start time, or by their arguments.
func (c *Cluster) Stop(ctx context.Context) error {
	// A start that failed half-way may still hold ports.
	c.ports.release()
	c.ports = nil
	unlock, err := lockDir(c.dir, 3*stopGrace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // stopped and removed by another lofamoctl
	}
	if err != nil {
		return err
	}
	defer unlock()
	// Another lofamoctl may have started or removed it since.
	now, err := Load(c.dir)
	removed := errors.Is(err, ErrNoCluster)
	if err == nil {
		c.info = now.info
	}
	var procs []*process
	defer func() {
		for _, p := range procs {
			p.close()
		}
	}()
	hold := func(pid int, started uint64) error {
		if started == 0 { // a later process may have the pid
			return nil
		}
		p, err := openProcess(pid, started)
		if errors.Is(err, errNotOurs) {
			return nil
		}
		if err != nil {
			return err
		}
		procs = append(procs, p)
		return nil
	}
	// The supervisors go first, so that they do not see the nodes die one after the other.
	for _, s := range c.info.Supervisors {
		if err := hold(s.PID, s.Started); err != nil {
			return err
		}
	}
	for _, n := range c.info.All() {
		if err := hold(n.RunPID, n.Started); err != nil {
			return err
		}
	}
	left := endAll(ctx, procs, stopGrace)
	// Halves whose `lofamo-agent run` was killed.
	first := len(procs)
	for _, s := range c.strays() {
		if err := hold(s.pid, s.started); err != nil {
			return err
		}
	}
	left = append(left, endAll(ctx, procs[first:], time.Second)...)
	if len(left) > 0 {
		return fmt.Errorf("stop the cluster in %s: process %d and %d others do not end, though killed", c.dir, left[0].pid, len(left)-1)
	}
	c.noteStopped()
	if removed { // do not write cluster.json: the purged directory would look like a cluster again
		return os.Remove(c.path(lockFile))
	}
	return c.save()
}

// noteStopped notes that no process of the cluster runs, and removes the cgroups of the replicas.
func (c *Cluster) noteStopped() {
	for i := range c.info.Supervisors {
		c.info.Supervisors[i].removeGroup()
	}
	c.info.forgetProcesses()
}
