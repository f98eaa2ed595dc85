package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

const (
	meterPeriod = 250 * time.Millisecond
	// peakWindow is long enough that the kernel's clock ticks do not decide: 10 ms a process.
	peakWindow = 2 * time.Second
	// afterStart is how long a start is checked for faults after all nodes are NORMAL.
	afterStart = 2 * time.Second
	// steadyAfter and steadyWindow define the steady cost.
	steadyAfter  = 20 * time.Second
	steadyWindow = 10 * time.Second
	// startWithin limits one `lofamoctl up`, besides the timeout of that command.
	startWithin = 5 * time.Minute
)

// Groups of processes that the meter counts.
const (
	groupSupervisors = iota
	groupAgents
	groups
)

// startRecord is the result of one start, and a line of the file that -record names.
type startRecord struct {
	Preset  string        `json:"preset,omitempty"`
	Seconds float64       `json:"seconds"`          // until all nodes were NORMAL, or until it failed
	Peak    float64       `json:"peak"`             // % of a core
	Steady  float64       `json:"steady,omitempty"` // % of a core; 0: not measured
	Faults  int           `json:"faults"`
	Breaker string        `json:"breaker,omitempty"`
	Failure string        `json:"failure,omitempty"` // empty: the start succeeded
	Live    []phaseRecord `json:"live,omitempty"`
}

func (o *options) startFlags(f *flag.FlagSet) {
	f.IntVar(&o.starts, "starts", 0, "instead: start a cluster this many times by `lofamoctl up`, and print its duration, its cost, "+
		"committed faults and the breaker; 0 to 1000")
	f.IntVar(&o.steady, "steady", 3, "number of starts, from the first, whose steady cost is measured too")
	f.IntVar(&o.live, "live", 1, "number of starts, from the first, after which all supervisors and all agents are stopped and restarted")
	f.StringVar(&o.preset, "start-preset", "", "preset of the starts; empty: as `lofamoctl up` chooses")
	f.StringVar(&o.record, "record", "", "file for the result of every start, from which an interrupted series continues; empty: none")
}

func (o *options) checkStarts() error {
	if o.starts < 0 || o.starts > 1000 || o.steady < 0 || o.live < 0 {
		return fmt.Errorf("-starts %d: want 0 to 1000; -steady %d and -live %d: want 0 or more", o.starts, o.steady, o.live)
	}
	if o.preset != "" {
		if _, err := config.Preset(o.preset); err != nil {
			return fmt.Errorf("start-%w", err)
		}
	}
	return nil
}

// health holds the faults that the supervisors committed since a revision, and the state of the breaker.
type health struct {
	faults   int
	first    string // in words
	breaker  string
	revision uint64
}

// starter starts clusters one after the other.
type starter struct {
	o         options
	bin       string
	lofamoctl string
}

// starts measures `lofamoctl up`, as often as the options say. Starts in the record file count, so that an interrupted
// series continues.
func starts(ctx context.Context, o options) error {
	bin, err := cluster.FindBinaries("")
	if err != nil {
		return err
	}
	all, err := readStarts(o.record)
	if err != nil {
		return err
	}
	s := &starter{o: o, bin: bin, lofamoctl: filepath.Join(bin, "lofamoctl")}
	for i := len(all); i < o.starts; i++ {
		r, err := s.start(ctx, i)
		if ctx.Err() != nil {
			break // an interrupted start is no sample
		}
		if err != nil {
			return fmt.Errorf("start %d: %w", i+1, err)
		}
		all = append(all, r)
		if err := addStart(o.record, r); err != nil {
			return err
		}
		o.progress.f("start %d of %d: %s\n", i+1, o.starts, r)
	}
	printStarts(o, all)
	if bad := failures(all); len(bad) > 0 {
		return fmt.Errorf("%d of %d starts failed", len(bad), len(all))
	}
	return context.Cause(ctx)
}

func readStarts(path string) (all []startRecord, err error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record of starts: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r startRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("record of starts %s, line %d: %w", path, len(all)+1, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

func addStart(path string, r startRecord) error {
	if path == "" {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("record of starts: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// start makes, measures and removes one cluster. The logs of a failed one stay.
func (s *starter) start(ctx context.Context, i int) (r startRecord, err error) {
	dir, err := os.MkdirTemp("", "lofamo-start-")
	if err != nil {
		return r, err
	}
	dir = filepath.Join(dir, "c")
	defer func() {
		if r.Failure != "" && ctx.Err() == nil {
			s.o.progress.f("logs of the failed start: %s\n", dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(filepath.Dir(dir)))
	}()
	defer func() { err = errors.Join(err, s.down(dir)) }()
	m := s.meter(dir)
	defer m.Close()
	var more []string
	live := i < s.o.live
	if live {
		more = []string{"--restart", "always"} // by default the daemon never restarts its halves, not even on request
	}
	begun := time.Now()
	why := s.up(ctx, dir, more...)
	up := time.Now()
	r.Seconds = up.Sub(begun).Seconds()
	c, err := cluster.Load(dir)
	if why != nil || err != nil {
		r.Failure = cmp.Or(why, err).Error()
		r.Peak = percent(m.Peak(begun, up, peakWindow, groupSupervisors, groupAgents))
		return r, nil
	}
	r.Preset = c.Info().Preset
	pause(ctx, afterStart)
	r.Peak = percent(m.Peak(begun, time.Now(), peakWindow, groupSupervisors, groupAgents))
	if live || i < s.o.steady {
		r.Steady = s.steadyCost(ctx, m, up)
	}
	h, err := healthSince(ctx, c, 0)
	r.Faults, r.Breaker = h.faults, h.breaker
	r.Failure = h.failure(err)
	if live && r.Failure == "" {
		r.Live = s.phases(ctx, c, m)
	}
	return r, nil
}

// steadyCost is the mean cost of steadyWindow, which begins steadyAfter after the start, in % of a core.
func (s *starter) steadyCost(ctx context.Context, m *measure.Meter, up time.Time) float64 {
	pause(ctx, time.Until(up.Add(steadyAfter)))
	from := time.Now()
	pause(ctx, steadyWindow)
	return percent(m.Mean(from, time.Now(), groupSupervisors, groupAgents))
}

// up runs `lofamoctl up`. Its error quotes the one that the command printed.
func (s *starter) up(ctx context.Context, dir string, more ...string) error {
	args := []string{"up", "--detach", "--dims", s.o.dims.String(), "--dir", dir}
	if s.o.preset != "" {
		args = append(args, "--preset", s.o.preset)
	}
	return s.run(ctx, append(args, more...)...)
}

func (s *starter) down(dir string) error {
	return s.run(context.Background(), "down", "--dir", dir)
}

func (s *starter) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.lofamoctl, args...)
	cmd.Env = append(os.Environ(), cluster.EnvBinDir+"="+s.bin)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it then stops its children
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	_, said, found := strings.Cut("\n"+string(out), "\nlofamoctl: ")
	if !found {
		said = string(out)
	}
	said, _, _ = strings.Cut(said, "\n")
	return fmt.Errorf("lofamoctl %s: %w: %.300s", args[0], err, said)
}

// meter samples the processes of the cluster in dir, which need not exist yet.
func (s *starter) meter(dir string) *measure.Meter {
	var c *cluster.Cluster
	return measure.NewMeter(meterPeriod, groups, func() (out []measure.Metered) {
		if c == nil {
			if c, _ = cluster.Load(dir); c == nil {
				return nil
			}
		}
		for _, p := range c.Processes() {
			group := groupSupervisors
			if p.Agent {
				group = groupAgents
			}
			out = append(out, measure.Metered{PID: p.PID, Started: p.Started, Group: group})
		}
		return out
	})
}

// healthSince asks the supervisors for the faults committed after a revision, and for the circuit breaker.
func healthSince(ctx context.Context, c *cluster.Cluster, revision uint64) (h health, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cl, err := c.Client()
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	if err := h.events(ctx, cl, revision); err != nil {
		return h, err
	}
	b, err := cl.GetBreaker(ctx)
	if err != nil {
		return h, fmt.Errorf("ask for the breaker: %w", err)
	}
	switch {
	case b.GetOpen():
		h.breaker = "open: " + b.GetDetail()
	case b.GetAt() != nil:
		h.breaker = "was open: " + b.GetDetail()
	default:
		h.breaker = "closed"
	}
	return h, nil
}

func (h *health) events(ctx context.Context, cl *client.Client, after uint64) error {
	r, err := cl.AllEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: after})
	if err != nil {
		return fmt.Errorf("ask for the events: %w", err)
	}
	h.revision = r.GetRevision()
	for _, e := range r.GetEvents() {
		if to := e.GetTo(); to != lofamov1.State_SICK && to != lofamov1.State_FAILED || e.GetRevision() <= after {
			continue
		}
		if h.faults == 0 {
			h.first = fmt.Sprintf("%s %s %s→%s (%s)", e.GetNode(), e.GetComponent(), e.GetFrom(), e.GetTo(), e.GetReason())
		}
		h.faults++
	}
	return nil
}

// failure describes the faults or the breaker that a start or a restart must not leave; empty: none.
func (h *health) failure(err error) string {
	switch {
	case err != nil:
		return err.Error()
	case h.faults > 0:
		return fmt.Sprintf("%d changes to SICK or FAILED, first %s", h.faults, h.first)
	case h.breaker != "closed":
		return "breaker " + h.breaker
	}
	return ""
}

func (r startRecord) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%.1f s, preset %s, peak %.0f %%", r.Seconds, cmp.Or(r.Preset, "?"), r.Peak)
	if r.Steady > 0 {
		fmt.Fprintf(&out, ", steady %.0f %%", r.Steady)
	}
	fmt.Fprintf(&out, ", %d faults, breaker %s", r.Faults, cmp.Or(r.Breaker, "?"))
	if r.Failure != "" {
		out.WriteString(", FAILED: " + r.Failure)
	}
	for _, p := range r.Live {
		out.WriteString("\n  " + p.String())
	}
	return out.String()
}

// failures lists the numbers, from 1, of failed starts and their causes.
func failures(all []startRecord) (out []string) {
	for i, r := range all {
		if r.Failure != "" {
			out = append(out, fmt.Sprintf("start %d after %.1f s: %s", i+1, r.Seconds, r.Failure))
		}
		for _, p := range r.Live {
			if p.Failure != "" {
				out = append(out, fmt.Sprintf("start %d, %s: %s", i+1, p.Phase, p.Failure))
			}
		}
	}
	return out
}

// printStarts prints the tables. A failed start took infinitely long.
func printStarts(o options, all []startRecord) {
	var took, peaks, steady []float64
	faults := 0
	presets := map[string]bool{}
	for _, r := range all {
		peaks = append(peaks, r.Peak)
		faults += r.Faults
		if r.Failure != "" {
			took = append(took, math.Inf(1))
		} else {
			took = append(took, r.Seconds)
			presets[r.Preset] = true
		}
		if r.Steady > 0 {
			steady = append(steady, r.Steady)
		}
	}
	bad := failures(all)
	o.out.f("\n%d of %d starts of %s by `lofamoctl up`, preset %s. Failures: %d.\n\n", len(all), o.starts, o.dims, list(presets), len(bad))
	o.out.f("| | n | median | p99 | most |\n|---|---|---|---|---|\n")
	row := func(what string, v []float64, format string) {
		if len(v) == 0 {
			o.out.f("| %s | 0 | - | - | - |\n", what)
			return
		}
		o.out.f("| %s | %d | "+format+" | "+format+" | "+format+" |\n", what, len(v), measure.Quantile(v, 0.5), measure.Quantile(v, 0.99),
			measure.Quantile(v, 1))
	}
	row("time until all nodes are NORMAL, s (+Inf: failed)", took, "%.1f")
	row(fmt.Sprintf("peak cost of the start (highest %s), %% of a core", peakWindow), peaks, "%.0f")
	row(fmt.Sprintf("steady cost (mean of %s, from %s after the start on), %% of a core", steadyWindow, steadyAfter), steady, "%.0f")
	if len(steady) > 0 {
		s := measure.Quantile(steady, 0.5)
		ratios := make([]float64, len(peaks))
		for i, p := range peaks {
			ratios[i] = p / s
		}
		row("peak cost, times the median steady cost", ratios, "%.2f")
	}
	o.out.f("\nChanges to SICK or FAILED in all starts: %d. The cost is that of supervisors and agents, without `lofamoctl` and check "+
		"scripts.\n", faults)
	printPhases(o, all)
	if len(bad) > 0 {
		o.out.f("\nFailures:\n\n")
		for _, b := range bad {
			o.out.f("* %s\n", b)
		}
	}
}
