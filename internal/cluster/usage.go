package cluster

import "path/filepath"

// Process is a running process of the cluster.
type Process struct {
	PID     int
	Started uint64 // clock ticks since boot; tells a process from a later one with the same PID
	// Agent reports that the process belongs to a node: a half or a recovery daemon. The others are supervisors.
	Agent bool
}

// Processes lists the running processes of the cluster, including halves that outlived their recovery daemon. It does
// not list check scripts.
func (c *Cluster) Processes() []Process {
	var out []Process
	for _, s := range c.strays() {
		out = append(out, Process{PID: s.pid, Started: s.started, Agent: filepath.Base(s.args[0]) == agentProgram})
	}
	return out
}
