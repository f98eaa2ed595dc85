package ingest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// sink counts the digests it receives.
type sink struct{ restated, whole atomic.Int64 }

func (s *sink) Term() uint64 { return 7 }

func (s *sink) Submit(in engine.Input) bool {
	if in.Restated != nil {
		s.restated.Add(int64(len(in.Restated)))
	} else {
		s.whole.Add(1)
	}
	return true
}

type drain struct{}

func (drain) Send(netip.AddrPort, []byte) error { return nil }

// BenchmarkDigest measures an unchanged digest at the receiving supervisor, from the datagram to its RECEIVED:
// MAC, decoding, recognition and answer.
func BenchmarkDigest(b *testing.B) {
	a := newAuthority(b)
	end := new(sink)
	r := a.replica(b, "s1", nil)
	h := a.half(b, host0)
	session := r.establish(b, h, 1, eth0, 0)
	for i := range r.sender.cfg.Ports {
		r.sender.cfg.Ports[i].Socket = drain{}
	}
	r.intake = NewIntake(IntakeConfig{
		Names: knownNodes{"n0", "n1"}, Verifier: r.intake.cfg.Verifier, Sender: r.sender, Leader: end, Forwarder: r.forward,
		Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler),
	})
	datagrams := make([][]byte, 1024)
	for i := range datagrams {
		obs := []fault.Observation{}
		for _, c := range []fault.Component{fault.ComponentHost, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
			fault.ComponentTemperature} {
			obs = append(obs, fault.Observation{Node: "n0", Component: c, State: fault.Normal, Kind: fault.KindSelf,
				Age: time.Duration(i) * time.Millisecond})
		}
		h.seq++
		d, err := servicenet.SealReports([]fault.Report{{ID: fault.ReportID{Origin: host0, Epoch: 5, Seq: h.seq}, Digest: true,
			Observations: obs}}, nil, h.signer, session)
		if err != nil {
			b.Fatal(err)
		}
		datagrams[i] = d
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r.intake.handle(packet{from: eth0, data: datagrams[i%len(datagrams)], arrived: time.Now()})
		if i++; i%256 == 0 {
			r.intake.restater.take(true)
		}
	}
	if end.whole.Load() > int64(i)/wholeEvery+1 {
		b.Fatal(fmt.Sprint(end.whole.Load(), " of ", i, " went whole"))
	}
}

// nodeTable has one service interface for each of many nodes.
type nodeTable struct {
	of map[fault.NodeID][]netip.AddrPort
	by map[netip.AddrPort]fault.NodeID
}

func (t nodeTable) Services(id fault.NodeID) []netip.AddrPort { return t.of[id] }

func (t nodeTable) Owner(addr netip.AddrPort) (fault.NodeID, bool) {
	id, ok := t.by[addr]
	return id, ok
}

func (t nodeTable) Known(id fault.NodeID) bool { return len(t.of[id]) > 0 }

// BenchmarkDigestsOfManyNodes measures the same as BenchmarkDigest with the digests of 2,048 nodes in turn: what a follower knows of a
// node is in no cache of the processor when the next digest of the node comes.
func BenchmarkDigestsOfManyNodes(b *testing.B) {
	const nodes, rounds = 2048, 2 * pathAsksKept
	a := newAuthority(b)
	table := nodeTable{make(map[fault.NodeID][]netip.AddrPort), make(map[netip.AddrPort]fault.NodeID)}
	r := a.replica(b, "s1", nil)
	r.sender.cfg.Nodes = table
	r.leader.leading, r.forward.stream = false, 1
	r.intake = NewIntake(IntakeConfig{
		Names: table, Verifier: r.intake.cfg.Verifier, Sender: r.sender, Leader: r.leader, Forwarder: r.forward, Notifier: &r.tells,
		Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler),
	})
	type source struct {
		from netip.AddrPort
		data []byte
	}
	all := make([]source, nodes*rounds)
	for i := range nodes {
		o := fault.Origin{Node: fault.NodeID(fmt.Sprintf("n%d-%d-%d", i%16, i/16%16, i/256)), Half: fault.HalfHost}
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7000)
		table.of[o.Node], table.by[addr] = []netip.AddrPort{addr}, o.Node
		h := a.half(b, o)
		session := r.establish(b, h, 1, addr, 0)
		obs := []fault.Observation{}
		for _, c := range []fault.Component{fault.ComponentDNP, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
			fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage} {
			obs = append(obs, fault.Observation{Node: o.Node, Component: c, State: fault.Normal, Kind: fault.KindSelf})
		}
		for j := range rounds { // a repeated datagram would be a retry, which is answered with a signature
			h.seq++
			d, err := servicenet.SealReports([]fault.Report{{ID: fault.ReportID{Origin: o, Epoch: 5, Seq: h.seq}, Digest: true,
				Observations: obs}}, &lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED, Primary: "service>s"}, h.signer, session)
			if err != nil {
				b.Fatal(err)
			}
			all[j*nodes+i] = source{addr, d}
		}
	}
	for i := range r.sender.cfg.Ports {
		r.sender.cfg.Ports[i].Socket = drain{}
	}
	get := r.intake.Datagrams(0)
	b.ReportAllocs()
	i, before := 0, processorTime(b)
	for b.Loop() {
		get(all[i%len(all)].from, all[i%len(all)].data)
		if i++; i%256 == 0 {
			r.intake.restater.take(true)
			r.tells.digests = r.tells.digests[:0]
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// processorTime returns the time that the process has used, which other load on the machine changes little.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
