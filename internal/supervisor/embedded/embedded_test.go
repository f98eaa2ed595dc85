package embedded_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/storetest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// keys makes an authority and the certificates of one supervisor and one node.
func keys(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	local := []net.IP{net.IPv4(127, 0, 0, 1), freeport.IP().AsSlice()}
	// The node's certificate has a member's address, as that of a node beside a supervisor may.
	for name, ips := range map[string][]net.IP{"supervisor": local, "viewer": nil, "node": local} {
		id := pki.Identity{Cluster: "test", Role: pki.Role(name), Name: "s1"}
		if id.Role == pki.RoleNode {
			id.Name += "/host"
		}
		if err := ca.IssueTo(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"), id, ips, nil); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func config(t *testing.T, keys string) embedded.Config {
	t.Helper()
	conf, err := pki.ServerTLS(filepath.Join(keys, "supervisor.pem"), filepath.Join(keys, "supervisor.key"), filepath.Join(keys, "ca.pem"),
		pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	peer := "https://" + freeport.Addr(t).String()
	return embedded.Config{
		DataDir: t.TempDir(), Name: "s1", PeerURL: peer, ClientURL: "https://" + freeport.Addr(t).String(),
		InitialCluster: "s1=" + peer, ClusterState: "new", Token: "test",
		CertFile: filepath.Join(keys, "supervisor.pem"), KeyFile: filepath.Join(keys, "supervisor.key"), CAFile: filepath.Join(keys, "ca.pem"),
		AllowClient: api.AuthorizeUnary(api.SupervisorsOnly, nil), AllowStream: api.AuthorizeStream(api.SupervisorsOnly, nil),
		Verify: conf.VerifyConnection, Retention: time.Hour, QuotaBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler),
	}
}

func start(t *testing.T, cfg embedded.Config) *embedded.Member {
	t.Helper()
	m, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// TestStoreContract runs the store's contract on a real member, one for all its tests.
func TestStoreContract(t *testing.T) {
	m := start(t, config(t, keys(t)))
	c := m.Client()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		// A fresh store: delete all keys under the prefix.
		if _, err := c.Delete(t.Context(), store.Prefix, clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		maxOps := embedded.MaxTxnOps
		if strings.HasSuffix(t.Name(), "large_batch") {
			maxOps = 128 // as on an etcd outside, so that batches are split
		}
		n := 0
		return storetest.Harness{
			Store: store.NewEtcd(c, store.Options{MaxOps: maxOps, KeepEvents: storetest.KeepEvents, Bookmarks: 100 * time.Millisecond}),
			Slack: 20,
			Campaign: func() store.Fence {
				// The election itself is package lead's; here its key is enough.
				n++
				_, err := c.Delete(t.Context(), store.ElectionPrefix, clientv3.WithPrefix())
				if err != nil {
					t.Fatal(err)
				}
				key := fmt.Sprintf("%s/%d", store.ElectionPrefix, n)
				resp, err := c.Put(t.Context(), key, "test")
				if err != nil {
					t.Fatal(err)
				}
				return store.Fence{Key: key, Rev: resp.Header.Revision}
			},
			Compact: func(rev uint64) {
				if _, err := c.Compact(t.Context(), int64(rev)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// TestHistoryIsBounded in age and in size, with the next commit.
func TestHistoryIsBounded(t *testing.T) {
	c := start(t, config(t, keys(t))).Client()
	for name, tc := range map[string]struct {
		opts store.Options
		old  int // so many of 40 events are of yesterday
		kept func(n int) bool
	}{
		"age":  {store.Options{HistoryAge: time.Hour}, 30, func(n int) bool { return n == 11 }},
		"size": {store.Options{HistoryBytes: 4000}, 0, func(n int) bool { return n > 10 && n < 25 }},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Delete(t.Context(), store.Prefix, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
			put, err := c.Put(t.Context(), store.ElectionPrefix+"/1", "s1")
			if err != nil {
				t.Fatal(err)
			}
			st := store.NewEtcd(c, tc.opts)
			lead := func() store.Committer {
				snap, err := st.Load(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				w, err := st.Writer(store.Fence{Key: store.ElectionPrefix + "/1", Rev: put.Header.Revision}, store.Meta{}, snap)
				if err != nil {
					t.Fatal(err)
				}
				return w
			}
			commit := func(w store.Committer, at time.Time) {
				ev := &lofamov1.Event{Time: timestamppb.New(at), Reason: strings.Repeat("x", 200)}
				if _, err := w.Commit(t.Context(), store.Batch{Events: []*lofamov1.Event{ev}}); err != nil {
					t.Fatal(err)
				}
			}
			w := lead()
			for i := range 40 {
				at := time.Now()
				if i < tc.old {
					at = at.Add(-24 * time.Hour)
				}
				commit(w, at)
			}
			commit(lead(), time.Now()) // a new leader has it as well
			events, _, err := st.Events(t.Context(), 0, 0, nil)
			if err != nil || !tc.kept(len(events)) {
				t.Errorf("%d events are kept, %v", len(events), err)
			}
		})
	}
}

// TestCommitWithLostAnswerHappensOnce: a commit whose answer was lost is not done twice.
func TestCommitWithLostAnswerHappensOnce(t *testing.T) {
	m := start(t, config(t, keys(t)))
	c := m.Client()
	resp, err := c.Put(t.Context(), store.ElectionPrefix+"/1", "test")
	if err != nil {
		t.Fatal(err)
	}
	lost := 0 // so many answers are
	lc := clientv3.NewCtxClient(t.Context())
	lc.KV = &storetest.LossyKV{KV: c.KV, Lose: func(*clientv3.TxnResponse) bool { lost--; return lost >= 0 }}
	s := store.NewEtcd(lc, store.Options{})
	snap, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Writer(store.Fence{Key: store.ElectionPrefix + "/1", Rev: resp.Header.Revision}, store.Meta{Cluster: "test"}, snap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		lost = 2
		if _, err := w.Commit(t.Context(), storetest.Events(i)); err != nil {
			t.Fatal(err)
		}
	}
	events, _, err := store.NewEtcd(c, store.Options{}).Events(t.Context(), 0, 0, nil)
	if err != nil || len(events) != 3 {
		t.Errorf("%d events of 3 commits: %v, %v", len(events), events, err)
	}
}

// TestLeaseOfLeader: etcd silently lengthens leases that are shorter than 1.5 of its election
// time-outs, and the replicas would be without a leader for longer.
func TestLeaseOfLeader(t *testing.T) {
	m := start(t, config(t, keys(t)))
	got, err := m.Client().Grant(t.Context(), store.LeaseTTL)
	if err != nil || got.TTL != store.LeaseTTL {
		t.Errorf("a lease of %d s: granted %v, %v", store.LeaseTTL, got, err)
	}
}

func TestDataDirInUse(t *testing.T) {
	cfg := config(t, keys(t))
	start(t, cfg)
	_, err := embedded.Start(cfg)
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("a second member on the same directory: %v", err)
	}
}

// TestStartRefusesDiskWithoutRoom: a new member refuses a disk of 256 MiB, and names it, before it writes anything.
func TestStartRefusesDiskWithoutRoom(t *testing.T) {
	cfg := config(t, keys(t))
	requirements.SmallDisk(t, cfg.DataDir, 256<<20)
	m, err := embedded.Start(cfg)
	if err == nil {
		_ = m.Stop(t.Context())
		t.Fatal("started")
	}
	for _, want := range []string{"supervisor data directory", "256 MiB free on " + cfg.DataDir + " (tmpfs)", "at least 288 MiB"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	if left, err := os.ReadDir(cfg.DataDir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// awaitFirstPurge waits until a new member's three purges of old files have read their directories. The next ones follow half a
// minute later. A purge that finds no directory ends the process.
func awaitFirstPurge(t *testing.T) {
	t.Helper()
	const purges = 3 // of the log, of snapshots and of snapshots' databases
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var b bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&b, 2) // into memory it does not fail
		wait := 0
		for g := range strings.SplitSeq(b.String(), "\n\n") {
			if state, _, _ := strings.Cut(g, "\n"); strings.Contains(state, "[select") && strings.Contains(g, "fileutil.purgeFile.") {
				wait++
			}
		}
		if wait == purges {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d purges wait: want %d", wait, purges)
		}
	}
}

// TestDeletedDataDirIsNoticed deletes the directory of a member, and puts another one in its place.
func TestDeletedDataDirIsNoticed(t *testing.T) {
	cfg := config(t, keys(t))
	m := start(t, cfg)
	awaitFirstPurge(t)
	if err := m.CheckDir(); err != nil {
		t.Errorf("an intact directory: %v", err)
	}
	if err := os.Rename(cfg.DataDir, cfg.DataDir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := m.CheckDir(); !errors.Is(err, embedded.ErrGone) || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("a deleted directory: %v", err)
	}
	if err := os.Mkdir(cfg.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "LOCK"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.CheckDir(); !errors.Is(err, embedded.ErrGone) {
		t.Errorf("a replaced directory: %v", err)
	}
}

func TestTakenPortLeavesDirectoryFree(t *testing.T) {
	cfg := config(t, keys(t))
	ln, err := net.Listen("tcp", strings.TrimPrefix(cfg.PeerURL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, err = embedded.Start(cfg)
	if err == nil || !strings.Contains(err.Error(), cfg.PeerURL) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a taken peer address: %v", err)
	}
	// The directory is free again.
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
}

func TestRefusesPlainURLs(t *testing.T) {
	for _, spoil := range []func(*embedded.Config){
		func(c *embedded.Config) { c.PeerURL = "http://127.0.0.1:1" },
		func(c *embedded.Config) { c.ClientURL = "http://127.0.0.1:1" },
		func(c *embedded.Config) { c.InitialCluster = "s1=http://127.0.0.1:1" },
		func(c *embedded.Config) { c.InitialCluster = "s1" },
	} {
		cfg := config(t, keys(t))
		spoil(&cfg)
		if _, err := embedded.Start(cfg); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("peer %s, client %s, cluster %s: %v", cfg.PeerURL, cfg.ClientURL, cfg.InitialCluster, err)
		}
	}
}

// TestOnlySupervisorsPassHandshake: a certificate of the same authority is not enough, for clients or for raft.
func TestOnlySupervisorsPassHandshake(t *testing.T) {
	dir := keys(t)
	cfg := config(t, dir)
	start(t, cfg)
	supervisor := clientTLS(t, dir, "supervisor")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.ClientURL}, TLS: supervisor, Logger: nil})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, "x"); err != nil {
		t.Errorf("client of role supervisor: %v", err)
	}
	_ = client.Close()
	for _, url := range []string{cfg.ClientURL, cfg.PeerURL} {
		if err := answered(url, supervisor); err != nil {
			t.Errorf("%s with a supervisor's certificate: %v", url, err)
		}
		for _, role := range []string{"viewer", "node"} {
			if err := answered(url, clientTLS(t, dir, role)); err == nil { // "bad certificate", unless the connection is reset before that is read
				t.Errorf("%s with a %s's certificate: answered: want a refused handshake", url, role)
			}
		}
	}
	c, err := tls.Dial("tcp", strings.TrimPrefix(cfg.ClientURL, "https://"),
		&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a stranger
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err = c.Read(make([]byte, 1)); err == nil {
			t.Error("a stranger without a certificate is served")
		}
		_ = c.Close()
	}
}

// answered returns an error if no member answers at an address.
func answered(url string, conf *tls.Config) error {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), conf)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err = conn.Write([]byte("GET /version HTTP/1.0\r\n\r\n")); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return err
}

func clientTLS(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: roots, NextProtos: []string{"h2"}}
}

// TestLargeTorusKeepsFewEntriesInMemory: an entry of raft's log has up to a megabyte, while many nodes change.
func TestLargeTorusKeepsFewEntriesInMemory(t *testing.T) {
	dir := keys(t)
	for _, tc := range []struct {
		nodes         int
		kept, atStart uint64
	}{{0, 1000, 2000}, {64, 1000, 2000}, {2000, 1000, 2000}, {4000, 500, 1000}, {8000, 250, 500}, {100_000, 100, 200}} {
		cfg := config(t, dir)
		cfg.Nodes = tc.nodes
		if kept, atStart, err := embedded.LogInMemory(cfg); kept != tc.kept || atStart != tc.atStart || err != nil {
			t.Errorf("%d nodes: %d entries, %d at a start, %v: want %d and %d", tc.nodes, kept, atStart, err, tc.kept, tc.atStart)
		}
	}
}

// TestManyChangesAreCompactedEarly: the member forgets deleted keys long before its retention time has passed.
func TestManyChangesAreCompactedEarly(t *testing.T) {
	const many = 1000
	m := start(t, config(t, keys(t)))
	c := m.Client()
	var first, last int64
	for txn := range int(many / 100) {
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("event/%d/%d", txn, i), "x"))
		}
		resp, err := c.Txn(t.Context()).Then(ops...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		if last = resp.Header.Revision; first == 0 {
			first = last
		}
	}
	at := func(rev int64) error {
		_, err := c.Get(t.Context(), "event/0/0", clientv3.WithRev(rev))
		return err
	}
	if m.LookAtPuts(many); at(first) != nil {
		t.Fatalf("revisions of the last minute are compacted: %v", at(first))
	}
	if _, err := c.Put(t.Context(), "later", ""); err != nil {
		t.Fatal(err)
	}
	if m.LookAtPuts(many); !errors.Is(at(first), rpctypes.ErrCompacted) || at(last) != nil {
		t.Errorf("revision %d: %v, want %v; revision %d: %v, want it kept", first, at(first), rpctypes.ErrCompacted, last, at(last))
	}
}

// TestNormalStartLogsNothing: etcd's routine messages and its warnings of every start do not reach the log.
func TestNormalStartLogsNothing(t *testing.T) {
	var buf lockedBuffer
	cfg := config(t, keys(t))
	cfg.Logger = slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
	start(t, cfg)
	// On a slow machine the election's time is over before the start is, and the disk is slow.
	slow := []string{"cannot campaign at term 1 ", "slow fdatasync", "apply request took too long"}
	for line := range strings.Lines(buf.String()) {
		if !slices.ContainsFunc(slow, func(s string) bool { return strings.Contains(line, s) }) {
			t.Errorf("log: %s", line)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
