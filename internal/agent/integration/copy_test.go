package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

func (n *testNet) look(c grid.Coord, h fault.Half) *storage.CopyFile {
	n.t.Helper()
	f, err := storage.ReadCopy(half.CopyPath(n.cfgs[c].StateDir, h), agenttest.CopyIdentity(n.t, n.cfgs[c], h))
	if err != nil {
		n.t.Fatal(err)
	}
	return f
}

// at is how far the half of a copy has come: the number of its reports, or of its frames.
func at(f *storage.CopyFile, h fault.Half) (fault.Epoch, uint64) {
	n, _ := f.Numbers()
	if h == fault.HalfHost {
		return n.Epoch, uint64(n.Seq)
	}
	c, _, _ := f.Link(grid.XPlus)
	return n.Epoch, c.TxSeq
}

// peerEnd plays the neighbour of a link, with a session that had no handshake.
type peerEnd struct {
	t    *testing.T
	conn *net.UDPConn
	to   netip.AddrPort
	keys torus.Keyring
}

// TestPlatformDPUIsReportedAsSharedKernel: halves without a window share a register file and so a kernel, also
// with another platform in the configuration.
func TestPlatformDPUIsReportedAsSharedKernel(t *testing.T) {
	n := newTestNet(t, pair, func(cfg *config.Agent) { cfg.Platform = config.PlatformDPU })
	var said bytes.Buffer
	c, err := half.Prepare(n.cfgs[at0], fault.HalfDNP, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.Platform != config.PlatformSharedKernel || !strings.Contains(said.String(), "platform dpu needs a window") {
		t.Errorf("platform %s, log %q: want shared-kernel, and a warning", c.Config.Platform, said.String())
	}
}

// A half whose copy has sessions uses them at once: without a handshake, with continuous numbers and the same boot
// epoch. Each frame's number was in the copy before the frame left, and it acknowledges only messages that are in the
// copy.
func TestResumedLinkNeedsNoHandshake(t *testing.T) {
	n := newTestNet(t, pair, patientLinks)
	cfg := n.cfgs[at0]
	dir := grid.XPlus
	local, peer := netip.MustParseAddrPort(cfg.Links[dir.String()].Local), netip.MustParseAddrPort(cfg.Links[dir.String()].Peer)
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(peer))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()

	const before, heard = 1000, 500
	tx, rx := agenttest.CopyWithSession(t, half.CopyPath(cfg.StateDir, fault.HalfDNP), cfg, dir, 12,
		torus.LinkSnapshot{TxSeq: before, Acked: before, High: heard, Replay: 1})
	n.start(at0, fault.HalfDNP)

	p := &peerEnd{t: t, conn: conn, to: local}
	now := time.Now()
	p.keys.Add(now, torus.ResumeSession(9, rx, tx, heard))
	buf := make([]byte, 2048)
	for want := uint64(before + 1); want <= before+20; want++ {
		if err := conn.SetReadDeadline(time.Now().Add(bound)); err != nil {
			t.Fatal(err)
		}
		size, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("frame %d does not come: %v", want, err)
		}
		g, err := torus.Decode(buf[:size], cfg.MTU, &p.keys)
		if err != nil || g.Seq != want || g.Session != 9 || g.Epoch != 77 {
			t.Fatalf("frame %+v, %v: want number %d of session 9, epoch 77", g, err, want)
		}
		is, _, ok := n.look(at0, fault.HalfDNP).Link(dir)
		if !ok || is.TxSeq < g.Seq || is.High < g.Ack {
			t.Fatalf("frame %d, which acknowledges %d, was sent before it was stored: the copy is at %d and %d", g.Seq, g.Ack, is.TxSeq, is.High)
		}
		p.send(dir.Opposite(), g.Dst, g.Src, heard+want-before, g.Seq)
	}
	if len(n.look(at0, fault.HalfDNP).Reports()) > 0 {
		t.Error("there are reports of a half that has nothing to say")
	}
}

func (p *peerEnd) send(dir grid.Direction, src, dst grid.Coord, seq, ack uint64) {
	p.t.Helper()
	f := torus.Frame{Type: torus.TypeHeartbeat, Direction: dir, Src: src, Dst: dst, Session: 9, Epoch: 3, Seq: seq, Ack: ack, DNP: 1, Host: 1}
	b, err := f.Append(nil, &p.keys)
	if err == nil {
		_, err = p.conn.WriteToUDPAddrPort(b, p.to)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Halves that die and come back keep their epoch and sessions, and their neighbours miss nothing.
func TestRestartedHalvesKeepEpochAndSessions(t *testing.T) {
	n := newTestNet(t, pair, patientLinks)
	n.startAll()
	n.awaitHealthy()
	// No daemon holds the sockets here. So the kernel refuses the neighbours' frames while a half is away, and a neighbour that has seen two
	// refusals requests another session. On a loaded machine a half is away that long, now and then.
	const attempts = 5
	for attempt := 1; !n.restartKeepsSessions(); attempt++ {
		if attempt == attempts {
			t.Fatalf("none of %d restarts kept the sessions", attempts)
		}
	}
	n.restart(fault.HalfHost)
}

// restart ends a half and starts it again. It returns the copies of before and after.
func (n *testNet) restart(h fault.Half) (was, is *storage.CopyFile) {
	n.t.Helper()
	was = n.look(at0, h)
	n.halt(at0, h)
	n.super.forget()
	n.start(at0, h)
	before, number := at(was, h)
	agenttest.Await(n.t, "numbers that go on", func() bool {
		is := n.look(at0, h)
		for _, d := range n.dims.Links() {
			a, s, _ := was.Link(d)
			b, r, _ := is.Link(d)
			if h == fault.HalfDNP && s == r && (b.TxSeq <= a.TxSeq || b.High <= a.High) {
				return false
			}
		}
		_, now := at(is, h)
		return now > number
	})
	n.awaitHealthy()
	is = n.look(at0, h)
	if now, _ := at(is, h); now != before {
		n.t.Errorf("%s half: epoch %d, was %d", h, now, before)
	}
	return was, is
}

// restartKeepsSessions restarts a DNP half, and reports whether it continues all its sessions.
func (n *testNet) restartKeepsSessions() bool {
	n.t.Helper()
	was, is := n.restart(fault.HalfDNP)
	kept := true
	for _, d := range n.dims.Links() {
		a, s, _ := was.Link(d)
		b, r, _ := is.Link(d)
		if s != r || s.ID == 0 {
			n.t.Logf("link %s: session %08x at %d and %d, was %08x at %d and %d", d, r.ID, b.TxSeq, b.High, s.ID, a.TxSeq, a.High)
			kept = false
		}
	}
	return kept
}

// A copy that is not gone on from: a new boot epoch, and the reports of before are delivered all the same. They come from the spool where
// the copy is no more, and from the copy where there is no spool.
func TestColdStartTakesNewEpochAndDeliversOldReports(t *testing.T) {
	for name, tt := range map[string]struct {
		spool bool
		spoil func(t *testing.T, cfg config.Agent, path string)
	}{
		"no copy": {true, func(t *testing.T, _ config.Agent, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
		"truncated": {true, func(t *testing.T, _ config.Agent, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}},
		"a later epoch on disk": {false, func(t *testing.T, cfg config.Agent, _ string) {
			p := filepath.Join(cfg.StateDir, "host.epoch")
			if err := storage.SetEpoch(p, storage.ReadEpoch(p)+5); err != nil {
				t.Fatal(err)
			}
		}},
		"an epoch to which no start leads": {false, func(t *testing.T, cfg config.Agent, path string) {
			f, err := storage.OpenCopy(path, agenttest.CopyIdentity(t, cfg, fault.HalfHost))
			if err != nil {
				t.Fatal(err)
			}
			n, _ := f.Numbers()
			n.Epoch |= 1 << 28
			if err := errors.Join(f.StoreNumbers(n), f.Close()); err != nil {
				t.Fatal(err)
			}
		}},
		"it makes the half crash": {false, func(t *testing.T, _ config.Agent, _ string) {
			setRecord(t, halfcore.RecoveryRecord{
				Half: fault.HalfHost, State: halfcore.Restarting, Budget: 5,
				Last: &halfcore.Recovery{Cause: halfcore.Cause{Kind: halfcore.Exited, Code: 2}, Attempt: 3, Gone: 1},
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNet(t, pair, func(cfg *config.Agent) {
				if !tt.spool {
					cfg.Service.SpoolBytes = 0
				}
			})
			n.super.set(func(f *fakeSupervisor) { f.mute = true })
			n.start(at0, fault.HalfHost)
			first := n.awaitStatus(at0, "its epoch", func(s local.Status) bool { return s.Host.Epoch > 0 }).Host.Epoch
			n.start(at0, fault.HalfDNP)
			n.awaitStatus(at0, "both halves", func(s local.Status) bool { return s.DNP.State == "ALIVE" })
			n.halt(at0, fault.HalfDNP) // causes a report
			agenttest.Await(n.t, "a report", func() bool { return len(n.look(at0, fault.HalfHost).Reports()) > 0 })
			n.halt(at0, fault.HalfHost)
			held := n.look(at0, fault.HalfHost).Reports()
			tt.spoil(t, n.cfgs[at0], half.CopyPath(n.cfgs[at0].StateDir, fault.HalfHost))
			n.super.set(func(f *fakeSupervisor) {
				f.mute = false
				clear(f.reports)
			})
			n.start(at0, fault.HalfHost)
			n.awaitStatus(at0, "a new epoch", func(s local.Status) bool {
				return s.Host.Epoch > first && s.Host.Epoch < first+servicenet.MaxEpochJump && s.Copy.Cold != ""
			})
			for _, r := range held {
				id := fault.ReportID{Origin: fault.Origin{Node: n.cfgs[at0].Node, Half: fault.HalfHost}, Epoch: r.Epoch, Seq: r.Seq}
				n.super.awaitThat(id.String(), func() bool { return n.super.reports[id] > 0 })
			}
		})
	}
}

// setRecord sets the daemon's record for the halves that the test starts.
func setRecord(t *testing.T, r halfcore.RecoveryRecord) {
	t.Helper()
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(half.RecoveryEnv, string(b))
}

// A copy is given up when the restarts from it failed in a way that may be its own fault, and only while they do.
func TestCopyIsGivenUpWhileRestartsFromItFail(t *testing.T) {
	panicked, killed, hung := halfcore.Cause{Kind: halfcore.Exited, Code: 2}, halfcore.Cause{Kind: halfcore.Killed, Code: 9},
		halfcore.Cause{Kind: halfcore.Hung}
	at := func(attempt int, c halfcore.Cause) *halfcore.Recovery {
		return &halfcore.Recovery{Cause: c, Attempt: attempt, Gone: 1}
	}
	served := at(3, panicked)
	served.Serving = 1
	for name, tt := range map[string]struct {
		half   fault.Half
		state  halfcore.RecoveryState
		budget int
		last   *halfcore.Recovery
		want   string
	}{
		"the first start":   {fault.HalfDNP, halfcore.Starting, 5, nil, ""},
		"the first restart": {fault.HalfDNP, halfcore.Restarting, 5, at(1, panicked), ""},
		"one failed":        {fault.HalfDNP, halfcore.Restarting, 5, at(2, panicked), ""},
		"two failed":        {fault.HalfDNP, halfcore.Restarting, 5, at(3, panicked), "restarts that failed: 2 in a row"},
		"three failed":      {fault.HalfDNP, halfcore.Restarting, 5, at(4, panicked), "restarts that failed: 3 in a row"},
		"two failed by a fault": {fault.HalfDNP, halfcore.Restarting, 5, at(3, halfcore.Cause{Kind: halfcore.Killed, Code: 11}),
			"restarts that failed: 2 in a row"},
		"killed by somebody":         {fault.HalfDNP, halfcore.Restarting, 5, at(5, killed), ""},
		"hung":                       {fault.HalfDNP, halfcore.Restarting, 5, at(5, hung), ""},
		"nobody saw it":              {fault.HalfDNP, halfcore.Restarting, 5, at(5, halfcore.Cause{Kind: halfcore.Unseen}), ""},
		"given up as it was killed":  {fault.HalfDNP, halfcore.Starting, 5, at(6, killed), "restarts that failed: 5 in a row"},
		"given up as it hung":        {fault.HalfDNP, halfcore.Starting, 5, at(6, hung), "restarts that failed: 5 in a row"},
		"given up for what it lacks": {fault.HalfDNP, halfcore.Starting, 5, at(6, halfcore.Cause{Kind: halfcore.Exited, Code: 1}), ""},
		"it said what it lacks":      {fault.HalfDNP, halfcore.Restarting, 5, at(3, halfcore.Cause{Kind: halfcore.Exited, Code: 1}), ""},
		"its configuration is refused": {fault.HalfDNP, halfcore.Restarting, 5,
			at(3, halfcore.Cause{Kind: halfcore.Exited, Code: half.ExitRefused}), ""},
		"its certificate is refused": {fault.HalfDNP, halfcore.Restarting, 5,
			at(3, halfcore.Cause{Kind: halfcore.Exited, Code: half.ExitRefusedFile}), ""},
		"it was never there":            {fault.HalfDNP, halfcore.Restarting, 5, at(3, halfcore.Cause{Kind: halfcore.NotStarted}), ""},
		"the other half":                {fault.HalfHost, halfcore.Restarting, 5, at(3, panicked), ""},
		"given up, and asked for":       {fault.HalfDNP, halfcore.Starting, 5, at(6, panicked), "restarts that failed: 5 in a row"},
		"given up after one":            {fault.HalfDNP, halfcore.Starting, 1, at(2, panicked), "restarts that failed: 1 in a row"},
		"a budget of one, the first":    {fault.HalfDNP, halfcore.Restarting, 1, at(1, panicked), ""},
		"left as it died, and asked":    {fault.HalfDNP, halfcore.Starting, 5, at(1, panicked), ""},
		"stopped long after it was":     {fault.HalfDNP, halfcore.Starting, 5, served, ""},
		"stopped while it was starting": {fault.HalfDNP, halfcore.Starting, 5, at(3, panicked), "restarts that failed: 2 in a row"},
	} {
		t.Run(name, func(t *testing.T) {
			setRecord(t, halfcore.RecoveryRecord{Half: tt.half, State: tt.state, Budget: tt.budget, Last: tt.last})
			if got := (&half.Common{Half: fault.HalfDNP}).Distrust(); got != tt.want {
				t.Errorf("%q: want %q", got, tt.want)
			}
		})
	}
	t.Setenv(half.RecoveryEnv, "")
	if got := (&half.Common{Half: fault.HalfDNP}).Distrust(); got != "" {
		t.Errorf("without a daemon: %q", got)
	}
}

// A copy that makes its half crash only after it has served and passed its self-test is left with the last restart that the budget
// allows, and after it was given up; where somebody kills the half only then, and a cold start that runs well ends it.
func TestCopyThatCrashesHalfIsDistrusted(t *testing.T) {
	const last, over = "4 restarts within 1m0s: the budget is spent", "it was given up"
	for name, tt := range map[string]struct {
		cause  halfcore.Cause
		budget int
		want   []string // at the start, at each restart, and once a person asks
	}{
		"it panics":         {halfcore.Cause{Kind: halfcore.Exited, Code: 2}, 4, []string{"", "", "", "", last, over}},
		"somebody kills it": {halfcore.Cause{Kind: halfcore.Killed, Code: 9}, 4, []string{"", "", "", "", "", over}},
		"it says why":       {halfcore.Cause{Kind: halfcore.Exited, Code: 1}, 4, []string{"", "", "", "", "", ""}},
		"a small budget":    {halfcore.Cause{Kind: halfcore.Exited, Code: 2}, 2, []string{"", "", "", over}},
	} {
		t.Run(name, func(t *testing.T) {
			now, stores := time.Unix(1000, 0), uint32(0)
			m := recovery.New(recovery.Config{
				Half: fault.HalfDNP, TRead: 50 * time.Millisecond, Misses: 1, StartWithin: 5 * time.Second, Budget: tt.budget, Window: time.Minute,
			}, now, 0, nil, false)
			var got []string
			started := func() {
				setRecord(t, m.Record())
				got = append(got, (&half.Common{Half: fault.HalfDNP}).Distrust())
				m.Step(now, recovery.Began{PID: 1, Stores: stores})
				for range 60 {
					now, stores = now.Add(50*time.Millisecond), stores+1
					m.Step(now, recovery.Look{Stores: stores, Readable: true})
				}
				m.Step(now, recovery.Proven{})
			}
			for out := m.Step(now, recovery.Look{}); out.Start; out = m.Step(now, recovery.Ended{Cause: tt.cause}) {
				started()
			}
			if s := m.Record().State; s != halfcore.GivenUp {
				t.Fatalf("it is %s", s)
			}
			m.Step(now, recovery.Asked{})
			started()
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q: want %q", got, tt.want)
			}
			m.Step(now, recovery.Closed{}) // it has run well: the next daemon finds no fault
			setRecord(t, m.Record())
			if why := (&half.Common{Half: fault.HalfDNP}).Distrust(); why != "" {
				t.Errorf("after it ran well, and was stopped: %q", why)
			}
		})
	}
}

// The copy taken away from a running half is there again within a second or so, with all that the next life needs.
func TestDeletedCopyIsRestored(t *testing.T) {
	n := newTestNet(t, pair, nil)
	n.startAll()
	n.awaitHealthy()
	for _, h := range []fault.Half{fault.HalfDNP, fault.HalfHost} {
		path := half.CopyPath(n.cfgs[at0].StateDir, h)
		epoch, number := at(n.look(at0, h), h)
		for _, take := range []func() error{func() error { return os.Truncate(path, 0) }, func() error { return os.Remove(path) }} {
			if err := take(); err != nil {
				t.Fatal(err)
			}
			agenttest.Await(n.t, "a copy again", func() bool {
				f, err := storage.ReadCopy(path, agenttest.CopyIdentity(t, n.cfgs[at0], h))
				if err != nil {
					return false
				}
				e, now := at(f, h)
				return e == epoch && now > number
			})
		}
		n.halt(at0, h)
		n.start(at0, h)
		agenttest.Await(n.t, "numbers that go on", func() bool {
			e, now := at(n.look(at0, h), h)
			return e == epoch && now > number
		})
	}
}

// The daemon's record for a half that crashes at every start shows when the copy is to blame, also after a restart of
// the daemon.
func TestCrashLoopLeavesCopy(t *testing.T) {
	cfg := newTestNet(t, pair, nil).cfgs[at0]
	cfg.Recovery.Restarts = 3
	dir := t.TempDir()
	program, given := filepath.Join(dir, "halves"), filepath.Join(dir, "given")
	script := fmt.Sprintf("#!/bin/sh\n[ $1 = host ] && exec sleep 1000\necho \"$%s\" >> %s\nexit 2\n", half.RecoveryEnv, given)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- daemon.Run(ctx, daemon.RunConfig{Agent: cfg, Program: program, Restart: daemon.RestartAlways}, slog.New(slog.DiscardHandler))
		}()
		agenttest.Await(t, "the DNP half is given up", func() bool {
			h, err := daemon.ReadRecovery(cfg.StateDir, fault.HalfDNP)
			return err == nil && h != nil && h.Record.State == halfcore.GivenUp
		})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the daemon has ended: %v", err)
		}
	}
	b, err := os.ReadFile(given)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		t.Setenv(half.RecoveryEnv, strings.TrimSpace(line))
		got = append(got, (&half.Common{Half: fault.HalfDNP}).Distrust())
	}
	const two, three = "restarts that failed: 2 in a row", "restarts that failed: 3 in a row"
	if want := []string{"", "", "", two, three, "", "", two}; !slices.Equal(got, want) {
		t.Errorf("%q: want %q", got, want)
	}
}
