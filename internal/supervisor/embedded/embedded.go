// Package embedded runs an etcd member inside a supervisor: the store of a cluster that has no
// etcd of its own.
//
// It owns the data directory (a lock file keeps a second process out), mutual TLS on both of the
// member's addresses, compaction and quota. Admin serves an operator's changes to the member. The package knows nothing of the stored keys.
package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// etcdDir is the part of the data directory that is etcd's.
const etcdDir = "etcd"

// MaxTxnOps is the member's limit of operations in one transaction: a whole block of nodes may fail at once.
const MaxTxnOps = 16384

// maxStreams limits the calls and watches of one client connection.
const maxStreams = 1024

// Config of a member.
type Config struct {
	DataDir        string // created if absent; LOCK in it keeps a second process out
	Name           string
	PeerURL        string // https only
	ClientURL      string // https only; empty: no clients but this process
	InitialCluster string // NAME=PEERURL,...
	ClusterState   string // new or existing
	Token          string // distinguishes clusters that might connect by mistake
	// PeerName is a DNS name in the certificates of all members, including future ones; empty: none. Without it only
	// members at the hosts of InitialCluster may connect.
	PeerName string

	CertFile, KeyFile, CAFile string
	// AllowClient and AllowStream decide which of the authenticated peers may use ClientURL.
	AllowClient grpc.UnaryServerInterceptor
	AllowStream grpc.StreamServerInterceptor
	// Verify also decides, during the handshake, which peers may connect to either address; nil: all with such a
	// certificate.
	Verify func(tls.ConnectionState) error
	// Closed receives a listener and a reason when a connection is closed because of a limit. It must not block. May be nil.
	Closed func(listener, reason string)

	// Heartbeat and Election are raft's; 0 stands for 50 ms and 500 ms, for replicas in one hall.
	Heartbeat, Election time.Duration
	Retention           time.Duration // revisions older than this are compacted; after many changes, younger ones too
	QuotaBytes          int64
	Nodes               int // of the torus, at least about
	Logger              *slog.Logger
}

// catchUpEntries is the number of entries of raft's log that a member keeps in memory, so that a member that was away needs no
// copy of the whole store. While many nodes change at once, an entry has the documents of a hundred of them. etcd would keep
// 5,000 entries of any size: with 100,000 nodes, half a gigabyte after their start. With few nodes the whole store is small, so
// a copy of it costs less than the memory for more entries. etcd keeps up to 100 entries beyond.
func catchUpEntries(nodes int) uint64 {
	const most, least, ofNodes = 1000, 100, 2_000_000
	if nodes <= ofNodes/most {
		return most
	}
	return max(least, uint64(ofNodes/nodes))
}

// Member is a running member.
type Member struct {
	etcd     *embed.Etcd
	front    *front
	broken   chan error // a listener ended, or a value is damaged; never blocks
	client   *clientv3.Client
	lock     *os.File
	failed   chan error // room for the one there can be
	stopping chan struct{}
	watching sync.WaitGroup
	dataDir  string
	logger   *slog.Logger

	compaction compaction
	space      space
}

// ErrEnded says that the member ended without a call to Stop.
var ErrEnded = errors.New("the member ended: it was removed from the cluster (its data directory is then useless), or see etcd's log " +
	"lines before")

// ErrInUse says that another process has the data directory.
var ErrInUse = errors.New("in use by another process")

// Start starts the member. It does not wait for a quorum.
func Start(cfg Config) (*Member, error) {
	if err := checkRoom(cfg.DataDir); err != nil {
		return nil, err
	}
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	ec, err := etcdConfig(cfg)
	if err == nil {
		err = checkFiles(cfg.DataDir, cfg.Name)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	g := newGuard()
	ec.GRPCAdditionalServerOptions = append(ec.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream))
	f, err := listen(cfg, ec)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	e, err := embed.StartEtcd(ec)
	if err != nil {
		f.close()
		return nil, errors.Join(fmt.Errorf("start embedded etcd %q (data %s, peers %s, clients %s): %w",
			cfg.Name, cfg.DataDir, cfg.PeerURL, cfg.ClientURL, err), lock.Close())
	}
	g.attach(e.Server)
	m := &Member{
		etcd: e, front: f, broken: make(chan error, 1), lock: lock, failed: make(chan error, 1),
		stopping: make(chan struct{}), dataDir: cfg.DataDir, logger: cfg.Logger,
	}
	m.compaction.many = manyPuts
	m.client = m.guardedClient(g)
	f.serve(e, ec, m.breaks)
	m.watching.Go(m.watch)
	m.watching.Go(m.compactEarly)
	m.watching.Go(m.disarmGone)
	m.watching.Go(m.watchSpace)
	return m, nil
}

// breaks ends the member with an error. Only the first one counts.
func (m *Member) breaks(err error) {
	select {
	case m.broken <- err:
	default:
	}
}

// damaged ends the member because of a damaged value: no replica may rely on its copy any longer.
func (m *Member) damaged(err error) {
	m.breaks(&DamageError{File: dbFile(m.dataDir), Cause: err})
}

// watch turns the ways in which a member ends by itself into one error.
func (m *Member) watch() {
	var err error
	select {
	case <-m.stopping:
		return
	case err = <-m.etcd.Err():
	case err = <-m.broken:
	case <-m.etcd.Server.StoppingNotify():
		select {
		case <-m.stopping:
			return
		default:
		}
		err = ErrEnded
	}
	m.failed <- err
}

// CheckDir returns an error if the data directory was deleted or replaced: the member then runs on unlinked files, and
// cannot start again.
func (m *Member) CheckDir() error {
	own, err := m.lock.Stat()
	if err != nil {
		return fmt.Errorf("lock of the supervisor data directory: %w", err)
	}
	now, err := os.Stat(m.lock.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, now) {
		return fmt.Errorf("supervisor data directory %s: %w", filepath.Dir(m.lock.Name()), ErrGone)
	}
	return nil // another error says nothing about the directory
}

// ErrGone says that the data directory was deleted or replaced while the member ran.
var ErrGone = errors.New("deleted or replaced while in use")

// lockDir creates the directory and locks it for as long as the file stays open.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make supervisor data directory: %w", err)
	}
	path := filepath.Join(dir, "LOCK")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock supervisor data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, errors.Join(fmt.Errorf("supervisor data directory %s: %w", dir, err), f.Close())
	}
	return f, nil
}

func etcdConfig(cfg Config) (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Dir = filepath.Join(cfg.DataDir, etcdDir)
	ec.Name = cfg.Name
	ec.InitialCluster = cfg.InitialCluster
	ec.ClusterState = cfg.ClusterState
	ec.InitialClusterToken = cfg.Token
	peers, err := parseURL("etcd.peerURL", cfg.PeerURL)
	if err != nil {
		return nil, err
	}
	ec.ListenPeerUrls, ec.AdvertisePeerUrls = peers, peers
	ec.ListenClientUrls, ec.AdvertiseClientUrls = nil, nil
	if cfg.ClientURL != "" {
		clients, err := parseURL("etcd.clientURL", cfg.ClientURL)
		if err != nil {
			return nil, err
		}
		ec.ListenClientUrls, ec.AdvertiseClientUrls = clients, clients
	}
	info := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile, ClientCertAuth: true}
	ec.ClientTLSInfo, ec.PeerTLSInfo = info, info
	// Raft accepts only certificates for members' addresses, or for their common name: nodes' and users' certificates
	// have neither.
	if ec.PeerTLSInfo.AllowedHostnames, err = memberHosts(cfg.InitialCluster); err != nil {
		return nil, err
	}
	if cfg.PeerName != "" {
		ec.PeerTLSInfo.AllowedHostnames = append(ec.PeerTLSInfo.AllowedHostnames, cfg.PeerName)
	}
	// Clients are supervisors too: the handshake refuses all others before a request is read.
	ec.ClientTLSInfo.AllowedHostnames = ec.PeerTLSInfo.AllowedHostnames
	ec.MaxConcurrentStreams = maxStreams
	ec.TlsMinVersion = "TLS1.3"
	ec.EnableGRPCGateway = false
	if cfg.AllowClient != nil && cfg.AllowStream != nil {
		ec.GRPCAdditionalServerOptions = []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(cfg.AllowClient), grpc.ChainStreamInterceptor(cfg.AllowStream),
		}
	}
	ec.TickMs = uint(orDefault(cfg.Heartbeat, 50*time.Millisecond).Milliseconds())
	ec.ElectionMs = uint(orDefault(cfg.Election, 500*time.Millisecond).Milliseconds())
	ec.MaxTxnOps = MaxTxnOps
	ec.MaxRequestBytes = 16 << 20
	ec.AutoCompactionMode = embed.CompactorModePeriodic
	ec.AutoCompactionRetention = cfg.Retention.String()
	ec.QuotaBackendBytes = cfg.QuotaBytes
	// After each compaction the members compare their data: the majority shows which one is wrong. etcd's other two checks take the word of
	// one member for it, so that a damaged one would accuse a healthy one.
	if err := ec.ServerFeatureGate.(featuregate.MutableFeatureGate).Set(string(features.CompactHashCheck) + "=true"); err != nil {
		return nil, err
	}
	ec.SnapshotCatchUpEntries = catchUpEntries(cfg.Nodes)
	// A start reads all entries since the last snapshot into memory.
	ec.SnapshotCount = 2 * ec.SnapshotCatchUpEntries
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(NewZap(cfg.Logger))
	return ec, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// parseURL accepts https URLs only: the store never listens without mutual TLS.
func parseURL(field, s string) ([]url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s: given %q: want https://ip:port", field, s)
	}
	return []url.URL{*u}, nil
}

// memberHosts returns the distinct hosts of the members' peer URLs.
func memberHosts(initialCluster string) ([]string, error) {
	var hosts []string
	for m := range strings.SplitSeq(initialCluster, ",") {
		_, peer, ok := strings.Cut(strings.TrimSpace(m), "=")
		u, err := url.Parse(peer)
		if !ok || err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return nil, fmt.Errorf("etcd.initialCluster: given %q: want NAME=https://ip:port, with commas between", initialCluster)
		}
		if !slices.Contains(hosts, u.Hostname()) {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts, nil
}

// Client returns a client within the process. It lives until Stop; once the member has stopped its
// reads and writes fail with ErrStopped.
func (m *Member) Client() *clientv3.Client { return m.client }

// Err reports the member's fatal error, once.
func (m *Member) Err() <-chan error { return m.failed }

// ID is the member's id as etcd's tools print it.
func (m *Member) ID() string { return m.etcd.Server.MemberID().String() }

// QuotaBytes returns the size beyond which the store accepts no more data.
func (m *Member) QuotaBytes() int64 { return m.etcd.Config().QuotaBackendBytes }

// RaftLeader returns the id of the member that leads raft, in the view of this member, and a channel that is closed when raft elects
// another one. The id is "" while this member knows none. It changes to another one only after a quorum of members has elected that one.
func (m *Member) RaftLeader() (id string, changed <-chan struct{}) {
	changed = m.etcd.Server.LeaderChangedNotify() // before the leader: no change is missed
	if lead := m.etcd.Server.Leader(); lead != 0 {
		id = lead.String()
	}
	return id, changed
}

// TakeRaftLead makes this member raft's leader, which saves a leading supervisor a hop with every commit. It
// blocks until this succeeds or the context ends.
func (m *Member) TakeRaftLead(ctx context.Context) error {
	s := m.etcd.Server
	lead, self := s.Lead(), uint64(s.MemberID())
	if lead == self || lead == 0 {
		return nil
	}
	if err := s.MoveLeader(ctx, lead, self); err != nil {
		return fmt.Errorf("take the lead in raft: %w", err)
	}
	return nil
}

// handover is the time a member that leads raft may take to find a successor before it simply stops. When all
// members stop at once there is no successor, and etcd would wait for 6 s.
const handover = time.Second

// Stop stops the member and frees the data directory.
func (m *Member) Stop(ctx context.Context) error {
	close(m.stopping)
	err := m.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // result of closing an in-process client
	}
	ctx, cancel := context.WithTimeout(ctx, handover)
	defer cancel()
	// Ends the handover inside Close. Committed data is on disk either way.
	stop := context.AfterFunc(ctx, m.etcd.Server.HardStop)
	defer stop()
	m.front.stopClients()
	m.etcd.Close()
	m.front.close()
	m.watching.Wait()
	return errors.Join(err, m.lock.Close())
}
