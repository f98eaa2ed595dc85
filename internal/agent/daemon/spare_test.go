package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// The daemon of the DNP half alone does not listen: it continues when the host half's daemon gets the place, and ends
// on request.
func TestSpareOfOneHalf(t *testing.T) {
	d := &daemon{
		cfg: RunConfig{Half: fault.HalfDNP, Agent: config.Agent{Node: "spare-0", Spare: true, Dims: "3x1x1", StateDir: t.TempDir()}},
		log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.awaitPlace(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("asked to stop: %v", err)
	}
	go func() { ended <- d.awaitPlace(t.Context()) }()
	if err := storage.PeerOrders().Save(d.cfg.Agent.StateDir, peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if at := half.WithStoredPeers(d.cfg.Agent).Coord; at != "1,0,0" {
		t.Errorf("goes on at %q", at)
	}
}

// A spare's daemon stops its halves when its place changes or is removed, but not when the stored order is unreadable.
func TestSpareLeavesItsPlace(t *testing.T) {
	here := peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}}
	for what, tc := range map[string]struct {
		word peers.State
		lost error
		want bool
	}{
		"the same place": {here, nil, false}, "no place": {peers.State{Number: 4}, nil, true},
		"another place":              {peers.State{Number: 4, Placed: true}, nil, true},
		"a file that cannot be read": {peers.State{}, peers.ErrState, false}, "no file": {peers.State{}, nil, false},
	} {
		if got := moved("", "1,0,0", tc.word, tc.lost); got != tc.want {
			t.Errorf("%s: moved %t", what, got)
		}
	}
	d := &daemon{cfg: RunConfig{Agent: config.Agent{Spare: true, Dims: "3x1x1", StateDir: t.TempDir()}}, log: slog.New(slog.DiscardHandler)}
	save := func(s peers.State) {
		t.Helper()
		if err := storage.PeerOrders().Save(d.cfg.Agent.StateDir, s); err != nil {
			t.Fatal(err)
		}
	}
	save(here)
	left := []string{half.CopyPath(d.cfg.Agent.StateDir, fault.HalfDNP), half.SpoolPath(d.cfg.Agent.StateDir, fault.HalfHost)}
	for _, file := range left {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	serving, ended := make(chan struct{}), make(chan error, 1)
	serve := func(ctx context.Context) error {
		close(serving)
		<-ctx.Done()
		return nil
	}
	go func() { ended <- d.inPlace(t.Context(), serve) }()
	<-serving
	save(peers.State{Number: 4})
	if err := <-ended; !errors.Is(err, errMoved) {
		t.Errorf("without a place: %v", err)
	}
	for _, file := range left { // at the next place it would be taken for news about that place
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", file, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serving = make(chan struct{})
	if err := os.WriteFile(left[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.inPlace(ctx, serve); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
	if _, err := os.Stat(left[1]); err != nil {
		t.Errorf("asked to stop, the node keeps its place, but not its undelivered reports: %v", err)
	}
}

// TestHalvesStopWhenAddressChanges: the daemon stops the halves in order, and goes on itself.
func TestHalvesStopWhenAddressChanges(t *testing.T) {
	d := &daemon{cfg: RunConfig{Readdress: func(context.Context) error { return nil }}, log: slog.New(slog.DiscardHandler)}
	stopped := func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}
	if err := d.addressed(t.Context(), stopped); !errors.Is(err, errReaddressed) || !d.manager.over {
		t.Errorf("with another address: %v, the service manager hears of a stop %v: want a restart, and no word of a stop", err, !d.manager.over)
	}
	d.cfg.Readdress = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	d.boots = &boots{path: filepath.Join(t.TempDir(), bootFile), log: d.log}
	if d.ends(errReaddressed, fault.StopDaemon); d.boots.record.Ended != nil {
		t.Error("with another address, an end of the agent is recorded, though it goes on")
	}
	if d.ends(nil, fault.StopDaemon); d.boots.record.Ended == nil {
		t.Error("asked to stop: no end of the agent is recorded")
	}
	failed := errors.New("for the test")
	if err := d.addressed(t.Context(), func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("with its address: %v: want the error of the halves", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.addressed(ctx, stopped); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
}

// The next daemon removes the copies and the undelivered reports from a former place. It keeps those of the present place and of earlier
// versions, and all of them when the stored order is unreadable. A node without a place keeps none, not even those of an earlier boot.
func TestNextDaemonLeavesFormerPlace(t *testing.T) {
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	order := func(dir string) error {
		return storage.PeerOrders().Save(dir, peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 2}})
	}
	withdrawal := func(dir string) error { return storage.PeerOrders().Save(dir, peers.State{Number: 4}) }
	damage := func(dir string) error { return os.WriteFile(storage.PeerOrders().Path(dir), []byte("?"), 0o600) }
	earlier := boot
	earlier[0]++
	for what, tc := range map[string]struct {
		spare  bool // a node without a configured place
		boot   [16]byte
		copied string
		order  func(dir string) error
		kept   bool
	}{
		"former place":                  {false, boot, "1,0,0", order, false},
		"present place":                 {false, boot, "2,0,0", order, true},
		"present place, earlier boot":   {true, earlier, "2,0,0", order, true},
		"earlier version":               {false, boot, "", order, true},
		"configured place":              {false, boot, "0,0,0", func(string) error { return nil }, true},
		"place withdrawn":               {true, boot, "1,0,0", withdrawal, false},
		"place withdrawn, earlier boot": {true, earlier, "1,0,0", withdrawal, false},
		"configured place again":        {false, boot, "1,0,0", withdrawal, false},
		"unreadable orders":             {false, boot, "1,0,0", damage, true},
		"a spare's unreadable orders":   {true, boot, "1,0,0", damage, true},
	} {
		d := &daemon{log: slog.New(slog.DiscardHandler), halves: map[fault.Half]*child{},
			cfg: RunConfig{Agent: config.Agent{Node: "n0", Coord: "0,0,0", Dims: "3x1x1", StateDir: t.TempDir(), Spare: tc.spare}}}
		if err := tc.order(d.cfg.Agent.StateDir); err != nil {
			t.Fatal(err)
		}
		for _, h := range d.cfg.halves() {
			d.halves[h] = newChild(d, h)
			f, err := storage.OpenCopy(half.CopyPath(d.cfg.Agent.StateDir, h),
				storage.CopyIdentity{Node: "n0", Half: h, Boot: tc.boot, Place: tc.copied})
			if err := errors.Join(err, f.Close(), os.WriteFile(half.SpoolPath(d.cfg.Agent.StateDir, h), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		d.leaveFormerPlace()
		for _, h := range d.cfg.halves() {
			for _, file := range []string{half.CopyPath(d.cfg.Agent.StateDir, h), half.SpoolPath(d.cfg.Agent.StateDir, h)} {
				if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) == tc.kept {
					t.Errorf("%s: %s of the %s half: %v, want it kept: %t", what, filepath.Base(file), h, err, tc.kept)
				}
			}
		}
	}
}

// A spare whose place is removed announces its stop to its former neighbours: those whose own orders are late do not call the link
// broken.
func TestLeavingSpareAnnouncesItsStop(t *testing.T) {
	hear, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hear.Close() }()
	cfg := config.DefaultAgent()
	cfg.Node, cfg.Spare, cfg.Dims, cfg.StateDir = "spare-0", true, "", t.TempDir()
	cfg.Links = map[string]config.LinkAddr{"X+": {Local: "127.0.0.1:0"}, "X-": {Local: "127.0.0.1:0"}}
	save := func(s peers.State) {
		t.Helper()
		if err := storage.PeerOrders().Save(cfg.StateDir, s); err != nil {
			t.Fatal(err)
		}
	}
	here := peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}, Torus: grid.Dims{X: 3, Y: 1, Z: 1}}
	here.Peers[grid.XPlus.Index()] = peers.Peer{Node: "n2-0-0", Address: hear.LocalAddr().(*net.UDPAddr).AddrPort()}
	save(here)
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	copied, err := storage.OpenCopy(half.CopyPath(cfg.StateDir, fault.HalfDNP), storage.CopyIdentity{Node: cfg.Node, Half: fault.HalfDNP,
		Boot: boot})
	if err != nil {
		t.Fatal(err)
	}
	session := storage.Session{ID: 7, Tx: [torus.KeySize]byte{1}, Rx: [torus.KeySize]byte{2}}
	if err := copied.StoreSession(grid.XPlus, session); err != nil {
		t.Fatal(err)
	}
	if err := copied.StoreCounters(grid.XPlus, &torus.LinkSnapshot{TxSession: 7, TxSeq: 100}); err != nil {
		t.Fatal(err)
	}
	if err := copied.Close(); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	d := &daemon{cfg: RunConfig{Agent: cfg}, log: slog.New(slog.NewTextHandler(&log, nil))}
	c := newChild(d, fault.HalfDNP)
	defer c.links.close()
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- d.inPlace(t.Context(), func(ctx context.Context) error {
			c.links.open()
			close(serving)
			<-ctx.Done()
			c.handOver() // as lookAfter does when the half has ended
			return nil
		})
	}()
	<-serving
	save(peers.State{Number: 4})
	if err := <-ended; !errors.Is(err, errMoved) {
		t.Fatalf("without a place: %v", err)
	}
	var keys torus.Keyring
	keys.Add(time.Now(), torus.NewSession(7, session.Rx, session.Tx))
	buf := make([]byte, 2000)
	if err := hear.SetReadDeadline(time.Now().Add(checkBound)); err != nil {
		t.Fatal(err)
	}
	n, err := hear.Read(buf)
	if err != nil {
		t.Fatalf("the former neighbour hears nothing: %v", err)
	}
	f, err := torus.Decode(buf[:n], torus.DefaultMaxFrame, &keys)
	if err != nil {
		t.Fatal(err)
	}
	r, err := torus.DecodeRestarting(f.Payload)
	if f.Type != torus.TypeRestarting || err != nil || r.Back != leaveTime || f.Src != here.Coord || f.Dst != (grid.Coord{X: 2}) {
		t.Errorf("the former neighbour hears %+v, %+v, %v", f, r, err)
	}
	said := log.String()
	if !strings.Contains(said, "this node's place has changed") || !strings.Contains(said, "former neighbours are notified") {
		t.Errorf("the log says %s", said)
	}
}
