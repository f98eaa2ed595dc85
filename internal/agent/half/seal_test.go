package half

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/config"
)

// machines returns the machine of each half after some steps, with reports in its log.
func machines(tb testing.TB) map[string]any {
	tb.Helper()
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		tb.Fatal(err)
	}
	dims, at, now := grid.Dims{X: 3, Y: 3, Z: 3}, grid.Coord{X: 1, Y: 1, Z: 1}, time.Unix(1000, 0)
	topo := halfcore.NewTopology(fault.DefaultNodeID(at), at, dims, nil)
	dnp, err := dnpcore.New(dnpcore.Config{Topo: topo, Periods: p, MaxHops: 9}, now, 9)
	if err != nil {
		tb.Fatal(err)
	}
	host, err := hostcore.New(hostcore.Config{Topo: topo, Periods: p, MaxHops: 9, Rails: []fault.Path{fault.PathDirect, fault.PathTorus},
		Interfaces: []string{"service"}}, now, 7)
	if err != nil {
		tb.Fatal(err)
	}
	for i, d := range dims.Links() {
		dnp.Step(now, dnpcore.Session{Dir: d, ID: uint32(i + 1)})
		dnp.Step(now, &dnpcore.Frame{Dir: d, Frame: torus.Frame{Session: uint32(i + 1), Seq: 1, Src: at, Dst: at}})
	}
	host.Step(now, hostcore.Supervisors{Targets: []string{"sup-0", "sup-1"}, Leader: "sup-0"})
	for range 40 {
		now = now.Add(p.TRead)
		host.Step(now, hostcore.Readings{Readings: []hostcore.Reading{
			{Component: fault.ComponentMemory, State: fault.State(1 + now.UnixMilli()/50%3), Detail: "42 errors"},
			{Component: fault.ComponentServiceNetwork, State: fault.Normal}}})
		host.Step(now, hostcore.Tick{})
		dnp.Step(now, dnpcore.Tick{})
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		host.Step(now, hostcore.Health{Half: h, Health: &lofamov1.HalfHealth{Tests: []*lofamov1.SelfTest{{Module: "relay"}}}})
	}
	return map[string]any{"host": host, "dnp": dnp}
}

// TestSealFindsEachFlippedBit flips each bit of each field, pointer and length that a half's machine consists of. The
// machine does not run meanwhile, and neither does the garbage collector, which would follow a flipped pointer.
func TestSealFindsEachFlippedBit(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for half, m := range machines(t) {
		s := newSeal(m)
		var places []place
		s.found = func(p place) { places = append(places, p) }
		s.take()
		s.found = nil
		if bad := s.check(); bad != "" {
			t.Fatalf("%s: without a flip: %s", half, bad)
		}
		all, missed := 0, 0
		for _, p := range places {
			step := 1
			if len(p.mem) > 4096 && testing.Short() {
				step = 61
			}
			for i := 0; i < len(p.mem); i += step {
				for bit := range 8 {
					p.mem[i] ^= 1 << bit
					bad := s.check()
					p.mem[i] ^= 1 << bit
					if all++; bad == "" {
						if missed++; missed <= 5 {
							t.Errorf("%s: a flip of bit %d of byte %d of %s is not found", half, bit, i, p.name)
						}
					}
				}
			}
		}
		t.Logf("%s: %d of %d flips found in %d blocks", half, all-missed, all, len(places))
		if all < 20000 {
			t.Errorf("%s: only %d flips", half, all)
		}
		if bad := s.check(); bad != "" {
			t.Errorf("%s: after the last flip: %s", half, bad)
		}
	}
}

// linked has one of each kind of memory.
type linked struct {
	mu     sync.Mutex
	hits   atomic.Uint64
	flag   bool
	n      int32
	next   *linked
	list   []linkedItem
	texts  []string
	byName map[string]linkedItem
	parts  map[int]*linkedItem
	any    any
	boxed  any
	at     time.Time
	own    *sync.Mutex
	do     func()
}

type linkedItem struct {
	name string
	held []byte
}

func newLinked() *linked {
	l := &linked{n: 7, list: []linkedItem{{"a", []byte{1, 2}}, {"b", nil}}, texts: []string{"x", "y"}, do: func() {},
		byName: map[string]linkedItem{"c": {"c", []byte{3}}, "d": {"d", nil}}, parts: map[int]*linkedItem{1: {"p", nil}, 2: {"q", nil}},
		any: &linkedItem{"i", nil}, boxed: linkedItem{"v", nil}, at: time.Unix(1, 0), own: new(sync.Mutex)}
	l.next = &linked{next: l} // a ring
	return l
}

func TestSealCoversEachKindOfMemory(t *testing.T) {
	for name, change := range map[string]func(*linked){
		"a number":                      func(l *linked) { l.n++ },
		"a bool":                        func(l *linked) { l.flag = true },
		"a pointer":                     func(l *linked) { l.next = nil },
		"a pointer to equal memory":     func(l *linked) { l.next = &linked{next: l} },
		"memory behind a pointer":       func(l *linked) { l.next.n++ },
		"the length of a slice":         func(l *linked) { l.list = l.list[:1] },
		"the capacity of a slice":       func(l *linked) { l.list = l.list[:2:2] },
		"a slice in a slice":            func(l *linked) { l.list[0].held[1] = 9 },
		"a text":                        func(l *linked) { l.texts[1] = "z" },
		"a value of a map":              func(l *linked) { l.byName["d"] = linkedItem{"e", nil} },
		"memory behind a map's value":   func(l *linked) { l.byName["c"].held[0] = 4 },
		"memory behind a map's pointer": func(l *linked) { l.parts[2].name = "r" },
		"a missing entry of a map":      func(l *linked) { delete(l.byName, "d") },
		"the only entries of a map":     func(l *linked) { clear(l.parts) },
		"memory behind an interface":    func(l *linked) { l.any.(*linkedItem).name = "j" },
		"an interface":                  func(l *linked) { l.boxed = linkedItem{"w", nil} },
		"a time":                        func(l *linked) { l.at = time.Unix(2, 0) },
		"a function":                    func(l *linked) { l.do = nil },
	} {
		l := newLinked()
		if name == "the capacity of a slice" {
			l.list = append(make([]linkedItem, 0, 4), l.list...)
		}
		s := newSeal(l)
		s.take()
		for range 20 { // maps come in any order
			if bad := s.check(); bad != "" {
				t.Fatalf("%s: before: %s", name, bad)
			}
		}
		change(l)
		if bad := s.check(); bad == "" {
			t.Errorf("%s changed, and the seal is whole", name)
		}
		s.take()
		if bad := s.check(); bad != "" {
			t.Errorf("%s: after taking the seal again: %s", name, bad)
		}
	}
}

// TestSealLeavesOutMemoryWithOwnLocks: other goroutines may change it at any time.
func TestSealLeavesOutMemoryWithOwnLocks(t *testing.T) {
	l := newLinked()
	s := newSeal(l)
	s.take()
	l.hits.Add(1)
	l.mu.Lock()
	l.own.Lock()
	if bad := s.check(); bad != "" {
		t.Errorf("damaged: %s", bad)
	}
}

func BenchmarkSeal(b *testing.B) {
	for half, m := range machines(b) {
		s := newSeal(m)
		s.take()
		b.Run(half, func(b *testing.B) {
			b.ReportAllocs()
			began := ProcessorTime()
			for b.Loop() {
				if bad := s.check(); bad != "" {
					b.Fatal(bad)
				}
				s.take()
			}
			b.ReportMetric(float64(ProcessorTime()-began)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(len(s.sums)), "blocks")
		})
	}
}
