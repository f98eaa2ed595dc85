package selftest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

// TestScenarios plays scenarios: lists of commands, each followed by the resulting findings of the tests, one per line,
// beginning with "  ".
//
//	half MODULE...            a half with these modules, every 2 s, idle after 4 s, ticked every 25 ms
//	use MODULE [DURATION]     it is used now, and at this interval
//	leave MODULE              its use ends
//	way MODULE ok|gone|absent|alter|number|refuse|double    fate of its probes from now on
//	way MODULE delay DURATION, lose N    delay; one of N probes is lost
//	excuse MODULE, renew MODULE
//	stop DURATION             this half does not run; arrivals wait
//	restart                   a new life, which has to prove itself
//	run DURATION              time passes
//	show MODULE
//
// Modules are register (local, always used), reports and bulk (local), mailbox, link, relay, direct (foreign).
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		w := &world{now: t0, ways: map[Module]*way{}}
		return golden.Lines(t, text, "  ", func(args []string) ([]string, error) {
			w.deeds = nil
			err := w.do(args)
			return w.deeds, err
		})
	})
}

var t0 = time.Unix(1000, 0)

const (
	interval = 2 * time.Second
	idle     = 4 * time.Second
	tick     = 25 * time.Millisecond
)

// configs are the modules of the tests.
var configs = map[string]ModuleConfig{
	"register": {Module: Module{Kind: Register}, Sizes: []int{16, 16, 16}, Timeout: time.Second, Floor: 5 * time.Millisecond,
		Local: true, Always: true},
	"reports": {Module: Module{Kind: Reports}, Sizes: []int{100, 900}, Timeout: time.Second, Floor: 5 * time.Millisecond, Local: true},
	"bulk":    {Module: Module{Kind: Bulk}, Sizes: []int{5000}, Timeout: time.Second, Floor: 5 * time.Millisecond, Local: true},
	"mailbox": {Module: Module{Kind: Mailbox}, Sizes: []int{16, 300, 1200}, Timeout: time.Second, Floor: 10 * time.Millisecond},
	"link":    {Module: Module{Kind: Link}, Sizes: []int{16, 200, 1200}, Timeout: time.Second, Floor: 20 * time.Millisecond, Loss: 0.02},
	"relay":   {Module: Module{Kind: Relay}, Sizes: []int{64, 1000}, Timeout: time.Second, Floor: 30 * time.Millisecond, Loss: 0.02},
	"direct": {Module: Module{Kind: Direct}, Sizes: []int{64, 600, 1200}, Timeout: time.Second, Floor: 50 * time.Millisecond,
		Loss: 0.1, Foreign: true},
}

// way is a module's treatment of probes.
type way struct {
	what     string
	delay    time.Duration
	lose     int
	given    int
	useEvery time.Duration
	useAt    time.Time
	tests    int
}

// world is one half with its paths.
type world struct {
	now    time.Time
	names  []string
	m      *Machine
	ways   map[Module]*way
	flying []flown
	deeds  []string
}

type flown struct {
	at time.Time
	ev Event
}

func (w *world) do(f []string) error {
	if f[0] == "half" {
		w.names = f[1:]
		w.begin()
		return nil
	}
	if f[0] == "restart" {
		kept := w.m.Snapshot(nil)
		w.begin()
		w.flying = nil
		w.m.Restore(w.now, kept, true)
		w.show("proving %t", w.m.Proving())
		return nil
	}
	if f[0] == "run" || f[0] == "stop" {
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		w.run(d, f[0] == "stop")
		return nil
	}
	c, ok := configs[f[1]]
	if !ok {
		return fmt.Errorf("no module %q", f[1])
	}
	v := w.ways[c.Module]
	switch f[0] {
	case "use":
		w.use(c.Module)
		if len(f) > 2 {
			v.useEvery, _ = time.ParseDuration(f[2])
			v.useAt = w.now.Add(v.useEvery)
		}
	case "leave":
		v.useEvery = 0
	case "way":
		v.what = f[2]
		v.delay, v.lose = time.Millisecond, 0
		if f[2] == "delay" {
			v.delay, _ = time.ParseDuration(f[3])
		}
		if f[2] == "lose" {
			fmt.Sscan(f[3], &v.lose)
		}
	case "excuse":
		w.step(Excused{c.Module})
	case "renew":
		w.step(Renewed{c.Module})
	case "show":
		for _, r := range w.m.Results(w.now) {
			if r.Module == c.Module {
				w.show("%s %s in use %t, %d tests, lost %d altered %d doubled %d late %d, usually %s", r.Name, r.State, r.InUse, r.Tests,
					r.Lost, r.Altered, r.Doubled, r.Late, r.Baseline.Round(100*time.Microsecond))
			}
		}
	default:
		return fmt.Errorf("unknown command %q", f[0])
	}
	return nil
}

func (w *world) begin() {
	cfg := Config{Interval: interval, IdleAfter: idle, Tick: tick, First: uint64(w.now.UnixNano())}
	for _, n := range w.names {
		cfg.Modules = append(cfg.Modules, configs[n])
		if w.ways[configs[n].Module] == nil {
			w.ways[configs[n].Module] = &way{what: "ok", delay: time.Millisecond}
		}
	}
	w.m = New(cfg, w.now)
}

func (w *world) show(format string, args ...any) {
	w.deeds = append(w.deeds, fmt.Sprintf("  %8s %s", w.now.Sub(t0), fmt.Sprintf(format, args...)))
}

func (w *world) use(id Module) {
	if w.m.Use(w.now, id) {
		w.step(Begin{})
	}
}

func (w *world) step(ev Event) {
	out := w.m.Step(w.now, ev)
	first := map[Module]bool{}
	for _, p := range out.Probes {
		v := w.ways[p.Module]
		if !first[p.Module] {
			first[p.Module] = true
			if v.tests++; v.tests == 1 {
				w.show("%s: tested", p.Module)
			}
		}
		w.carry(v, p)
	}
	for _, r := range out.Changed {
		what := r.State.String()
		if r.Proving {
			what += " (not proven)"
		}
		w.show("%s: %s", r.Name, strings.TrimSpace(what+" "+r.Why))
	}
}

// carry passes a probe through the module.
func (w *world) carry(v *way, p Probe) {
	v.given++
	back := Returned{Module: p.Module, Data: p.Data}
	at := w.now.Add(v.delay)
	switch v.what {
	case "gone":
		return
	case "absent":
		w.flying = append(w.flying, flown{at, Void{p.Module, p.ID}})
		return
	case "refuse":
		w.flying = append(w.flying, flown{at, Refused{p.Module, p.ID, "wrong checksum"}})
		return
	case "alter":
		p.Data[len(p.Data)/2] ^= 0x10
	case "number":
		p.Data[3] ^= 0x10
	case "double":
		w.flying = append(w.flying, flown{at, back})
	case "short":
		if len(p.Data) >= 1000 {
			return
		}
	case "lose":
		if v.given%v.lose == 0 {
			return
		}
	}
	w.flying = append(w.flying, flown{at, back})
}

func (w *world) run(d time.Duration, stopped bool) {
	for _, v := range w.ways {
		v.tests = 0
	}
	const grain = 500 * time.Microsecond
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(grain)
		if stopped {
			continue
		}
		for i := 0; i < len(w.flying); i++ {
			if f := w.flying[i]; !w.now.Before(f.at) {
				w.flying = append(w.flying[:i], w.flying[i+1:]...)
				i--
				w.step(f.ev)
			}
		}
		for _, n := range w.names {
			if v := w.ways[configs[n].Module]; v.useEvery > 0 && !w.now.Before(v.useAt) {
				v.useAt = w.now.Add(v.useEvery)
				w.use(configs[n].Module)
			}
		}
		if w.now.Sub(t0)%tick == 0 {
			w.step(Tick{})
		}
	}
	for _, n := range w.names {
		if v := w.ways[configs[n].Module]; v.tests > 0 {
			w.show("%s: %d tests", configs[n].Module, v.tests)
		}
	}
}
