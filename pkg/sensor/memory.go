// A memorySource judges a node's memory by the kernel's counters: ECC errors (EDAC), out-of-memory kills and memory
// pressure (PSI).
//
// Kills and pressure say nothing about the machine by themselves: both also come from a memory cgroup at its own limit. They count
// only while the machine itself is short of memory, by MemAvailable. Page cache counts as available there. A kill also needs a direct
// reclaim of the machine's memory (allocstall): the page allocator kills only after that, and a cgroup's reclaim is not in that counter.
// A shortage that begins and ends between two readings is not seen.
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
	counts    map[string]uint64         // the last value of each counter of EDAC
	corrected map[string]*source.Growth // of each memory controller
	reclaims  *source.Growth            // direct reclaims of the machine's memory
	kills     *source.Growth            // all
	ooms      *source.Growth            // of machineKills

	lastKills    uint64 // the counter at the last reading, if killsKnown
	killsKnown   bool
	machineKills uint64 // machine-wide since the first reading

	meminfo map[string]uint64 // of this reading, in kB; empty: unreadable
	shortAt time.Time         // of the last reading at which the machine was short of memory
}

// recently is the longest time between a shortage or a direct reclaim and a reading with the kill or the pressure that it explains.
// A kill frees memory before the next reading, and PSI looks back over 10 s.
const recently = 10 * time.Second

// A machine is short of memory if less than one part in shortShare is available, and less than shortKB.
const (
	shortShare = 20
	shortKB    = 4 << 20
)

const edacDir = "devices/system/edac/mc"

// newMemory returns the source.
func newMemory(cfg memoryConfig) *memorySource {
	return &memorySource{
		cfg:       cfg,
		proc:      source.Root(cfg.Procfs),
		sys:       source.Root(cfg.Sysfs),
		counts:    map[string]uint64{},
		corrected: map[string]*source.Growth{},
		reclaims:  source.NewGrowth(recently),
		kills:     source.NewGrowth(cfg.OOMHold),
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
	s.readMeminfo(j, now)
	s.poisoned(j)
	s.oom(j, now)
	s.pressure(j, now)
	return j.Reading("no EDAC, no oom_kill counter and no memory pressure on this machine")
}

// edac reads the error counters of all memory controllers (Documentation/ABI/testing/sysfs-devices-edac). They count
// from boot, or from the last write to reset_counters. An uncorrected error is FAILED for as long as the counter shows
// it, so that a restart of this process loses nothing, and an operator who replaced the module clears it.
func (s *memorySource) edac(j *source.Judge, now time.Time) {
	controllers, err := s.sys.Glob(edacDir, "mc[0-9]*")
	j.Fail(err)
	var ue, grown uint64
	counted, whole := false, true
	count := func(mc, file string) (n uint64, known bool) {
		n, known, err := s.count(mc, file)
		j.Fail(err)
		counted, whole = counted || known, whole && err == nil
		return n, known
	}
	for _, mc := range controllers {
		n, _ := count(mc, "ue_count")
		ue += n
		if n, known := count(mc, "ce_count"); known {
			if s.corrected[mc] == nil {
				s.corrected[mc] = source.NewGrowth(s.cfg.CorrectedWindow)
			}
			grown += s.corrected[mc].Add(now, n)
		}
	}
	window := s.cfg.CorrectedWindow.Seconds()
	if counted {
		j.Trend(source.Measure{Quantity: fault.QuantityCorrectedErrors, Value: float64(grown) / window,
			Threshold: float64(s.cfg.SickCorrected) / window})
	}
	switch {
	case ue > 0:
		j.Say(fault.Failed, float64(ue), "", "%s since boot or reset_counters",
			fault.Plural(ue, "uncorrected memory error"))
	case grown > uint64(s.cfg.SickCorrected):
		j.Within(s.cfg.CorrectedWindow, fault.Sick, float64(grown), "", "%s within %v: more than %d", fault.Plural(grown,
			"corrected memory error"),
			s.cfg.CorrectedWindow, s.cfg.SickCorrected)
	case counted && whole:
		j.Say(fault.Normal, float64(grown), "", "%s within %v", fault.Plural(grown, "corrected memory error"), s.cfg.CorrectedWindow)
	}
}

// count returns a counter of a memory controller. The last value stands for one that cannot be read, beside the error.
func (s *memorySource) count(mc, file string) (n uint64, known bool, err error) {
	n, err = s.sys.Uint(edacDir, mc, file)
	key := mc + "/" + file
	switch {
	case err == nil:
		s.counts[key] = n
	case source.Missing(err):
		delete(s.counts, key)
		err = nil
	}
	n, known = s.counts[key]
	return n, known, err
}

// readMeminfo reads /proc/meminfo (Documentation/filesystems/proc.rst).
func (s *memorySource) readMeminfo(j *source.Judge, now time.Time) {
	s.meminfo = map[string]uint64{}
	text, err := s.proc.Text("meminfo")
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name != "MemTotal" && name != "MemAvailable" && name != "HardwareCorrupted" {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			j.Fail(s.proc.Bad(fmt.Errorf("%s is %.40q: want a number of kB", name, strings.TrimSpace(value)), "meminfo"))
			continue
		}
		s.meminfo[name] = kb
	}
	if available, known := s.meminfo["MemAvailable"]; known && available < min(s.meminfo["MemTotal"]/shortShare, shortKB) {
		s.shortAt = now
	}
}

// short reports whether the machine is short of memory, or recently was.
func (s *memorySource) short(now time.Time) bool {
	return !s.shortAt.IsZero() && now.Sub(s.shortAt) <= recently
}

// poisoned judges how much memory the kernel has withdrawn since boot because its hardware reported errors there. It sees
// uncorrected errors on machines without an EDAC driver. It is SICK, not FAILED: nothing uses that memory any more, and a page that the
// kernel withdrew as a precaution counts too.
func (s *memorySource) poisoned(j *source.Judge) {
	kb, known := s.meminfo["HardwareCorrupted"]
	switch {
	case kb > 0:
		j.Say(fault.Sick, float64(kb), "kB", "the kernel has withdrawn %d kB of memory with hardware errors since boot", kb)
	case known:
		j.Say(fault.Normal, 0, "", "no memory withdrawn with hardware errors since boot")
	}
}

// oom reads the number of out-of-memory kills from /proc/vmstat. A kill that is not machine-wide is a note.
func (s *memorySource) oom(j *source.Judge, now time.Time) {
	text, err := s.proc.Text("vmstat")
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	kills, counted, err := sumVMStat(text, "oom_kill")
	reclaims, _, reclaimErr := sumVMStat(text, "allocstall")
	if err := errors.Join(err, reclaimErr); err != nil {
		j.Fail(s.proc.Bad(err, "vmstat"))
		return
	}
	if !counted { // a kernel before 4.13
		return
	}
	reclaimed := s.reclaims.Add(now, reclaims) > 0
	if s.killsKnown && kills > s.lastKills && reclaimed && s.short(now) {
		s.machineKills += kills - s.lastKills
	}
	s.lastKills, s.killsKnown = kills, true
	all, machine := s.kills.Add(now, kills), s.ooms.Add(now, s.machineKills)
	if all > machine {
		j.Note("%s without a shortage of the machine seen within %v", fault.Plural(all-machine, "out-of-memory kill"), s.cfg.OOMHold)
	}
	if machine > 0 {
		j.Within(s.cfg.OOMHold, fault.Sick, float64(machine), "", "%s within %v", fault.Plural(machine, "machine-wide out-of-memory kill"),
			s.cfg.OOMHold)
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

// pressure reads PSI (Documentation/accounting/psi.rst). It is no sign if MemAvailable is unknown.
func (s *memorySource) pressure(j *source.Judge, now time.Time) {
	text, err := s.proc.Text("pressure/memory")
	if err != nil {
		if !source.Missing(err) { // else compiled out, or off by psi=0
			j.Fail(err)
		}
		return
	}
	full, err := parsePressure(text)
	if err != nil {
		j.Fail(s.proc.Bad(err, "pressure/memory"))
		return
	}
	available, known := s.meminfo["MemAvailable"]
	switch {
	case full <= s.cfg.SickPressure:
		j.Say(fault.Normal, full, "%", "memory pressure %.1f %%", full)
	case s.short(now):
		j.Within(recently, fault.Sick, full, "%", "all tasks waited for memory %.1f %% of the time: more than %.1f %%; %d MB available", full,
			s.cfg.SickPressure, available>>10)
	case known:
		j.Say(fault.Normal, full, "%", "memory pressure %.1f %% without a shortage of the machine seen: %d MB available", full, available>>10)
	default:
		j.Note("memory pressure %.1f %%, not judged without MemAvailable", full)
	}
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
