package doer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/sensor/script"

	"github.com/lofamo/lofamo/internal/agent/acts"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
)

func unchanged(format string, args ...any) acts.Result {
	return acts.Result{State: acts.Unchanged, Detail: fmt.Sprintf(format, args...)}
}

func done(format string, args ...any) acts.Result {
	return acts.Result{State: acts.Done, Detail: fmt.Sprintf(format, args...)}
}

// restart has a half restarted.
func (d *Doer) restart(ctx context.Context, o *acts.Order) acts.Result {
	half, err := fault.ParseHalf(o.Parameters["half"])
	if err != nil {
		return unchanged("half: given %q: want host or dnp", o.Parameters["half"])
	}
	if d.cfg.Restart == nil || o.Undo {
		return unchanged("a restart of the %s half cannot be made, or undone, here", half)
	}
	note := ""
	if o.Recheck {
		before, err := d.earlier(o)
		if err != nil {
			return unchanged("%v", err)
		}
		if i := slices.IndexFunc(before, func(e acts.Entry) bool { return e.Note != "" }); i >= 0 {
			note = before[i].Note
		}
	}
	return d.cfg.Restart(ctx, half, note, d.note(o.Attempt))
}

// check runs a program of the configuration's list. Exit code 0 is that all is well, or is now; 1 that it is not; 2 that it is not, and that the program
// has changed something. Whatever else is not known, nor how a program ends that has not within its time.
func (d *Doer) check(ctx context.Context, o *acts.Order) acts.Result {
	i := slices.IndexFunc(d.cfg.Allowed.Checks, func(c config.ResponseCheck) bool { return c.Name == o.Parameters["script"] })
	if i < 0 {
		return unchanged("script: given %q: the agent's configuration has none of that name", o.Parameters["script"])
	}
	c := d.cfg.Allowed.Checks[i]
	if o.Undo {
		return unchanged("what a check has done cannot be undone")
	}
	if o.Recheck {
		before, err := d.earlier(o)
		if err != nil {
			return unchanged("%v", err)
		}
		if len(before) > 0 && before[0].State == acts.Done {
			return done("%s", before[0].Detail)
		}
	}
	limit := min(c.Limit(), o.Timeout())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(limit, cancel)
	defer timer.Stop()
	r, err := script.New(script.Config{
		Component: fault.ComponentHost, Command: c.Command, Timeout: 2 * limit, Env: append(slices.Clone(d.cfg.Env),
			"LOFAMO_NODE="+string(d.cfg.Node), "LOFAMO_TARGET="+o.Target, "LOFAMO_RESPONSE="+o.Response, "LOFAMO_ATTEMPT="+strconv.Itoa(o.Attempt.Attempt)),
	}).Read(ctx)
	return judge(c, r, err, ctx.Err() != nil)
}

// judge says what a program's end means.
func judge(c config.ResponseCheck, r sensor.Reading, err error, late bool) acts.Result {
	var exit *exec.ExitError
	switch {
	case err == nil && r.State == fault.Normal:
		return done("%s: %s", c.Name, r.Detail)
	case err == nil && r.State == fault.Sick:
		return unchanged("%s says no: %s", c.Name, r.Detail)
	case err == nil && r.State == fault.Failed:
		return acts.Result{State: acts.Partly, Detail: fmt.Sprintf("%s says no, and has changed something: %s", c.Name, r.Detail)}
	case late:
		return acts.Result{State: acts.NotKnown, Detail: fmt.Sprintf("%s has not ended in time, and was killed", c.Name)}
	case errors.As(err, &exit):
		return acts.Result{State: acts.NotKnown, Detail: fmt.Sprintf("%s: %v: want exit code 0, 1 or 2: %s", c.Name, exit, r.Detail)}
	}
	return unchanged("%s cannot be run: %v", c.Name, err)
}

// frequency limits the frequency of all processors, or puts back what this step has set.
func (d *Doer) frequency(o *acts.Order) acts.Result {
	percent, err := strconv.Atoi(o.Parameters["percent"])
	if low := d.cfg.Allowed.LowestPercent(); !o.Undo && (err != nil || percent < low || percent > 100) {
		return unchanged("percent: given %q: the agent's configuration allows %d to 100", o.Parameters["percent"], low)
	}
	now, err := d.frequencies()
	if err != nil {
		return unchanged("%v", err)
	}
	var writes []acts.Write
	var left []acts.Limit
	others := 0
	err = d.change(func(l *acts.Ledger) (bool, error) {
		if o.Undo {
			left, writes, others = acts.Unlimit(l.Limits, now, o.Owner())
			l.Limits = acts.Until(l.Limits, left, writes)
		} else {
			l.Limits, writes = acts.Limits(l.Limits, now, o.Owner(), percent)
		}
		return true, nil
	})
	if err != nil {
		return unchanged("%v", err)
	}
	for i, w := range writes {
		d.hit(failpoint.ActNoted)
		if err := d.write(w); err != nil {
			if i == 0 {
				return unchanged("%v", err)
			}
			return acts.Result{State: acts.Partly, Detail: fmt.Sprintf("%d of %d set, then: %v", i, len(writes), err)}
		}
	}
	if err := d.written(o, left, writes); err != nil {
		return acts.Result{State: acts.Partly, Detail: err.Error()}
	}
	switch {
	case o.Undo && others > 0:
		return done("%d put back, %d left, which somebody else has set since", len(writes), others)
	case o.Undo:
		return done("%d put back", len(writes))
	}
	return done("%d of %d limited to %d %%; the others were as low", len(writes), len(now), percent)
}

// written keeps what is there after the writes.
func (d *Doer) written(o *acts.Order, left []acts.Limit, writes []acts.Write) error {
	return d.change(func(l *acts.Ledger) (bool, error) {
		if o.Undo {
			l.Limits = left
		}
		for _, w := range writes {
			if f, err := d.frequencyOf(w.Policy); err == nil {
				l.Written(w.Policy, f.Limit)
			}
		}
		return true, nil
	})
}

func (d *Doer) cpufreq() string { return filepath.Join(d.cfg.Sysfs, "devices/system/cpu/cpufreq") }

// frequencies reads all cpufreq policies.
func (d *Doer) frequencies() ([]acts.Frequency, error) {
	dirs, err := filepath.Glob(filepath.Join(d.cpufreq(), "policy*"))
	if err != nil || len(dirs) == 0 {
		return nil, fmt.Errorf("there is no cpufreq policy below %s: the kernel or the machine has none", d.cpufreq())
	}
	out := make([]acts.Frequency, 0, len(dirs))
	for _, dir := range dirs {
		f, err := d.frequencyOf(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func (d *Doer) frequencyOf(policy string) (acts.Frequency, error) {
	f := acts.Frequency{Policy: policy}
	for name, to := range map[string]*uint64{"cpuinfo_min_freq": &f.Min, "cpuinfo_max_freq": &f.Max, "scaling_max_freq": &f.Limit} {
		b, err := os.ReadFile(filepath.Join(d.cpufreq(), policy, name))
		if err != nil {
			return f, fmt.Errorf("frequency: %w", err)
		}
		if *to, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63); err != nil {
			return f, fmt.Errorf("frequency of %s: %s: %w", policy, name, err)
		}
	}
	return f, nil
}

func (d *Doer) write(w acts.Write) error {
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
