package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
)

// TestDeletedDirectoriesAreNamedAndRestored deletes a node's state directory and a supervisor's data directory while
// their processes run. The node's halves start again in a new directory, with locks and sockets; the supervisor raises
// an alarm.
func TestDeletedDirectoriesAreNamedAndRestored(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2", 1)
	tr := begin(t, l)
	node := l.Cluster.Info().Nodes[0]
	deleteDirectory(t, node.StateDir)
	eventually(t, "the halves in a new state directory", func() bool {
		s, err := l.Cluster.Status(t.Context(), node)
		return err == nil && s.Host.Running && s.DNP.Running
	})
	log, err := os.ReadFile(l.Cluster.Log(node, "run"))
	if err != nil || !strings.Contains(string(log), "state directory deleted or replaced") || !strings.Contains(string(log), node.StateDir) {
		t.Errorf("the daemon's log does not name the deletion: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	if err := l.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	tr.mark = l.Mark()
	tr.inject(string(node.ID), cluster.Fault{Kind: cluster.HangHost}) // needs the lock and the socket
	tr.becomes(string(node.ID), "host", failed)
	tr.heal(string(node.ID))

	sup := l.Cluster.Info().Supervisors[0]
	deleteDirectory(t, filepath.Join(l.Cluster.Dir(), "supervisors", sup.ID, "data"))
	eventually(t, "the supervisor's alarm", func() bool {
		all, err := l.Client.ListSupervisors(t.Context())
		return err == nil && slices.ContainsFunc(all.GetSupervisors()[0].GetAlarms(), func(a string) bool {
			return strings.HasPrefix(a, "data directory gone: ")
		})
	})
}

// deleteDirectory deletes a directory that processes use. It renames the directory first: a process that makes a file in it while it is
// being emptied would keep it.
func deleteDirectory(t *testing.T, dir string) {
	t.Helper()
	aside := dir + ".deleted"
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of "+dir, func() bool { return os.RemoveAll(aside) == nil })
}
