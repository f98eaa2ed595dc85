package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Words are the phrases that depend on the kind of cluster: a torus of cables, or an ordinary cluster, whose readers have no torus. The
// page for browsers has the same table: web/src/words.ts.
type Words struct {
	NodeFailed, NodeSick string
	HostFailed           string
	DNPFailed, DNPSick   string
	LinkFailed, LinkSick string
	ServiceNetwork       string
	Partition            string // nodes to which no living path leads
	Plane                string // all links between two planes have failed
	Direction            string // a direction of the torus; empty: the reader has none
	Geometry             string // a group of neighbouring places; empty: they have a name
	Spare                string // a node without a place
}

var torusWords = Words{
	NodeFailed:     "both halves of the node are dead: it is off, has crashed, or has lost all its cables",
	NodeSick:       "several links of the node are bad: suspect the node's ports before the cables",
	HostFailed:     "the host is dead or hangs; its network processor (DNP) still works",
	DNPFailed:      "the network processor (DNP) is dead or hangs; the host still works, and all links of the node are silent",
	DNPSick:        "the network processor (DNP) reports errors",
	LinkFailed:     "the cable or one of its two ends carries nothing; both nodes live",
	LinkSick:       "the cable or one of its two ends loses or damages frames",
	ServiceNetwork: "the node fails on the service network; the torus still reaches it",
	Partition:      "no living path leads to this part of the torus: its nodes may be healthy",
	Plane:          "all links between two planes have failed: look for a shared cause, such as a cable tray",
	Direction:      "direction",
	Spare:          "spare",
}

var ordinaryWords = Words{
	NodeFailed:     "both agents of the node are dead: it is off, has crashed, or has lost its network",
	NodeSick:       "several links of the node are bad: suspect the node's network interface, its cable and its switch port",
	HostFailed:     "the host agent is dead or hangs; the network agent still works",
	DNPFailed:      "the network agent is dead or hangs; the host agent still works, and all links of the node are silent",
	DNPSick:        "the network agent reports errors",
	LinkFailed:     "nothing passes between the two nodes; both live",
	LinkSick:       "the path between the two nodes loses or damages frames",
	ServiceNetwork: "the node does not reach the supervisors; its neighbours still reach it",
	Partition:      "no living path leads to these nodes: they may be healthy",
	Plane:          "many links have failed together: look for a shared cause, such as a switch",
	Geometry:       "nodes together",
	Spare:          "takes no part",
}

// WordsOf returns the words for the readers of a cluster.
func WordsOf(c *lofamov1.ClusterInfo) Words {
	if c.GetOrdinary() {
		return ordinaryWords
	}
	return torusWords
}

// Words returns the words for the readers of the cluster that answered last.
func (a *App) Words() Words { return WordsOf(a.cluster) }

// LearnCluster asks for the kind of cluster, for answers that do not have it. Without an answer the words stay as they are.
func (a *App) LearnCluster(ctx context.Context, s Session) {
	if resp, err := s.GetSummary(ctx, &lofamov1.GetSummaryRequest{}); err == nil {
		a.Learn(resp.GetCluster())
	}
}

// Learn remembers the kind of cluster for Words; nil changes nothing.
func (a *App) Learn(c *lofamov1.ClusterInfo) {
	if c != nil {
		a.cluster = c
	}
}

// Torus reports whether places mean anything to the readers.
func (w Words) Torus() bool { return w.Direction != "" }

// At adds a place to the name of a node, if the readers have places and the node has one.
func (w Words) At(coord string) string {
	if coord == "" || !w.Torus() {
		return ""
	}
	return " at " + coord
}

// Columns drops the columns of places from a table with a heading, if the readers have none.
func (w Words) Columns(rows [][]string) [][]string {
	if w.Torus() {
		return rows
	}
	out := make([][]string, len(rows))
	for i, row := range rows {
		for k, cell := range row {
			if head := rows[0][k]; head != "COORD" && head != "PEER COORD" {
				out[i] = append(out[i], cell)
			}
		}
	}
	return out
}

// geometric are the kinds of group fault that have their names from places.
var geometric = []string{"row", "plane", "block", "partition"}

// Group names a group fault for its readers: "plane/Z=0/LINK", or "nodes together/LINK" where places say nothing. The name of a region may
// come first.
func (w Words) Group(id string) string {
	if w.Torus() {
		return id
	}
	parts := strings.Split(id, "/")
	for i, kind := range parts[:min(len(parts)-1, 2)] {
		if kind == "label" {
			break
		}
		if slices.Contains(geometric, kind) {
			parts[i] = w.Geometry
			return strings.Join(slices.Delete(parts, i+1, i+2), "/")
		}
	}
	return id
}

// Groups names group faults.
func (w Words) Groups(ids []string) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = w.Group(id)
	}
	return out
}

// Size returns how large a cluster with that number of placed nodes is: its number of nodes, or the dims of its torus.
func Size(c *lofamov1.ClusterInfo, nodes int) string {
	if c.GetOrdinary() {
		return fault.Plural(nodes, "node")
	}
	return c.GetDims()
}

// Leader returns the supervisors' leader in words. A stale answer has the last leader, which may be dead.
func Leader(c *lofamov1.ClusterInfo) string {
	switch {
	case c.GetLeader() == "":
		return "no leader"
	case c.GetStale():
		return fmt.Sprintf("no leader (the last was %s)", c.GetLeader())
	}
	return "leader " + c.GetLeader()
}

// clusterAlarms are the alarms of the cluster, not of the supervisor that shows them.
var clusterAlarms = []string{"response breaker open", "region cut off"}

// Unhealthy reports whether a supervisor itself is not well.
func Unhealthy(s *lofamov1.Supervisor) bool {
	if s.GetState() != lofamov1.State_NORMAL {
		return true
	}
	for _, alarm := range s.GetAlarms() {
		ofCluster := false
		for _, prefix := range clusterAlarms {
			ofCluster = ofCluster || alarm == prefix || strings.HasPrefix(alarm, prefix+":")
		}
		if !ofCluster {
			return true
		}
	}
	return false
}
