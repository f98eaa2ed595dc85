package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// This file feeds the machine's hardware watchdog (Linux' watchdog API) while recovery.Fence allows it. Opening the device
// arms it. Closing it after the character V disarms it, unless the driver was loaded with nowayout.

// armedFile in the state directory names the boot in which the daemon has armed the device, and not disarmed it.
const (
	armedFile = "hardware-watchdog.armed"
	maxArmed  = 64
)

// contactFile holds the boot and the time of the last contact, for a daemon that replaces one that died. It needs no fsync: it is for
// the same boot.
const (
	contactFile = "hardware-watchdog.contact"
	maxContact  = 64
)

// hardwareLook is the interval of looks, and of feeding. The shortest time-out is four times as long.
const hardwareLook = time.Second

// askWithin bounds the question to the host half whether the service network works.
const askWithin = hardwareLook / 2

// openRetry is the time between two attempts to open a device that another process holds.
const openRetry = 30 * time.Second

// feedHardware feeds the configured device until ctx ends, and then disarms it. The daemon leaves the device armed only if it
// dies or hangs.
func (d *daemon) feedHardware(ctx context.Context) {
	w := &hardware{cfg: d.cfg.Agent.HardwareWatchdog, log: d.log, stateDir: d.cfg.Agent.StateDir, tell: func(bool) {}}
	if !d.awaitHostHalf(ctx) {
		return // an earlier daemon still feeds the device, or has left it as it must be
	}
	w.fence.ContactWithin = w.cfg.ContactWithin.D()
	if boot, err := storage.BootID(); err == nil {
		w.boot = hex.EncodeToString(boot[:])
		w.tell = func(armed bool) { d.stateWatchdog(armed, boot) }
	}
	w.tell(false)
	if b, err := durable.Read(w.path(armedFile), maxArmed); err == nil && w.boot != "" && string(b) == w.boot {
		w.resumed = true
		w.fence.Resume(time.Now(), w.alone()) // the device may be armed, and has not been fed since the earlier daemon died
	}
	t := time.NewTicker(hardwareLook)
	defer t.Stop()
	for now := time.Now(); ; {
		w.look(ctx, now)
		select {
		case <-ctx.Done():
			w.end(d.announced.Load())
			return
		case now = <-t.C:
		}
	}
}

// awaitHostHalf waits until this daemon has taken the host half over. false: ctx has ended.
func (d *daemon) awaitHostHalf(ctx context.Context) bool {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for !d.halves[fault.HalfHost].hasBegun() {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
	}
	return true
}

// stateWatchdog makes the host half state the watchdog.
func (d *daemon) stateWatchdog(armed bool, boot [16]byte) {
	cfg := d.cfg.Agent.HardwareWatchdog
	d.watchdog.Store(&halfcore.HardwareWatchdog{Armed: armed, Timeout: cfg.Timeout.D(), ContactWithin: cfg.ContactWithin.D(),
		Boot: halfcore.BootPart(boot)})
	if c := d.halves[fault.HalfHost]; c != nil {
		c.mu.Lock()
		c.record = c.withMachine(c.record)
		c.mu.Unlock()
	}
	d.tell()
}

// hardware is the machine's watchdog device. One goroutine owns it.
type hardware struct {
	tell     func(armed bool) // makes the host half state it; does nothing if the boot is not known
	resumed  bool             // an earlier daemon of this boot may have left the device armed, and this one has not opened it yet
	cfg      config.HardwareWatchdogConfig
	log      *slog.Logger
	stateDir string
	boot     string // the boot's identity; empty: not known
	fence    recovery.Fence
	device   *os.File       // nil while disarmed
	page     *regfile.File  // nil while there is none
	retryAt  time.Time      // when to try to open the device again
	failed   half.Condition // the device cannot be opened
	kept     time.Time      // the last contact that is recorded
	unkept   half.Condition // it cannot be recorded
	unfed    half.Condition // the device refuses to be fed
	starving half.Condition
}

// look reads the registers, and feeds the device if the fence allows it.
func (w *hardware) look(ctx context.Context, now time.Time) {
	feed, why := w.fence.Look(now, w.read(ctx))
	w.keepContact(now)
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
		if err != nil && w.resumed {
			return // the device may count down: the next look tries again
		}
		if err != nil {
			_ = os.Remove(w.path(armedFile))
			w.retryAt = now.Add(openRetry)
			w.fence.Disarmed()
			return
		}
	}
	w.unfed.Set(w.log, "keep hardware watchdog alive", unix.IoctlWatchdogKeepalive(int(w.device.Fd())))
}

// read reads the halves' progress and contacts from the register file. A word that cannot be read counts as neither.
func (w *hardware) read(ctx context.Context) (l recovery.FenceLook) {
	if w.page == nil {
		f, err := regfile.OpenReadOnly(w.path(half.RegisterFile))
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
	for _, dir := range grid.Directions() {
		v, err := w.page.LoadLinkDetail(dir)
		if err != nil {
			continue
		}
		if det, err := torus.DecodeDetail(v); err == nil && (det.Rx == torus.LinkNormal || det.Rx == torus.LinkSick) &&
			det.Tx == torus.LinkNormal { // a neighbour that does not hear this node cannot vouch for it
			l.Links = true
		}
	}
	if w.cfg.ContactWithin != 0 && !l.Links { // the register has no UNKNOWN for a network that has never answered
		ctx, cancel := context.WithTimeout(ctx, askWithin)
		defer cancel()
		s, err := local.AskStatus(ctx, w.stateDir)
		if l.Service = err == nil && (s.ServiceNetwork == fault.Normal.String() || s.ServiceNetwork == fault.Sick.String()); l.Service &&
			s.SupervisorAnswers != nil { // nil: a half of an earlier version
			l.Service = *s.SupervisorAnswers
		}
	}
	return l
}

func (w *hardware) path(name string) string { return filepath.Join(w.stateDir, name) }

// open opens the device, which arms it, and sets its time-out.
func (w *hardware) open() error {
	if err := checkWayOut(w.cfg.Device); err != nil && !w.cfg.AllowNoWayOut {
		return fmt.Errorf("%w (hardwareWatchdog.allowNoWayOut accepts that)", err)
	}
	if !w.resumed { // otherwise the record is there
		if err := durable.Replace(w.path(armedFile), []byte(w.boot)); err != nil { // before the device is armed
			return fmt.Errorf("record that it is armed: %w", err)
		}
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
	w.device, w.resumed = f, false
	w.log.Info("hardware watchdog armed", "device", w.cfg.Device, "identity", identity, "timeout", w.cfg.Timeout.D().String(),
		"stall", recovery.FenceStall.String(), "contact_within", w.cfg.ContactWithin.D().String())
	w.tell(true)
	return nil
}

// bootTime returns the time since the machine booted.
func bootTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano()), err
}

// keepContact records the last contact for the next daemon, while the node fences itself.
func (w *hardware) keepContact(now time.Time) {
	at := w.fence.Contact()
	if w.device == nil || w.cfg.ContactWithin == 0 || !at.After(w.kept) {
		return
	}
	up, err := bootTime()
	if err == nil {
		err = os.WriteFile(w.path(contactFile), fmt.Appendf(nil, "%s %d", w.boot, up-now.Sub(at)), 0o600)
	}
	if w.unkept.Set(w.log, "record the last contact of a node that fences itself", err); err == nil {
		w.kept = at
	}
}

// alone returns the time since the last contact that an earlier daemon of this boot recorded. If it is not known, the node has been
// alone for as long as it may.
func (w *hardware) alone() time.Duration {
	if w.cfg.ContactWithin == 0 {
		return 0
	}
	b, err := durable.Read(w.path(contactFile), maxContact)
	up, terr := bootTime()
	boot, text, _ := strings.Cut(string(b), " ")
	at, perr := strconv.ParseInt(text, 10, 64)
	if err != nil || terr != nil || perr != nil || boot != w.boot || time.Duration(at) > up {
		return w.cfg.ContactWithin.D()
	}
	return up - time.Duration(at)
}

// end ends the feeding. announced: the supervisors have committed that the node stops, so they no longer rely on its fencing. Without
// that, a node that fences itself must not disarm the device: others may be waiting for its reset.
func (w *hardware) end(announced bool) {
	if w.device != nil && w.cfg.ContactWithin != 0 && !announced {
		w.log.Error("hardware watchdog stays armed, because no supervisor knows that this node stops: the machine resets unless the agent "+
			"starts again; to prevent that, write the character V to the device", "device", w.cfg.Device, "within", w.cfg.Timeout.D().String())
		return
	}
	w.tell(false)
	w.disarm()
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
	_ = os.Remove(w.path(armedFile))
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
