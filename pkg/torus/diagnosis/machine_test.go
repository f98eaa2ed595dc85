package diagnosis

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func config() Config {
	return Config{
		Links:  []LinkConfig{{grid.XPlus, true, true}, {grid.YMinus, false, true}, {grid.ZPlus, true, false}},
		Sizes:  []int{64, 512, 1200},
		Rounds: 1, Run: 77,
	}
}

// run steps a machine until it is done. fate returns when each probe comes back and with which bytes; nil means
// never.
func run(t *testing.T, cfg Config, fate func(s Send) (after time.Duration, back []byte)) (*Machine, time.Duration) {
	t.Helper()
	type flying struct {
		at time.Time
		a  Answer
	}
	var air []flying
	now := begin
	m := New(cfg, now)
	out := m.Step(now, Tick{})
	for steps := 0; ; steps++ {
		if steps > 100_000 {
			t.Fatal("the run does not end")
		}
		for _, s := range out.Send {
			if after, back := fate(s); back != nil {
				air = append(air, flying{now.Add(after), Answer{s.Dir, back}})
			}
		}
		if out.Done {
			return m, now.Sub(begin)
		}
		next, which := out.Wake, -1
		for i, f := range air {
			if f.at.Before(next) {
				next, which = f.at, i
			}
		}
		now = later(now, next)
		if which < 0 {
			out = m.Step(now, Tick{})
			continue
		}
		a := air[which].a
		air = append(air[:which], air[which+1:]...)
		out = m.Step(now, a)
	}
}

func TestHealthyRun(t *testing.T) {
	patterns, sizes := map[string]bool{}, map[int]bool{}
	m, took := run(t, config(), func(s Send) (time.Duration, []byte) {
		if s.Dir == grid.ZPlus {
			t.Errorf("a probe by a link that cannot send")
		}
		if s.Dir == grid.YMinus && s.Kind != DNP {
			t.Errorf("a neighbour that passes nothing on is asked to: %s", s.Kind)
		}
		patterns[string(s.Data[40:44])], sizes[len(s.Data)] = true, true
		return time.Millisecond, s.Data
	})
	if took > 300*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	if len(patterns) < 4 || len(sizes) != 3 {
		t.Errorf("%d patterns in %d sizes", len(patterns), len(sizes))
	}
	all := m.Findings()
	for i, want := range []struct{ dnp, host, through uint32 }{{36, 6, 12}, {36, 0, 0}, {0, 0, 0}} {
		f := all[i]
		if f.DNP.Sent != want.dnp || f.DNP.Answered != want.dnp || f.Host.Answered != want.host || f.Through.Answered != want.through {
			t.Errorf("%s: %+v", f.Dir, f)
		}
	}
	if f := all[0].DNP; f.Min != time.Millisecond || f.Median != time.Millisecond || f.Max != time.Millisecond || f.Altered+f.Late > 0 {
		t.Errorf("%+v", f)
	}
	for i, want := range []Verdict{Good, Good, NothingAnswers} {
		if v := Judge(all[i], all); v != want {
			t.Errorf("%s: %s, want %s", all[i].Dir, v, want)
		}
	}
}

func TestWhatComesOtherwise(t *testing.T) {
	cfg := config()
	cfg.Links = cfg.Links[:2]
	n := 0
	m, took := run(t, cfg, func(s Send) (time.Duration, []byte) {
		n++
		switch {
		case s.Dir == grid.YMinus && n%3 == 0:
			return 0, nil
		case s.Dir == grid.XPlus && s.Kind == Host:
			return 0, nil
		case s.Dir == grid.XPlus && s.Kind == Through, s.Dir == grid.YMinus && s.Kind == DNP:
			s.Data[20] ^= 4
		}
		return LateAfter + time.Millisecond, s.Data
	})
	if took < Timeout || took > Timeout+300*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	all := m.Findings()
	if x := all[0]; x.Through.Altered != 12 || x.Host.Lost() != 6 || x.DNP.Late != 36 || !x.hostSilent() || Judge(x, all) != HostSilent {
		t.Errorf("%+v: %s", x, Judge(x, all))
	}
	if y := all[1]; y.DNP.Lost() < 5 || y.DNP.Lost() > 20 || Judge(y, all) != Corrupt {
		t.Errorf("%+v: %s", y, Judge(y, all))
	}
}

// A run ends even if no neighbour answers. Several rounds take as many times longer.
func TestRunEndsWithoutAnswers(t *testing.T) {
	for _, rounds := range []int{1, 3} {
		cfg := config()
		cfg.Rounds = rounds
		m, took := run(t, cfg, func(Send) (time.Duration, []byte) { return 0, nil })
		if most := time.Duration(rounds)*RoundEvery + Timeout; took > most {
			t.Errorf("%d rounds: %s, want at most %s", rounds, took, most)
		}
		if f := m.Findings()[0]; f.DNP.Sent != uint32(36*rounds) || Judge(f, m.Findings()) != NothingAnswers {
			t.Errorf("%d rounds: %+v", rounds, f)
		}
	}
}

// A node that was stopped itself waits for answers that lie unread; and no answer counts twice, or for another run.
func TestStoppedNodeWaitsForUnreadAnswers(t *testing.T) {
	cfg := config()
	cfg.Links = cfg.Links[:1]
	m := New(cfg, begin)
	now := begin
	var sent []Send
	for range batches {
		out := m.Step(now, Tick{})
		sent = append(sent, out.Send...)
		now = out.Wake
	}
	now = now.Add(5 * time.Second)
	if out := m.Step(now, Tick{}); out.Done {
		t.Fatal("it gives up what may lie before it")
	}
	foreign := appendProbe(nil, DNP, grid.XPlus, 0, 78, 64)
	if m.Answered(foreign) || !m.Answered(sent[0].Data) {
		t.Error("it does not know its own")
	}
	m.Step(now, Answer{grid.XPlus, foreign})
	m.Step(now, Answer{grid.YMinus, sent[0].Data}) // by another link than it went
	m.Step(now, Answer{grid.XPlus, []byte("x")})
	for range 2 {
		for _, s := range sent {
			m.Step(now, Answer{s.Dir, s.Data})
		}
	}
	f := m.Findings()[0]
	if f.DNP.Answered != 36 || f.Through.Answered != 12 || f.Host.Answered != 6 {
		t.Errorf("%+v", f)
	}
	if out := m.Step(now, Tick{}); !out.Done {
		t.Error("everything has come, and it is not done")
	}
}

func TestSlowLimit(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		others []time.Duration
		want   time.Duration
	}{
		{nil, 250 * ms}, {[]time.Duration{ms}, 50 * ms}, {[]time.Duration{ms, 100 * ms, 30 * ms}, 120 * ms},
	} {
		if got := SlowLimit(tc.others); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.others, got, tc.want)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"links: given none":   func(c *Config) { c.Links = nil },
		"links: given X+":     func(c *Config) { c.Links = append(c.Links, c.Links[0]) },
		"links: given":        func(c *Config) { c.Links[0].Dir = 9 },
		"sizes: given none":   func(c *Config) { c.Sizes = nil },
		"sizes: given 15":     func(c *Config) { c.Sizes = []int{15} },
		"rounds: given 0":     func(c *Config) { c.Rounds = 0 },
		"rounds: given 11":    func(c *Config) { c.Rounds = 11 },
		"run: given 0":        func(c *Config) { c.Run = 0 },
		"sizes: given 100000": func(c *Config) { c.Sizes = []int{100000} },
	} {
		c := config()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestWrapper(t *testing.T) {
	probe := appendProbe(nil, Host, grid.YPlus, 3, 9, 100)
	if !IsProbe(probe) || IsProbe(probe[:8]) {
		t.Error("a probe is not known")
	}
	k, back, inner, ok := Unwrap(Wrap(nil, Host, grid.ZMinus, probe))
	if !ok || k != Host || back != grid.ZMinus || string(inner) != string(probe) {
		t.Errorf("%v %v %v", k, back, ok)
	}
	for _, bad := range [][]byte{nil, probe, Wrap(nil, DNP, grid.XPlus, probe), Wrap(nil, Host, 9, probe), Wrap(nil, Host, grid.XPlus, nil)} {
		if _, _, _, ok := Unwrap(bad); ok {
			t.Errorf("%x is taken for a wrapper", bad)
		}
	}
}

func FuzzUnwrap(f *testing.F) {
	f.Add(Wrap(nil, Through, grid.XPlus, appendProbe(nil, Through, grid.XPlus, 0, 1, 32)))
	f.Add([]byte("LFDP"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, back, probe, ok := Unwrap(b); ok && string(Wrap(nil, k, back, probe)) != string(b) {
			t.Errorf("%x does not come out as it went in", b)
		}
		m := New(config(), begin)
		m.Step(begin, Tick{})
		m.Step(begin, Answer{grid.XPlus, b})
	})
}
