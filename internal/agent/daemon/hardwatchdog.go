package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// This file feeds the machine's hardware watchdog (Linux' watchdog API) while recovery.Fence allows it. Opening the device
// arms it. Closing it after the character V disarms it, unless the driver was loaded with nowayout.

// openRetry is the time between two attempts to open a device that another process holds.
const openRetry = 30 * time.Second

// feedHardware feeds the configured device until ctx ends, and then disarms it. The daemon leaves the device armed only if it
// dies or hangs.
func (d *daemon) feedHardware(ctx context.Context) {
	w := &hardware{cfg: d.cfg.Agent.HardwareWatchdog, log: d.log, registers: d.statePath(half.RegisterFile)}
	w.fence.ContactWithin = w.cfg.ContactWithin.D()
	t := time.NewTicker(w.cfg.Timeout.D() / 4)
	defer t.Stop()
	defer w.disarm()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			w.look(now)
		}
	}
}

// hardware is the machine's watchdog device. One goroutine owns it.
type hardware struct {
	cfg       config.HardwareWatchdogConfig
	log       *slog.Logger
	registers string // path of the register file
	fence     recovery.Fence
	device    *os.File       // nil while disarmed
	page      *regfile.File  // nil while there is none
	retryAt   time.Time      // when to try to open the device again
	failed    half.Condition // the device cannot be opened
	unfed     half.Condition // the device refuses to be fed
	starving  half.Condition
}

// look reads the registers, and feeds the device if the fence allows it.
func (w *hardware) look(now time.Time) {
	feed, why := w.fence.Look(now, w.read())
	if why != "" {
		w.starving.Set(w.log, "feed hardware watchdog", fmt.Errorf("%s: not feeding it; the machine resets within %s unless this clears", why,
			w.cfg.Timeout.D()))
		return
	}
	w.starving.Set(w.log, "feed hardware watchdog", nil)
	if !feed {
		return
	}
	if w.device == nil {
		if now.Before(w.retryAt) {
			w.fence.Disarmed()
			return
		}
		err := w.open()
		w.failed.Set(w.log, "open hardware watchdog", err)
		if err != nil {
			w.retryAt = now.Add(openRetry)
			w.fence.Disarmed()
			return
		}
	}
	w.unfed.Set(w.log, "keep hardware watchdog alive", unix.IoctlWatchdogKeepalive(int(w.device.Fd())))
}

// read reads the halves' progress and contacts from the register file. A word that cannot be read counts as neither.
func (w *hardware) read() (l recovery.FenceLook) {
	if w.page == nil {
		f, err := regfile.OpenReadOnly(w.registers)
		if err != nil {
			return l
		}
		w.page = f
	}
	if w.page.Check() != nil {
		_ = w.page.Close()
		w.page = nil
		return l
	}
	for i, h := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		n, err := w.page.Progress(h)
		l.Stores[i], l.Readable[i] = n, err == nil
	}
	host, _, err := w.page.LoadHost()
	l.Contact = err == nil && host.ServiceNetwork != watchdog.HealthBroken
	for _, dir := range grid.Directions() {
		v, err := w.page.LoadLinkDetail(dir)
		if err != nil {
			continue
		}
		if det, err := torus.DecodeDetail(v); err == nil && (det.Rx == torus.LinkNormal || det.Rx == torus.LinkSick) {
			l.Contact = true
		}
	}
	return l
}

// open opens the device, which arms it, and sets its time-out.
func (w *hardware) open() error {
	if err := checkWayOut(w.cfg.Device); err != nil && !w.cfg.AllowNoWayOut {
		return fmt.Errorf("%w (hardwareWatchdog.allowNoWayOut accepts that)", err)
	}
	f, err := os.OpenFile(w.cfg.Device, os.O_WRONLY, 0)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: another program feeds it, such as systemd (RuntimeWatchdogSec) or watchdog(8)", err)
	}
	if err != nil {
		return err
	}
	seconds := int(w.cfg.Timeout.D() / time.Second)
	err = unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, seconds)
	got, gerr := unix.IoctlGetInt(int(f.Fd()), unix.WDIOC_GETTIMEOUT)
	switch {
	case gerr == nil && got < seconds:
		err = fmt.Errorf("%s: timeout is %ds: want at least %ds", w.cfg.Device, got, seconds)
	case gerr == nil && got > seconds:
		err = fmt.Errorf("set timeout of %s: the device offers %ds instead of %ds: set hardwareWatchdog.timeout to %ds",
			w.cfg.Device, got, seconds, got)
	case err != nil:
		err = fmt.Errorf("set timeout of %s to %ds: %w", w.cfg.Device, seconds, err)
	}
	if err != nil {
		_, _ = f.WriteString("V")
		return errors.Join(err, f.Close())
	}
	identity := ""
	if info, err := unix.IoctlGetWatchdogInfo(int(f.Fd())); err == nil {
		identity = unix.ByteSliceToString(info.Identity[:])
	}
	w.device = f
	w.log.Info("hardware watchdog armed", "device", w.cfg.Device, "identity", identity, "timeout", w.cfg.Timeout.D().String(),
		"stall", recovery.FenceStall.String(), "contact_within", w.cfg.ContactWithin.D().String())
	return nil
}

// disarm closes the device so that it does not reset the machine.
func (w *hardware) disarm() {
	if w.page != nil {
		_ = w.page.Close()
	}
	if w.device == nil {
		return
	}
	_, err := w.device.WriteString("V") // the magic character: this end is on purpose
	if err = errors.Join(err, w.device.Close()); err != nil {
		w.log.Error("disarm hardware watchdog: the machine may reset", "device", w.cfg.Device, "err", err)
		return
	}
	w.log.Info("hardware watchdog disarmed", "device", w.cfg.Device)
}

// checkWayOut returns an error unless the kernel says that the device can be disarmed.
func checkWayOut(device string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("stat %s: %w", device, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%s is not a character device", device)
	}
	name := fmt.Sprintf("/sys/dev/char/%d:%d/nowayout", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	b, err := os.ReadFile(filepath.Clean(name))
	switch {
	case err != nil:
		return fmt.Errorf("%s: the kernel does not say whether it can be disarmed; use /dev/watchdog0 instead of /dev/watchdog: %w", device,
			err)
	case strings.TrimSpace(string(b)) != "0":
		return fmt.Errorf("%s cannot be disarmed, its driver was loaded with nowayout", device)
	}
	return nil
}
