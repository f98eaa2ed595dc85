package process_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// supervisorOf returns the executor of a supervisor with that name and a new certificate.
func (b bench) supervisorOf(t *testing.T, name string) *executor.Remote {
	t.Helper()
	c := config.SupervisorTLS{CA: b.Config.TLS.CA, Cert: filepath.Join(b.Dir, name+".pem"), Key: filepath.Join(b.Dir, name+".key")}
	if err := b.CA.IssueTo(c.Cert, c.Key, pki.Identity{Cluster: processtest.Cluster, Role: pki.RoleSupervisor, Name: name},
		[]net.IP{freeport.IP().AsSlice()}, nil); err != nil {
		t.Fatal(err)
	}
	return b.dial(t, c)
}

func (b bench) dial(t *testing.T, c config.SupervisorTLS) *executor.Remote {
	t.Helper()
	x, err := executor.NewRemote(config.ExecutorClient{Address: b.Config.Listen, DialTimeout: config.Duration(20 * time.Second),
		SettleTimeout: config.Duration(20 * time.Second)}, processtest.Cluster, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestRevokedSupervisorIsRefused: the process refuses a supervisor with a revoked certificate, over its existing
// connection and over a new one, and after a restart. It still obeys others, and an older list does not lift a
// revocation.
func TestRevokedSupervisorIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stop := b.Start(t)
	stolen, honest := b.supervisorOf(t, "s1"), b.supervisorOf(t, "s2")
	thief := config.SupervisorTLS{CA: b.Config.TLS.CA, Cert: filepath.Join(b.Dir, "s1.pem"), Key: filepath.Join(b.Dir, "s1.key")}
	want(t, processtest.Do(t, stolen, job(5, "before", 1)), response.Succeeded, "exit code 0")
	for _, version := range []uint64{3, 2} {
		names := []string{"s1"}[:version-2]
		if err := honest.Deny(t.Context(), denyList(t, b.CA, version, names...)); err != nil {
			t.Fatalf("list of version %d: %v", version, err)
		}
		want(t, processtest.Do(t, stolen, job(5, "same-connection", 1)), response.Unchanged, "revoked")
		want(t, processtest.Do(t, b.dial(t, thief), job(5, "new-connection", 1)), response.Unchanged, "executor process")
	}
	want(t, processtest.Do(t, honest, job(5, "honest", 1)), response.Succeeded, "exit code 0")
	stop()
	b.Start(t)
	want(t, processtest.Do(t, b.dial(t, thief), job(5, "after-restart", 1)), response.Unchanged, "executor process")
	want(t, processtest.Do(t, b.supervisorOf(t, "s2"), job(5, "honest-after-restart", 1)), response.Succeeded, "exit code 0")
	b.wantActs(t, "before 0 1 5\nhonest 0 1 5\nhonest-after-restart 0 1 5\n")
}
