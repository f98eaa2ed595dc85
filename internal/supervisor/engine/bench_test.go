package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// counter counts committed reports.
type counter struct{ committed atomic.Int64 }

func (c *counter) Answer(_ To, ack *lofamov1.Ack) {
	if ack.GetStatus() == lofamov1.Ack_COMMITTED {
		c.committed.Add(int64(len(ack.GetSeqs())))
	}
}

// big makes a configuration of a larger torus.
func big(dims grid.Dims) func(*Config) {
	return func(cfg *Config) {
		ids := make(map[grid.Coord]fault.NodeID)
		for r := range dims.Nodes() {
			ids[dims.At(r)] = fault.DefaultNodeID(dims.At(r))
		}
		cfg.Awareness.Dims, cfg.Awareness.IDs, cfg.Names = dims, ids, view.NewNames(dims, ids)
		cfg.Meta.Dims = dims.String()
	}
}

// ownComponents are the components whose state a half reports with authority.
var ownComponents = []fault.Component{
	fault.ComponentDNPCore, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
	fault.ComponentPeripheral1, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage,
}

// leadBig returns an engine that leads, configured by spoil, with three etcd members on disk.
func leadBig(b *testing.B, spoil func(*Config)) (*Engine, Config) {
	b.Helper()
	etcd := supervisortest.NewEtcd(b, 3)
	client := etcd.Members[0].Client()
	if err := etcd.Members[0].TakeRaftLead(b.Context()); err != nil {
		b.Fatal(err)
	}
	put, err := client.Put(b.Context(), store.ElectionPrefix+"/1", "s1")
	if err != nil {
		b.Fatal(err)
	}
	cfg := testConfig(newBox())
	spoil(&cfg)
	e := New(cfg, store.NewEtcd(client, store.Options{MaxOps: embedded.MaxTxnOps, KeepEvents: 1 << 30}))
	ended := make(chan error, 1)
	go func() {
		ended <- e.Lead(b.Context(), store.Fence{Key: store.ElectionPrefix + "/1", Rev: put.Header.Revision})
	}()
	for !e.Leading() {
		select {
		case err := <-ended:
			b.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	return e, cfg
}

// acked passes the time of each COMMITTED on.
type acked chan time.Time

func (a acked) Answer(_ To, ack *lofamov1.Ack) {
	if ack.GetStatus() == lofamov1.Ack_COMMITTED {
		a <- time.Now()
	}
}

// BenchmarkCommit measures one fault at a time, from its verified report until COMMITTED: the awareness machine, its incident
// and the transaction of three etcd members on disk, beside faults that stand.
func BenchmarkCommit(b *testing.B) {
	for _, standing := range []int{0, 64} {
		b.Run(fmt.Sprint(standing, " stand"), func(b *testing.B) { benchmarkCommit(b, standing) })
	}
}

func benchmarkCommit(b *testing.B, standing int) {
	e, cfg := leadBig(b, big(grid.Dims{X: 8, Y: 8, Z: 8}))
	ids, done := cfg.Names.All(), make(acked, 1)
	seqs := make([]fault.Seq, len(ids))
	report := func(node int, st fault.State) time.Duration {
		seqs[node]++
		begun := time.Now()
		in := Input{Reports: &servicenet.Reports{Path: fault.PathDirect}, Answerer: done, Arrived: begun}
		in.Reports.List = []fault.Report{{
			ID:           fault.ReportID{Origin: fault.Origin{Node: ids[node], Half: fault.HalfHost}, Epoch: 1, Seq: seqs[node]},
			Observations: []fault.Observation{{Node: ids[node], Component: fault.ComponentTemperature, State: st, Kind: fault.KindSelf}},
		}}
		if !e.Submit(in) {
			b.Fatal("the engine takes no report")
		}
		return (<-done).Sub(begun)
	}
	for i := range standing {
		report(len(ids)-1-i, fault.Sick)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		node := i % 8
		took = append(took, report(node, fault.Sick))
		report(node, fault.Normal)
	}
	slices.Sort(took)
	ms := func(q float64) float64 { return took[int(q*float64(len(took)-1))].Seconds() * 1000 }
	b.ReportMetric(ms(0.5), "ms-p50")
	b.ReportMetric(ms(0.99), "ms-p99")
}

// BenchmarkChanges measures distinct state changes, committed by three etcd members on disk and acknowledged. The
// reports' signatures are already verified, so many reports of one origin arrive together.
func BenchmarkChanges(b *testing.B) {
	for _, together := range []int{64, 1} {
		b.Run(fmt.Sprint(together, " together"), func(b *testing.B) { benchmarkChanges(b, together) })
	}
}

func benchmarkChanges(b *testing.B, together int) {
	e, cfg := leadBig(b, big(grid.Dims{X: 8, Y: 8, Z: 8}))
	ids, sum := cfg.Names.All(), new(counter)
	seqs := make([]fault.Seq, len(ids))
	changes, sent := 0, int64(0)
	b.ResetTimer()
	for i := 0; changes < b.N; i++ {
		node := i % len(ids)
		in := Input{Reports: &servicenet.Reports{Path: fault.PathDirect}, Answerer: sum, Arrived: time.Now()}
		for range together {
			n := int(seqs[node])
			seqs[node]++
			st := fault.Sick
			if n/len(ownComponents)%2 == 1 {
				st = fault.Normal
			}
			in.Reports.List = append(in.Reports.List, fault.Report{
				ID:           fault.ReportID{Origin: fault.Origin{Node: ids[node], Half: fault.HalfHost}, Epoch: 1, Seq: seqs[node]},
				Observations: []fault.Observation{{Node: ids[node], Component: ownComponents[n%len(ownComponents)], State: st, Kind: fault.KindSelf}},
			})
		}
		changes += together
		for !e.Submit(in) {
			time.Sleep(time.Millisecond)
		}
		sent += int64(together)
	}
	for sum.committed.Load() < sent {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(changes)/b.Elapsed().Seconds(), "changes/s")
}
