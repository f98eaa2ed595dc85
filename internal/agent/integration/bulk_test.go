package integration

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdh"
	"crypto/rand"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// bulkArrival is a message of a transfer to the supervisor: an announcement or a chunk.
type bulkArrival struct {
	from     netip.AddrPort
	announce *servicenet.Arrival
	chunk    []byte
}

// transfer returns the transfer that the arrival belongs to.
func (a bulkArrival) transfer() bulk.Transfer {
	if a.announce != nil {
		id, _ := bulk.ParseTransfer(a.announce.Msg.GetBulkAnnounce().GetTransfer())
		return id
	}
	h, _ := bulk.ParseHeader(a.chunk)
	return h.Transfer
}

// fetchBundle runs a transfer on one path to its end, and returns the data and all arrivals.
func (n *testNet) fetchBundle(origin fault.Origin, via string, maxSize uint64) (data []byte, outcome bulk.Outcome, came []bulkArrival) {
	n.t.Helper()
	n.super.set(func(f *fakeSupervisor) { f.bulk = make(chan bulkArrival, 1024) })
	way := bulk.Way{Via: via}
	job := bulk.Job{
		Origin: origin, Object: half.ObjectBundle, MaxSize: maxSize, Supervisor: n.super.id, ReplyTo: n.super.net.LocalAddr().String(),
		Ways: []bulk.Way{way},
	}
	for i := range job.Exchanges {
		_, _ = rand.Read(job.Exchanges[i].Transfer[:])
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			n.t.Fatal(err)
		}
		job.Exchanges[i].Private = key
	}
	r, out, err := bulk.NewReceiver(time.Now(), bulk.DefaultReceiverConfig(), job)
	if err != nil {
		n.t.Fatal(err)
	}
	deadline := time.After(bound)
	for {
		if out.Restart {
			data = nil
		}
		for _, d := range out.Deliver {
			data = append(data, d...)
		}
		n.sendBulk(origin.Node, out.Send)
		if out.Outcome != nil {
			return data, *out.Outcome, came
		}
		if k := len(out.Deliver); k > 0 {
			out = r.Step(time.Now(), bulk.Consumed{Chunks: k})
			continue
		}
		select {
		case a := <-n.super.bulk:
			if a.transfer() != r.Transfer() {
				continue // a late answer to a repeated request of an earlier transfer
			}
			came = append(came, a)
			if a.announce != nil {
				out = r.Step(time.Now(), bulk.Announced{Message: a.announce.Msg.GetBulkAnnounce(), Way: way})
			} else {
				out = r.Step(time.Now(), bulk.Arrived{Packet: a.chunk, Way: way})
			}
		case <-time.After(time.Until(out.Wake)):
			out = r.Step(time.Now(), bulk.Tick{})
		case <-deadline:
			n.t.Fatalf("no end: %+v", r.Progress())
		}
	}
}

func (n *testNet) sendBulk(node fault.NodeID, sends []bulk.Send) {
	for _, s := range sends {
		at, path := node, fault.PathDirect
		if s.Way.Via != "" {
			at, path = fault.NodeID(s.Way.Via), fault.PathTorus
		}
		n.super.send(n.serviceOf(at), node, path, s.Message)
	}
}

func (n *testNet) serviceOf(id fault.NodeID) netip.AddrPort {
	for _, cfg := range n.cfgs {
		if cfg.Node == id {
			return netip.MustParseAddrPort(cfg.Service.Listen)
		}
	}
	n.t.Fatalf("no node %s", id)
	return netip.AddrPort{}
}

// TestBundlesOfBothHalves fetches bundles from real halves over real sockets: directly, where the DNP half's bundle
// goes by its own host half, and through the torus and the neighbour's host half.
func TestBundlesOfBothHalves(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, checkedMemory)
	n.startAll()
	n.awaitHealthy()
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		for _, via := range []string{"", "n1-0-0"} {
			origin := fault.Origin{Node: "n0-0-0", Half: half}
			data, outcome, came := n.fetchBundle(origin, via, bulk.MaxSize)
			if outcome.Result != bulk.Complete || !isGzip(data) {
				t.Fatalf("%s via %q: %+v, %d bytes", origin, via, outcome, len(data))
			}
			by := n.serviceOf("n0-0-0")
			relay := fault.NodeID("n0-0-0")
			if via != "" {
				by, relay = n.serviceOf("n1-0-0"), "n1-0-0"
			}
			for _, a := range came {
				if a.from != by {
					t.Errorf("%s via %q: something came from %s, want %s", origin, via, a.from, by)
				}
				relayed := via != "" || half == fault.HalfDNP
				if a.announce == nil {
					continue
				}
				hops := a.announce.Hops
				if got := a.announce.Path == fault.PathTorus; got != relayed {
					t.Errorf("%s via %q: relayed %t, want %t", origin, via, got, relayed)
				}
				if relayed && (len(hops) < 2 || hops[len(hops)-1].Node != relay || hops[len(hops)-1].Half != fault.HalfHost) {
					t.Errorf("%s via %q: hops %v, want the last by %s/host", origin, via, hops, relay)
				}
			}
		}
	}
	if _, outcome, _ := n.fetchBundle(host0, "", 1000); outcome.Result != bulk.Refused {
		t.Errorf("a bundle of 1000 bytes: %+v", outcome)
	}
}

func isGzip(b []byte) bool {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, z)
	return err == nil
}
