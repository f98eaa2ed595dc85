package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// StartRun starts the daemon of a node whose daemon has ended; the halves, if they live, are its to adopt.
func (c *Cluster) StartRun(name string) error {
	return c.change(func() error { return c.startRun(name) })
}

// startRun is StartRun for a caller that holds the directory and saves c.info.
func (c *Cluster) startRun(name string) error {
	n, err := c.Node(name)
	if err != nil {
		return err
	}
	if pid, _ := c.daemon(n); pid != 0 {
		return fmt.Errorf("start the daemon of node %s: it runs, process %d", n.ID, pid)
	}
	if c.binDir, err = FindBinaries(c.binDir); err != nil {
		return err
	}
	i := slices.IndexFunc(c.info.All(), func(o NodeInfo) bool { return o.ID == n.ID })
	return c.startNode(i)
}

// Control asks a control socket in a node's state directory, with JSON: in is sent, unless nil, and the answer goes
// to out, unless nil.
func (n NodeInfo) Control(ctx context.Context, socket, method, path string, in, out any) error {
	return control(ctx, n, socket, method, path, in, out)
}

// Log returns the path of a log of a node: host, dnp or run.
func (c *Cluster) Log(n NodeInfo, who string) string {
	return filepath.Join(c.nodeDir(n.ID), who+".log")
}

// SupervisorLog returns the path of a supervisor's log.
func (c *Cluster) SupervisorLog(id string) string { return c.path("supervisors", id, "log") }

// StopRun asks the daemon of a node to end, and returns when it and its halves have ended.
func (c *Cluster) StopRun(ctx context.Context, name string) error {
	n, err := c.Node(name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(c.info.All(), func(o NodeInfo) bool { return o.ID == n.ID })
	return errors.Join(c.endNode(ctx, c.info.at(i)), c.save())
}

// KillRun ends the daemon of a node by signal 9, and returns when it has ended. Its halves live on.
func (c *Cluster) KillRun(ctx context.Context, name string) error {
	n, err := c.Node(name)
	if err != nil {
		return err
	}
	pid, started := c.daemon(n)
	if err := kill(ctx, pid, started); err != nil {
		return fmt.Errorf("kill the daemon of node %s: %w", n.ID, err)
	}
	c.expectExit(member{"node", string(n.ID)}.String())
	return nil
}
