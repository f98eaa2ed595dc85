package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// frequency limits the frequency of all processors, or undoes this step's limit.
func (d *ActionRunner) frequency(o *actions.Order) actions.Result {
	percent, err := strconv.Atoi(o.Parameters["percent"])
	if low := d.allowed.Load().LowestPercent(); !o.Undo && (err != nil || percent < low || percent > 100) {
		return resultUnchanged("percent: given %q: the agent's configuration allows %d to 100", o.Parameters["percent"], low)
	}
	now, offline, theirs, wrote, err := d.settle(o.Owner())
	switch {
	case err != nil && wrote:
		return resultPartly("%v", err)
	case err != nil:
		return resultUnchanged("%v", err)
	}
	var writes []actions.Write
	var before, left []actions.Limit
	others, kept := 0, 0
	err = d.change(func(l *actions.Ledger) (_ bool, err error) {
		before = l.Limits
		if o.Undo {
			left, writes, others, kept = actions.Unlimit(l.Limits, now, offline, o.Owner())
			l.Limits = actions.Until(l.Limits, left, writes)
			return true, nil
		}
		l.Limits, writes, err = actions.Limits(l.Limits, now, l.Unlimited, o.Owner(), percent)
		return true, err
	})
	if err != nil {
		return resultUnchanged("%v", err)
	}
	made, failed := d.writeAll(writes, o.Undo)
	if failed != nil && len(made) == 0 {
		return d.takeBack(before, failed)
	}
	after := d.await(now, made)
	err = d.change(func(l *actions.Ledger) (bool, error) {
		for _, w := range made {
			if i := slices.IndexFunc(after, func(f actions.Frequency) bool { return f.Policy == w.Policy }); i >= 0 {
				l.Written(w.Policy, after[i].Limit, followed(now, after, w))
			}
		}
		if o.Undo {
			l.PutBack(left, made)
		}
		return true, nil
	})
	switch {
	case failed != nil:
		return resultPartly("%d of %d set: %v", len(made), len(writes), failed)
	case err != nil:
		return resultPartly("%v", err)
	case kept > 0:
		return resultPartly("%d put back, %d stay limited, because their processors are offline: undo again once they are online",
			len(made), kept)
	case o.Undo && others+theirs > 0:
		return resultDone("%d put back, %d left, which somebody else has set since", len(writes), others+theirs)
	case o.Undo:
		return resultDone("%d put back", len(writes))
	}
	for _, f := range after { // also of an earlier attempt's writes
		if want := f.Share(percent); f.Limit > want {
			return resultPartly("%s, though %d was requested: scaling_min_freq, or somebody else, holds it up", f, want)
		}
	}
	free := ""
	if len(offline) > 0 {
		free = fmt.Sprintf("; %d without an online processor are not limited", len(offline))
	}
	return resultDone("%d of %d limited to %d %%; the others were as low%s", len(writes), len(now), percent, free)
}

func resultPartly(format string, args ...any) actions.Result {
	return actions.Result{State: actions.Partly, Detail: fmt.Sprintf(format, args...)}
}

// takeBack restores the ledger's limits from before a limit that could not be written at all: an owner must not own a
// limit that does not exist.
func (d *ActionRunner) takeBack(before []actions.Limit, failed error) actions.Result {
	if err := d.change(func(l *actions.Ledger) (bool, error) { l.Limits = before; return true, nil }); err != nil {
		return resultPartly("%v; and the ledger says otherwise: %v", failed, err)
	}
	return resultUnchanged("%v", failed)
}

// settle finds the origin of the limits in doubt. It returns all policies as they are afterwards, those that are offline, and how many
// no longer belong to the owner. wrote says that something was written before the error.
func (d *ActionRunner) settle(owner string) (now []actions.Frequency, offline []string, theirs int, wrote bool, err error) {
	if now, offline, err = d.frequencies(); err != nil {
		return nil, nil, 0, false, err
	}
	var doubts []actions.Doubt
	err = d.change(func(l *actions.Ledger) (bool, error) {
		seen := l.Seen(now)
		doubts = l.Doubt(now)
		return seen || len(doubts) > 0, nil
	})
	if err != nil || len(doubts) == 0 {
		return now, offline, 0, false, err
	}
	ours := make([]actions.Write, 0, len(doubts))
	for _, w := range doubts {
		ours = append(ours, w.Write)
	}
	if made, err := d.writeAll(ours, false); err != nil {
		return nil, nil, 0, len(made) > 0, err
	}
	raised := d.await(now, ours)
	lower := actions.Raised(doubts, raised)
	if _, err := d.writeAll(lower, false); err != nil {
		return nil, nil, 0, true, err
	}
	now = d.await(raised, lower)
	d.hit(failpoint.ActNoted)
	err = d.change(func(l *actions.Ledger) (bool, error) { theirs = l.Settle(lower, owner); return true, nil })
	return now, offline, theirs, true, err
}

// writeAll makes writes, and returns those that it made. If one fails, it makes the others only with goOn.
func (d *ActionRunner) writeAll(writes []actions.Write, goOn bool) (made []actions.Write, failed error) {
	for _, w := range writes {
		d.hit(failpoint.ActNoted)
		if err := d.store(w); err == nil {
			made = append(made, w)
		} else if failed = errors.Join(failed, err); !goOn {
			break
		}
	}
	return made, failed
}

// The kernel accepts a request at once, and a work queue updates the value that reads return, commonly within a
// millisecond. awaitLooks bounds the wait for the update: where the kernel throttles, none comes. It counts looks, not
// time: on a machine that stood still, the work queue did too.
const (
	awaitLooks = 250
	awaitLook  = 2 * time.Millisecond
)

// await waits until reads reflect the writes, and returns the policies. before holds the policies from before the
// writes.
func (d *ActionRunner) await(before []actions.Frequency, writes []actions.Write) []actions.Frequency {
	t := time.NewTicker(awaitLook)
	defer t.Stop()
	for looks := 1; ; looks++ {
		now, _, err := d.frequencies()
		if err != nil {
			return before // as if nothing had followed
		}
		if looks == awaitLooks || d.stop.Err() != nil ||
			!slices.ContainsFunc(writes, func(w actions.Write) bool { return !followed(before, now, w) }) {
			return now
		}
		<-t.C
	}
}

// followed reports whether a policy reads as written, or has at least moved towards it.
func followed(before, now []actions.Frequency, w actions.Write) bool {
	is := func(list []actions.Frequency) uint64 {
		if i := slices.IndexFunc(list, func(f actions.Frequency) bool { return f.Policy == w.Policy }); i >= 0 {
			return list[i].Limit
		}
		return w.KHz
	}
	was, got := is(before), is(now)
	return got == w.KHz || w.KHz < was && got < was || w.KHz > was && got > was
}

func (d *ActionRunner) cpufreq() string {
	return filepath.Join(d.cfg.Sysfs, "devices/system/cpu/cpufreq")
}

// frequencies reads all cpufreq policies. offline are those without an online processor.
func (d *ActionRunner) frequencies() (now []actions.Frequency, offline []string, err error) {
	dirs, err := filepath.Glob(filepath.Join(d.cpufreq(), "policy*"))
	if err != nil || len(dirs) == 0 {
		return nil, nil, fmt.Errorf("there is no cpufreq policy below %s: the kernel or the machine has none", d.cpufreq())
	}
	cooling := d.cooling()
	now = make([]actions.Frequency, 0, len(dirs))
	for _, dir := range dirs {
		f, err := d.frequencyOf(filepath.Base(dir))
		switch {
		case d.isOffline(f.Policy, err):
			offline = append(offline, f.Policy)
			continue
		case err != nil:
			return nil, nil, err
		}
		f.Throttled = cooling + f.Throttled
		now = append(now, f)
	}
	return now, offline, nil
}

// isOffline reports whether a policy that was read, perhaps with an error, has no online processor. The kernel refuses its files then, or
// shows only outdated values beside an empty affected_cpus.
func (d *ActionRunner) isOffline(policy string, err error) bool {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENODEV) {
		return true
	}
	b, err := os.ReadFile(filepath.Join(d.cpufreq(), policy, "affected_cpus"))
	return err == nil && strings.TrimSpace(string(b)) == ""
}

// cooling describes the requests of the processors' cooling devices in the kernel, by their names; empty: they are at
// rest. Not all kernels have a file that says which policy belongs to which device, so each device counts for all
// policies.
func (d *ActionRunner) cooling() string {
	dirs, _ := filepath.Glob(filepath.Join(d.cfg.Sysfs, "class/thermal/cooling_device*"))
	var out strings.Builder
	for _, dir := range dirs {
		kind, err := os.ReadFile(filepath.Join(dir, "type"))
		if err != nil || !coolsByFrequency(strings.TrimSpace(string(kind))) {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "cur_state")); err == nil && strings.TrimSpace(string(b)) != "0" {
			out.WriteString(filepath.Base(dir) + "=" + strings.TrimSpace(string(b)) + " ")
		}
	}
	return out.String()
}

// coolsByFrequency reports whether a type of cooling device requests lower frequencies: ACPI's processors, and those of
// drivers/thermal/cpufreq_cooling.c, which older kernels name the second way.
func coolsByFrequency(kind string) bool {
	return kind == "Processor" || strings.HasPrefix(kind, "cpufreq-") || strings.HasPrefix(kind, "thermal-cpufreq-")
}

func (d *ActionRunner) frequencyOf(policy string) (actions.Frequency, error) {
	f := actions.Frequency{Policy: policy}
	for name, to := range map[string]*uint64{"cpuinfo_min_freq": &f.Min, "cpuinfo_max_freq": &f.Max, "scaling_max_freq": &f.Limit} {
		khz, err := readKHz(filepath.Join(d.cpufreq(), policy, name))
		if err != nil {
			return f, err
		}
		*to = khz
	}
	// The limit of the firmware (ACPI _PPC), where the driver shows it.
	if most, err := readKHz(filepath.Join(d.cpufreq(), policy, "bios_limit")); err == nil && most < f.Max && f.Limit >= most {
		f.Throttled = fmt.Sprintf("bios_limit=%d", most)
	}
	return f, nil
}

func readKHz(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("frequency: %w", err)
	}
	khz, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("frequency: %s: %w", path, err)
	}
	return khz, nil
}

// notice records the requested frequencies before the kernel throttles, so that they can be put back. Call it only
// while no act runs. If they cannot be read, it logs that.
func (d *ActionRunner) notice() error {
	now, _, err := d.frequencies()
	if err != nil {
		d.cfg.Log.Warn("cannot record the processors' frequencies: limits that are requested while the kernel throttles will fail", "err", err)
		return nil
	}
	return d.change(func(l *actions.Ledger) (bool, error) { return l.Seen(now), nil })
}

func (d *ActionRunner) write(w actions.Write) error {
	f, err := os.OpenFile(filepath.Join(d.cpufreq(), w.Policy, "scaling_max_freq"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("limit of frequency: %w", err)
	}
	_, err = f.WriteString(strconv.FormatUint(w.KHz, 10))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("limit of frequency: %w", err)
	}
	return nil
}
