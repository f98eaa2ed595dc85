package selftest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLossBound(t *testing.T) {
	for _, tc := range []struct {
		n    int
		p    float64
		want int
	}{
		{32, 0, 2}, {3, 0, 2}, {32, 0.02, 10}, {32, 0.1, 18}, {32, 0.4, 30}, {3, 0.02, 4}, {8, 0.02, 7}, {32, 0.9, 33},
	} {
		if got := LossBound(tc.n, tc.p); got != tc.want {
			t.Errorf("%d probes, loss %v: %d, want %d", tc.n, tc.p, got, tc.want)
		}
	}
}

func TestLossBoundFollowsBinomial(t *testing.T) {
	for _, p := range []float64{0.001, 0.02, 0.1, 0.3, 0.6} {
		for n := 2; n <= window; n++ {
			k := LossBound(n, p)
			tail := func(k int) (sum float64) { // slow: products instead of logarithms
				for i := k; i <= n; i++ {
					c := 1.0
					for j := range i {
						c *= float64(n-j) / float64(i-j)
					}
					sum += c * math.Pow(p, float64(i)) * math.Pow(1-p, float64(n-i))
				}
				return sum
			}
			if tail(k) >= rare*1.0001 || k > 2 && tail(k-1) < rare*0.9999 {
				t.Errorf("%d probes, loss %v: bound %d has the tail %g, and the one before %g", n, p, k, tail(k), tail(k-1))
			}
		}
	}
}

func TestLatencyLimitFollowsDeviation(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct{ mean, dev, floor, want time.Duration }{
		{1 * ms, 0, 20 * ms, 20 * ms}, {30 * ms, 1 * ms, 20 * ms, 60 * ms}, {30 * ms, 10 * ms, 20 * ms, 110 * ms},
	} {
		if got := Limit(tc.mean, tc.dev, tc.floor); got != tc.want {
			t.Errorf("%v: %s, want %s", tc, got, tc.want)
		}
	}
}

func TestProbesDifferFromOneAnotherInEveryPattern(t *testing.T) {
	seen := map[string]bool{}
	for id := uint64(1000); id < 1000+patterns; id++ {
		b := fill(nil, id, 64)
		if len(b) != 64 || numberOf(b) != id {
			t.Errorf("probe %d: %x", id, b)
		}
		if id%patterns != 4 {
			seen[string(b[8:])] = true
			continue
		}
		if ones := popcount(b[8:]); ones < 150 || ones > 300 {
			t.Errorf("a mixed probe has %d ones of %d", ones, 8*56)
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d plain patterns, want 4", len(seen))
	}
}

func popcount(b []byte) int {
	n := 0
	for _, x := range b {
		for ; x != 0; x &= x - 1 {
			n++
		}
	}
	return n
}

// TestEveryFlippedBitIsFound flips each bit of a probe in turn.
func TestEveryFlippedBitIsFound(t *testing.T) {
	for bit := range 8 * 100 {
		m := New(Config{Modules: []ModuleConfig{configs["reports"]}, Interval: interval, IdleAfter: idle, Tick: tick, First: 77}, t0)
		m.Use(t0, Module{Kind: Reports})
		out := m.Step(t0, Begin{})
		for _, p := range out.Probes {
			if len(p.Data) == 100 {
				p.Data[bit/8] ^= 1 << (bit % 8)
			}
			m.Step(t0.Add(time.Millisecond), Returned{Module: p.Module, Data: p.Data})
		}
		if r := m.Results(t0)[0]; r.State != Failed || r.Fault != Altered || r.Altered != 1 {
			t.Fatalf("bit %d: %+v", bit, r)
		}
	}
}

// TestNoFalseAlarmOverMillionProbes uses latencies with a heavy tail (Pareto, with stalls of the machine that slow
// down all probes in flight), losses at the path's known rate, and networks that double.
func TestNoFalseAlarmOverMillionProbes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	cfg := Config{Interval: 500 * time.Millisecond, IdleAfter: time.Hour, Tick: tick, First: rnd.Uint64()}
	for _, name := range []string{"reports", "mailbox", "link", "direct"} {
		c := configs[name]
		c.Always = true
		cfg.Modules = append(cfg.Modules, c)
	}
	m := New(cfg, t0)
	var flying []flown
	probes, late := 0, 0
	stall := t0 // probes in flight arrive after it
	stallAt := t0.Add(time.Second)
	wanted := 1_000_000
	if testing.Short() {
		wanted = 100_000
	}
	for now := t0; probes < wanted; now = now.Add(tick) {
		if now.After(stallAt) {
			stall = now.Add(time.Duration(rnd.ExpFloat64() * float64(60*time.Millisecond)))
			stallAt = now.Add(time.Duration(rnd.ExpFloat64() * float64(2*time.Second)))
		}
		var out Output
		step := func(at time.Time, ev Event) {
			out = m.Step(at, ev)
			for _, r := range out.Changed {
				if r.State == Failed {
					t.Fatalf("after %s and %d probes: %s %s", now.Sub(t0), probes, r.Name, r.Why)
				}
			}
		}
		slices.SortStableFunc(flying, func(a, b flown) int { return a.at.Compare(b.at) })
		for len(flying) > 0 && !flying[0].at.After(now) {
			ev := flying[0]
			flying = flying[1:]
			step(ev.at, ev.ev)
		}
		step(now, Tick{})
		for _, p := range out.Probes {
			probes++
			kind := p.Module.Kind
			if kind == Link && rnd.Float64() < 0.02 || kind == Direct && rnd.Float64() < 0.1 {
				continue
			}
			took := time.Duration(float64(200*time.Microsecond) / math.Pow(1-rnd.Float64(), 1/1.3)) // no variance
			at := now.Add(min(took, 900*time.Millisecond))
			if at.Before(stall) {
				at = stall
			}
			ev := Returned{Module: p.Module, Data: p.Data}
			flying = append(flying, flown{at, ev})
			if kind == Direct && rnd.Float64() < 0.05 {
				flying = append(flying, flown{at, ev})
			}
		}
	}
	for _, r := range m.Results(t0) {
		late += int(r.Late)
		if r.State != Passed {
			t.Errorf("%s: %s", r.Name, r.State)
		}
	}
	if late < 1000 {
		t.Errorf("only %d of %d probes were late: the tail is not heavy", late, probes)
	}
}

func TestUseCostsNothing(t *testing.T) {
	m := New(Config{Modules: []ModuleConfig{configs["link"], configs["relay"]}, Interval: interval, IdleAfter: idle, Tick: tick}, t0)
	m.Use(t0, Module{Kind: Relay})
	if n := testing.AllocsPerRun(100, func() { m.Use(t0, Module{Kind: Relay}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { m.Step(t0, Tick{}) }); n != 0 {
		t.Errorf("a tick at which nothing is due: %v allocations", n)
	}
}

// TestRarerTestsSpareFailedModules: modules that pass are tested four times less often; a failed one as before.
func TestRarerTestsSpareFailedModules(t *testing.T) {
	now := time.Unix(0, 0)
	good, bad := Module{Kind: Register}, Module{Kind: Reports}
	var mods []ModuleConfig
	for _, m := range []Module{good, bad} {
		mods = append(mods, ModuleConfig{Module: m, Sizes: []int{MinProbe}, Timeout: time.Second, Floor: time.Millisecond, Local: true,
			Always: true})
	}
	tests := func(rarer int) map[Module]int {
		m := New(Config{Modules: mods, Interval: 2 * time.Second, IdleAfter: 10 * time.Second, Tick: 25 * time.Millisecond}, now)
		m.Rarer(rarer)
		n := map[Module]int{}
		for range 4000 { // 100 s
			now = now.Add(25 * time.Millisecond)
			for _, p := range m.Step(now, Tick{}).Probes {
				n[p.Module]++
				if p.Module == bad {
					p.Data[len(p.Data)-1] ^= 1
				}
				m.Step(now, Returned{Module: p.Module, Data: p.Data, Took: time.Microsecond})
			}
		}
		return n
	}
	often, rarely := tests(1), tests(4)
	if often[good] < 49 || often[good] > 51 || rarely[good] < 12 || rarely[good] > 14 {
		t.Errorf("%d tests of a good module, and %d when they are rarer: want 50 and 13", often[good], rarely[good])
	}
	if rarely[bad] < often[bad]-2 {
		t.Errorf("%d tests of a failed module, and %d when others are rarer: want as many", often[bad], rarely[bad])
	}
}

func TestEchoesOfEarlierLifeAreNothing(t *testing.T) {
	m := New(Config{Modules: []ModuleConfig{configs["link"]}, Interval: interval, IdleAfter: idle, Tick: tick, First: 1 << 40}, t0)
	m.Use(t0, Module{Kind: Link})
	m.Step(t0, Begin{})
	for _, b := range [][]byte{nil, {1, 2, 3}, fill(nil, 99, 16), fill(nil, 99, 1200), bytes.Repeat([]byte{0xff}, 16)} {
		if out := m.Step(t0, Returned{Module: Module{Kind: Link}, Data: b}); len(out.Changed) > 0 {
			t.Errorf("%x: %+v", b, out.Changed)
		}
	}
	if r := m.Results(t0)[0]; r.Altered+r.Doubled+r.Late != 0 {
		t.Errorf("%+v", r)
	}
}

func TestSnapshotResumesTests(t *testing.T) {
	mods := []ModuleConfig{configs["link"], configs["mailbox"], configs["reports"]}
	cfg := Config{Modules: mods, Interval: interval, IdleAfter: idle, Tick: tick, First: 5}
	m := New(cfg, t0)
	m.Use(t0, Module{Kind: Link})
	now := t0
	for range 10 {
		for _, p := range m.Step(now, Tick{}).Probes {
			m.Step(now.Add(3*time.Millisecond), Returned{Module: p.Module, Data: p.Data})
		}
		m.Use(now, Module{Kind: Link})
		now = now.Add(interval)
	}
	kept := m.Snapshot(nil)
	again := New(cfg, now)
	again.Restore(now, kept, true)
	r := again.Results(now)
	if r[0].Baseline != 3*time.Millisecond || !r[0].InUse || !r[0].Proving || r[1].InUse || r[1].Proving || !r[2].Proving {
		t.Errorf("%+v", r)
	}
	if got := again.Snapshot(nil); !r[2].Proving || !bytes.Equal(got[:30], kept[:30]) {
		t.Errorf("restored %x\nwant %x", got, kept)
	}
	for cut := range kept { // no length is a reason to fail
		New(cfg, now).Restore(now, kept[:cut], true)
	}
	plain := New(cfg, now)
	plain.Restore(now, kept, false)
	if plain.Proving() {
		t.Error("there is something to prove without a restart")
	}
}

func TestConfigNamesBadField(t *testing.T) {
	good := Config{Modules: []ModuleConfig{configs["link"]}, Interval: interval, IdleAfter: idle, Tick: tick}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Config){
		"interval 0s":      func(c *Config) { c.Interval = 0 },
		"idle after 1s":    func(c *Config) { c.IdleAfter = time.Second },
		"tick 0s":          func(c *Config) { c.Tick = 0 },
		"there twice":      func(c *Config) { c.Modules = append(c.Modules, c.Modules[0]) },
		"of no kind":       func(c *Config) { c.Modules = []ModuleConfig{{}} },
		"0 probes":         func(c *Config) { c.Modules[0].Sizes = nil },
		"probe of 3 bytes": func(c *Config) { c.Modules[0].Sizes = []int{3} },
		"floor 2s":         func(c *Config) { c.Modules[0].Floor = 2 * time.Second },
		"loss 1":           func(c *Config) { c.Modules[0].Loss = 1 },
	} {
		c := good
		c.Modules = slices.Clone(good.Modules)
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

func FuzzRestore(f *testing.F) {
	m := New(Config{Modules: []ModuleConfig{configs["link"]}, Interval: interval, IdleAfter: idle, Tick: tick}, t0)
	f.Add(m.Snapshot(nil))
	f.Fuzz(func(_ *testing.T, b []byte) {
		m := New(Config{Modules: []ModuleConfig{configs["link"], configs["relay"]}, Interval: interval, IdleAfter: idle, Tick: tick}, t0)
		m.Restore(t0, b, true)
		m.Step(t0, Tick{})
	})
}

// TestNilMachineTestsNothing: a half without self-tests has a usable machine, without a special case.
func TestNilMachineTestsNothing(t *testing.T) {
	var m *Machine
	now := time.Unix(1000, 0)
	id := Module{Kind: Reports}
	for _, ev := range []Event{Tick{}, Begin{}, Returned{Module: id}, Refused{Module: id}, Void{Module: id}, Excused{Module: id},
		Renewed{Module: id}} {
		if out := m.Step(now, ev); out.Probes != nil || out.Changed != nil || out.Save {
			t.Errorf("%T: %+v", ev, out)
		}
	}
	if m.Use(now, id) || m.Answered(id) || m.Proving() || len(m.Failed()) > 0 || len(m.Results(now)) > 0 || len(m.Snapshot(nil)) > 0 {
		t.Error("it says something")
	}
}

// TestPartnersAreBlamedApart: a failed module tells whose tests are bad. A partner that is slow once, or that can carry no tests any more,
// is not among them.
func TestPartnersAreBlamedApart(t *testing.T) {
	relay := configs["relay"]
	relay.Partners, relay.Foreign = true, true
	const a, b, c = 0, 1, 2
	const twice = 2 * time.Millisecond
	m := New(Config{Modules: []ModuleConfig{relay}, Interval: interval, IdleAfter: time.Hour, Tick: tick}, t0)
	m.Use(t0, relay.Module)
	now := t0
	// test plays the next test by a partner: fate alters a probe, delays it, or drops it by returning false.
	test := func(partner, able uint8, fate func(p *Probe, took *time.Duration) bool) Result {
		t.Helper()
		tests := m.Results(now)[0].Tests
		for range 1000 {
			now = now.Add(tick)
			out := m.Step(now, Tick{})
			if len(out.Probes) == 0 {
				continue
			}
			m.Step(now, Carried{Module: relay.Module, Partner: partner, Able: able})
			for _, p := range out.Probes {
				took := time.Millisecond
				if fate == nil || fate(&p, &took) {
					m.Step(now, Returned{Module: p.Module, Data: p.Data, Took: took})
					if took == twice {
						m.Step(now, Returned{Module: p.Module, Data: p.Data, Took: took})
					}
				}
			}
			for m.Results(now)[0].Tests == tests { // until lost probes are given up
				now = now.Add(tick)
				m.Step(now, Tick{})
			}
			return m.Results(now)[0]
		}
		t.Fatal("no test")
		return Result{}
	}
	doubles := func(_ *Probe, took *time.Duration) bool { *took = twice; return true }
	losesAll := func(*Probe, *time.Duration) bool { return false }
	alters := func(p *Probe, _ *time.Duration) bool { p.Data[len(p.Data)-1] ^= 1; return true }
	slow := func(_ *Probe, took *time.Duration) bool { *took = 500 * time.Millisecond; return true }
	losesLarge := func(p *Probe, _ *time.Duration) bool { return len(p.Data) < 1000 }
	all := uint8(1<<a | 1<<b | 1<<c)
	for range 10 {
		test(a, all, nil)
	}
	if r := test(a, all, alters); r.State != Failed || r.Blamed != 1<<a {
		t.Errorf("altered by the first: %s, blamed %b", r.State, r.Blamed)
	}
	if r := test(b, all, slow); r.State != Failed || r.Blamed != 1<<a {
		t.Errorf("the second is slow once: %s, blamed %b", r.State, r.Blamed)
	}
	if r := test(b, all, doubles); r.State != Failed || r.Blamed != 1<<a {
		t.Errorf("the second doubles once, as its path may: %s, blamed %b", r.State, r.Blamed)
	}
	if r := test(b, all, losesAll); r.State != Failed || r.Blamed != 1<<a {
		t.Errorf("the second loses a test: %s, blamed %b", r.State, r.Blamed)
	}
	if r := test(b, 1<<b|1<<c, alters); r.State != Failed || r.Blamed != 1<<b {
		t.Errorf("the first carries no more tests: %s, blamed %b", r.State, r.Blamed)
	}
	for range ClearTests {
		test(c, all, nil)
	}
	if r := m.Results(now)[0]; r.State != Passed || r.Blamed != 0 {
		t.Errorf("good again: %s, blamed %b", r.State, r.Blamed)
	}
	var r Result
	for range 40 { // one probe of two: the path loses more than it may, by each partner
		for partner := range uint8(3) {
			r = test(partner, all, losesLarge)
		}
	}
	if r.State != Failed || r.Fault != Lost || r.Blamed != all {
		t.Errorf("all lose large messages: %s %s, blamed %b", r.State, r.Fault, r.Blamed)
	}
}
