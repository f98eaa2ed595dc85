// Package agenttest is for tests of the agent: configurations of whole nodes with certificates, the copy of a half that
// had a session, and waiting. Any test may use Dir.
package agenttest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// Cluster is the name of the cluster that Configs makes.
const Cluster = "test"

// Bound is the longest wait of a test for an expected event: far longer than the event takes, so that only a failure
// reaches it.
const Bound = time.Minute

// NewCA makes a certificate authority, kept as ca.pem and ca.key in dir.
func NewCA(t testing.TB, dir string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(Cluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	return ca
}

// A LinkEnd is one end of a link: its node's place, and the direction from there.
type LinkEnd struct {
	At  grid.Coord
	Dir grid.Direction
}

// LinkPorts returns a free address for each end of each link of a torus.
func LinkPorts(t testing.TB, dims grid.Dims) map[LinkEnd]string {
	out := map[LinkEnd]string{}
	for rank := range dims.Nodes() {
		for _, d := range dims.Links() {
			out[LinkEnd{dims.At(rank), d}] = freeport.Addr(t).String()
		}
	}
	return out
}

// Config returns the configuration of the node at c, with its state directory and certificates below dir, where the
// authority's certificate is.
func Config(t testing.TB, dir string, ca *pki.CA, dims grid.Dims, c grid.Coord, links map[LinkEnd]string) config.Agent {
	t.Helper()
	id := fault.DefaultNodeID(c)
	own := filepath.Join(dir, string(id))
	if err := os.MkdirAll(filepath.Join(own, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := config.DefaultAgent()
	cfg.Processor.Budget = 0 // of a process; both halves of many nodes, and the test, may share one
	cfg.Cluster, cfg.Node, cfg.Coord, cfg.Dims = Cluster, id, c.String(), dims.String()
	cfg.StateDir = filepath.Join(own, "state")
	cfg.TLS = config.AgentTLS{
		CA:       filepath.Join(dir, "ca.pem"),
		HostCert: filepath.Join(own, "host.pem"), HostKey: filepath.Join(own, "host.key"),
		DNPCert: filepath.Join(own, "dnp.pem"), DNPKey: filepath.Join(own, "dnp.key"),
	}
	for _, h := range []struct {
		half      fault.Half
		cert, key string
	}{{fault.HalfHost, cfg.TLS.HostCert, cfg.TLS.HostKey}, {fault.HalfDNP, cfg.TLS.DNPCert, cfg.TLS.DNPKey}} {
		if err := ca.IssueTo(h.cert, h.key, pki.NodeIdentity(Cluster, id, h.half), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Links = map[string]config.LinkAddr{}
	for _, d := range dims.Links() {
		peer, _ := dims.Neighbour(c, d)
		cfg.Links[d.String()] = config.LinkAddr{Local: links[LinkEnd{c, d}], Peer: links[LinkEnd{peer, d.Opposite()}]}
	}
	cfg.Service.Listen = freeport.Addr(t).String()
	return cfg
}

// Dir returns a temporary directory with a short path under any test name: the sockets in a state directory bound
// its length.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

// NodeConfig returns the configuration of the first node of a 2x1x1 torus. No process serves its only supervisor.
func NodeConfig(t testing.TB) config.Agent {
	t.Helper()
	dir, dims := Dir(t), grid.Dims{X: 2, Y: 1, Z: 1}
	cfg := Config(t, dir, NewCA(t, dir), dims, grid.Coord{}, LinkPorts(t, dims))
	cfg.Supervisors = []config.SupervisorAddr{{ID: "sup-0", Report: freeport.Addr(t).String()}}
	return cfg
}

// CopyIdentity returns the identity of a half's copy.
func CopyIdentity(t testing.TB, cfg config.Agent, h fault.Half) storage.CopyIdentity {
	t.Helper()
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return storage.CopyIdentity{Node: cfg.Node, Half: h, Boot: boot}
}

// CopyWithSession makes, at path, the copy of a DNP half that had session 9 on a link in the state at, and boot epoch
// 77. It returns the half's keys.
func CopyWithSession(t testing.TB, path string, cfg config.Agent, dir grid.Direction, seq fault.Seq,
	at torus.LinkSnapshot) (tx, rx [torus.KeySize]byte) {
	t.Helper()
	tx, rx = [torus.KeySize]byte{1}, [torus.KeySize]byte{2}
	f, err := storage.OpenCopy(path, CopyIdentity(t, cfg, fault.HalfDNP))
	if err != nil {
		t.Fatal(err)
	}
	at.TxSession, at.Started, at.RxSession, at.PeerEpoch, at.Rx, at.Tx = 9, true, 9, 3, torus.LinkNormal, torus.LinkNormal
	for _, err := range []error{
		f.StoreNumbers(storage.Numbers{OutboxSnapshot: servicenet.OutboxSnapshot{Epoch: 77, Seq: seq}}),
		f.StoreSession(dir, storage.Session{ID: 9, Tx: tx, Rx: rx}),
		f.StoreCounters(dir, &at),
		f.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return tx, rx
}

// Await polls until something holds: writes into a mapped page cause no event.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Bound); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", Bound, what)
}

// Writer sends logs to the test, until that has ended.
type Writer struct{ T testing.TB }

// Write logs one line.
func (w Writer) Write(b []byte) (int, error) {
	w.T.Log(string(b[:max(0, len(b)-1)]))
	return len(b), nil
}

// FlipWord flips a bit of a register behind everybody's back.
func FlipWord(t testing.TB, path string, a watchdog.Addr) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [4]byte
	if _, err := f.ReadAt(b[:], int64(a)); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[:], binary.LittleEndian.Uint32(b[:])^4)
	if _, err := f.WriteAt(b[:], int64(a)); err != nil {
		t.Fatal(err)
	}
}
