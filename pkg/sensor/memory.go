// A memorySource judges a node's memory by the kernel's counters: ECC errors (EDAC), out-of-memory kills and memory
// pressure (PSI).
//
// Only machine-wide out-of-memory kills count. The kernel's only counter of kills, oom_kill, includes kills at the limit of a memory
// cgroup, which say nothing about the machine. So a kill counts if a task has reclaimed memory of the machine directly (allocstall)
// shortly before: the page allocator kills only after direct reclaim has failed, and reclaim for a cgroup's limit is not in that counter.
// Free memory is no evidence, because a kill frees memory before the next reading. Neither is PSI, which includes stalls at a cgroup's
// limit.
//
// It tests no memory and reads no machine-check log. A machine without EDAC is judged by the other two, and one without
// all three is unknown.

package sensor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// memoryConfig defines the files and the bounds.
type memoryConfig struct {
	Procfs, Sysfs   string
	SickCorrected   int           // corrected errors within CorrectedWindow above which memory is SICK
	CorrectedWindow time.Duration // also see SickCorrected
	OOMHold         time.Duration // how long an out-of-memory kill keeps memory SICK
	SickPressure    float64       // percent, PSI "full avg10", above which memory is SICK
	Clock           source.Clock
}

// memorySource is the memory of this machine.
type memorySource struct {
	cfg       memoryConfig
	proc, sys source.Root
	corrected *source.Growth
	reclaims  *source.Growth // direct reclaims of the machine's memory
	ooms      *source.Growth // of machineKills

	kills        uint64 // the counter at the last reading, if killsKnown
	killsKnown   bool
	machineKills uint64 // machine-wide since the first reading
}

// reclaimWindow is the longest time between a direct reclaim and a reading with the kill that it explains. Between the reclaim and the
// kill, the kernel scans memory, which takes time.
const reclaimWindow = 10 * time.Second

// newMemory returns the source.
func newMemory(cfg memoryConfig) *memorySource {
	return &memorySource{
		cfg:       cfg,
		proc:      source.Root(cfg.Procfs),
		sys:       source.Root(cfg.Sysfs),
		corrected: source.NewGrowth(cfg.CorrectedWindow),
		reclaims:  source.NewGrowth(reclaimWindow),
		ooms:      source.NewGrowth(cfg.OOMHold),
	}
}

// Name returns "memory".
func (s *memorySource) Name() string { return "memory" }

// Component returns fault.ComponentMemory.
func (s *memorySource) Component() fault.Component { return fault.ComponentMemory }

// Read measures now.
func (s *memorySource) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(s.Component(), s.Name())
	now := s.cfg.Clock()
	s.edac(j, now)
	s.poisoned(j)
	s.oom(j, now)
	s.pressure(j)
	return j.Reading("no EDAC, no oom_kill counter and no memory pressure on this machine")
}

// edac reads the error counters of all memory controllers (Documentation/ABI/testing/sysfs-devices-edac). They count
// from boot, or from the last write to reset_counters. An uncorrected error is FAILED for as long as the counter shows
// it, so that a restart of this process loses nothing, and an operator who replaced the module clears it.
func (s *memorySource) edac(j *source.Judge, now time.Time) {
	const dir = "devices/system/edac/mc"
	controllers, err := s.sys.Glob(dir, "mc[0-9]*")
	j.Fail(err)
	if len(controllers) == 0 {
		return
	}
	var ce, ue uint64
	found := false
	for _, mc := range controllers {
		for _, c := range []struct {
			file string
			sum  *uint64
		}{{"ce_count", &ce}, {"ue_count", &ue}} {
			n, err := s.sys.Uint(dir, mc, c.file)
			switch {
			case err == nil:
				*c.sum += n
				found = true
			case !source.Missing(err):
				j.Fail(err)
				return // a partial sum would look like a reset
			}
		}
	}
	if !found {
		return
	}
	grown := s.corrected.Add(now, ce)
	window := s.cfg.CorrectedWindow.Seconds()
	j.Trend(source.Measure{Quantity: fault.QuantityCorrectedErrors, Value: float64(grown) / window,
		Threshold: float64(s.cfg.SickCorrected) / window})
	switch {
	case ue > 0:
		j.Say(fault.Failed, float64(ue), "", "%s since boot or reset_counters",
			fault.Plural(ue, "uncorrected memory error"))
	case grown > uint64(s.cfg.SickCorrected):
		j.Say(fault.Sick, float64(grown), "", "%s within %v: more than %d", fault.Plural(grown, "corrected memory error"),
			s.cfg.CorrectedWindow, s.cfg.SickCorrected)
	default:
		j.Say(fault.Normal, float64(grown), "", "%s within %v", fault.Plural(grown, "corrected memory error"), s.cfg.CorrectedWindow)
	}
}

// poisoned reads how much memory the kernel has withdrawn since boot because its hardware reported errors there
// (HardwareCorrupted of /proc/meminfo). It sees uncorrected errors on machines without an EDAC driver. It is SICK, not
// FAILED: nothing uses that memory any more, and a page that the kernel withdrew as a precaution counts too.
func (s *memorySource) poisoned(j *source.Judge) {
	text, err := s.proc.Text("meminfo")
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "HardwareCorrupted:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
			j.Fail(fmt.Errorf("read %s: HardwareCorrupted is %.40q: want a number of kB", s.proc.Path("meminfo"), strings.TrimSpace(value)))
		case kb > 0:
			j.Say(fault.Sick, float64(kb), "kB", "the kernel has withdrawn %d kB of memory with hardware errors since boot", kb)
		default:
			j.Say(fault.Normal, 0, "", "no memory withdrawn with hardware errors since boot")
		}
		return
	}
}

// oom reads the number of out-of-memory kills from /proc/vmstat.
func (s *memorySource) oom(j *source.Judge, now time.Time) {
	text, err := s.proc.Text("vmstat")
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	kills, counted, err := sumVMStat(text, "oom_kill")
	reclaims, reclaimsCounted, reclaimErr := sumVMStat(text, "allocstall")
	if err := errors.Join(err, reclaimErr); err != nil {
		j.Fail(fmt.Errorf("read %s: %w", s.proc.Path("vmstat"), err))
		return
	}
	if !counted { // a kernel before 4.13
		return
	}
	reclaimed := s.reclaims.Add(now, reclaims) > 0 || !reclaimsCounted
	if s.killsKnown && kills > s.kills && reclaimed {
		s.machineKills += kills - s.kills
	}
	s.kills, s.killsKnown = kills, true
	if n := s.ooms.Add(now, s.machineKills); n > 0 {
		j.Say(fault.Sick, float64(n), "", "%s within %v", fault.Plural(n, "machine-wide out-of-memory kill"), s.cfg.OOMHold)
		return
	}
	j.Say(fault.Normal, 0, "", "no machine-wide out-of-memory kill within %v", s.cfg.OOMHold)
}

// sumVMStat returns the value of a key in the text of /proc/vmstat, or the sum over the memory zones of a key that has one value for each.
// It returns false if the key is missing.
func sumVMStat(text, key string) (sum uint64, found bool, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != key && !strings.HasPrefix(name, key+"_") {
			continue
		}
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, false, fmt.Errorf("%s is %.40q: want a number of 0 or more", name, value)
		}
		sum, found = sum+v, true
	}
	return sum, found, nil
}

// pressure reads PSI (Documentation/accounting/psi.rst).
func (s *memorySource) pressure(j *source.Judge) {
	text, err := s.proc.Text("pressure/memory")
	if err != nil {
		if !source.Missing(err) { // else compiled out, or off by psi=0
			j.Fail(err)
		}
		return
	}
	full, err := parsePressure(text)
	if err != nil {
		j.Fail(fmt.Errorf("read %s: %w", s.proc.Path("pressure/memory"), err))
		return
	}
	if full > s.cfg.SickPressure {
		j.Say(fault.Sick, full, "%", "all tasks waited for memory %.1f %% of the time: more than %.1f %%", full, s.cfg.SickPressure)
		return
	}
	j.Say(fault.Normal, full, "%", "memory pressure %.1f %%", full)
}

// parsePressure returns the percentage of the last 10 s in which all tasks waited.
func parsePressure(text string) (float64, error) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "full avg10=")
		if !ok {
			continue
		}
		value, _, _ = strings.Cut(value, " ")
		full, err := strconv.ParseFloat(value, 64)
		if err != nil || !(full >= 0 && full <= 100) {
			return 0, fmt.Errorf("full avg10 is %.40q: want 0 to 100", value)
		}
		return full, nil
	}
	return 0, errors.New(`no line "full"`)
}
