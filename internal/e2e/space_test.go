package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// smallQuota is the smallest that a configuration may give the store.
const smallQuota = 16 << 20

// store is a client of the embedded etcd itself, with a replica's certificate.
func (t trial) store(id string) *clientv3.Client {
	t.Helper()
	cfg, err := config.LoadSupervisor(filepath.Join(t.Cluster.Dir(), "supervisors", id, "supervisor.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	tls, err := pki.ClientTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.Etcd.ClientURL}, TLS: tls, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// foreignKeys is a prefix of keys that are not ours: somebody else filled the store.
const foreignKeys = "/somebody/else/"

// TestFullStoreRaisesAlarmOnly: row 12. The store reaches its quota and rejects writes: this has its own alarm, reports stay with
// their senders, and no node is called FAILED. Once there is space again, all reports arrive.
func TestFullStoreRaisesAlarmOnly(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: patient(),
		Supervisor: func(c *config.Supervisor) { c.Etcd.QuotaBytes = smallQuota }})
	try(t, l, "quota reached and space made", func(t trial) {
		ids := t.leaderFirst()
		admin := operator(t.T, t.Lab)
		t.fill(t.store(ids[1]))
		eventually(t.T, "the alarm of etcd", func() bool {
			resp, err := admin.ListMembers(t.Context())
			return err == nil && slices.ContainsFunc(resp.GetMembers(),
				func(m *lofamov1.Member) bool { return slices.Contains(m.GetAlarms(), "NOSPACE") })
		})
		eventually(t.T, "the alarm of the supervisors", func() bool {
			// Each replica knows its own; any of them may raise it.
			return slices.ContainsFunc(ids, func(id string) bool {
				resp, err := t.at(id, pki.RoleViewer).ListSupervisors(t.Context())
				return err == nil && slices.ContainsFunc(resp.GetSupervisors(), func(s *lofamov1.Supervisor) bool {
					return slices.Contains(s.GetAlarms(), "store full")
				})
			})
		})
		full := t.Mark()
		t.inject("1,0,0", sensor("temperature", 110))
		t.inject("0,1,0", simple(cluster.KillHost))
		pause(t, 3*time.Second)
		if seen := t.Since(full); len(seen) > 0 {
			t.Errorf("committed into a full store: %v", seen)
		}
		if _, err := admin.DisarmAlarms(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "defragment it") {
			t.Errorf("an alarm that is right is taken back: %v", err)
		}

		// The steps of docs/operations.md: make space, then disarm the alarm.
		store := t.store(ids[1])
		answered(t.T, "make space", func() (*clientv3.DeleteResponse, error) {
			return store.Delete(t.Context(), foreignKeys, clientv3.WithPrefix())
		})
		for i, id := range slices.Backward(ids) {
			resp, err := admin.Defragment(t.Context(), &lofamov1.DefragmentRequest{Name: id, Compact: i == len(ids)-1})
			if err != nil || resp.GetBytesAfter() >= resp.GetBytesBefore() {
				t.Fatalf("defragment %s: %v, %v", id, resp, err)
			}
		}
		resp, err := admin.DisarmAlarms(t.Context(), "")
		if err != nil || len(resp.GetDisarmed()) == 0 {
			t.Fatal(resp, err)
		}
		t.becomes("n1-0-0", "temperature", failed)
		t.becomes("n0-1-0", "host", failed)
		t.once("n1-0-0", "temperature", failed)
		t.once("n0-1-0", "host", failed)
		t.neverFailed()
		t.othersWereSpared("n1-0-0", "n0-1-0")
	})
}

// fill fills the store with foreign keys until it rejects writes.
func (t trial) fill(c *clientv3.Client) {
	t.Helper()
	junk := strings.Repeat("x", 1<<20)
	for i := range 2 * smallQuota >> 20 {
		full := answered(t.T, "fill the store", func() (bool, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.Put(ctx, fmt.Sprintf("%s%d", foreignKeys, i), junk)
			if errors.Is(err, rpctypes.ErrNoSpace) {
				return true, nil
			}
			return false, err
		})
		if full {
			return
		}
	}
	t.Fatal("the store takes more than its quota")
}

// TestFullDiskMovesLeader: row 12. The file system of one replica's data, the leader's, is full: that replica ends with a reason
// in its log, another one leads, and nothing is lost; with space again it comes back.
func TestFullDiskMovesLeader(t *testing.T) {
	t.Parallel()
	l := startCluster(t, "2x2x1", 3)
	try(t, l, "file system full under the leader and space made", func(t trial) {
		victim := t.leaderFirst()[0]
		data := filepath.Join(t.Cluster.Dir(), "supervisors", victim, "data")
		t.kill(victim)
		t.onSmallDisk(data)
		t.start(victim)
		// It leads again when the others do not.
		others := slices.DeleteFunc(t.leaderFirst(), func(id string) bool { return id == victim })
		// Each election is a matter of chance: once in a thousand times, ten elections in a row all go to another replica.
		for end := time.Now().Add(5 * patience); ; {
			leader := t.leaderFirst()[0]
			if leader == victim {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s leads: want the replica on the small disk, %s", leader, victim)
			}
			t.signal(leader, unix.SIGTERM)
			pause(t, time.Second)
			t.kill(leader)
			t.start(leader)
		}
		full := t.Mark()
		junk := t.fillDisk(data)
		c := t.store(others[0])
		eventually(t.T, "the replica to end", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = c.Put(ctx, foreignKeys+"1", strings.Repeat("x", 1<<20)) // its database must grow
			s, err := t.Cluster.Supervisor(victim)
			return err == nil && !slices.ContainsFunc(t.Cluster.Running(), func(r string) bool { return strings.Contains(r, fmt.Sprint(s.PID)) })
		})
		t.kill(victim)
		t.inject("1,0,0", sensor("temperature", 110))
		t.becomes("n1-0-0", "temperature", failed)
		log, err := os.ReadFile(filepath.Join(filepath.Dir(data), "log"))
		if err != nil || !strings.Contains(string(log), "no space left on device") {
			t.Errorf("the log does not say why: %v", err)
		}
		if err := os.Remove(junk); err != nil {
			t.Fatal(err)
		}
		t.start(victim)
		admin := clientAt(t.T, t.Lab, victim, pki.RoleOperator)
		eventually(t.T, "the replica to be well again", func() bool {
			resp, err := admin.ListMembers(t.Context())
			return err == nil && !resp.GetStale() && len(resp.GetMembers()) == 3 &&
				!slices.ContainsFunc(resp.GetMembers(), func(m *lofamov1.Member) bool { return !m.GetHealthy() })
		})
		for _, s := range t.Since(full) {
			if s.GetComponent() == "node" && s.GetTo() == failed {
				t.Errorf("a living node was called FAILED: %s", s)
			}
		}
		t.othersWereSpared("n1-0-0")
	})
}

// diskBytes holds two segments of etcd's write-ahead log of 64 MB and some more.
const diskBytes = 192 << 20

// onSmallDisk moves a directory with its content to a file system of its own.
func (t trial) onSmallDisk(dir string) {
	t.Helper()
	aside := dir + ".aside"
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		requirements.Missing(t, "a small file system of its own cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := t.Cluster.KillSupervisor(context.Background(), filepath.Base(filepath.Dir(dir))); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.CopyFS(dir, os.DirFS(aside)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(aside); err != nil {
		t.Fatal(err)
	}
}

// fillDisk fills a file system and returns the file that does.
func (t trial) fillDisk(dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "junk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return f.Name()
}
