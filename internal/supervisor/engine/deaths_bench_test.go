package engine

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// unanswered counts challenges, and answers none.
type unanswered struct{ whole, again atomic.Int64 }

func (u *unanswered) Challenge(c awareness.Challenge) bool {
	if c.Again {
		u.again.Add(1)
	} else {
		u.whole.Add(1)
	}
	return true
}

func (u *unanswered) Behind() time.Duration { return 0 }

// processorTime is the processor time of this process so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkManyDeaths measures the processor time from the accusations by the neighbours of dead nodes, scattered over 10,000, until
// all deaths are committed: the awareness machine, incidents, and three etcd members on disk. Each iteration starts its own
// members, which still run during later iterations: use -benchtime 1x.
func BenchmarkManyDeaths(b *testing.B) {
	for _, count := range []int{100, 300, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			for b.Loop() {
				manyDeaths(b, grid.Dims{X: 25, Y: 20, Z: 20}, count)
			}
		})
	}
}

func manyDeaths(b *testing.B, dims grid.Dims, count int) {
	b.StopTimer()
	u := new(unanswered)
	e, _ := leadBig(b, func(cfg *Config) {
		big(dims)(cfg)
		cfg.Challenger = u
		cfg.Awareness.ChallengeNode, cfg.Awareness.ChallengeHalf = 60*time.Millisecond, 20*time.Millisecond
		cfg.Awareness.ChallengeSingle, cfg.Awareness.HalfBound = 300*time.Millisecond, 210*time.Millisecond
	})
	sum := new(counter)
	for rank := range dims.Nodes() {
		for !e.Submit(said(dims, rank, 1, true, nil, sum)) {
			time.Sleep(time.Millisecond)
		}
	}
	for {
		if m, err := e.Map(b.Context()); err == nil && m.Counts().Nodes[fault.Normal] == dims.Nodes() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	dead := make(map[int]bool)
	for _, r := range rand.New(rand.NewPCG(1, 4)).Perm(dims.Nodes()) {
		near := dead[r]
		for _, c := range dims.Neighbours(dims.At(r)) {
			near = near || dead[dims.Rank(c)]
		}
		if !near && len(dead) < count {
			dead[r] = true
		}
	}
	before := processorTime(b)
	b.StartTimer()
	sent := int64(0)
	for rank := range dims.Nodes() {
		accused := false
		for _, c := range dims.Neighbours(dims.At(rank)) {
			accused = accused || dead[dims.Rank(c)]
		}
		if dead[rank] || !accused {
			continue
		}
		for !e.Submit(said(dims, rank, 2, false, dead, sum)) {
			time.Sleep(time.Millisecond)
		}
		sent++
	}
	for {
		m, err := e.Map(b.Context())
		if err == nil && m.Counts().Nodes[fault.Failed] == count && sum.committed.Load() >= sent {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric((processorTime(b) - before).Seconds(), "cpu-s")
	b.ReportMetric(float64(u.whole.Load()), "challenges")
	b.ReportMetric(float64(u.again.Load()), "repeated")
	b.StartTimer()
}

// said is a report of a node: a full digest, or accusations of its dead neighbours.
func said(dims grid.Dims, rank int, seq fault.Seq, digest bool, dead map[int]bool, to Answerer) Input {
	at, id := dims.At(rank), fault.DefaultNodeID(dims.At(rank))
	var obs []fault.Observation
	if digest {
		obs = append(obs, fault.Observation{Node: id, Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindWatchdog})
		for _, c := range ownComponents {
			obs = append(obs, fault.Observation{Node: id, Component: c, State: fault.Normal, Kind: fault.KindSelf})
		}
	}
	for _, d := range dims.Links() {
		p, ok := dims.Neighbour(at, d)
		if !ok || !digest && !dead[dims.Rank(p)] {
			continue
		}
		link := fault.Observation{Node: id, Component: fault.Link(d), State: fault.Normal, Kind: fault.KindSelf}
		host := fault.Observation{Node: fault.DefaultNodeID(p), Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindDescriptor}
		if !digest {
			link.State, link.Kind, link.Age, link.Detail = fault.Failed, fault.KindSilence, 75*time.Millisecond, "nothing heard"
			host.State = fault.Unknown
		}
		obs = append(obs, link, host)
	}
	return Input{Answerer: to, Arrived: time.Now(), Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{
		ID:     fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: seq},
		Digest: digest, Observations: obs, Registers: fault.Registers{DNPWatchdog: 1, HostWatchdog: 1},
	}}}}
}
