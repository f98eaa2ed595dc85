package integration

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

var pair = grid.Dims{X: 2, Y: 1, Z: 1}

// awaitStatus polls a host half for the status that lofamo-agent status would show.
func (n *testNet) awaitStatus(c grid.Coord, what string, fits func(local.Status) bool) local.Status {
	n.t.Helper()
	var last local.Status
	agenttest.Await(n.t, what, func() bool {
		s, err := local.AskStatus(context.Background(), n.cfgs[c].StateDir)
		if err != nil {
			return false
		}
		last = s
		return fits(s)
	})
	return last
}

func armed(s local.Status) bool { return s.Delivery.GetState() == lofamov1.PathState_ARMED }

// twoInterfaces gives every node a second service interface.
func twoInterfaces(t *testing.T) func(*config.Agent) {
	return func(c *config.Agent) {
		c.Service.Alternates = []config.ServiceAddr{{Listen: freeport.Addr(t).String()}}
	}
}

// REQ, REP and ACK load an alternate that shares neither interface nor supervisor with the primary.
func TestAlternateIsLoaded(t *testing.T) {
	n := newTestNet(t, pair, twoInterfaces(t), "sup-1")
	n.start(at0, fault.HalfHost)
	s := n.awaitStatus(at0, "an armed alternate", func(s local.Status) bool {
		return armed(s) && strings.HasSuffix(s.Delivery.GetPrimary(), ">sup-0") && strings.HasSuffix(s.Delivery.GetAlternate(), ">sup-1")
	})
	primary, _, _ := strings.Cut(s.Delivery.GetPrimary(), ">")
	if alternate, _, _ := strings.Cut(s.Delivery.GetAlternate(), ">"); alternate == primary {
		t.Errorf("primary %s, alternate %s: want two interfaces", s.Delivery.GetPrimary(), s.Delivery.GetAlternate())
	}
	if len(s.Interfaces) != 2 || s.Interfaces[0].Name != "service" || s.Interfaces[1].Name != "service-1" {
		t.Errorf("interfaces %v", s.Interfaces)
	}
	other := n.more[0]
	other.awaitThat("the acknowledgement of its reply", func() bool { return len(other.pathAcks) > 0 })
}

// An ICMP error moves the reports to the armed alternate, and counts as a path error.
func TestMigrationByICMPError(t *testing.T) {
	http := freeport.Addr(t).String()
	patience := config.Duration(10 * time.Second) // the error comes sooner, even on a busy machine
	n := newTestNet(t, pair, func(c *config.Agent) {
		c.Periods = &config.PeriodsOverride{AckTimeout: &patience}
		if c.Node == "n0-0-0" {
			c.HTTP = http
		}
	}, "sup-1")
	n.start(at0, fault.HalfHost)
	n.awaitStatus(at0, "an armed alternate to the leader", func(s local.Status) bool {
		return armed(s) && s.Delivery.GetPrimary() == "service>sup-0"
	})
	other := n.more[0]
	other.forget()
	n.super.close()
	n.awaitStatus(at0, "the other supervisor as primary", func(s local.Status) bool { return s.Delivery.GetPrimary() == "service>sup-1" })
	other.await("a report on the new path", func(s said) bool { return s.by == host0 && s.path == fault.PathDirect })
	if v := valueOf(scrape(t, http),
		`lofamo_agent_path_migrations_total{node="n0-0-0",platform="shared-kernel",reason="path-error"}`); v == "" || v == "0" {
		t.Errorf("%q migrations for an error of the path, want some", v)
	}
}

// valueOf returns the value of a series; empty: there is no such series.
func valueOf(page []byte, series string) string {
	for line := range strings.Lines(string(page)) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Digests are proved by a session's MAC. When the supervisor has forgotten the session, signatures carry
// on at once, and a new session comes.
func TestSessionsComeAndGo(t *testing.T) {
	n := newTestNet(t, pair, checkedMemory)
	f := n.super
	n.start(at0, fault.HalfHost)
	f.awaitThat("digests under a session", func() bool { return f.byMAC >= 2 })
	f.set(func(f *fakeSupervisor) { f.sessions, f.byMAC, f.bySign = direct.NewSessions(), 0, 0 }) // it restarts
	f.awaitThat("a message of the session that is gone", func() bool { return f.unknown > 0 })
	f.awaitThat("a signed digest", func() bool { return f.bySign > 0 })
	f.awaitThat("digests under a new session", func() bool { return f.byMAC >= 2 })
}

// A supervisor's messages under a session count as if they were signed.
func TestAcksUnderSession(t *testing.T) {
	n := newTestNet(t, pair, nil)
	n.super.set(func(f *fakeSupervisor) { f.macs = true })
	n.start(at0, fault.HalfHost)
	n.super.awaitThat("digests under a session", func() bool { return n.super.byMAC >= 3 })
	s := n.awaitStatus(at0, "everything committed", func(s local.Status) bool {
		return s.Delivery.GetLogged() == 0 && s.ServiceNetwork == "NORMAL"
	})
	if s.Refused != 0 {
		t.Errorf("%d messages refused", s.Refused)
	}
}

// Answers that come damaged are counted as that, and asked for again by sending again.
func TestDamagedAnswersAskAgain(t *testing.T) {
	n := newTestNet(t, pair, checkedMemory)
	n.super.set(func(f *fakeSupervisor) { f.damage = 6 })
	n.start(at0, fault.HalfHost)
	n.awaitStatus(at0, "everything committed after damage", func(s local.Status) bool {
		return s.Damaged >= 6 && s.Delivery.GetLogged() == 0 && s.Delivery.GetUnanswered() == 0
	})
	n.super.awaitThat("a report for the second time", func() bool {
		for _, times := range n.super.reports {
			if times > 1 {
				return true
			}
		}
		return false
	})
}

// A half answers a challenge to its source address, by the interface that it came by, even if the supervisor names
// another one.
func TestChallengeIsAnsweredWhereItCameFrom(t *testing.T) {
	n := newTestNet(t, pair, twoInterfaces(t))
	n.start(at0, fault.HalfHost)
	n.awaitStatus(at0, "an answer", func(s local.Status) bool { return s.ServiceNetwork == "NORMAL" })
	for k, addr := range n.cfgs[at0].Service.Interfaces() {
		elsewhere := freeport.Addr(t).String()
		if got := n.super.awaitOneAnswer(func(nonce string) {
			n.super.send(netip.MustParseAddrPort(addr.Listen), "n0-0-0", fault.PathDirect, &lofamov1.Message{Body: &lofamov1.Message_Challenge{
				Challenge: &lofamov1.Challenge{Nonce: []byte(nonce), Node: "n0-0-0", ReplyTo: elsewhere}}})
		}); got != host0 {
			t.Errorf("interface %d: answered by %s", k, got)
		}
	}
}

// A node that can reach no supervisor reports its isolation, and its end.
func TestIsolatedNodeReportsIsolation(t *testing.T) {
	n := newTestNet(t, pair, nil)
	n.startAll()
	n.awaitHealthy()
	n.super.set(func(f *fakeSupervisor) { f.mute = true })
	n.awaitStatus(at0, "isolation", func(s local.Status) bool { return s.Delivery.GetIsolatedNs() > 0 && s.Delivery.GetLogged() > 0 })
	n.super.set(func(f *fakeSupervisor) { f.mute = false })
	n.awaitStatus(at0, "its end", func(s local.Status) bool { return s.Delivery.GetIsolatedNs() == 0 && s.Delivery.GetLogged() == 0 })
}

// Unacknowledged reports outlive the half that made them, under their own ids and with their age.
func TestUndeliveredReportsOutliveHalf(t *testing.T) {
	n := newTestNet(t, pair, nil)
	n.start(at0, fault.HalfHost)
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	first := n.awaitStatus(at0, "its epoch", func(s local.Status) bool { return s.Host.Epoch > 0 }).Host.Epoch
	n.super.set(func(f *fakeSupervisor) { f.mute = true })
	n.super.forget()
	n.halt(at0, fault.HalfDNP)
	told := n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	n.halt(at0, fault.HalfHost)
	n.super.forget()
	n.super.set(func(f *fakeSupervisor) { f.mute, f.reports = false, map[fault.ReportID]int{} })
	n.start(at0, fault.HalfHost)
	n.super.awaitThat("a report of its epoch", func() bool {
		for id := range n.super.reports {
			if id.Origin == host0 && uint64(id.Epoch) == first {
				return true
			}
		}
		return false
	})
	s := n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	if s.obs.Age <= told.obs.Age {
		t.Errorf("it is %s old and was %s when it was first said: want it to have aged", s.obs.Age, told.obs.Age)
	}
	n.awaitStatus(at0, "an empty log, and an empty spool", func(s local.Status) bool {
		return s.Host.Epoch == first && s.Delivery.GetLogged() == 0 && s.Spool.Records == 0 && s.Spool.Error == ""
	})
}

// Without a spool, or with an unusable one, a half works, and logs the consequences.
func TestHalfWithoutSpoolWorks(t *testing.T) {
	n := newTestNet(t, pair, func(c *config.Agent) { c.Service.SpoolBytes = 0 })
	n.start(at0, fault.HalfHost)
	n.awaitStatus(at0, "a half without a spool", func(s local.Status) bool {
		return s.Spool.Path == "" && s.Delivery.GetSpool() == "none is configured" && s.ServiceNetwork == "NORMAL"
	})
}
