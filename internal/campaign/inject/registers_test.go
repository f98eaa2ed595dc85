package inject

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

var (
	full = flag.Bool("campaign.full", false, "the whole campaign")
	seed = flag.Uint64("campaign.seed", 1, "seed of what is sampled")
	out  = flag.String("campaign.out", "", "file for the results")

	recordOut = flag.String("campaign.record", "", "file for the counts that the results are printed from")
	render    = flag.Bool("campaign.render", false, "print docs/campaign.md anew from the counts of its run")
	// If set, TestCode also flips each bit of the routine that sends frames, and adds its counts to -campaign.record.
	codeFlips = flag.Int("campaign.code", 0, "number of flips in the lines that halves run")
	// If set, TestStream adds its courses to -campaign.record.
	streamFlips = flag.Int("campaign.stream", 0, "number of flips in the sending path of a stream of reports")
	// If set, TestLive flips bits for this time, in several clusters.
	liveFor = flag.Duration("campaign.live", 0, "how long bits flip in the live data of running halves")
	// If set, TestProcesses/hangs-and-crashes runs for this time, with any number of samples.
	rageFor = flag.Duration("campaign.for", 0, "how long halves and daemons are killed and stopped at random moments")
)

// bitOf is one bit of the register file and its area.
type bitOf struct {
	bit  int
	area regfile.Area
}

// registerBits returns all meaningful bits of both pages.
func registerBits() []bitOf {
	var out []bitOf
	for _, a := range regfile.Areas() {
		for i := range a.Size * 8 {
			out = append(out, bitOf{a.Offset*8 + i, a})
		}
	}
	return out
}

// inUse reports whether an area is read in normal operation. The others are for people, or for a sick DNP core.
func inUse(area string) bool {
	area, _, _ = strings.Cut(area, ",")
	for _, a := range []watchdog.Addr{
		watchdog.AddrDNPWatchdog, watchdog.AddrHostWatchdog, watchdog.AddrRemoteFaultDescriptor, watchdog.AddrTemperature,
		watchdog.AddrTemperatureThresholds,
		watchdog.AddrPower, watchdog.AddrPowerThresholds, watchdog.AddrVoltage, watchdog.AddrVoltageThresholds,
	} {
		if area == "register "+a.String() {
			return true
		}
	}
	return area == "magic" || strings.HasPrefix(area, "link detail") || strings.HasPrefix(area, "sensor value") || area == "neighbour host Y-"
}

// pageFault is a fault in the page: its bits, and whether they are flipped once or stuck.
type pageFault struct {
	bits  []bitOf
	stuck int // 0 or 1: stuck at that value; -1: flipped once
}

func (f pageFault) String() string {
	var parts []string
	for _, b := range f.bits {
		parts = append(parts, fmt.Sprintf("%s, bit %d", b.area.Name, b.bit-b.area.Offset*8))
	}
	how := "flipped"
	if f.stuck >= 0 {
		how = fmt.Sprintf("stuck at %d", f.stuck)
	}
	return strings.Join(parts, " and ") + " " + how
}

// Times in a sample: the node's state changes at two moments, so that stores and changes meet the fault.
const (
	beforeChange = 300 * time.Millisecond
	afterChange  = 900 * time.Millisecond // includes a digest and a check of the file
	settling     = 700 * time.Millisecond // until a change, or the end of a fault, has propagated
	step         = 5 * time.Millisecond
)

// baseline holds the public text of the world in its two states.
type baseline struct{ quiet, changed string }

// change switches the world's second state on or off: the host's memory turns sick, and a neighbour's memory is
// repaired.
func (w *world) change(on bool) {
	w.memory = fault.Normal
	broken := watchdog.HealthBroken
	if on {
		w.memory, broken = fault.Sick, watchdog.HealthNormal
	}
	for _, p := range w.peers {
		if p.dir == grid.XPlus {
			p.status.Host = watchdog.HostWord{Valid: true, Memory: broken}.Encode()
		}
	}
	w.sensorsAt = w.now
}

func (w *world) baseline() baseline {
	b := baseline{quiet: w.public()}
	w.change(true)
	w.run(settling)
	b.changed = w.public()
	w.change(false)
	w.run(settling)
	if again := w.public(); again != b.quiet {
		w.t.Fatalf("the world does not come back:\n%s\n%s", b.quiet, again)
	}
	return b
}

// try applies one fault to the page of a healthy world and watches both observers.
func (w *world) try(f pageFault, b baseline, jitter time.Duration) sample {
	w.run(jitter)
	s := sample{what: f.String(), category: catMailbox}
	for _, x := range f.bits {
		s.touched = s.touched || inUse(x.area.Name)
	}
	before, start := w.detections(), w.now
	apply := func() {
		for _, x := range f.bits {
			if was := w.bit(x.bit); f.stuck < 0 || was != (f.stuck == 1) {
				w.flip(x.bit)
				s.applied = true
			}
		}
	}
	apply()
	if f.stuck >= 0 {
		w.stuck = apply
	}
	// Either state is allowed during a change.
	watch := func(d time.Duration, allowed ...string) {
		for end := w.now.Add(d); w.now.Before(end); {
			w.run(step)
			w.observe(&s, before, start, allowed)
		}
	}
	watch(beforeChange, b.quiet)
	w.change(true)
	watchBoth := func() { watch(settling, b.quiet, b.changed, "") }
	watchBoth()
	watch(afterChange-settling, b.changed)
	w.stuck = nil
	w.change(false)
	watchBoth()
	s.healed = w.heals(b, start, &s)
	return s
}

// observe records both observers' findings. If allowed contains "", the prober waits.
func (w *world) observe(s *sample, before map[detector]uint64, start time.Time, allowed []string) {
	if s.ours == "" {
		now := w.detections()
		switch {
		case w.stale():
			s.ours = byWatchdog
		case now[byFile] > before[byFile]:
			s.ours = byFile
		case now[byGuard] > before[byGuard]:
			s.ours = byGuard
		}
		s.detect = w.now.Sub(start)
	}
	said := w.public()
	for _, a := range allowed {
		if a == said || a == "" && !strings.Contains(said, "Stale") {
			return
		}
	}
	if !s.prober {
		s.prober = true
		s.what += ": " + difference(allowed[0], said)
	}
}

// difference describes the first difference between two public states.
func difference(want, got string) string {
	w, g := strings.Split(want, "|"), strings.Split(got, "|")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			return fmt.Sprintf("said %.120q, not %.120q", g[i], w[min(i, len(w)-1)])
		}
	}
	return "said less"
}

// heals waits until the public state is correct and no part of the page is bad.
func (w *world) heals(b baseline, start time.Time, s *sample) bool {
	for range 100 {
		if w.public() == b.quiet && w.sound() {
			s.recover = w.now.Sub(start)
			return true
		}
		w.run(100 * time.Millisecond)
	}
	return false
}

// sound reports whether the whole page is readable and correct.
func (w *world) sound() bool {
	f := w.hostPage.File
	if f.Check() != nil {
		return false
	}
	for _, r := range watchdog.Registers() {
		if _, err := f.Load(r.Addr); err != nil {
			return false
		}
	}
	return true
}

// pages tries faults in the register page. It replaces a world that does not heal.
type pages struct {
	t *testing.T
	w *world
	b baseline
	r *rand.Rand
}

func newPages(t *testing.T, stream uint64) *pages {
	w := newWorld(t)
	return &pages{t, w, w.baseline(), rand.New(rand.NewPCG(*seed, stream))}
}

func (p *pages) try(f pageFault) sample {
	s := p.w.try(f, p.b, time.Duration(p.r.Int64N(int64(p.w.periods.TRead))))
	if !s.healed {
		p.w = newWorld(p.t)
		p.b = p.w.baseline()
	}
	return s
}

func TestRegisterPage(t *testing.T) {
	every, pairs := 40*slower+1, 100/slower
	rounds := map[int]int{-1: 1, 0: 1, 1: 1}
	if *full {
		every, pairs = 1, 6000
		rounds[0] = 3 // at other moments: most bits are 0 already
	}
	bits := registerBits()
	for _, x := range []struct {
		name  string
		stuck int
	}{{"flips", -1}, {"stuck at 0", 0}, {"stuck at 1", 1}} {
		t.Run(strings.ReplaceAll(x.name, " ", "-"), func(t *testing.T) {
			runClass(t, "register page, "+x.name, func(c *class) {
				p := newPages(t, uint64(x.stuck+2))
				for range rounds[x.stuck] {
					for i := p.r.IntN(every); i < len(bits); i += every {
						c.add(p.try(pageFault{bits[i : i+1], x.stuck}))
					}
				}
			})
		})
	}
	t.Run("double-flips", func(t *testing.T) {
		runClass(t, "register page, double flips", func(c *class) {
			p := newPages(t, 9)
			for n := range pairs {
				i := p.r.IntN(len(bits))
				j := p.r.IntN(len(bits))
				if n%2 == 0 { // nearby: in the same word, or in its guards
					j = (i + 1 + p.r.IntN(63)) % len(bits)
				}
				if i != j {
					c.add(p.try(pageFault{[]bitOf{bits[i], bits[j]}, -1}))
				}
			}
		})
	})
}
