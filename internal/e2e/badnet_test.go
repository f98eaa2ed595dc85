package e2e

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/internal/testing/netfaults"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

// badLines is the service network of one node: all its traffic with the supervisors passes here.
type badLines struct {
	t    *testing.T
	node string

	mu    sync.Mutex
	lines map[string]*netfaults.Line // by the address behind
}

// through returns the substitute for an address.
func (b *badLines) through(addr string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lines[addr]
	if l == nil {
		to, err := netip.ParseAddrPort(addr)
		if err == nil {
			l, err = netfaults.Listen(to, uint64(len(b.lines))+1)
		}
		if err != nil {
			b.t.Error(err)
			return addr
		}
		b.lines[addr] = l
		b.t.Cleanup(func() { _ = l.Close() })
	}
	return l.Addr().String()
}

func (b *badLines) set(t *testing.T, f udplink.Faults) {
	t.Helper()
	for _, l := range b.lines {
		for _, d := range []netfaults.Direction{netfaults.ToTarget, netfaults.FromTarget} {
			if err := l.Set(d, f); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// edits lead the node's traffic through the lines. Gossip, which they cannot carry, it does without.
func (b *badLines) edits() edits {
	return edits{
		agent: func(c *config.Agent) {
			if string(c.Node) != b.node {
				return
			}
			c.Service.GossipListen, c.Service.GossipJoin = "", nil
			for i := range c.Supervisors {
				c.Supervisors[i].Report = b.through(c.Supervisors[i].Report)
			}
		},
		supervisor: func(c *config.Supervisor) {
			for i := range c.Nodes {
				if string(c.Nodes[i].ID) == b.node {
					c.Nodes[i].Service = b.through(c.Nodes[i].Service)
				}
			}
		},
	}
}

// TestBadServiceNetwork gives one node a service network that loses three packets of ten, damages one of a hundred,
// doubles and reorders (rows 7 and 8 of the fault catalogue): the network is called SICK and the node never FAILED, its
// faults are detected as before, and no damaged packet is accepted or counted as a forgery.
func TestBadServiceNetwork(t *testing.T) {
	t.Parallel()
	const node = "n1-0-1"
	b := &badLines{t: t, node: node, lines: map[string]*netfaults.Line{}}
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: patient(), Command: b.edits().command(t)})
	try(t, l, "lossy", func(t trial) {
		b.set(t.T, udplink.Faults{Drop: 0.3, Corrupt: 0.01, Duplicate: 0.1, Reorder: 0.1, Jitter: 5 * time.Millisecond})
		// A matter of chance: 1 of 1,000 times it takes more than 20 s (TestLossyNetworkIsSick in pkg/servicenet).
		t.becomesWithin(3*patience, node, "service-network", sick)
		for _, f := range []struct {
			sensor    string
			bad, good float64
		}{{"temperature", 110, 45}, {"voltage", 20, 12}, {"power", 5000, 180}, {"temperature", -20, 45}} {
			round := t
			round.mark = t.Mark()
			round.inject(node, sensor(f.sensor, f.bad))
			round.becomes(node, f.sensor, failed)
			round.inject(node, sensor(f.sensor, f.good))
			round.becomes(node, f.sensor, normal)
		}
		round := t
		round.mark = t.Mark()
		round.inject(node, simple(cluster.KillDNP))
		round.becomes(node, "dnp", failed)
		if err := t.Cluster.Heal(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		round.becomes(node, "dnp", normal)
		// A node sends little: a higher rate lets both ends see damage.
		b.set(t.T, udplink.Faults{Drop: 0.1, Corrupt: 0.3})
		awaitDamage(t, l, b)
		b.set(t.T, udplink.Faults{})
		t.settled()
		t.neverFailed()
		t.othersWereSpared(node)
		for _, s := range t.Since(t.mark) {
			if s.GetNode() == node && s.GetComponent() == "service-network" && s.GetTo() == failed {
				t.Errorf("a network that carries something was called FAILED: %s", s)
			}
		}
	})
}

// awaitDamage waits until both ends have met damage, and checks how they have counted it.
func awaitDamage(t trial, l *lab.Lab, b *badLines) {
	t.Helper()
	self, err := l.Cluster.Node(b.node)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(patience)
	for {
		var supervisors float64
		for _, s := range l.Cluster.Info().Supervisors {
			m := scrape(t.T, s.HTTP)
			supervisors += m.total("lofamo_supervisor_damaged_total", "")
			for _, class := range []string{"signature", "role", "origin", "field"} {
				if n := m.refused(class); n > 0 {
					t.Errorf("%s refused %v packets as %s: nobody has forged any", s.ID, n, class)
				}
			}
		}
		m := scrape(t.T, self.HTTP)
		for _, class := range []string{"signature", "role", "origin", "field"} {
			if n := m.refusedByAgent(class); n > 0 {
				t.Errorf("%s refused %v packets as %s: nobody has forged any", b.node, n, class)
			}
		}
		if supervisors > 0 && m.total("lofamo_agent_damaged_total", "") > 0 {
			t.Logf("damaged: %v at the supervisors, %v at the node", supervisors, m.total("lofamo_agent_damaged_total", ""))
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("damaged: %v at the supervisors, %v at the node: want some at both", supervisors, m.total("lofamo_agent_damaged_total", ""))
		}
	}
}
