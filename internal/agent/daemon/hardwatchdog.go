package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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

// This file feeds the machine's hardware watchdog (Linux' watchdog API) as recovery.Feeder decides. Opening the device arms it.
// Closing it after the character V disarms it, unless the driver was loaded with nowayout.

// hardwareLook is the interval of looks, and of feeding. The shortest time-out is four times as long.
const hardwareLook = time.Second

// askWithin bounds the question to the host half whether the service network works.
const askWithin = hardwareLook / 2

// feedHardware feeds the configured device until ctx ends, and then disarms it. If others may rely on its reset, it feeds the device
// until the halves have stopped, and leaves it armed.
func (d *daemon) feedHardware(ctx context.Context, stopped <-chan struct{}) {
	if !d.awaitHostHalf(ctx) {
		return // an earlier daemon still feeds the device, or has left it as it must be
	}
	w, boot := d.newHardware()
	w.begin()
	if w.boot != "" {
		w.tell = func(armed bool) { d.stateWatchdog(armed, boot, w.feeder) }
	}
	w.tell(false)
	d.keepFeeding(ctx, w, stopped)
}

// newHardware returns the configured device, which is not open yet, and the boot; zero: not known.
func (d *daemon) newHardware() (*hardware, [16]byte) {
	w := &hardware{cfg: d.cfg.Agent.HardwareWatchdog, startWithin: d.cfg.Agent.Recovery.StartWithin.D(), log: d.log,
		stateDir: d.cfg.Agent.StateDir, tell: func(bool) {}, openDevice: openWatchdog, wayOut: checkWayOut, now: time.Now}
	boot, err := storage.BootID()
	if err == nil {
		w.boot = hex.EncodeToString(boot[:])
	}
	return w, boot
}

// keepFeeding is feedHardware for a device with a feeder.
func (d *daemon) keepFeeding(ctx context.Context, w *hardware, stopped <-chan struct{}) {
	t := time.NewTicker(hardwareLook)
	defer t.Stop()
	ending := ctx.Done()
	for {
		w.look(context.WithoutCancel(ctx)) // also after its end: see below
		select {
		case <-ending:
			if w.feeder.Disarm(d.announced.Load()) {
				w.end(true)
				return
			}
			ending = nil // feed it until the halves have stopped, so that the next daemon has the whole time-out to open it
		case <-stopped:
			w.end(d.announced.Load())
			return
		case <-t.C:
		}
	}
}

// disarmUnplaced disarms a device that an earlier daemon of this boot left armed, if the supervisors have withdrawn the node's place: no
// half runs at such a node, so nothing feeds the device. With the place, the supervisors dropped the node's statement about it.
func (d *daemon) disarmUnplaced() {
	if d.cfg.Agent.HardwareWatchdog.Device == "" || d.cfg.Half == fault.HalfDNP {
		return
	}
	if word, lost := storage.PeerOrders().Load(d.cfg.Agent.StateDir); lost != nil || !d.withdrawn(word) {
		return
	}
	w, _ := d.newHardware()
	if w.left() == nil {
		return
	}
	f, err := w.openDevice(w.cfg.Device)
	if err != nil {
		w.log.Error("disarm hardware watchdog of a node without a place: the machine may reset", "device", w.cfg.Device, "err", err)
		return
	}
	w.device = f
	w.disarm()
}

// begin makes the feeder, which goes on from the records of an earlier daemon of this boot.
func (w *hardware) begin() {
	now := w.now() // before the records, so that the last contact does not seem later than it was
	left := w.left()
	w.feeder = recovery.NewFeeder(now, w.cfg.Timeout.D(), w.cfg.ContactWithin.D(), left)
	w.feeder.AllowStart(w.startWithin)
	w.contacts, w.settings = durable.NewNewest(w.writeContact), durable.NewNewest(w.writeArmed)
	w.settled.Store(left != nil && left.Timeout == w.feeder.Timeout() && left.ContactWithin == w.feeder.ContactWithin())
	if timeout, contact := w.feeder.Timeout(), w.feeder.ContactWithin(); timeout != w.cfg.Timeout.D() || contact != w.cfg.ContactWithin.D() {
		w.log.Warn("hardware watchdog keeps settings of the earlier daemon, because supervisors may rely on them: the present ones apply "+
			"after a stop that the supervisors commit, or a boot", "timeout", timeout.String(), "contact_within", contact.String())
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
func (d *daemon) stateWatchdog(armed bool, boot [16]byte, f *recovery.Feeder) {
	d.watchdog.Store(&halfcore.HardwareWatchdog{Armed: armed, Timeout: f.Timeout(), ContactWithin: f.ContactWithin(),
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
	tell        func(armed bool) // makes the host half state it; does nothing if the boot is not known
	cfg         config.HardwareWatchdogConfig
	startWithin time.Duration // recovery.startWithin
	log         *slog.Logger
	stateDir    string
	boot        string // the boot's identity; empty: not known
	feeder      *recovery.Feeder
	device      watchdogDevice // nil while closed
	// unusable is a device whose set-up failed and that may stay armed when it is closed. So it stays open and is fed. No response
	// relies on it. nil: there is none.
	unusable watchdogDevice
	// openDevice opens, and so arms, the device of that path.
	openDevice func(path string) (watchdogDevice, error)
	wayOut     func(path string) error // nil: the device of that path can be disarmed
	now        func() time.Time
	page       *regfile.File  // nil while there is none
	failed     half.Condition // the device cannot be opened
	contacts   *durable.Newest[lastContact]
	recorded   atomic.Pointer[time.Time] // the contact that the disk has; nil: none
	unkept     half.Condition            // the last contact cannot be recorded; only contacts uses it
	settings   *durable.Newest[[]byte]   // records of armedFile, after the device is open
	settled    atomic.Bool               // the disk has the settings with which the device is armed
	unsettled  half.Condition            // they cannot be recorded; only settings uses it
	disarmed   atomic.Bool               // from before the record is removed: a write that ends later removes it again
	stated     bool                      // the host half knows that the device is armed
	unfed      half.Condition            // the device refuses to be fed
	starving   half.Condition
}

// look reads the registers, and opens or feeds the device if the feeder says so.
func (w *hardware) look(ctx context.Context) {
	began := w.now() // not the time of a tick: a daemon that did not run for a while finds an old one
	w.feed(began, w.read(ctx))
}

// feed opens or feeds the device if the feeder says so after that look.
func (w *hardware) feed(began time.Time, l recovery.FenceLook) {
	if w.unusable != nil {
		w.unfed.Set(w.log, "keep hardware watchdog alive", w.unusable.KeepAlive())
	}
	w.feeder.Take(began, l)
	w.keepContact()
	do, why := w.feeder.Next(w.now())
	switch do {
	case recovery.Starve:
		w.starving.Set(w.log, "feed hardware watchdog", fmt.Errorf("%s: not feeding it; the machine resets within %s unless this clears", why,
			w.feeder.Timeout()))
		return
	case recovery.Feed:
		w.unfed.Set(w.log, "keep hardware watchdog alive", w.device.KeepAlive())
		w.state()
	case recovery.Open:
		err := w.open()
		w.failed.Set(w.log, "open hardware watchdog", err)
		if w.feeder.Opened(w.now(), err == nil) {
			_ = os.Remove(w.path(armedFile))
		}
		if err == nil { // the device may have been left armed by an earlier daemon, and be about to reset the machine
			w.unfed.Set(w.log, "keep hardware watchdog alive", w.device.KeepAlive())
			w.state()
		}
	case recovery.Wait:
	}
	w.starving.Set(w.log, "feed hardware watchdog", nil)
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
	if w.feeder.ContactWithin() != 0 && !l.Links { // the register has no UNKNOWN for a network that has never answered
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
	noWayOut := w.wayOut(w.cfg.Device)
	if noWayOut != nil && !w.cfg.AllowNoWayOut {
		return fmt.Errorf("%w (hardwareWatchdog.allowNoWayOut accepts that)", noWayOut)
	}
	timeout, contact := w.feeder.Timeout(), w.feeder.ContactWithin()
	if !w.feeder.Resumed() { // otherwise there is a record, and the device may be about to reset the machine: see state
		if err := w.recordArmed(); err != nil { // before the device is armed
			return fmt.Errorf("record that it is armed: %w", err)
		}
	}
	f := w.unusable
	if f == nil {
		var err error
		f, err = w.openDevice(w.cfg.Device)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w: another program feeds it, such as systemd (RuntimeWatchdogSec) or watchdog(8)", err)
		}
		if err != nil {
			return err
		}
	}
	if err := w.setUp(f, timeout, contact); err != nil {
		switch {
		case w.feeder.Resumed(): // supervisors may rely on its reset
			return errors.Join(err, f.Close())
		case noWayOut != nil:
			w.unusable = f // a device that stays armed and is not fed resets the machine, at every boot again
			return fmt.Errorf("%w; feeding it nevertheless, because it may stay armed when it is closed", err)
		}
		return errors.Join(err, f.Disarm())
	}
	w.device, w.unusable = f, nil
	w.log.Info("hardware watchdog armed", "device", w.cfg.Device, "identity", f.Identity(), "timeout", timeout.String(),
		"stall", w.feeder.Stall().String(), "contact_within", contact.String())
	return nil
}

// setUp sets the time-out of an open device. An error: responses cannot rest on the device.
func (w *hardware) setUp(f watchdogDevice, timeout, contact time.Duration) error {
	seconds := int(timeout / time.Second)
	err := f.SetTimeout(seconds)
	got, gerr := f.Timeout()
	switch {
	case gerr == nil && got < seconds:
		return fmt.Errorf("%s: timeout is %ds: want at least %ds", w.cfg.Device, got, seconds)
	case gerr == nil && got > seconds:
		return fmt.Errorf("set timeout of %s: the device offers %ds instead of %ds: set hardwareWatchdog.timeout to %ds",
			w.cfg.Device, got, seconds, got)
	case err != nil:
		return fmt.Errorf("set timeout of %s to %ds: %w", w.cfg.Device, seconds, err)
	case contact != 0 && f.DisarmsOnClose():
		return fmt.Errorf("%s: its driver disarms it when its feeder dies: self-fencing (contactWithin) needs one that does not", w.cfg.Device)
	}
	return nil
}

// watchdogDevice is an open watchdog device of the kernel (Linux' watchdog API), which is armed.
type watchdogDevice interface {
	SetTimeout(seconds int) error
	Timeout() (seconds int, err error)
	KeepAlive() error
	Identity() string // of the driver; empty: not known
	// DisarmsOnClose reports whether the driver disarms the device when its feeder dies, or whether that is not known.
	DisarmsOnClose() bool
	Disarm() error // and close it
	Close() error  // and leave it armed
}

// kernelWatchdog is a watchdogDevice.
type kernelWatchdog struct{ *os.File }

func openWatchdog(path string) (watchdogDevice, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return kernelWatchdog{f}, nil
}

func (d kernelWatchdog) SetTimeout(seconds int) error {
	return unix.IoctlSetPointerInt(int(d.Fd()), unix.WDIOC_SETTIMEOUT, seconds)
}

func (d kernelWatchdog) Timeout() (int, error) {
	return unix.IoctlGetInt(int(d.Fd()), unix.WDIOC_GETTIMEOUT)
}

func (d kernelWatchdog) KeepAlive() error { return unix.IoctlWatchdogKeepalive(int(d.Fd())) }

func (d kernelWatchdog) Identity() string {
	info, err := unix.IoctlGetWatchdogInfo(int(d.Fd()))
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Identity[:])
}

func (d kernelWatchdog) DisarmsOnClose() bool {
	info, err := unix.IoctlGetWatchdogInfo(int(d.Fd()))
	return err != nil || info.Options&unix.WDIOF_MAGICCLOSE == 0
}

func (d kernelWatchdog) Disarm() error {
	_, err := d.WriteString("V") // the magic character: this end is on purpose
	return errors.Join(err, d.Close())
}

// bootTime returns the time since the machine booted.
func bootTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano()), err
}

// end ends the feeding.
func (w *hardware) end(announced bool) {
	w.settings.Flush(contactWait) // so that a record is rarely written after the device is disarmed, and removed again
	if !w.feeder.Disarm(announced) {
		w.log.Error("hardware watchdog stays armed, because no supervisor knows that this node stops: the machine resets unless the agent "+
			"starts again; to prevent that, write the character V to the device", "device", w.cfg.Device, "within", w.feeder.Timeout().String())
		w.release()
		return
	}
	w.tell(false)
	w.disarm()
}

// release closes the device and leaves it armed. This process may go on and open it again, at another place or in another state
// directory; the kernel lets only one opener at a time feed it. The records for that are written again if they were deleted with the
// state directory.
func (w *hardware) release() {
	d := w.takeDevice()
	if d == nil {
		return
	}
	if _, err := os.Stat(w.path(armedFile)); errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(half.MakeStateDir(w.stateDir), w.recordArmed())
		if w.contacts.Write(w.contactRecord(w.feeder.Contact()), contactWait); err != nil {
			w.log.Error("record that the hardware watchdog is armed: the machine may reset", "device", w.cfg.Device, "err", err)
		}
	}
	if err := d.Close(); err != nil {
		w.log.Error("close hardware watchdog", "device", w.cfg.Device, "err", err)
	}
}

// disarm closes the device so that it does not reset the machine, if its driver allows that.
func (w *hardware) disarm() {
	d := w.takeDevice()
	if d == nil {
		return
	}
	if err := d.Disarm(); err != nil {
		w.log.Error("disarm hardware watchdog: the machine may reset", "device", w.cfg.Device, "err", err)
		return
	}
	w.disarmed.Store(true)
	_ = os.Remove(w.path(armedFile))
	if err := w.wayOut(w.cfg.Device); err != nil {
		w.log.Warn("hardware watchdog may stay armed: the machine then resets unless the agent starts again", "device", w.cfg.Device, "err", err)
		return
	}
	w.log.Info("hardware watchdog disarmed", "device", w.cfg.Device)
}

// takeDevice ends the looks. It returns the open device, which the caller closes; nil: none is open.
func (w *hardware) takeDevice() watchdogDevice {
	if w.page != nil {
		_ = w.page.Close()
	}
	d := w.device
	if d == nil {
		d = w.unusable
	}
	w.device, w.unusable = nil, nil
	return d
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
