package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// A half reads its configuration file when it starts, so its daemon may have read an earlier version of the file. This file keeps the two
// consistent. The daemon reads the file again when it starts a half, and takes the checks, responses and links from it. The periods
// stay the same while a half or the daemon lives: the daemon passes its own to each half that it starts, and keeps those of a half that it
// adopts.

// readAgain reads the daemon's configuration file again, with the environment and flags of the daemon. It fails if that takes longer
// than within, as on a disk that hangs. There is one read at a time, so a disk that hangs holds one goroutine.
func (d *daemon) readAgain(within time.Duration) (config.Agent, error) {
	if d.cfg.Reread == nil {
		return d.cfg.Agent, nil
	}
	type read struct {
		cfg config.Agent
		err error
	}
	late := time.NewTimer(within)
	defer late.Stop()
	done := make(chan read, 1)
	select {
	case d.reading <- struct{}{}:
		go func() { // ends with the disk's answer
			cfg, err := d.cfg.Reread()
			<-d.reading
			done <- read{cfg, err}
		}()
	case <-late.C:
		return config.Agent{}, errors.New("read the configuration again: the disk has not answered an earlier read")
	}
	select {
	case r := <-done:
		return r.cfg, r.err
	case <-late.C:
		return config.Agent{}, fmt.Errorf("read the configuration again: the disk has not answered for %s", within)
	}
}

// rereadAtStart bounds reading the configuration again before a half starts. A disk that hangs must not delay a recovery for longer.
const rereadAtStart = time.Second

// reread takes the daemon's part of the configuration that the half is about to read. If it cannot be read now, the configuration that a
// person's restart has just checked counts.
func (c *child) reread() {
	next, err := c.d.readAgain(rereadAtStart)
	if checked := c.checked.Swap(nil); err != nil && checked != nil {
		next, err = *checked, nil
	}
	if err != nil {
		c.log.Warn("configuration not read again: the daemon keeps its checks, responses and links", "err", err)
		return
	}
	c.d.take(c.half, next)
	if c.links != nil {
		c.links.take(next)
	}
}

// take takes the responses from a configuration, and for the host half the checks.
func (d *daemon) take(h fault.Half, next config.Agent) {
	d.taking.Lock()
	defer d.taking.Unlock()
	was := d.present()
	now := was
	now.Responses = next.Responses
	if h == fault.HalfHost {
		now.Sensors.Peripherals = next.Sensors.Peripherals
	}
	d.reread.Store(&now)
	if d.runner != nil {
		d.runner.Allow(h, now.Responses)
	}
	if reflect.DeepEqual(now.Sensors.Peripherals, was.Sensors.Peripherals) {
		return
	}
	select {
	case d.rechecked <- struct{}{}:
	default: // the loop has not taken the last change
	}
}

// present returns the daemon's configuration with the checks and responses that count.
func (d *daemon) present() config.Agent {
	if cfg := d.reread.Load(); cfg != nil {
		return *cfg
	}
	return d.cfg.Agent
}

// setRunner sets the runner of acts that take tells of changed responses, or none.
func (d *daemon) setRunner(r *ActionRunner) {
	d.taking.Lock()
	defer d.taking.Unlock()
	d.runner = r
	if r != nil {
		now := d.present().Responses
		r.allowed.Store(&now)
	}
}

// replaceDaemon says how.
const replaceDaemon = "replace the daemon without its halves, 'systemctl kill --kill-whom=main -s KILL lofamo-agent'"

// refusal returns the reason why no half may restart with a configuration while this daemon runs. nil: a half may.
func (d *daemon) refusal(next config.Agent) error {
	var changed []string
	if !samePeriods(next, d.cfg.Agent) {
		changed = append(changed, "preset or periods")
	}
	if !reflect.DeepEqual(next.Window, d.cfg.Agent.Window) {
		changed = append(changed, "window")
	}
	if len(changed) > 0 {
		return fmt.Errorf("the configuration has changed in %s: the daemon and both halves have to change together: restart the whole "+
			"agent, which announces its stop: 'systemctl restart lofamo-agent'", strings.Join(changed, " and "))
	}
	if !reflect.DeepEqual(next.Recovery, d.cfg.Agent.Recovery) {
		changed = append(changed, "recovery")
	}
	if !reflect.DeepEqual(next.HardwareWatchdog, d.cfg.Agent.HardwareWatchdog) {
		changed = append(changed, "hardwareWatchdog")
	}
	if len(changed) > 0 {
		return fmt.Errorf("the configuration has changed in %s: only a new daemon reads these: %s, and repeat the command",
			strings.Join(changed, " and "), replaceDaemon)
	}
	return nil
}

// samePeriods reports whether two configurations have the same preset and periods.
func samePeriods(a, b config.Agent) bool {
	of, err := a.Timing()
	other, otherErr := b.Timing()
	return a.Preset == b.Preset && of == other && err == nil && otherErr == nil
}

// keepPeriods sets the daemon's periods to those of a half that it is about to adopt. The daemon would end a half with slower periods as
// hung. Both halves judge each other by them too, so the periods last until both halves stop.
func (d *daemon) keepPeriods() {
	for _, h := range d.cfg.halves() {
		running, ok := d.runningPeriods(h)
		if !ok {
			continue
		}
		if periods, err := running.Timing(); err == nil && !samePeriods(running, d.cfg.Agent) {
			d.log.Warn("the running half has other periods than the configuration: the daemon keeps them until both halves stop: "+
				"restart the agent to change them", "half", h.String(), "preset", running.Preset)
			d.cfg.Agent, d.periods = running, periods
		}
		return
	}
}

// runningPeriods returns the daemon's configuration with the periods of a running half. It reports false if the half does not run here,
// or if a daemon of an earlier version started it.
func (d *daemon) runningPeriods(h fault.Half) (config.Agent, bool) {
	holder, held, err := regfile.HolderOf(d.statePath(half.RegisterFile), h)
	if old, lost := d.loadHistory(h); !held && lost == nil && old != nil { // it may not have taken its lock yet
		holder, held, err = regfile.Holder{PID: old.Record.PID, Start: old.Start, Space: old.Space}, old.Start != 0, nil
	}
	if !held || err != nil || holder.Elsewhere(regfile.PIDNamespace()) {
		return config.Agent{}, false
	}
	environ, err := environOf(holder.PID)
	if start, gone := regfile.StartTime(holder.PID); err != nil || gone != nil || start != holder.Start || !isHalf(holder.PID, h) {
		return config.Agent{}, false
	}
	return half.WithPeriods(d.cfg.Agent, environ)
}

// environOf returns the environment with which a process was started.
func environOf(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil, err
	}
	var environ []string
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		environ = append(environ, string(kv))
	}
	return environ, nil
}
