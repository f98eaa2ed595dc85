package integration

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// spoiler stands between halves and their modules.
type spoiler struct {
	mu      sync.Mutex
	what    map[fault.Origin]selftest.Fault // for all modules of a half; 0: no fault
	spared  map[selftest.Kind]bool
	results map[fault.Origin]func() []selftest.Result
}

func newSpoiler() *spoiler {
	return &spoiler{what: map[fault.Origin]selftest.Fault{}, spared: map[selftest.Kind]bool{},
		results: map[fault.Origin]func() []selftest.Result{}}
}

func (s *spoiler) seam() *half.Seam {
	return &half.Seam{Instead: s.instead, Began: func(of fault.Origin, results func() []selftest.Result) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.results[of] = results
	}}
}

func (s *spoiler) set(of fault.Origin, f selftest.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.what[of] = f
}

// The delays of late probes. They are far longer than the floor of the rails and the mailbox, and of the modules
// within the half, so that probes are late even by the baselines learned on a busy machine. They are shorter than the
// time-outs: probes within the half follow one another, four to a test.
const (
	late      = 400 * time.Millisecond
	lateLocal = 300 * time.Millisecond
)

func (s *spoiler) instead(of fault.Origin, m selftest.Module, data []byte) ([][]byte, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spared[m.Kind] {
		return [][]byte{data}, 0
	}
	switch s.what[of] {
	case selftest.Lost:
		return nil, 0
	case selftest.Altered:
		b := bytes.Clone(data)
		b[len(b)-1] ^= 1
		return [][]byte{b}, 0
	case selftest.Doubled:
		return [][]byte{data, data}, 0
	case selftest.Late:
		switch m.Kind {
		case selftest.Register, selftest.Link: // done within the half's mutex
		case selftest.Reports, selftest.Bulk:
			return [][]byte{data}, lateLocal
		default:
			return [][]byte{data}, late
		}
	}
	return [][]byte{data}, 0
}

// of returns the results of a half that are as they should be.
func (s *spoiler) of(o fault.Origin, fits func(selftest.Result) bool) (names []string) {
	s.mu.Lock()
	results := s.results[o]
	s.mu.Unlock()
	if results == nil {
		return nil
	}
	for _, r := range results() {
		if fits(r) {
			names = append(names, r.Name)
		}
	}
	return names
}

// await waits until these modules of a half fit, in the order in which the half has them.
func (s *spoiler) await(n *testNet, o fault.Origin, what string, fits func(selftest.Result) bool, want ...string) {
	n.t.Helper()
	n.keepBusyUntil(func() bool {
		got := s.of(o, fits)
		return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(got, name) })
	}, func() string {
		return fmt.Sprintf("%s: %s: %v, want %v\n%+v", o, what, s.of(o, fits), want, s.all(o))
	})
}

func (s *spoiler) all(o fault.Origin) (out []string) {
	s.of(o, func(r selftest.Result) bool { out = append(out, fmt.Sprintf("%+v", r)); return false })
	return out
}

// keepBusyUntil sends challenges through the torus, which use links, relays and mailboxes, until holds returns true.
func (n *testNet) keepBusyUntil(holds func() bool, complaint func() string) {
	n.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var nonce uint32
	for end := time.Now().Add(bound); time.Now().Before(end); <-tick.C {
		if holds() {
			return
		}
		for _, way := range []struct {
			via grid.Coord
			to  fault.NodeID
		}{{at1, "n0-0-0"}, {at0, "n1-0-0"}} {
			nonce++
			c := &lofamov1.Challenge{Nonce: make([]byte, 16), Node: string(way.to), Half: lofamov1.Half_HALF_HOST,
				ReplyTo: n.super.net.LocalAddr().String()}
			copy(c.Nonce, fmt.Sprintf("%p %d", tick, nonce))
			n.super.send(netip.MustParseAddrPort(n.cfgs[way.via].Service.Listen), way.to, fault.PathTorus,
				&lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: c}})
		}
	}
	n.t.Fatalf("not within %s: %s", bound, complaint())
}

// newTestedNet has two nodes whose self-tests come as often as they may.
func newTestedNet(t *testing.T) (*testNet, *spoiler) {
	key := filepath.Join(t.TempDir(), "gossip.key")
	if err := pki.NewGossipKey(key); err != nil {
		t.Fatal(err)
	}
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) {
		c.SelfTest.Interval = config.Duration(500 * time.Millisecond)
		c.Service.GossipListen, c.Service.GossipKeyFile = freeport.Addr(t).String(), key
	})
	s := newSpoiler()
	n.seam = s.seam()
	return n, s
}

func passed(r selftest.Result) bool { return r.State == selftest.Passed && r.InUse && !r.Proving }

var (
	hostModules = []string{"register path", "report path", "mailbox", "direct rail service"}
	dnpModules  = []string{"register path", "mailbox", "link X+", "link X-", "relay"}
)

// TestSelfTestNamesFaultyModule: in each module of a running half probes are lost, altered, doubled and delayed, each is
// named, the half is sick for it with the module's name, and well again when it passes.
func TestSelfTestNamesFaultyModule(t *testing.T) {
	n, s := newTestedNet(t)
	n.startAll()
	n.awaitHealthy()
	s.await(n, host0, "passed", passed, hostModules...)
	s.await(n, dnp0, "passed", passed, dnpModules...)
	hostFaults := map[selftest.Fault][]string{
		selftest.Altered: hostModules, selftest.Lost: hostModules, selftest.Doubled: {"report path", "mailbox", "register path"},
		selftest.Late: {"report path", "mailbox", "direct rail service"},
	}
	// A link drops copies of frames itself, and a lossy link counts as lossy only after more probes than other
	// modules need.
	dnpFaults := map[selftest.Fault][]string{
		selftest.Altered: {"register path", "mailbox", "link X+", "link X-"}, selftest.Lost: {"register path", "mailbox", "link X+", "link X-"},
		selftest.Doubled: {"register path", "mailbox"}, selftest.Late: {"mailbox"},
	}
	for f := selftest.Altered; f <= selftest.Late; f++ {
		failed := func(r selftest.Result) bool { return r.State == selftest.Failed && r.Fault == f }
		n.super.forget()
		s.set(host0, f)
		s.await(n, host0, f.String(), failed, hostFaults[f]...)
		sick := n.super.awaitState(host0, "n0-0-0", fault.ComponentHost, fault.Sick, fault.KindSelf)
		if !strings.Contains(sick.obs.Detail, "self-test: ") {
			t.Errorf("the host half is sick for %q", sick.obs.Detail)
		}
		s.set(host0, 0)
		s.await(n, host0, "passed again", passed, hostModules...)
		n.super.forget()
		n.super.awaitState(host0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindSelf)
		if len(dnpFaults[f]) == 0 {
			continue
		}
		s.set(dnp0, f)
		s.await(n, dnp0, f.String(), failed, dnpFaults[f]...)
		state := fault.Sick
		if f == selftest.Altered {
			state = fault.Failed // a half whose own registers alter words is broken
		}
		n.super.await("DNP core "+state.String()+", and why", func(x said) bool {
			return x.by == host0 && x.obs.Component == fault.ComponentDNPCore && x.obs.State == state &&
				strings.Contains(x.obs.Detail, "self-test: ")
		})
		s.set(dnp0, 0)
		s.await(n, dnp0, "passed again", passed, dnpModules...)
		n.super.forget()
		n.super.awaitState(host0, "n0-0-0", fault.ComponentDNPCore, fault.Normal, fault.KindSelf)
	}
}

// TestRestartedHalvesProveThemselves: a half that resumes from an earlier incarnation is sick, for that reason, until
// the modules in use have passed. It keeps its baselines.
func TestRestartedHalvesProveThemselves(t *testing.T) {
	n, s := newTestedNet(t)
	n.startAll()
	n.awaitHealthy()
	learned := func(r selftest.Result) bool { return passed(r) && r.Limit > 0 }
	s.await(n, host0, "learned", learned, hostModules...)
	s.await(n, dnp0, "learned", learned, dnpModules...)
	for _, o := range []fault.Origin{dnp0, host0} {
		s.mu.Lock()
		s.spared[selftest.Register] = true
		s.mu.Unlock()
		s.set(o, selftest.Altered) // it is restarted, and its modules are bad
		n.halt(at0, o.Half)
		n.super.forget()
		n.start(at0, o.Half)
		component := fault.ComponentHost
		if o == dnp0 {
			component = fault.ComponentDNPCore
		}
		sick := n.super.awaitState(host0, "n0-0-0", component, fault.Sick, fault.KindSelf)
		if !strings.Contains(sick.obs.Detail, "restarted") {
			t.Errorf("%s of %s is sick for %q", component, o, sick.obs.Detail)
		}
		s.await(n, o, "bad and not proven", func(r selftest.Result) bool { return r.State == selftest.Failed && r.Proving }, "mailbox")
		s.set(o, 0)
		s.await(n, o, "passed", passed, "mailbox", "register path")
		n.super.forget()
		n.super.awaitState(host0, "n0-0-0", component, fault.Normal, fault.KindSelf)
	}
}

// A fault of one half alone reaches its daemon through the lock file, and so does its recovery.
func TestSelfTestFaultReachesDaemon(t *testing.T) {
	n, s := newTestedNet(t)
	n.startAll()
	n.awaitHealthy()
	says := func(words string) {
		t.Helper()
		n.keepBusyUntil(func() bool {
			h, err := regfile.LastHolder(filepath.Join(n.cfgs[at0].StateDir, half.RegisterFile), fault.HalfHost)
			return err == nil && strings.HasPrefix(h.Tests, words)
		}, func() string { return "the host half says " + words })
	}
	says(regfile.Proven)
	s.mu.Lock()
	s.spared[selftest.Register] = true
	s.mu.Unlock()
	s.set(host0, selftest.Altered)
	says("report path: altered")
	s.set(host0, 0)
	says(regfile.Proven)
}

// A half that starts for the first time has nothing to prove, and reports no restart.
func TestFirstStartIsNoRestart(t *testing.T) {
	n, s := newTestedNet(t)
	n.startAll()
	n.awaitHealthy()
	s.await(n, host0, "passed", passed, hostModules...)
	n.super.set(func(f *fakeSupervisor) {
		for _, x := range f.heard {
			if (x.obs.Component == fault.ComponentHost || x.obs.Component == fault.ComponentDNPCore) && x.obs.State == fault.Sick {
				t.Errorf("%s", x)
			}
		}
	})
}
