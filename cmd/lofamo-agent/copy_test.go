package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

func identity(t *testing.T, c config.Agent, h fault.Half) storage.CopyIdentity {
	t.Helper()
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return storage.CopyIdentity{Node: c.Node, Half: h, Boot: boot}
}

// startHalf starts a half's process without a daemon.
func startHalf(t *testing.T, file, half string) *exec.Cmd {
	t.Helper()
	p := agentCommand(t, half, "--config", file, "--scheduling", "default")
	p.Stderr = os.Stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // it writes into the test's directory until it has ended
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

// A DNP half is killed at random moments, a dozen times, and resumes each time. Its neighbour sees one boot epoch,
// one session without a second handshake, and one sequence, in which no number appears twice and hardly one is
// missing. The half still has every message that it acknowledged.
func TestKilledDNPHalfResumesItsSessions(t *testing.T) {
	c := node(t)
	// The neighbour is the test: a link that is silent while the test waits for a processor would be given a new session.
	period, misses := config.Duration(100*time.Millisecond), 64
	c.Periods.LinkPeriod, c.Periods.LinkMisses = &period, &misses
	file := write(t, c, "")
	const dir, session, epoch = grid.XPlus, 9, 77
	tx, rx := [torus.KeySize]byte{1}, [torus.KeySize]byte{2}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(c.Links[dir.String()].Peer)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	to := netip.MustParseAddrPort(c.Links[dir.String()].Local)
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := storage.OpenCopy(half.CopyPath(c.StateDir, fault.HalfDNP), identity(t, c, fault.HalfDNP))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		f.StoreNumbers(storage.Numbers{OutboxSnapshot: servicenet.OutboxSnapshot{Epoch: epoch}}),
		f.StoreSession(dir, storage.Session{ID: session, Tx: tx, Rx: rx}),
		f.StoreCounters(dir, &torus.LinkSnapshot{TxSession: session, TxSeq: 100, Started: true, RxSession: session, High: 100, Replay: 1,
			Rx: torus.LinkNormal, Tx: torus.LinkNormal}),
		f.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	var keys torus.Keyring
	keys.Add(time.Now(), torus.ResumeSession(session, rx, tx, 100))
	rng := rand.New(rand.NewPCG(1, 2))
	came := map[uint64][]byte{}
	highest, own, lives := uint64(100), uint64(100), 0
	buf := make([]byte, 2048)
	for ; lives < 12; lives++ {
		p := startHalf(t, file, "dnp")
		until := highest + 1 + rng.Uint64N(8)
		for highest < until {
			if err := conn.SetReadDeadline(time.Now().Add(bound)); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("life %d, after frame %d: %v", lives, highest, err)
			}
			g, err := torus.Decode(buf[:n], c.MTU, &keys)
			switch was := came[g.Seq]; {
			case err != nil || g.Epoch != epoch || g.Ack > own:
				t.Fatalf("life %d: frame %+v, %v", lives, g, err)
			case was != nil && !bytes.Equal(was, buf[:n]):
				t.Fatalf("life %d: number %d is used again", lives, g.Seq)
			}
			came[g.Seq] = bytes.Clone(buf[:n])
			highest = max(highest, g.Seq)
			own++
			h := torus.Frame{Type: torus.TypeHeartbeat, Direction: dir.Opposite(), Src: g.Dst, Dst: g.Src, Session: session, Epoch: 3, Seq: own,
				Ack: highest}
			b, err := h.Append(nil, &keys)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.WriteToUDPAddrPort(b, to) // there may be no listener
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		_ = p.Process.Signal(syscall.SIGKILL)
		_ = p.Wait()
	}
	// A number that was stored and not sent is a gap of one, and one step may take two.
	if missing := int(highest-100) - len(came); missing > 2*lives {
		t.Errorf("%d of %d numbers are missing after %d lives", missing, highest-100, lives)
	}
}

// A host half is killed at random moments while it has reports to send. Its reports come under one boot epoch, no
// number stands for two reports, and the states at the moment of its death arrive.
func TestKilledHostHalfResumesItsReports(t *testing.T) {
	t.Parallel()
	c := node(t)
	file := write(t, c, "")
	l := listen(t, c)
	what := map[fault.ReportID]string{}
	l.mu.Lock()
	l.each = func(r fault.Report) {
		said := fmt.Sprintf("%t %s %v", r.Digest, r.Uptime, len(r.Observations))
		if was, ok := what[r.ID]; ok && was != said {
			t.Errorf("%s was %s and is %s", r.ID, was, said)
		}
		what[r.ID] = said
	}
	l.mu.Unlock()
	rng := rand.New(rand.NewPCG(3, 4))
	host := startHalf(t, file, "host")
	states := []fault.State{fault.Normal, fault.Failed}
	for i := range 6 {
		var dnp *exec.Cmd
		if i%2 == 0 {
			dnp = startHalf(t, file, "dnp")
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		_ = host.Process.Signal(syscall.SIGKILL)
		_ = host.Wait()
		host = startHalf(t, file, "host")
		l.await(t, "what became of the DNP half", func() bool { return l.dnp == states[i%2] })
		if dnp != nil {
			_ = dnp.Process.Signal(syscall.SIGKILL)
			_ = dnp.Wait()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	epochs := map[fault.Epoch]bool{}
	for id := range what {
		if id.Origin.Half == fault.HalfHost {
			epochs[id.Epoch] = true
		}
	}
	if len(epochs) != 1 || len(what) < 6 {
		t.Errorf("%d reports and digests of %d epochs, want 1", len(what), len(epochs))
	}
}
