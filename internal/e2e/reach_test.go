package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/watchdog"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// names of the nodes of a 2x2x2 torus, by rank.
var names = []string{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0", "n0-0-1", "n1-0-1", "n0-1-1", "n1-1-1"}

// until polls for a condition that has no event of its own.
func (t trial) until(what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// agentStatus runs `lofamo-agent status` as somebody on the node would.
func (t trial) agentStatus(node, output string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "lofamo-agent"), "status", "-o", output,
		"--config", filepath.Join(t.Cluster.Dir(), "nodes", node, "agent.yaml"))
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("lofamo-agent status of %s: %v: %s", node, err, &complaint)
	}
	return string(out)
}

func (t trial) asks(node string) (s local.Status) {
	t.Helper()
	if err := json.Unmarshal([]byte(t.agentStatus(node, "json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// tells waits until a node has the wanted temperature state in its own registers, because the supervisors may not reach
// it.
func (t trial) tells(node string, want watchdog.Health) {
	t.Helper()
	n, err := t.Cluster.Node(node)
	if err != nil {
		t.Fatal(err)
	}
	waitRegister(t, t.Cluster.RegisterFile(n), watchdog.AddrDNPWatchdog, func(v uint32) bool {
		w, err := watchdog.DecodeDNPWord(v)
		return err == nil && w.Temperature == want
	})
}

// received lists the reports with the given text about a node, the newest first.
func (t trial) received(says string) []*lofamov1.ReportStatus {
	t.Helper()
	resp := answered(t.T, "read the reports", func() (*lofamov1.ListReportsResponse, error) {
		return t.Client.ListReports(t.Context(), &lofamov1.ListReportsRequest{Limit: 4096})
	})
	seen := map[string]bool{}
	var out []*lofamov1.ReportStatus
	for _, r := range resp.GetReports() {
		id := (&lofamov1.ReportStatus{Node: r.GetNode(), Half: r.GetHalf(), Epoch: r.GetEpoch(), Seq: r.GetSeq()}).String()
		if seen[id] {
			t.Errorf("taken twice: %s", id)
		}
		seen[id] = true
		if slices.Contains(r.GetSays(), says) {
			out = append(out, r)
		}
	}
	return out
}

// cameThrough checks that a report came through the torus, and which node it left the torus from.
func (t trial) cameThrough(says, node string) {
	t.Helper()
	list := t.received(says)
	if len(list) == 0 {
		t.Errorf("no report says %q", says)
		return
	}
	r := list[0]
	hops := r.GetHops()
	if r.GetPath() != torus || len(hops) < 2 || hops[len(hops)-1].GetNode() != node {
		t.Errorf("%q came by %s through %v; want TORUS, out by %s", says, r.GetPath(), hops, node)
	}
}

// TestReportsPassTorusAlone tries faults that leave the torus as the only path.
func TestReportsPassTorusAlone(t *testing.T) {
	t.Parallel()
	l := network(t, "2x2x2", 3, 1)

	tryWired(t, l, "all but one node cut off the service network", func(t wired) {
		cut, left := names[1:], names[0]
		var silent []func()
		for _, n := range cut {
			t.must(t.net.CutService(n))
			silent = append(silent, t.silent(n))
		}
		for _, n := range cut {
			t.byTorus(n, "service-network")
		}
		t.until("n1-1-1 says by the torus that no path works", func() bool {
			n := t.node("n1-1-1")
			return n.GetDelivery().GetState() == lofamov1.PathState_REESTABLISHING && !n.GetDeliveryOld()
		})
		before := t.traffic(left, "svc0")
		// Three hops from the node that is left.
		t.inject("n1-1-1", sensor("temperature", 110))
		t.byTorus("n1-1-1", "temperature")
		t.cameThrough("n1-1-1 temperature FAILED", left)
		// Keep the DNP half: without it, the node's last path would be gone, and the node would look dead.
		t.inject("n0-1-1", simple(cluster.KillHost))
		t.byTorus("n0-1-1", "host")
		t.cameThrough("n0-1-1 host FAILED", left)
		for _, check := range silent {
			check()
		}
		if c := t.traffic(left, "svc0").Since(before); c.Out.Passed == 0 || c.In.Passed == 0 {
			t.Errorf("nothing went by the one node that is left: %+v", c)
		}
		t.neverFailed()
		t.othersWereSpared(cut...)
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared(cut...)
	})

	tryWired(t, l, "host half killed after its service network was cut", func(t wired) {
		t.must(t.net.CutService("n1-0-1"))
		silent := t.silent("n1-0-1")
		t.byTorus("n1-0-1", "service-network")
		t.inject("n1-0-1", simple(cluster.KillHost))
		if s := t.becomes("n1-0-1", "host", failed); s.GetPath() != torus || s.GetCause() != lofamov1.Cause_HOST {
			t.Errorf("known by %s, cause %s; want TORUS, HOST", s.GetPath(), s.GetCause())
		}
		t.is("n1-0-1", sick, lofamov1.Cause_HOST)
		list := t.received("n1-0-1 host FAILED")
		if !slices.ContainsFunc(list, func(r *lofamov1.ReportStatus) bool {
			h := r.GetHops()
			return r.GetPath() == torus && r.GetHalf() == "dnp" && len(h) >= 2 && h[0].GetNode() == "n1-0-1" && h[len(h)-1].GetNode() != "n1-0-1"
		}) {
			t.Errorf("no report by the torus that names its hops: %v", list)
		}
		t.until("how its reports fare is shown as old: nobody says so any more", func() bool {
			n := t.node("n1-0-1")
			return n.GetDeliveryOld() && n.GetDeliveryAge() != nil
		})
		silent()
		if err := t.Cluster.Heal(t.Context(), "n1-0-1"); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n1-0-1")
	})

	tryWired(t, l, "leading supervisor parted from half of the nodes", func(t wired) {
		leader := t.leader()
		unseen := names[4:]
		t.must(t.net.Part([]string{leader}, unseen))
		before := t.traffic(leader, "svc0")
		t.inject("n1-1-1", sensor("temperature", 110))
		t.becomes("n1-1-1", "temperature", failed)
		t.inject("n0-0-1", simple(cluster.KillHost))
		t.becomes("n0-0-1", "host", failed)
		if c := t.traffic(leader, "svc0").Since(before); c.In.Lost == 0 {
			t.Errorf("nothing was lost before the leader: %+v", c)
		}
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared("n1-1-1", "n0-0-1")
	})

	tryWired(t, l, "all supervisors parted from half of the nodes", func(t wired) {
		unseen := names[4:]
		t.must(t.net.Part([]string{"sup-0", "sup-1", "sup-2"}, unseen))
		for _, n := range unseen {
			// Their gossip lives, so that their service network is not failed.
			if s := t.becomes(n, "service-network", sick, failed); s.GetPath() != torus {
				t.Errorf("service network of %s is known by %s, want TORUS", n, s.GetPath())
			}
			t.becomes(n, "service-network", sick)
		}
		t.inject("n1-1-1", sensor("temperature", 110))
		t.byTorus("n1-1-1", "temperature")
		t.neverFailed()
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		t.othersWereSpared(unseen...)
	})
}

func (t trial) leader() string {
	t.Helper()
	return t.leads("")
}

// TestRealSupervisorsGone cuts all supervisors off the service network for a minute: no node is accused, every half
// reports that it reaches no supervisor, and reports from that time arrive afterwards.
func TestRealSupervisorsGone(t *testing.T) {
	t.Parallel()
	gone := time.Minute
	if testing.Short() {
		gone = 20 * time.Second
	}
	l := network(t, "2x2x2", 3, 1)
	tryWired(t, l, "all supervisors unreachable for "+gone.String()+" and then back", func(t wired) {
		t.must(t.net.CutSupervisors())
		over := time.After(gone)
		for _, n := range names {
			t.until(n+" says that it reaches nobody, and that its service network is unknown", func() bool {
				s := t.asks(n)
				return s.Delivery.GetIsolatedNs() > 0 && s.ServiceNetwork == "UNKNOWN" && s.Delivery.GetLogged() > 0
			})
		}
		t.inject("n0-1-0", sensor("temperature", 110))
		t.inject("n1-0-0", sensor("temperature", 110))
		t.inject("n1-1-0", simple(cluster.KillDNP))
		made := time.Now()
		t.tells("n0-1-0", watchdog.HealthBroken)
		t.tells("n1-0-0", watchdog.HealthBroken)
		t.inject("n1-0-0", sensor("temperature", 45))
		t.tells("n1-0-0", watchdog.HealthNormal)
		<-over // the test needs the whole time to pass
		for _, n := range names {
			s := t.asks(n)
			d := s.Delivery
			if d.GetIsolatedNs() == 0 || s.ServiceNetwork != "UNKNOWN" || d.GetLogged() == 0 || d.GetUnanswered() == 0 || d.GetOldestNs() == 0 {
				t.Errorf("%s: service network %s, %v", n, s.ServiceNetwork, d)
			}
		}
		if s := t.agentStatus("n1-1-0", "table"); !strings.Contains(s, "CANNOT REACH ANYBODY") {
			t.Errorf("not in plain words:\n%s", s)
		}
		for _, s := range t.Since(t.mark) {
			if s.GetTo() == failed {
				t.Errorf("called FAILED by supervisors that hear nobody: %s", s)
			}
		}

		waited := time.Since(made)
		t.must(t.net.HealSupervisors())
		back := time.Now()
		t.becomes("n0-1-0", "temperature", failed)
		t.becomes("n1-1-0", "dnp", failed)
		for _, says := range []string{"n0-1-0 temperature FAILED", "n1-0-0 temperature FAILED", "n1-0-0 temperature NORMAL",
			"n1-1-0 dnp FAILED"} {
			t.until(says+" is committed, once, with its age", func() bool { return t.toldOnce(says, waited) })
		}
		t.Logf("all was told %s after the return", time.Since(back).Round(time.Millisecond))
		t.until("the service network is no longer what is wrong", func() bool {
			return t.node("n0-1-0").GetCause() == lofamov1.Cause_SENSOR && t.node("n1-1-0").GetCause() == lofamov1.Cause_DNP
		})
		t.is("n0-1-0", sick, lofamov1.Cause_SENSOR)
		t.is("n1-1-0", sick, lofamov1.Cause_DNP)
		t.until("n1-0-0 is NORMAL", func() bool { return t.node("n1-0-0").GetState() == normal })
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.healed()
		t.neverFailed()
		for _, n := range names {
			t.until("the log of "+n+" is empty", func() bool {
				s := t.asks(n)
				return s.Delivery.GetLogged() == 0 && s.Delivery.GetIsolatedNs() == 0
			})
		}
	})
}

// toldOnce reports whether a report from the time without supervisors has arrived and is committed. It counts only old
// enough reports: the same content may have been sent again later.
func (t trial) toldOnce(says string, waited time.Duration) bool {
	t.Helper()
	n := 0
	for _, r := range t.received(says) {
		if r.GetLatency().AsDuration() < waited-5*time.Second {
			continue
		}
		if !r.GetCommitted() {
			return false
		}
		n++
	}
	if n > 1 {
		t.Errorf("%q was told %d times", says, n)
	}
	return n >= 1
}

// TestRealInterfaceTaken removes one of two service interfaces in every way that the kernel reports: the reports switch
// to the other before any time-out, and the interface is used again when it is back.
func TestRealInterfaceTaken(t *testing.T) {
	t.Parallel()
	const node = "n1-0-0"
	l := network(t, "2x1x1", 1, 2)
	down := uint64(0)
	for _, tc := range []struct {
		name       string
		take, give func(n wired, iface string) error
	}{
		{"carrier lost", func(t wired, i string) error { return t.net.CarrierDown(node, i) },
			func(t wired, i string) error { return t.net.CarrierUp(node, i) }},
		{"set down", func(t wired, i string) error { return t.net.InterfaceDown(node, i) },
			func(t wired, i string) error { return t.net.InterfaceUp(node, i) }},
		{"address deleted", func(t wired, i string) error { return t.net.TakeAddress(node, i) },
			func(t wired, i string) error { return t.net.GiveAddress(node, i) }},
	} {
		tryWired(t, l, tc.name, func(t wired) {
			var before local.Status
			t.until("an alternate path is loaded", func() bool {
				before = t.asks(node)
				return before.Delivery.GetState() == lofamov1.PathState_ARMED
			})
			iface, _, _ := strings.Cut(before.Delivery.GetPrimary(), ">")
			other, _, _ := strings.Cut(before.Delivery.GetAlternate(), ">")
			if iface == other {
				t.Fatalf("primary %s, alternate %s: want different interfaces", before.Delivery.GetPrimary(), before.Delivery.GetAlternate())
			}
			t.must(tc.take(t, iface))
			var after local.Status
			t.until("reports go by "+other, func() bool {
				after = t.asks(node)
				return strings.HasPrefix(after.Delivery.GetPrimary(), other+">")
			})
			// A send may find the interface gone before the half has read the kernel's message.
			refused := after.Migrations["path-error"] - before.Migrations["path-error"]
			taken := after.Migrations["interface-down"] - before.Migrations["interface-down"]
			if n := refused + taken; n < 1 || n > 2 {
				t.Errorf("the kernel's signs made %d migrations, want 1, or 2 on a busy machine: by reason %v, before %v", n, after.Migrations,
					before.Migrations)
			}
			down += taken
			t.inject(node, sensor("temperature", 110))
			if s := t.becomes(node, "temperature", failed); s.GetPath() != direct {
				t.Errorf("known by %s, want DIRECT: one direct way is left", s.GetPath())
			}
			t.must(tc.give(t, iface))
			sent := rail(t.asks(node), iface).GetAnswered()
			t.until(iface+" is used again", func() bool {
				s := t.asks(node)
				r := rail(s, iface)
				return s.Delivery.GetState() == lofamov1.PathState_ARMED && !r.GetDown() &&
					(strings.HasPrefix(s.Delivery.GetAlternate(), iface+">") || strings.HasPrefix(s.Delivery.GetPrimary(), iface+">") &&
						r.GetAnswered() > sent)
			})
			// It also carries reports again once the other is down.
			t.must(t.net.CarrierDown(node, other))
			t.until("reports go by "+iface+" again", func() bool {
				s := t.asks(node)
				return strings.HasPrefix(s.Delivery.GetPrimary(), iface+">") && rail(s, iface).GetAnswered() > sent
			})
			if err := t.Cluster.Heal(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			t.healed()
			t.neverFailed()
			t.othersWereSpared(node)
		})
	}
	if down == 0 {
		t.Error("no message of the kernel about an interface made a migration")
	}
}

func rail(s local.Status, iface string) *lofamov1.RailStatus {
	for _, r := range s.Delivery.GetRails() {
		if r.GetName() == "direct/"+iface {
			return r
		}
	}
	return nil
}
