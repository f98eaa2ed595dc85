package ingest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

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
